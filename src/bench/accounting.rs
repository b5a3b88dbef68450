//! Bytes that must move and operations that must happen, by written-out formulas.
//!
//! They count useful work on the lengths as they are: nothing for the padding of a ragged batch, for keys behind the
//! causal diagonal, or for a kernel that reads something twice. A rate from these numbers can therefore fall short of
//! a device's ceiling, but never exceed it by counting what was not needed.
//!
//! With `len` the tokens of a row in the cache, `Hq` and `Hkv` the head counts, `D` the head width and `row_bytes` the
//! stored bytes of one head's row (`D` elements, and scales where a format has them):
//!
//! | | decode and prefill | append |
//! |---|---|---|
//! | K and V | `Σ len · Hkv · row_bytes · 2` read | `tokens · Hkv · row_bytes · 2` written |
//! | activations | `queries · Hq · D · 4 · 2`: q read, output written | `tokens · Hkv · D · 4 · 2`: K and V read |
//! | paging | `Σ ceil(len / block_size) · 4`: table entries | `tokens · 4`: slots |
//! | FLOPs | `4 · Hq · D · pairs`: multiply and add, for q·k and for p·v | 0 |
//!
//! Rows without tokens count for nothing: they are how a batch is padded to a fixed size. The cost of paging is kept
//! apart, so that the rates of a paged and a contiguous run are quotients of the same bytes.

use super::models::ModelShape;

/// Bytes of one element of q, the output, and of new K and V: f32.
const ACTIVATION_BYTES: u64 = 4;
/// Bytes of one entry of a block table or slot list.
const ENTRY_BYTES: u64 = 4;

/// What one run must at least move and compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of K and V read from the cache or written to it.
    pub kv_bytes: u64,
    /// Bytes of the other operands: q and the output, or the new K and V.
    pub activation_bytes: u64,
    /// Bytes of block table or slots; for paged runs only, and in no rate.
    pub paging_bytes: u64,
    /// Floating-point operations, a multiply and an add counted as two.
    pub flops: u64,
}

impl Cost {
    /// The bytes that rates are made of: the same for a paged and a contiguous run.
    pub fn bytes(&self) -> u64 {
        self.kv_bytes + self.activation_bytes
    }

    /// GB/s (10⁹ bytes) of a run that took `time_us` microseconds.
    pub fn gb_s(&self, time_us: f64) -> f64 {
        self.bytes() as f64 / time_us / 1e3
    }

    /// GFLOP/s of a run that took `time_us` microseconds.
    pub fn gflop_s(&self, time_us: f64) -> f64 {
        self.flops as f64 / time_us / 1e3
    }
}

/// Decode: one query token per row over `lens[row]` keys, its own included.
///
/// `block_size` is `None` for a contiguous cache.
pub fn decode(shape: &ModelShape, row_bytes: u32, lens: &[u32], block_size: Option<u32>) -> Cost {
    let rows: Vec<_> = lens.iter().map(|&len| (len.min(1), len)).collect();
    prefill(shape, row_bytes, &rows, block_size)
}

/// Causal prefill: row `(queries, len)` has `queries` tokens, the last of the `len` in the cache.
///
/// Each row's K and V are counted once, as if all its queries shared one read.
pub fn prefill(shape: &ModelShape, row_bytes: u32, rows: &[(u32, u32)], block_size: Option<u32>) -> Cost {
    let head_elements = u64::from(shape.num_q_heads) * u64::from(shape.head_dim);
    let mut cost = Cost::default();
    for &(queries, len) in rows.iter().filter(|(queries, len)| *queries > 0 && *len > 0) {
        cost.kv_bytes += kv_bytes(shape, row_bytes, len.into());
        cost.activation_bytes += u64::from(queries) * head_elements * ACTIVATION_BYTES * 2;
        cost.paging_bytes += block_size.map_or(0, |block_size| table_bytes(len, block_size));
        cost.flops += 4 * head_elements * causal_pairs(queries, len);
    }
    cost
}

/// Append of `tokens` new K and V rows per KV head.
pub fn append(shape: &ModelShape, row_bytes: u32, tokens: u64, paged: bool) -> Cost {
    let row_elements = u64::from(shape.num_kv_heads) * u64::from(shape.head_dim);
    Cost {
        kv_bytes: kv_bytes(shape, row_bytes, tokens),
        activation_bytes: tokens * row_elements * ACTIVATION_BYTES * 2,
        paging_bytes: if paged { tokens * ENTRY_BYTES } else { 0 },
        flops: 0,
    }
}

/// Stored bytes of K and V of `tokens` tokens in one layer.
pub fn kv_bytes(shape: &ModelShape, row_bytes: u32, tokens: u64) -> u64 {
    tokens * u64::from(shape.num_kv_heads) * u64::from(row_bytes) * 2
}

/// Bytes of the table entries that a row of `len` tokens needs. A block size of 0 is read as 1.
pub fn table_bytes(len: u32, block_size: u32) -> u64 {
    u64::from(len.div_ceil(block_size.max(1))) * ENTRY_BYTES
}

