//! What is fuzzed, as plain functions: `tests/fuzz_corpus.rs` runs them as well, over the corpus and changed copies of it.
//!
//! A longer run, in this folder, with a stable compiler and a C++ one; new inputs go into the first folder that is named:
//!
//! ```sh
//! export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
//!     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
//!     -Cllvm-args=-sanitizer-coverage-trace-compares"
//! cargo build --release --target x86_64-unknown-linux-gnu
//! mkdir -p artifacts/manager
//! target/x86_64-unknown-linux-gnu/release/manager -max_total_time=60 artifacts/manager corpus/manager
//! target/x86_64-unknown-linux-gnu/release/manager crash-1234 # once more
//! ```
//!
//! `snapshot` likewise. With a nightly compiler and `cargo-fuzz`, `cargo +nightly fuzz run manager` does all of it.
#![allow(dead_code, reason = "every fuzz target uses one of them")]

use sha2::{Digest, Sha256};
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::blocks::{CacheManager, Domain, ManagerOptions, SeqId, SequenceRecord};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::host::snapshot::Snapshot;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

/// Bytes as numbers; zeros when they are used up.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u32 {
        self.0.next().map_or(0, |&byte| byte.into())
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// One of the handles, living or not.
    fn seq(&mut self, seqs: &[SeqId]) -> Option<SeqId> {
        seqs.get(self.next() as usize % seqs.len().max(1)).copied()
    }

    fn tokens(&mut self, most: u32) -> Vec<u32> {
        let (first, count) = (self.next() % 3, self.next() % most);
        (0..count).map(|at| first + at / 16).collect()
    }

    /// Changes something in a record.
    fn damage(&mut self, record: &mut SequenceRecord) {
        let (what, number) = (self.next() % 8, self.next());
        let column = number as usize % record.blocks.len().max(1);
        match what {
            0 => record.len = number,
            1 => record.blocks.truncate(column),
            2 => record.blocks.push(BlockId::new(number)),
            3 => record.blocks.iter_mut().take(column).for_each(|block| *block = None),
            4 => record.blocks.iter_mut().skip(column).for_each(|block| {
                *block = block.and_then(|block| BlockId::new(block.get().saturating_add(number % 3)));
            }),
            5 => record.tokens = None,
            6 => record.tokens = Some(vec![number % 3; record.len as usize]),
            _ => record.domain = Some(Domain::default().with_salt(&[number as u8 % 2])),
        }
    }
}

