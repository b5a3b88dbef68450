use super::*;
use crate::config::CacheConfig;

fn layout(num_kv_heads: u32, head_dim: u32, format: KvDtype, num_blocks: u32) -> KvLayout {
    CacheConfig::new(1, num_kv_heads, head_dim).with_kv_dtype(format).with_num_blocks(num_blocks).layout().unwrap()
}

#[test]
fn rows_are_padded_to_whole_units_k_and_v_each_to_its_own() {
    for format in KvDtype::ALL {
        let config = CacheConfig::new(3, 5, 80).with_v_head_dim(33).with_kv_dtype(format).with_num_blocks(2);
        let layout = config.layout().unwrap();
        let (k, v) = (format.row_units(80), format.row_units(33));
        assert_eq!((layout.k_row_units(), layout.v_row_units()), (k, v), "{format}");
        assert_eq!((layout.k_row_bytes(), layout.v_row_bytes()), (16 * u64::from(k), 16 * u64::from(v)));
        assert_eq!(layout.bytes_per_token(), 3 * 5 * 16 * u64::from(k + v));
        assert_eq!(layout.k_shard_bytes(5) + layout.v_shard_bytes(5), layout.layer_bytes());
    }
    // Without a width of its own, V has K's.
    let layout = layout(1, 80, KvDtype::Int4, 1);
    assert_eq!((layout.v_head_dim(), layout.k_row_units(), layout.v_row_units()), (80, 4, 4));
}

#[test]
fn the_wider_of_k_and_v_decides_on_the_segments() {
    // 16 and 64 bytes a row, 16 tokens, 1,000 blocks: 1,024,000 bytes a head.
    for (k, v) in [(8, 32), (32, 8)] {
        let config = CacheConfig::new(1, 4, k).with_v_head_dim(v).with_num_blocks(1000);
        let layout = config.layout().unwrap();
        assert_eq!(layout.k_shard_bytes(1).max(layout.v_shard_bytes(1)), 1_024_000);
        let head_shards = layout.head_shards(2 * 1_024_000).unwrap();
        assert_eq!((head_shards.count, head_shards.heads_per_shard, head_shards.bytes), (2, 2, 2_048_000));
        let error = layout.head_shards(1_023_999).unwrap_err();
        let limits = (1_024_000, 999);
        assert!(
            matches!(error, LayoutError::HeadTooLarge { head_bytes, max_blocks, .. } if (head_bytes, max_blocks) == limits),
            "{error}"
        );
    }
}

#[test]
fn every_row_of_a_segment_has_its_own_place_and_none_is_left_over() {
    // 5 blocks of 3 tokens, 4 heads, 9 half-precision elements: 2 units a row.
    let layout = CacheConfig::new(1, 4, 9).with_block_size(3).with_num_blocks(5).layout().unwrap();
    let mut rows = Vec::new();
    for slot in 0..15 {
        for head in 0..4 {
            let (block, within) = (slot / 3, slot % 3);
            let row = layout.row_index(4, slot, head);
            assert_eq!(row, u64::from((block * 4 + head) * 3 + within));
            rows.push(row);
        }
    }
    rows.sort_unstable();
    assert!(rows.into_iter().eq(0..60));
    assert_eq!(layout.k_shard_bytes(4), 60 * 2 * UNIT_BYTES);
    assert_eq!(layout.total_bytes(), 2 * layout.k_shard_bytes(4));
}

#[test]
fn slots_follow_the_block_and_skip_what_is_not_in_the_pool() {
    let layout = layout(1, 8, KvDtype::F16, 10);
    let slot = |block, position| layout.slot(BlockId::new(block).unwrap(), position);
    assert_eq!(slot(0, 0), 0);
    assert_eq!(slot(3, 15), 63);
    assert_eq!(slot(3, 16), 48);
    assert_eq!(slot(9, u32::MAX), 9 * 16 + 15);
    assert_eq!(slot(10, 0), SKIP_SLOT);
    assert_eq!(layout.slot(BlockId::MAX, 0), SKIP_SLOT);
}

#[test]
fn offsets_do_not_wrap_where_32_bits_would() {
    // 16 tokens, 8 heads, 128 elements: 2^14 elements a block, so 2^31 and 2^32 elements are reached at these blocks.
    let layout_128 = layout(8, 128, KvDtype::F32, 1 << 19);
    // 256 elements: at half of them.
    let layout_256 = layout(8, 256, KvDtype::F32, 1 << 19);
    for (layout, elements_per_block, wraps) in
        [(&layout_128, 1_u64 << 14, [131_072_u64, 262_144]), (&layout_256, 1 << 15, [65_536, 131_072])]
    {
        for block in wraps.into_iter().flat_map(|wrap| [wrap - 1, wrap, wrap + 1]) {
            for (within, head) in [(0, 0), (15, 7)] {
                let slot = layout.slot(BlockId::new(block as u32).unwrap(), within);
                let elements = layout.row_index(8, slot, head) * layout.k_row_bytes() / 4;
                let row = u64::from(head) * 16 + u64::from(within);
                assert_eq!(elements, block * elements_per_block + row * u64::from(layout.head_dim()));
            }
        }
    }
}

