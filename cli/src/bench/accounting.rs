//! Bytes that must move and operations that must happen, by written-out formulas.
//!
//! They count useful work on the lengths as they are: nothing for the padding of a ragged batch, for keys behind the
//! causal diagonal, or for a kernel that reads something twice. A rate from these numbers can therefore fall short of
//! a device's ceiling, but never exceed it by counting what was not needed.
//!
//! With `Hq` and `Hkv` the head counts, `D` the head width and `row_bytes` the stored bytes of one head's row (`D` elements,
//! and scales where a format has them):
//!
//! | | attention | append |
//! |---|---|---|
//! | K and V | `keys · Hkv · row_bytes · 2` read | `tokens · Hkv · row_bytes · 2` written |
//! | activations | `queries · Hq · D · io_bytes · 2`: q read, output written; 4 more per head for the log-sum-exp | `tokens · Hkv · D · 4 · 2`: K and V read |
//! | paging | `Σ ceil(len / block_size) · 4`: table entries | `tokens · 4`: slots |
//! | FLOPs | `4 · Hq · D · pairs`: multiply and add, for q·k and for p·v | 0 |
//!
//! `keys` are those that some query of their sequence sees, each counted once, and once for all sequences that share it;
//! `pairs` are a query and a key that it sees.
//!
//! Sequences without tokens count for nothing: they are how a batch is padded to a fixed size. The cost of paging is kept
//! apart, so that the rates of a paged and a contiguous run are quotients of the same bytes.

use wgpu_paged_attention::testkit::ScenarioVariant;

use super::ModelShape;

const F32_BYTES: u64 = 4;
/// Bytes of one entry of a block table or slot list.
const ENTRY_BYTES: u64 = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub kv_bytes: u64,
    pub activation_bytes: u64,
    /// Bytes of block table or slots; for paged runs only, and in no rate.
    pub paging_bytes: u64,
    pub flops: u64,
}

impl Cost {
    /// The bytes that rates are made of: the same for a paged and a contiguous run.
    pub fn bytes(&self) -> u64 {
        self.kv_bytes + self.activation_bytes
    }

    pub fn gb_s(&self, time_us: f64) -> f64 {
        self.bytes() as f64 / time_us / 1e3
    }

    pub fn gflop_s(&self, time_us: f64) -> f64 {
        self.flops as f64 / time_us / 1e3
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `(queries, len)` of every sequence: its last `queries` of `len` tokens are queries.
    pub rows: &'a [(u32, u32)],
    pub variant: ScenarioVariant,
    pub lse: bool,
    /// Leading tokens that all sequences share, as far as they reach.
    pub shared: u32,
    /// `None` for a contiguous cache.
    pub block_size: Option<u32>,
}

impl Attention<'_> {
    pub fn cost(&self, shape: &ModelShape, row_bytes: u64) -> Cost {
        let heads = u64::from(shape.num_q_heads);
        let io_bytes = F32_BYTES / u64::from(self.variant.io_format.per_word());
        let row_bytes_out = u64::from(shape.head_dim) * io_bytes * 2 + if self.lse { F32_BYTES } else { 0 };
        let mut cost = Cost::default();
        let (mut own_keys, mut shared_keys) = (0, 0);
        for &(queries, len) in self.rows.iter().filter(|(queries, len)| *queries > 0 && *len > 0) {
            let seen = seen_keys(queries, len, &self.variant);
            // Keys are seen from the last one backwards, those that are shared come first.
            let shared = u64::from(self.shared.min(len)).saturating_sub(u64::from(len) - seen);
            own_keys += seen - shared;
            shared_keys = shared_keys.max(shared);
            cost.activation_bytes += u64::from(queries) * heads * row_bytes_out;
            cost.paging_bytes += self.block_size.map_or(0, |block_size| table_bytes(len, block_size));
            // Far beyond any device, a prompt of the longest context has more than 64 bits count.
            let flops = (4 * heads * u64::from(shape.head_dim)).saturating_mul(pairs(queries, len, &self.variant));
            cost.flops = cost.flops.saturating_add(flops);
        }
        cost.kv_bytes = kv_bytes(shape, row_bytes, own_keys + shared_keys);
        cost
    }
}

pub fn append(shape: &ModelShape, row_bytes: u64, tokens: u64, paged: bool) -> Cost {
    let row_elements = u64::from(shape.num_kv_heads) * u64::from(shape.head_dim);
    Cost {
        kv_bytes: kv_bytes(shape, row_bytes, tokens),
        activation_bytes: tokens * row_elements * F32_BYTES * 2,
        paging_bytes: if paged { tokens * ENTRY_BYTES } else { 0 },
        flops: 0,
    }
}

