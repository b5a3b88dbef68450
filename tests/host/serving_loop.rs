//! The loop that [`CacheManager::victims`] documents, over more requests than fit: it ends, and headroom spares preemptions.

use std::collections::VecDeque;

use wgpu_paged_attention::blocks::{CacheManager, Domain, Rank, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

/// A request: its text so far, the length at which it ends, and its rank once it has one.
struct Text {
    tokens: Vec<u32>,
    end: usize,
    rank: Option<Rank>,
}

struct Server {
    manager: CacheManager,
    plan: StepPlan,
    waiting: VecDeque<Text>,
    /// By rank, the highest first.
    running: Vec<(SeqId, Text)>,
    headroom: u32,
    preemptions: u32,
    finished: usize,
}

impl Server {
    fn new(headroom: u32) -> Self {
        let config = CacheConfig::new(1, 1, 8).with_num_blocks(20).with_max_seq_len(320).with_max_sequences(16);
        let mut seed = 5_u32;
        let mut draw = |from: u32, to: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            from + (seed >> 8) % (to - from)
        };
        let text = |at: u32| {
            let tokens = vec![at; draw(8, 60) as usize];
            Text { end: tokens.len() + draw(40, 120) as usize, tokens, rank: None }
        };
        Self {
            manager: CacheManager::new(&config.layout().unwrap()).unwrap(),
            plan: StepPlan::new(Schedule::default()),
            waiting: (0..24).map(text).collect(),
            running: Vec::new(),
            headroom,
            preemptions: 0,
            finished: 0,
        }
    }

    fn admit(&mut self) {
        // Without anyone to leave it for, headroom would keep the longest texts out for ever.
        while let Some(text) = self.waiting.front()
            && let headroom = if self.running.is_empty() { 0 } else { self.headroom }
            && self.manager.can_admit(&text.tokens, &Domain::default(), headroom)
        {
            let text = self.waiting.pop_front().unwrap();
            let seq = self.manager.create_sequence().unwrap();
            if let Some(rank) = text.rank {
                self.manager.set_rank(seq, rank).unwrap();
            }
            self.running.push((seq, text));
            self.running.sort_by_key(|&(seq, _)| std::cmp::Reverse(self.manager.rank(seq).unwrap()));
            // Its blocks are taken before the next one is looked at.
            let (seq, prompt) = (seq, self.running.iter().find(|running| running.0 == seq).unwrap().1.tokens.len());
            self.manager.step(&[(seq, prompt as u32 - 1)], &mut self.plan).unwrap().commit();
        }
    }

    /// One more token for everyone that runs; false if some had to go first.
    fn step(&mut self) -> bool {
        let requests: Vec<_> = self.running.iter().map(|&(seq, _)| (seq, 1)).collect();
        if let Err(error) = self.manager.reserve(&requests, &mut self.plan) {
            let missing = error.missing_blocks().unwrap();
            for victim in self.manager.victims(missing, Some(self.running[0].0)).unwrap() {
                let rank = self.manager.preempt(victim.seq).unwrap();
                let at = self.running.iter().position(|&(seq, _)| seq == victim.seq).unwrap();
                let (_, text) = self.running.remove(at);
                self.waiting.push_front(Text { rank: Some(rank), ..text });
                self.preemptions += 1;
            }
            return false;
        }
        self.manager.commit(&mut self.plan).unwrap();
        let mut ended = Vec::new();
        for (seq, text) in &mut self.running {
            text.tokens.push(0);
            if text.tokens.len() == text.end {
                ended.push(*seq);
            }
        }
        for &seq in &ended {
            self.manager.release(seq).unwrap();
        }
        self.running.retain(|(seq, _)| !ended.contains(seq));
        self.finished += ended.len();
        true
    }
}

/// The documented loop. Returns how many preemptions it took; every turn advances a sequence or frees blocks.
fn serve(headroom: u32) -> u32 {
    let mut server = Server::new(headroom);
    for _ in 0..10_000 {
        if server.waiting.is_empty() && server.running.is_empty() {
            assert_eq!((server.finished, server.manager.num_free_blocks()), (24, 20));
            return server.preemptions;
        }
        // Whoever made room is not admitted again before the others have moved on.
        while !server.step() {}
        server.admit();
    }
    panic!("the loop does not end");
}

#[test]
fn headroom_spares_preemptions_and_the_loop_ends_with_any() {
    let (without, with) = (serve(0), serve(6));
    assert!(without >= 3 * with.max(1), "{without} preemptions without headroom, {with} with 6 blocks");
    (0..20).for_each(|headroom| _ = serve(headroom));
}

/// Why the step comes first: admitted before each try, the victim comes back at once and is pushed out again for ever.
#[test]
fn admission_before_every_try_never_ends() {
    let mut server = Server::new(0);
    let progress = (0..10_000).filter(|_| {
        server.admit();
        server.step()
    });
    assert!(progress.count() < 1_000);
    assert!(server.finished < 24);
}