#[test]
fn a_pool_that_crosses_4_gib_is_cut_however_large_bindings_are() {
    for (format, head_dim, wrap) in
        [(KvDtype::F16, 128, 131_072), (KvDtype::F16, 256, 65_536), (KvDtype::F32, 128, 65_536)]
    {
        // One block less than 2^32 bytes fits one binding; at 2^32 a byte offset would wrap.
        let below = layout(8, head_dim, format, wrap - 1).head_shards(u64::MAX).unwrap();
        assert_eq!((below.count, below.heads_per_shard), (1, 8));
        for num_blocks in [wrap, wrap + 1] {
            let layout = layout(8, head_dim, format, num_blocks);
            let head_shards = layout.head_shards(u64::MAX).unwrap();
            assert_eq!((head_shards.count, head_shards.heads_per_shard), (2, 4));
            let last = (layout.row_index(4, num_blocks * 16 - 1, 3) + 1) * u64::from(layout.k_row_units()) - 1;
            assert_eq!((last + 1) * UNIT_BYTES, head_shards.bytes);
            assert!(last < 1 << 28);
        }
    }
}

#[test]
fn segments_deal_out_all_heads_evenly() {
    // 128 bytes a row, 16 tokens, 1,000 blocks: 2,048,000 bytes a head.
    let head = 2_048_000;
    let cut = |limit| {
        let head_shards = layout(10, 64, KvDtype::F16, 1000).head_shards(limit).unwrap();
        assert_eq!(head_shards.bytes, u64::from(head_shards.heads_per_shard) * head);
        assert!(head_shards.bytes <= limit);
        head_shards.iter().collect::<Vec<_>>()
    };
    assert_eq!(cut(10 * head), [(0, 10)]);
    assert_eq!(cut(10 * head - 1), [(0, 5), (5, 5)]);
    assert_eq!(cut(4 * head), [(0, 4), (4, 4), (8, 2)]);
    assert_eq!(cut(head).len(), 10);
}

#[test]
fn a_head_that_fits_no_binding_is_an_error_with_the_way_out() {
    // 256 bytes a row, 16 tokens: 4,096 bytes a block and head.
    let limit = 128 << 20;
    let max_blocks = limit / 4096;
    let blocks = |num_blocks| layout(8, 128, KvDtype::F16, num_blocks).head_shards(limit);
    assert_eq!(blocks(max_blocks as u32).unwrap().count, 8);
    let error = blocks(max_blocks as u32 + 1).unwrap_err();
    assert_eq!(error, LayoutError::HeadTooLarge { head_bytes: limit + 4096, limit, num_blocks: 32_769, max_blocks });
    assert_eq!(
        error.to_string(),
        "one KV head of one layer takes 134221824 bytes, more than a binding of 134217728; \
         use at most 32768 blocks instead of 32769"
    );
    assert!(layout(1, 1, KvDtype::F16, 1).head_shards(0).is_err());
}

#[test]
fn rows_of_absurd_arguments_do_not_wrap() {
    let layout = layout(1, 256, KvDtype::F32, 1);
    let wide = u64::from(u32::MAX);
    assert_eq!(layout.row_index(u32::MAX, u32::MAX, u32::MAX), (wide / 16 * wide + wide) * 16 + 15);
    assert_eq!(layout.k_shard_bytes(u32::MAX), 16 * 1024 * wide);
    let huge = CacheConfig::new(1, 1, 1).with_num_blocks(1).with_paged(false).with_max_seq_len(1 << 30);
    let huge = huge.with_num_blocks(1 << 27).layout().unwrap();
    assert_eq!(huge.row_index(u32::MAX, u32::MAX, u32::MAX), (3 * wide + wide) * (1 << 30) + (1 << 30) - 1);
}

#[test]
fn a_pool_that_may_grow_is_cut_as_if_it_had() {
    let config = CacheConfig::new(1, 4, 8).with_num_blocks(10).with_max_num_blocks(1000);
    let layout = config.layout().unwrap();
    assert_eq!((layout.num_blocks(), layout.max_num_blocks(), layout.k_shard_bytes(1)), (10, 1000, 10 * 16 * 16));
    let grown = config.with_num_blocks(1000).layout().unwrap();
    let limit = 3 * grown.k_shard_bytes(1);
    assert_eq!(layout.head_shards(limit), grown.head_shards(limit));
    assert_eq!(layout.head_shards(limit).unwrap().count, 2);
    // It may be larger than the pool of a plan, and no smaller.
    assert_eq!(grown.difference(&layout), None);
    assert_eq!(layout.difference(&grown), Some(("num_blocks", "1000".into(), "10".into())));
}