pub fn kv_bytes(shape: &ModelShape, row_bytes: u64, tokens: u64) -> u64 {
    tokens * u64::from(shape.num_kv_heads) * row_bytes * 2
}

/// Bytes of the table entries that a row of `len` tokens needs. A block size of 0 is read as 1.
pub fn table_bytes(len: u32, block_size: u32) -> u64 {
    u64::from(len.div_ceil(block_size.max(1))) * ENTRY_BYTES
}

/// Keys of a sequence that any of its queries sees: the last ones, for windows move on with the queries.
pub fn seen_keys(queries: u32, len: u32, variant: &ScenarioVariant) -> u64 {
    let reach = |window: u32| u64::from(queries) + u64::from(window) - 1;
    variant.window.map_or(u64::from(len), |window| reach(window).min(len.into()))
}

/// (query, key) pairs of which the query sees the key. A causal query before position 0 sees nothing.
pub fn pairs(queries: u32, len: u32, variant: &ScenarioVariant) -> u64 {
    let window = variant.window.map_or(i64::MAX, i64::from);
    let first = i64::from(len) - i64::from(queries);
    let seen = |position: i64| {
        let oldest = position.saturating_sub(window).saturating_add(1).max(0);
        let end = if variant.causal { position + 1 } else { i64::from(len) };
        (end - oldest).max(0) as u64
    };
    (first..i64::from(len)).map(seen).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu_paged_attention::gpu::IoFormat;

    fn shape() -> ModelShape {
        ModelShape::custom(8, 2, 64).unwrap()
    }

    /// Stored bytes of one row of 64 elements in f16.
    const ROW: u64 = 128;
    const PLAIN: ScenarioVariant = ScenarioVariant::PLAIN;

    fn attention(rows: &[(u32, u32)]) -> Attention<'_> {
        Attention { rows, variant: PLAIN, lse: false, shared: 0, block_size: None }
    }

    #[test]
    fn a_ragged_batch_is_counted_without_its_padding() {
        // K and V: (5 + 0 + 3) · 2 heads · 128 bytes · 2 = 4,096; padded to 5 it would be 7,680.
        // FLOPs: 4 · 8 heads · 64 · 8 keys = 16,384.
        // q and output: the two rows with tokens · 8 · 64 · 4 bytes · 2 = 8,192.
        let cost = attention(&[(1, 5), (1, 0), (1, 3)]).cost(&shape(), ROW);
        assert_eq!(cost, Cost { kv_bytes: 4096, activation_bytes: 8192, paging_bytes: 0, flops: 16384 });
        assert_eq!(cost.bytes(), 4096 + 8192);
        assert_eq!(attention(&[(1, 5), (1, 3), (1, 0), (0, 7)]).cost(&shape(), ROW), cost);
    }

    #[test]
    fn paging_is_kept_apart_from_the_bytes_of_a_rate() {
        // Blocks of 4: ceil(5/4) + ceil(3/4) = 3 entries of 4 bytes.
        let contiguous = attention(&[(1, 5), (1, 3)]);
        let paged = Attention { block_size: Some(4), ..contiguous }.cost(&shape(), ROW);
        assert_eq!(paged.paging_bytes, 12);
        assert_eq!(paged.bytes(), contiguous.cost(&shape(), ROW).bytes());
    }

    #[test]
    fn scales_are_bytes_too() {
        // 64 codes of 8 bits and one scale; 64 of 4 bits and a scale for each 32.
        for (format, row_bytes) in [("f32", 256), ("bf16", 128), ("int8", 64 + 4), ("fp8", 64 + 4), ("int4", 32 + 8)] {
            let format: wgpu_paged_attention::config::KvDtype = format.parse().unwrap();
            assert_eq!(format.used_bytes(64), row_bytes, "{format}");
            let cost = attention(&[(1, 5)]).cost(&shape(), row_bytes);
            assert_eq!(cost.kv_bytes, 5 * 2 * row_bytes * 2, "{format}");
        }
    }

    #[test]
    fn halves_and_the_log_sum_exp_change_the_activations() {
        let plain = attention(&[(3, 5)]);
        let halves = ScenarioVariant { io_format: IoFormat::F16, ..PLAIN };
        // 3 queries · 8 heads · 64 · 2 bytes · 2.
        assert_eq!(Attention { variant: halves, ..plain }.cost(&shape(), ROW).activation_bytes, 6144);
        // 3 · 8 · (64 · 4 · 2 + 4).
        assert_eq!(Attention { lse: true, ..plain }.cost(&shape(), ROW).activation_bytes, 12_384);
    }

    #[test]
    fn a_prompt_and_single_tokens_add_up() {
        // Keys: 6 + 10. Pairs: 6 · 7 / 2 from the prompt, 10 from the decoding sequence.
        let cost = attention(&[(6, 6), (1, 10)]).cost(&shape(), ROW);
        assert_eq!(cost.kv_bytes, 16 * 2 * ROW * 2);
        assert_eq!(cost.flops, 4 * 8 * 64 * (21 + 10));
        assert_eq!(cost.activation_bytes, 7 * 8 * 64 * 4 * 2);
    }

    #[test]
    fn keys_that_sequences_share_are_read_once() {
        // 4 shared tokens, and 1, 3 and none of their own; the last one is shorter than the prefix.
        let rows = [(1, 5), (1, 7), (1, 2)];
        let shared = Attention { shared: 4, ..attention(&rows) };
        assert_eq!(shared.cost(&shape(), ROW).kv_bytes, (4 + 1 + 3) * 2 * ROW * 2);
        assert_eq!(attention(&rows).cost(&shape(), ROW).kv_bytes, 14 * 2 * ROW * 2);
        // With a window of 3, the first sees keys 2 to 4 and shares two of them; the second 4 to 6; the third 0 and 1.
        let windowed = Attention { variant: ScenarioVariant { window: Some(3), ..PLAIN }, ..shared };
        assert_eq!(windowed.cost(&shape(), ROW).kv_bytes, (2 + 1 + 3) * 2 * ROW * 2);
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
    fn pairs_and_keys_are_counted_one_by_one() {
        let visible = |variant: &ScenarioVariant, position: i64, key: i64| {
            (!variant.causal || key <= position)
                && variant.window.is_none_or(|window| position - key < i64::from(window))
        };
        for causal in [true, false] {
            for window in [None, Some(1), Some(3), Some(20)] {
                let variant = ScenarioVariant { causal, window, ..PLAIN };
                for (len, queries) in (0..12_u32).flat_map(|len| (1..12_u32).map(move |queries| (len, queries))) {
                    let what = format!("{variant}: {queries} queries, {len} keys");
                    let positions = i64::from(len) - i64::from(queries)..i64::from(len);
                    let sees =
                        |key: i64| positions.clone().filter(move |&at| visible(&variant, at, key)).count() as u64;
                    let keys = 0..i64::from(len);
                    assert_eq!(pairs(queries, len, &variant), keys.clone().map(sees).sum::<u64>(), "{what}");
                    let seen = keys.filter(|&key| sees(key) > 0).count() as u64;
                    assert_eq!(seen_keys(queries, len, &variant), seen, "{what}");
                }
            }
        }
        // From an empty cache: n(n+1)/2. One query: all keys.
        assert_eq!(pairs(512, 512, &PLAIN), 131_328);
        assert_eq!(pairs(1, 2048, &PLAIN), 2048);
    }

    #[test]
    fn published_sizes_come_out() {
        // A layer of LLaMA-13B at 4,096 tokens in f16: K 40 MiB and V 40 MiB.
        let llama = ModelShape::by_name("llama-13b").unwrap();
        assert_eq!(kv_bytes(&llama, 256, 4096), 80 << 20);
        // 8 sequences · 2,048 tokens, 8 KV heads, 128 wide, f16: 67 MB.
        let llama3 = ModelShape::by_name("llama-3-8b").unwrap();
        assert_eq!(attention(&[(1, 2048); 8]).cost(&llama3, 256).kv_bytes, 67_108_864);
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
        let shape = ModelShape::custom(MAX_Q_HEADS, MAX_Q_HEADS, wgpu_paged_attention::config::MAX_HEAD_DIM).unwrap();
        let total = u64::from(MAX_BATCH) * u64::from(MAX_CONTEXT);
        assert!(kv_bytes(&shape, 4 * u64::from(shape.head_dim), total) > 1 << 62);
        assert!(
            4_u64.checked_mul(u64::from(MAX_Q_HEADS * shape.head_dim)).and_then(|x| x.checked_mul(total)).is_some()
        );
    }
}