/// (query, key) pairs below or on the bottom-right causal diagonal: `queries · offset + queries · (queries + 1) / 2`,
/// where `offset` is the tokens before the first query. Queries before position 0 see nothing.
pub fn causal_pairs(queries: u32, len: u32) -> u64 {
    let seeing = u64::from(queries.min(len));
    let offset = u64::from(len) - seeing;
    seeing * offset + seeing * (seeing + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ModelShape {
        ModelShape::custom(8, 2, 64).unwrap()
    }

    /// Stored bytes of one row of 64 elements in f16.
    const ROW: u32 = 128;

    #[test]
    fn a_ragged_batch_is_counted_without_its_padding() {
        // K and V: (5 + 0 + 3) · 2 heads · 128 bytes · 2 = 4,096; padded to 5 it would be 7,680.
        // FLOPs: 4 · 8 heads · 64 · 8 keys = 16,384.
        // q and output: the two rows with tokens · 8 · 64 · 4 bytes · 2 = 8,192.
        let cost = decode(&shape(), ROW, &[5, 0, 3], None);
        assert_eq!(cost, Cost { kv_bytes: 4096, activation_bytes: 8192, paging_bytes: 0, flops: 16384 });
        assert_eq!(cost.bytes(), 4096 + 8192);
        assert_eq!(decode(&shape(), ROW, &[5, 3, 0, 0, 0], None), cost);
    }

    #[test]
    fn paging_is_kept_apart_from_the_bytes_of_a_rate() {
        // Blocks of 4: ceil(5/4) + 0 + ceil(3/4) = 3 entries of 4 bytes.
        let paged = decode(&shape(), ROW, &[5, 0, 3], Some(4));
        let contiguous = decode(&shape(), ROW, &[5, 0, 3], None);
        assert_eq!(paged.paging_bytes, 12);
        assert_eq!(paged.bytes(), contiguous.bytes());
    }

    #[test]
    fn table_entries_round_up() {
        for (len, entries) in [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (4096, 256), (u32::MAX, 1 << 28)] {
            assert_eq!(table_bytes(len, 16), entries * 4, "{len}");
        }
        assert_eq!(table_bytes(7, 0), 28);
    }

    #[test]
    fn append_reads_f32_and_writes_storage() {
        // 3 tokens · 2 heads · 64 · 4 bytes · 2 = 3,072 read; 3 · 2 · 128 · 2 = 1,536 written; 3 slots of 4 bytes.
        let cost = append(&shape(), ROW, 3, true);
        assert_eq!(cost, Cost { kv_bytes: 1536, activation_bytes: 3072, paging_bytes: 12, flops: 0 });
        assert_eq!(append(&shape(), ROW, 3, false).bytes(), cost.bytes());
        assert_eq!(append(&shape(), ROW, 0, true), Cost::default());
    }

    #[test]
    fn causal_pairs_are_counted_one_by_one() {
        for len in 0..12_u32 {
            for queries in 0..12_u32 {
                // Query i sees the keys up to len − queries + i.
                let pairs: i64 =
                    (0..queries).map(|i| (i64::from(len) - i64::from(queries) + i64::from(i) + 1).max(0)).sum();
                assert_eq!(causal_pairs(queries, len), pairs as u64, "{queries} queries, {len} keys");
            }
        }
        // From an empty cache: n(n+1)/2. One query: all keys.
        assert_eq!(causal_pairs(512, 512), 131_328);
        assert_eq!(causal_pairs(1, 2048), 2048);
    }

    #[test]
    fn published_sizes_come_out() {
        // A layer of LLaMA-13B at 4,096 tokens in f16: K 40 MiB and V 40 MiB.
        let llama = ModelShape::by_name("llama-13b").unwrap();
        assert_eq!(kv_bytes(&llama, 256, 4096), 80 << 20);
        // 8 sequences · 2,048 tokens, 8 KV heads, 128 wide, f16: 67 MB.
        let llama3 = ModelShape::by_name("llama-3-8b").unwrap();
        assert_eq!(decode(&llama3, 256, &[2048; 8], Some(16)).kv_bytes, 67_108_864);
    }

    #[test]
    fn rates_are_decimal() {
        let cost = Cost { kv_bytes: 1_500_000, activation_bytes: 500_000, paging_bytes: 9, flops: 4_000_000 };
        // 2 MB in 1,000 µs are 2 GB/s; 4 MFLOP in the same time are 4 GFLOP/s.
        assert_eq!(cost.gb_s(1000.0), 2.0);
        assert_eq!(cost.gflop_s(1000.0), 4.0);
    }

    #[test]
    fn the_largest_case_fits() {
        use super::super::models::{MAX_BATCH, MAX_CONTEXT, MAX_Q_HEADS};
        let shape = ModelShape::custom(MAX_Q_HEADS, MAX_Q_HEADS, crate::config::MAX_HEAD_DIM).unwrap();
        let total = u64::from(MAX_BATCH) * u64::from(MAX_CONTEXT);
        assert!(kv_bytes(&shape, 4 * shape.head_dim, total) > 1 << 62);
        assert!(
            4_u64.checked_mul(u64::from(MAX_Q_HEADS * shape.head_dim)).and_then(|x| x.checked_mul(total)).is_some()
        );
    }
}
