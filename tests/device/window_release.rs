//! Blocks that left the windows are given back, filled with NaN and used by others, and no output tells.

use crate::common::engine::{Request, TestEngine, config, narrow, windowed, words};
use crate::common::{bits, gpu};
use wgpu_paged_attention::blocks::{ManagerOptions, RELEASED, SeqId};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ClearValue, DeviceProfile};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::host::snapshot::Snapshot;

/// Fills all that was given back with NaN.
fn poison(engine: &mut TestEngine) {
    let mut clears = Vec::new();
    engine.manager.take_clears(&mut clears);
    engine.clear(&clears, ClearValue::Poison);
}

/// Two engines of the same stories: one keeps every block, and one gives back what left the window.
struct Pair {
    engines: [TestEngine; 2],
    seqs: Vec<[SeqId; 2]>,
}

impl Pair {
    fn step(&mut self, requests: &[(usize, &[u32])]) {
        let mut seen = Vec::new();
        for (side, engine) in self.engines.iter_mut().enumerate() {
            let requests: Vec<Request<'_>> =
                requests.iter().map(|&(at, tokens)| (self.seqs[at][side], tokens)).collect();
            seen.push(bits(&engine.step(&requests)));
            poison(engine);
            engine.manager.check_invariants().unwrap();
        }
        assert!(seen[0].iter().all(|&bits| f32::from_bits(bits).is_finite()));
        assert_eq!(seen[0], seen[1], "{requests:?}");
    }

    fn start(&mut self) -> usize {
        let seqs = self.engines.each_mut().map(TestEngine::seq);
        self.seqs.push(seqs);
        self.seqs.len() - 1
    }

    fn fork(&mut self, at: usize) -> usize {
        let [a, b] = &mut self.engines;
        let forks = [a.fork(self.seqs[at][0]), b.fork(self.seqs[at][1])];
        self.seqs.push(forks);
        self.seqs.len() - 1
    }

    /// Out to a snapshot, and back from it.
    fn swap(&mut self, at: usize) {
        for (engine, seq) in self.engines.iter_mut().zip(&mut self.seqs[at]) {
            let record = engine.manager.export_sequence(*seq).unwrap();
            let mut encoder = engine.encoder();
            let out = engine.cache.swap_out(&mut encoder, &distinct_blocks([&record])).unwrap();
            engine.gpu.submit(encoder);
            let snapshot = Snapshot::new(&[record], &out.read().unwrap()).unwrap();
            engine.manager.release(*seq).unwrap();
            poison(engine);
            let (records, blocks) = snapshot.fit(engine.cache.layout()).unwrap();
            let mut encoder = engine.encoder();
            let back = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &blocks).unwrap();
            engine.gpu.submit(encoder);
            *seq = back[0];
        }
    }

    fn cut(&mut self, at: usize, len: u32) {
        for (engine, seq) in self.engines.iter_mut().zip(&mut self.seqs[at]) {
            engine.truncate(*seq, len);
        }
    }
}

#[test]
fn what_left_the_windows_reaches_no_output() {
    let Some(gpu) = gpu() else { return };
    for (window, profile) in [
        (1, narrow(&gpu)),
        (5, narrow(&gpu)),
        (17, narrow(&gpu)),
        (33, narrow(&gpu)),
        (17, DeviceProfile::of(&gpu.device)),
    ] {
        let config = config(KvDtype::F16, 40);
        let options = ManagerOptions::default().with_clear_freed(true);
        let releasing = options.clone().with_window_slack(2);
        let engines = [
            windowed(&gpu, &profile, &config, &options, window),
            windowed(&gpu, &profile, &config.clone().with_window(window.max(3)), &releasing, window),
        ];
        let mut pair = Pair { engines, seqs: Vec::new() };
        for engine in &mut pair.engines {
            engine.cache.set_clear_value(ClearValue::Poison);
        }
        let a = pair.start();
        pair.step(&[(a, &words(70))]);
        let table = pair.engines[1].manager.block_table(pair.seqs[a][1]).unwrap();
        assert_eq!(table[0], RELEASED, "window {window}");
        // The leading columns of its row were never sent to the device.
        let b = pair.fork(a);
        pair.step(&[(b, &[1]), (a, &[2])]);
        // What was given back goes to another sequence.
        let c = pair.start();
        pair.step(&[(c, &words(90)), (b, &words(20)), (a, &[3, 4])]);
        pair.cut(a, 72);
        pair.step(&[(a, &[5]), (c, &[6]), (b, &[7])]);
        // A row that is used again, from the start.
        pair.cut(b, 0);
        pair.step(&[(b, &words(40)), (a, &words(30))]);
        pair.step(&[(a, &[8]), (b, &[8]), (c, &[8])]);
        pair.swap(a);
        pair.step(&[(b, &[9]), (a, &[9])]);
    }
}

#[test]
fn a_block_that_was_given_back_too_early_is_noticed() {
    let Some(gpu) = gpu() else { return };
    let options = ManagerOptions::default().with_clear_freed(true);
    let config = config(KvDtype::F16, 40).with_window(16);
    let mut engine = windowed(&gpu, &narrow(&gpu), &config, &options, 16);
    let story = engine.seq_of(&words(70));
    poison(&mut engine);
    let table = engine.manager.block_table(story).unwrap();
    let oldest = *table.iter().find(|&&block| block != RELEASED).unwrap();
    engine.clear(&[oldest], ClearValue::Poison);
    assert!(engine.look(story, 1).iter().all(|&bits| f32::from_bits(bits).is_nan()));
}
