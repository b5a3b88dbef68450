//! Blocks that left the windows are given back, filled with NaN and used by others, and no output tells.

use crate::common::story::{Story, Teller, config, narrow, words};
use crate::common::{bits, gpu};
use wgpu_paged_attention::blocks::{ManagerOptions, RELEASED};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ClearValue, DeviceProfile};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::host::snapshot::Snapshot;

/// Fills all that was given back with NaN.
fn poison(teller: &mut Teller) {
    let mut scrubs = Vec::new();
    teller.manager.take_scrubs(&mut scrubs);
    teller.fill(&scrubs, ClearValue::Poison);
}

/// Two tellers of the same stories: one keeps every block, and one gives back what left the window.
struct Pair {
    tellers: [Teller; 2],
    stories: Vec<[Story; 2]>,
}

impl Pair {
    fn tell(&mut self, parts: &[(usize, &[u32])]) {
        let mut seen = Vec::new();
        for (side, teller) in self.tellers.iter_mut().enumerate() {
            let mut told: Vec<Story> = parts.iter().map(|&(at, _)| self.stories[at][side].clone()).collect();
            let mut parts_of_side: Vec<_> = told.iter_mut().zip(parts).map(|(story, part)| (story, part.1)).collect();
            seen.push(bits(&teller.tell(&mut parts_of_side)));
            for (&(at, _), story) in parts.iter().zip(told) {
                self.stories[at][side] = story;
            }
            poison(teller);
            teller.manager.check_invariants().unwrap();
        }
        assert!(seen[0].iter().all(|&bits| f32::from_bits(bits).is_finite()));
        assert_eq!(seen[0], seen[1], "{parts:?}");
    }

    fn start(&mut self) -> usize {
        let stories = self.tellers.each_mut().map(Teller::start);
        self.stories.push(stories);
        self.stories.len() - 1
    }

    fn fork(&mut self, at: usize) -> usize {
        let [a, b] = &mut self.tellers;
        let forks = [a.fork(&self.stories[at][0]), b.fork(&self.stories[at][1])];
        self.stories.push(forks);
        self.stories.len() - 1
    }

    /// Out to a snapshot, and back from it.
    fn swap(&mut self, at: usize) {
        for (teller, story) in self.tellers.iter_mut().zip(&mut self.stories[at]) {
            let record = teller.manager.export_sequence(story.seq).unwrap();
            let mut encoder = teller.encoder();
            let out = teller.cache.swap_out(&mut encoder, &distinct_blocks([&record])).unwrap();
            teller.gpu.submit(encoder);
            let snapshot = Snapshot::new(&[record], &out.read().unwrap()).unwrap();
            teller.manager.release(story.seq).unwrap();
            poison(teller);
            let (records, blocks) = snapshot.fit(teller.cache.layout()).unwrap();
            let mut encoder = teller.encoder();
            let back = teller.cache.swap_in_sequences(&mut encoder, &mut teller.manager, &records, &blocks).unwrap();
            teller.gpu.submit(encoder);
            story.seq = back[0];
        }
    }

    fn cut(&mut self, at: usize, len: u32) {
        for (teller, story) in self.tellers.iter_mut().zip(&mut self.stories[at]) {
            teller.manager.truncate(story.seq, len).unwrap();
            story.words.truncate(len as usize);
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
        let options = ManagerOptions::default().with_scrub(true);
        let releasing = options.clone().with_windows(&[Some(3), Some(window)]).with_window_slack(2);
        let tellers =
            [&options, &releasing].map(|options| Teller::with_window(&gpu, &profile, &config, options, window));
        let mut pair = Pair { tellers, stories: Vec::new() };
        for teller in &mut pair.tellers {
            teller.cache.set_clear_value(ClearValue::Poison);
        }
        let a = pair.start();
        pair.tell(&[(a, &words(70))]);
        let table = pair.tellers[1].manager.block_table(pair.stories[a][1].seq).unwrap();
        assert_eq!(table[0], RELEASED, "window {window}");
        // The leading columns of its row were never sent to the device.
        let b = pair.fork(a);
        pair.tell(&[(b, &[1]), (a, &[2])]);
        // What was given back goes to somebody else.
        let c = pair.start();
        pair.tell(&[(c, &words(90)), (b, &words(20)), (a, &[3, 4])]);
        pair.cut(a, 72);
        pair.tell(&[(a, &[5]), (c, &[6]), (b, &[7])]);
        // A row that is used again, from the start.
        pair.cut(b, 0);
        pair.tell(&[(b, &words(40)), (a, &words(30))]);
        pair.tell(&[(a, &[8]), (b, &[8]), (c, &[8])]);
        pair.swap(a);
        pair.tell(&[(b, &[9]), (a, &[9])]);
    }
}

#[test]
fn a_block_that_was_given_back_too_early_is_noticed() {
    let Some(gpu) = gpu() else { return };
    let options = ManagerOptions::default().with_scrub(true).with_windows(&[Some(16)]);
    let mut teller = Teller::with_window(&gpu, &narrow(&gpu), &config(KvDtype::F16, 40), &options, 40);
    let mut story = teller.alone(&words(70));
    poison(&mut teller);
    assert!(teller.look(&mut story, 1).iter().all(|&bits| f32::from_bits(bits).is_nan()));
}
