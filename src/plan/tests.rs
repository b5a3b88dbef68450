//! Query tiles, splits and shared runs, worked out by hand; and that whatever is drawn, every key of every row is served
//! once.

mod memory;
mod sharing;
mod tiling;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::config::CacheConfig;

/// Tokens of a block.
const BLOCK: u32 = 4;

/// What a sequence brings: its blocks, its tokens, and how many of them are queries.
#[derive(Clone, Debug)]
struct Seq {
    blocks: Vec<u32>,
    len: u32,
    queries: u32,
}

/// A sequence whose blocks begin as `blocks` and go on with ones that no other has.
fn seq(blocks: &[u32], len: u32, queries: u32) -> Seq {
    Seq { blocks: blocks.to_vec(), len, queries }
}

/// Splits of `split_tokens` keys, the widest tiles.
fn schedule(split_tokens: u32) -> Schedule {
    Schedule { split_tokens, ..Schedule::default() }
}

fn plan(schedule: Schedule, seqs: &[Seq]) -> StepPlan {
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(1 << 12).with_block_size(BLOCK).layout().unwrap();
    let (mut indptr, mut indices, mut last_page_len, mut cu_seqlens_q) = (vec![0], Vec::new(), Vec::new(), vec![0]);
    let mut fresh = 1 << 10;
    for seq in seqs {
        let used = seq.len.div_ceil(BLOCK) as usize;
        indices.extend(seq.blocks.iter().take(used));
        for _ in seq.blocks.len()..used {
            indices.push(fresh);
            fresh += 1;
        }
        indptr.push(indices.len() as u32);
        last_page_len.push(seq.len.saturating_sub(1) % BLOCK + 1);
        cu_seqlens_q.push(cu_seqlens_q[cu_seqlens_q.len() - 1] + seq.queries);
    }
    let tables = Tables::Csr { indptr: &indptr, indices: &indices, last_page_len: &last_page_len };
    let mut plan = StepPlan::new(schedule);
    let skip = vec![-1; cu_seqlens_q[seqs.len()] as usize];
    let raw = RawTables { tables, cu_seqlens_q: Some(&cu_seqlens_q), append: Append::Slots(&skip) };
    plan.plan_tables(&layout, &raw).unwrap();
    plan
}

/// The rows of a tile.
fn members<'a>(plan: &'a StepPlan, tile: &QueryTile) -> &'a [u32] {
    &plan.members()[tile.first_member as usize..][..tile.num_members as usize]
}

/// (row, split, partial) of everything that a plan's work items compute.
fn work(plan: &StepPlan) -> Vec<(u32, u32, u32)> {
    let mut work = Vec::new();
    for class in 0..TILE_CLASSES {
        let mut items = 0;
        for tile in plan.tiles(class) {
            assert_eq!(tile.item_start, items);
            assert!((1..=plan.schedule().room(class)).contains(&tile.num_members));
            let first = tile.key_begin / tile.split_tokens;
            let last = tile.key_end.div_ceil(tile.split_tokens).max(first + 1);
            items += last - first;
            for split in first..last {
                for (at, &row) in (0..).zip(members(plan, tile)) {
                    let partial = match tile.first_partial {
                        NO_PARTIAL => NO_PARTIAL,
                        start => start + (split - first) * tile.num_members + at,
                    };
                    work.push((row, split, partial));
                }
            }
        }
        assert_eq!(plan.groups()[0].num_items(class), items);
    }
    work.sort_unstable();
    work
}