/// Any operations, in any order, on a small pool: whatever is refused changes nothing, and the manager stays consistent.
pub fn manager(bytes: &[u8]) {
    let mut bytes = Bytes(bytes.iter());
    let flags = bytes.next();
    let block_size = 1 + bytes.next() % 20;
    let config = CacheConfig::new(1, 1, 8).with_block_size(block_size).with_max_seq_len(100).with_max_sequences(6);
    let paged = flags & 1 == 0;
    let num_blocks = if paged { 1 + bytes.next() % 24 } else { 400u32.div_ceil(block_size) };
    let mut config = config.with_num_blocks(num_blocks).with_paged(paged);
    let mut options = ManagerOptions::default().with_clear_freed(flags & 2 != 0).with_events(flags & 4 != 0);
    if paged {
        options = options.with_prefix_cache(flags & 8 != 0);
        if flags & 16 != 0 {
            config = config.with_window(1 + bytes.next() % 40);
        }
    }
    let layout = config.layout().expect("a layout in range");
    let mut manager = CacheManager::with_options(&layout, &options).expect("a small manager");
    let mut plan = StepPlan::new(Schedule::default());
    let mut seqs: Vec<SeqId> = Vec::new();
    let mut lists = Vec::new();

    while !bytes.is_empty() {
        let operation = bytes.next() % 16;
        let free = manager.num_free_blocks();
        let refused = match operation {
            0 => manager.create_sequence().map(|seq| seqs.push(seq)).is_err(),
            1 => {
                let tokens = bytes.tokens(60);
                let domain = Domain::default().with_salt(&[bytes.next() as u8 % 2]);
                manager.create_sequence_with_tokens(&tokens, &domain).map(|(seq, _)| seqs.push(seq)).is_err()
            }
            2 => bytes.seq(&seqs).is_some_and(|seq| manager.fork(seq).map(|seq| seqs.push(seq)).is_err()),
            3 => {
                let len = bytes.next() % 110;
                bytes.seq(&seqs).is_some_and(|seq| manager.truncate(seq, len).is_err())
            }
            4 | 5 => bytes.seq(&seqs).is_some_and(|seq| manager.release(seq).is_err()),
            6..=8 => {
                let requests: Vec<_> = (0..1 + bytes.next() % 4)
                    .filter_map(|_| bytes.seq(&seqs).map(|seq| (seq, bytes.next() % 40)))
                    .collect();
                manager.reserve(&requests, &mut plan).is_err()
            }
            9 | 10 => {
                let tokens = bytes.tokens(40);
                let seq = bytes.seq(&seqs);
                seq.is_some_and(|seq| manager.reserve_tokens(&[(seq, &tokens)], &mut plan).is_err())
            }
            11 | 12 => manager.commit(&mut plan).is_err(),
            13 => manager.rollback(&mut plan).is_err(),
            14 => {
                lists.clear();
                manager.take_clears(&mut lists);
                drop(manager.take_events());
                manager.reset_prefix_cache().is_err()
            }
            _ => {
                let mut records: Vec<_> = (0..2)
                    .filter_map(|_| bytes.seq(&seqs))
                    .filter_map(|seq| manager.export_sequence(seq).ok())
                    .collect();
                if flags & 32 != 0 {
                    records.last_mut().into_iter().for_each(|record| bytes.damage(record));
                }
                manager.import_sequences(&records).map(|imported| seqs.extend(imported.sequences)).is_err()
            }
        };
        if refused {
            assert_eq!(manager.num_free_blocks(), free, "operation {operation} was refused, but changed something");
        }
        manager.check_invariants().unwrap_or_else(|error| panic!("after operation {operation}: {error}"));
        // Old handles stay in the list, but not for ever.
        if seqs.len() > 32 {
            seqs.drain(..16);
        }
    }

    // Nothing is lost: when all sequences have gone, all blocks are free.
    manager.abandon();
    let mut plan = StepPlan::new(Schedule::default());
    assert!(manager.commit(&mut plan).is_err());
    for &seq in &seqs {
        // Some handles are old.
        let _ = manager.release(seq);
    }
    manager.check_invariants().expect("in the end");
    if manager.num_sequences() == 0 {
        assert_eq!(manager.num_free_blocks(), layout.num_blocks());
    }
}

/// Whatever the bytes are, they are read or refused, and so they are with a checksum that fits.
pub fn snapshot(bytes: &[u8]) {
    read_snapshot(bytes);
    read_snapshot(&reseal(bytes));
}

/// The same bytes with the length and the checksum that fit them: behind these the header itself is tried.
pub fn reseal(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes[..bytes.len().saturating_sub(32)].to_vec();
    if bytes.len() >= 24 {
        let header = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let data = bytes.len().saturating_sub(24 + header) as u64;
        bytes[16..24].copy_from_slice(&data.to_le_bytes());
    }
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// What is read can be written, and fitted into caches or refused.
fn read_snapshot(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::read(bytes, 1 << 20) else { return };
    let again = snapshot.to_bytes().expect("what was read can be written");
    assert_eq!(Snapshot::from_bytes(&again).as_ref(), Ok(&snapshot));
    let shape = *snapshot.shape();
    for (block_size, num_blocks) in [(shape.block_size.min(64), 20), (3, 50)] {
        let layout = CacheConfig::new(shape.num_layers, shape.num_kv_heads, shape.head_dim)
            .with_v_head_dim(shape.v_head_dim)
            .with_kv_dtype(shape.kv_dtype)
            .with_block_size(block_size)
            .with_num_blocks(num_blocks)
            .with_max_sequences(4)
            .layout();
        // A pool of so wide a shape would not fit anywhere.
        let Some(layout) = layout.ok().filter(|layout| layout.total_bytes() < 1 << 22) else { continue };
        let Ok((records, blocks)) = snapshot.fit(&layout) else { continue };
        let named = records.iter().flat_map(|record| &record.blocks).flatten();
        assert!(named.clone().all(|&block| blocks.block(block).is_some()));
        let mut manager = CacheManager::new(&layout).expect("a small manager");
        let free = manager.num_free_blocks();
        match manager.import_sequences(&records) {
            Ok(imported) => assert_eq!(imported.blocks.len(), blocks.ids().len()),
            Err(_) => assert_eq!(manager.num_free_blocks(), free),
        }
        manager.check_invariants().expect("after an import");
    }
}
