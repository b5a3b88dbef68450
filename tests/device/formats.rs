//! Storage formats on the device: the append kernel writes, bit for bit, what the host's converter says.

use crate::common::{append, fill_pools, gpu, gpu_featureless, pool_model, pool_words};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::formats::{KvDtype, decode_row};
use wgpu_paged_attention::gpu::KvCache;
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::testkit::Gpu;

/// What the pools hold before anything is written.
const BLANK: u32 = 0x1234_5678;
/// Where conversions go wrong, if they do: both zeros, denormal numbers, the edges of f16 and of int8 and fp8 at a scale
/// of 1, ties, the largest f32.
const EDGES: [f32; 24] = [
    0.0,
    -0.0,
    1e-40,
    -1.2e-38,
    5.9e-8,
    2.98e-8,
    6.1e-5,
    6.0975e-5,
    65_504.0,
    65_519.99,
    65_520.0,
    1e-31,
    127.0,
    448.0,
    464.0,
    -465.0,
    0.5,
    1.5,
    -2.5,
    0.001_953_125,
    0.000_976_562_5,
    1e5,
    -f32::MAX,
    f32::MIN_POSITIVE,
];

fn layout(format: KvDtype, heads: u32, dim: u32, v_dim: u32) -> KvLayout {
    let config = CacheConfig::new(1, heads, dim).with_v_head_dim(v_dim).with_kv_dtype(format);
    config.with_block_size(4).with_num_blocks(8).with_max_seq_len(32).layout().unwrap()
}

/// Rows of several kinds: ordinary, on any scale, out of edges, out of any bits, with an outlier, of one value.
fn rows(rng: &mut StdRng, count: u32, dim: u32) -> Vec<f32> {
    let mut all = Vec::new();
    for row in 0..count {
        let factor = 2_f32.powi(rng.random_range(-110..120));
        let mut row: Vec<f32> = (0..dim)
            .map(|_| match row % 6 {
                0 | 4 => rng.random_range(-1.0..1.0),
                1 => rng.random_range(-1.0..1.0) * factor,
                2 => EDGES[rng.random_range(0..EDGES.len())],
                3 => f32::from_bits(rng.random()),
                _ => factor,
            })
            .collect();
        if all.len() as u32 / dim % 6 == 4 {
            row[rng.random_range(0..dim as usize)] = -1e5;
        }
        all.extend(row);
    }
    all
}

#[track_caller]
fn assert_same(got: &[u32], want: &[u32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    if let Some(at) = (0..got.len()).find(|&at| got[at] != want[at]) {
        panic!("{what}: word {at} of {} is {:#010x} instead of {:#010x}", got.len(), got[at], want[at]);
    }
}

fn check(gpu: &Gpu, format: KvDtype, heads: u32, (dim, v_dim): (u32, u32), seed: u64) {
    let what = format!("{format}, {heads} heads of {dim} and {v_dim}, seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let layout = layout(format, heads, dim, v_dim);
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(gpu, &cache, BLANK);
    let mut slots: Vec<i64> = (0..32).collect();
    slots.shuffle(&mut rng);
    slots.truncate(24);
    slots[5] = -1;
    let (k, v) = (rows(&mut rng, 24 * heads, dim), rows(&mut rng, 24 * heads, v_dim));
    append(gpu, &cache, &slots, &k, &v).unwrap();
    assert_same(&pool_words(gpu, &cache), &pool_model(&layout, &slots, &k, &v, BLANK), &what);
}

#[test]
fn the_append_kernel_and_the_host_agree_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    for format in KvDtype::ALL {
        for dim in [1, 5, 33, 80, 100, 128, 300, 512] {
            check(&gpu, format, 2, (dim, dim), dim.into());
        }
    }
}

#[test]
fn k_and_v_of_different_widths_each_have_rows_of_their_own() {
    let Some(gpu) = gpu() else { return };
    for format in KvDtype::ALL {
        for dims in [(192, 128), (5, 80), (300, 1), (32, 33)] {
            check(&gpu, format, 3, dims, 7);
        }
    }
}

#[test]
fn no_format_needs_a_feature() {
    let Some(gpu) = gpu_featureless() else { return };
    for format in KvDtype::ALL {
        check(&gpu, format, 1, (40, 24), 11);
    }
}

#[test]
fn a_wrong_bit_is_noticed() {
    let layout = layout(KvDtype::Int4, 1, 64, 64);
    let right = pool_model(&layout, &[3], &[1.0; 64], &[2.0; 64], BLANK);
    let mut wrong = right.clone();
    wrong[12 * 3 + 2] ^= 0x10;
    assert!(std::panic::catch_unwind(|| assert_same(&wrong, &right, "int4")).is_err());
    // The device's own work, on other data than the model's.
    let Some(gpu) = gpu() else { return };
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(&gpu, &cache, BLANK);
    let mut k = [1.0; 64];
    k[17] = 0.9;
    append(&gpu, &cache, &[3], &k, &[2.0; 64]).unwrap();
    let got = pool_words(&gpu, &cache);
    assert_eq!(got.iter().zip(&right).filter(|(got, right)| got != right).count(), 1, "one nibble of one word");
}

// Q09: the neighbours of a code are written by other dispatches.
#[test]
fn tokens_appended_one_by_one_leave_their_neighbours_alone() {
    let Some(gpu) = gpu() else { return };
    for format in KvDtype::ALL {
        for dim in [64, 80] {
            let config = CacheConfig::new(1, 1, dim).with_kv_dtype(format).with_num_blocks(3);
            let layout = config.with_max_seq_len(32).layout().unwrap();
            let cache = KvCache::new(&gpu.device, &layout).unwrap();
            // Every 15 elements have all codes of int4; its scale is 7 · (1/7) = 1, for every unit holds a 7.
            let code = |t: usize, d: usize| ((t + d) % 15) as f32 - 7.0;
            for len in [1, 2, 15, 17] {
                fill_pools(&gpu, &cache, BLANK);
                // Blocks 2 and 0, and the even tokens first, so that each is written between others.
                let order = (0..len).step_by(2).chain((1..len).step_by(2));
                let (mut slots, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
                for t in order.clone() {
                    let slot = if t < 16 { 32 + t as i64 } else { t as i64 - 16 };
                    let row: Vec<f32> = (0..dim as usize).map(|d| code(t, d)).collect();
                    let negated: Vec<f32> = row.iter().map(|x| -x).collect();
                    append(&gpu, &cache, &[slot], &row, &negated).unwrap();
                    slots.push(slot);
                    k.extend(row);
                    v.extend(negated);
                }
                let words = pool_words(&gpu, &cache);
                let what = format!("{format}, {len} tokens of {dim}");
                assert_same(&words, &pool_model(&layout, &slots, &k, &v, BLANK), &what);
                for (t, &slot) in order.zip(&slots) {
                    let at = layout.row_index(1, slot as u32, 0) as usize * 4 * layout.k_row_units() as usize;
                    let mut row = vec![0.0; dim as usize];
                    decode_row(format, &words[at..][..4 * layout.k_row_units() as usize], &mut row).unwrap();
                    for (d, &got) in row.iter().enumerate() {
                        // fp8 has 3 bits of mantissa and a scale of 1/64.
                        let tolerance = if format == KvDtype::Fp8 { 0.25 } else { 0.04 };
                        assert!((got - code(t, d)).abs() <= tolerance, "{what}: token {t}, element {d} is {got}");
                    }
                }
            }
        }
    }
}