/// What the merges and the rows without one expect of the work items: the same list, from the other end.
fn expected(plan: &StepPlan, seqs: &[Seq]) -> Vec<(u32, u32, u32)> {
    let mut merges = plan.merges().to_vec();
    merges.sort_unstable_by_key(|merge| merge.query);
    let mut merges = merges.into_iter().peekable();
    let lens = seqs.iter().flat_map(|seq| (0..seq.queries).map(|_| seq.len));
    let mut all = Vec::new();
    for (row, len) in (0..).zip(lens) {
        let Some(merge) = merges.next_if(|merge| merge.query == row) else {
            all.push((row, 0, NO_PARTIAL));
            continue;
        };
        assert_eq!(merge.kv_len, len);
        all.extend((0..len.div_ceil(merge.split_tokens)).map(|split| {
            let partial = match split.checked_sub(merge.shared_splits) {
                None => merge.shared_partial + split * merge.shared_stride,
                Some(own) => merge.own_partial + own * merge.own_stride,
            };
            (row, split, partial)
        }));
    }
    assert_eq!(merges.next(), None, "a row is merged twice");
    all
}

fn any_seqs() -> impl Strategy<Value = Vec<Seq>> {
    let queries = prop_oneof![4 => Just(1_u32), 3 => 2..9_u32, 1 => 9..40_u32];
    // Prefixes out of few, so that many are shared, and cut anywhere.
    let seq = (0..3_u32, 0..8_usize, 0..40_u32, queries).prop_map(|(family, shared, len, queries)| {
        let blocks: Vec<u32> = (0..shared as u32).map(|column| 10 * family + column).collect();
        seq(&blocks, len, queries)
    });
    prop::collection::vec(seq, 0..24)
}

proptest! {
    #[test]
    fn every_split_of_every_row_is_served_once_and_merged_from_where_it_was_left(
        seqs in any_seqs(),
        split_tokens in 1..14_u32,
        tile_tokens in prop::sample::select(vec![1, 2, 4, 16]),
        chunk_queries in prop::sample::select(vec![5, 9, u32::MAX]),
        chunk_split_tokens in 1..30_u32,
        chunk_tokens in prop::sample::select(vec![0, 7, 16, 64]),
        share_prefixes in any::<bool>(),
    ) {
        let plan = plan(
            Schedule { split_tokens, tile_tokens, chunk_queries, chunk_split_tokens, chunk_tokens, share_prefixes },
            &seqs,
        );
        let work = work(&plan);
        prop_assert_eq!(&work, &expected(&plan, &seqs));
        let partials: BTreeSet<u32> = work.iter().map(|item| item.2).filter(|&partial| partial != NO_PARTIAL).collect();
        prop_assert!(partials.into_iter().eq(0..plan.groups()[0].num_partials()), "partials with holes, or beyond their number");
        // A tile reads the blocks that its rows would read.
        let first = plan.header(0).updates_base;
        let block = |base: u32, key: u32| plan.inline_tables()[(base - first + key / BLOCK) as usize];
        let (mut own, mut base) = (Vec::new(), first);
        for seq in &seqs {
            own.extend((0..seq.queries).map(|_| base));
            base += if seq.queries > 0 { seq.len.div_ceil(BLOCK) } else { 0 };
        }
        // The kernel for chunks counts on from the first member of a tile.
        for tile in plan.tiles(CHUNK_CLASS) {
            let members = members(&plan, tile);
            for pair in members.windows(2) {
                let position = |at: usize| plan.positions()[pair[at] as usize];
                prop_assert_eq!((pair[1] - pair[0], position(1) - position(0)), (1, 1));
            }
        }
        for tile in (0..TILE_CLASSES).flat_map(|class| plan.tiles(class)) {
            for &row in members(&plan, tile) {
                for key in tile.key_begin..tile.key_end {
                    prop_assert_eq!(block(tile.table_base, key), block(own[row as usize], key));
                }
            }
        }
    }
}

#[test]
fn a_record_in_the_wrong_place_is_noticed() {
    let seqs = [seq(&[1, 2], 12, 2), seq(&[1, 2], 9, 1)];
    let mut plan = plan(schedule(4), &seqs);
    assert_eq!(work(&plan), expected(&plan, &seqs));
    plan.groups_mut()[0].tiling.laid.merges[1].own_partial += 1;
    assert_ne!(work(&plan), expected(&plan, &seqs));
}
