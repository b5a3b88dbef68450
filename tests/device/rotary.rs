//! The fused append: rotary embedding of K and of the queries, and rows in f16, against the oracle's rotation in f64.

use crate::common::{fill_pools, gpu, gpu_default_limits, gpu_featureless, pool_model, pool_words};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::formats::{decode_row, encode_row};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, AttentionIo, AttentionSpec, DeviceError, DeviceProfile, GpuError, IoFormat,
    KvCache, RotarySpec, RotaryStyle,
};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::{Append, RawTables, StepPlan, Tables};
use wgpu_paged_attention::reference::{Rotary, compare, inverse_frequencies, rotate};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

const STYLES: [RotaryStyle; 2] = [RotaryStyle::Interleaved, RotaryStyle::HalfSplit];
const IO_FORMATS: [IoFormat; 2] = [IoFormat::F32, IoFormat::F16];
/// What stands where nobody wrote.
const BLANK: u32 = 0x1234_5678;

/// A step of five tokens with the slots they go to: two of a long sequence, one padding row without keys, one decoding
/// sequence, one whose slot is skipped.
struct Case {
    heads: u32,
    q_heads: u32,
    dims: (u32, u32),
    format: KvDtype,
    lens: Vec<u32>,
    queries: Vec<u32>,
    slots: Vec<i64>,
}

impl Case {
    fn new(format: KvDtype, head_dim: u32, v_head_dim: u32) -> Self {
        Self {
            heads: 2,
            q_heads: 4,
            dims: (head_dim, v_head_dim),
            format,
            lens: vec![41, 0, 7, 3],
            queries: vec![2, 1, 1, 1],
            slots: vec![39, 17, 2, 6, -1],
        }
    }

    fn config(&self) -> CacheConfig {
        let config = CacheConfig::new(1, self.heads, self.dims.0).with_v_head_dim(self.dims.1);
        config.with_kv_dtype(self.format).with_block_size(4).with_num_blocks(16).with_max_seq_len(64)
    }

    fn layout(&self) -> KvLayout {
        self.config().layout().unwrap()
    }

    fn plan(&self, cache: &KvCache) -> StepPlan {
        let max_blocks = cache.layout().max_blocks_per_seq();
        let block_table = vec![0; self.lens.len() * max_blocks as usize];
        let mut cu = vec![0];
        for queries in &self.queries {
            cu.push(cu[cu.len() - 1] + queries);
        }
        let mut plan = cache.new_plan();
        let tables = Tables::Dense { block_table: &block_table, max_blocks, seq_lens: &self.lens };
        let append = Append::Slots(&self.slots);
        plan.plan_tables(cache.layout(), &RawTables { tables, cu_seqlens_q: Some(&cu), append }).unwrap();
        plan
    }

    /// The append that rotates the queries of this case.
    fn append(&self, rotary: RotarySpec) -> AppendSpec {
        AppendSpec::for_attention(&AttentionSpec::new(self.q_heads)).with_rotary(rotary)
    }

    /// K, V and queries, as the caller has them before they are put into f16.
    fn rows(&self, seed: u64) -> [Vec<f32>; 3] {
        let mut rng = StdRng::seed_from_u64(seed);
        [self.heads * self.dims.0, self.heads * self.dims.1, self.q_heads * self.dims.0]
            .map(|len| (0..len as usize * self.slots.len()).map(|_| rng.random_range(-2.0..2.0)).collect())
    }
}

/// A buffer of a type.
fn upload(gpu: &Gpu, io_format: IoFormat, values: &[f32]) -> wgpu::Buffer {
    match io_format {
        IoFormat::F32 => gpu.storage("rows", values),
        IoFormat::F16 => gpu.storage("rows", &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
    }
}

fn download(gpu: &Gpu, io_format: IoFormat, buffer: &wgpu::Buffer) -> Vec<f32> {
    match io_format {
        IoFormat::F32 => gpu.read(buffer).unwrap(),
        IoFormat::F16 => gpu.read::<f16>(buffer).unwrap().into_iter().map(f16::to_f32).collect(),
    }
}

/// What a value is after it went through a buffer of that type.
fn given(io_format: IoFormat, values: &[f32]) -> Vec<f32> {
    match io_format {
        IoFormat::F32 => values.to_vec(),
        IoFormat::F16 => values.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
    }
}

/// Appends rows of a type with an appender that rotates, or does not, and returns the queries.
fn append(
    gpu: &Gpu,
    cache: &KvCache,
    (with, io_format, rotates): (&Appender, IoFormat, bool),
    plan: &StepPlan,
    [k, v, q]: &[Vec<f32>; 3],
) -> Vec<f32> {
    let [k, v, q, rotated] = [k, v, q, &vec![9.0; q.len()]].map(|values| upload(gpu, io_format, values));
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, plan).unwrap();
    let io = AppendIo::new(k.slice(..), v.slice(..));
    let io = if rotates { io.with_queries(q.slice(..), rotated.slice(..)) } else { io };
    cache.append(&mut encoder.begin_compute_pass(&Default::default()), with, &step, 0, io).unwrap();
    gpu.submit(encoder);
    download(gpu, io_format, if rotates { &rotated } else { &q })
}

/// A rotation, in the oracle's form and in the device's.
#[derive(Clone, Debug)]
struct Turn {
    style: RotaryStyle,
    dims: u32,
    base: f32,
    offset: i32,
    inv_freq: Option<Vec<f64>>,
}

impl Turn {
    fn new(style: RotaryStyle, dims: u32) -> Self {
        Self { style, dims, base: 10_000.0, offset: 0, inv_freq: None }
    }

    fn spec(&self) -> RotarySpec {
        let spec = match &self.inv_freq {
            Some(inv_freq) => RotarySpec::from_inv_freq(self.style, inv_freq.clone()),
            None => RotarySpec::new(self.style, self.dims).with_base(self.base),
        };
        spec.with_offset(self.offset)
    }
}

/// The oracle's rotation of rows of all heads, token after token.
fn oracle(rotary: &Rotary<'_>, rows: &[f32], dim: u32, positions: &[i32]) -> Vec<f64> {
    let per_token = rows.len() / positions.len();
    let tokens = rows.chunks(per_token).zip(positions);
    tokens
        .flat_map(|(token, &at)| token.chunks(dim as usize).flat_map(move |row| rotate(rotary, row, at.into())))
        .collect()
}

/// How far a stored element may be from the rotated one: the rounding of the format, of rows whose largest element is
/// below 3, and that of the rotation in f32.
fn tolerance(format: KvDtype) -> f64 {
    match format {
        KvDtype::F32 => 6e-7,
        KvDtype::F16 => 1.1e-3,
        KvDtype::Bf16 => 8.2e-3,
        KvDtype::Int8 => 0.5 * 3.0 / 127.0 + 1e-5,
        KvDtype::Fp8 => 3.0 / 16.0 + 1e-5,
        KvDtype::Int4 => 0.5 * 3.0 / 7.0 + 1e-5,
        _ => panic!("a format without a tolerance: {format}"),
    }
}

/// Runs a case and compares pools and queries with the oracle; `told` is what the device gets.
fn run(gpu: &Gpu, case: &Case, io_format: IoFormat, spec: &Turn, told: &Turn) -> Result<(), String> {
    let (layout, rows) = (case.layout(), case.rows(3));
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(gpu, &cache, BLANK);
    let with = cache.appender(case.append(told.spec()).with_io_format(io_format)).unwrap();
    let plan = case.plan(&cache);
    let queries = append(gpu, &cache, (&with, io_format, true), &plan, &rows);

    let inv_freq = spec.inv_freq.clone();
    let inv_freq = inv_freq.unwrap_or_else(|| inverse_frequencies(spec.base.into(), spec.dims as usize));
    let interleaved = spec.style == RotaryStyle::Interleaved;
    let rotary = Rotary { interleaved, inv_freq: &inv_freq, offset: spec.offset.into() };
    let [k, v, q] = rows.map(|rows| given(io_format, &rows));
    let want = oracle(&rotary, &q, case.dims.0, plan.positions());
    let tolerances = if io_format == IoFormat::F16 { (1e-6, 4.9e-4) } else { (6e-7, 0.0) };
    compare(&queries, &want, tolerances.0, tolerances.1).map_err(|error| format!("queries: {error}"))?;

    // V, and the places where nobody writes, to the bit; K as near as the format allows.
    let k = oracle(&rotary, &k, case.dims.0, plan.positions());
    let rounded: Vec<f32> = k.iter().map(|&x| x as f32).collect();
    let want = pool_model(&layout, &case.slots, &rounded, &v, BLANK);
    let got = pool_words(gpu, &cache);
    let k_words = (layout.k_shard_bytes(case.heads) / 4) as usize;
    if got[k_words..] != want[k_words..] {
        return Err("V differs".to_owned());
    }
    let row_words = 4 * layout.k_row_units() as usize;
    for (row, (got, want)) in got[..k_words].chunks(row_words).zip(want[..k_words].chunks(row_words)).enumerate() {
        if want.iter().all(|&word| word == BLANK) {
            if got != want {
                return Err(format!("row {row} was written"));
            }
            continue;
        }
        let (block, head, within) = (row as u32 / 4 / case.heads, row as u32 / 4 % case.heads, row as u32 % 4);
        let token = case.slots.iter().position(|&slot| slot == i64::from(4 * block + within)).unwrap();
        let at = (token * case.heads as usize + head as usize) * case.dims.0 as usize;
        let mut stored = vec![0.0; case.dims.0 as usize];
        decode_row(layout.kv_dtype(), got, &mut stored).unwrap();
        let want = &k[at..][..stored.len()];
        compare(&stored, want, tolerance(case.format), 0.0).map_err(|error| format!("row {row} of K: {error}"))?;
    }
    Ok(())
}

#[track_caller]
fn check(gpu: &Gpu, case: &Case, io_format: IoFormat, spec: &Turn) {
    if let Err(error) = run(gpu, case, io_format, spec, spec) {
        panic!("{} of {:?}, {io_format:?}, {spec:?}: {error}", case.format, case.dims);
    }
}

#[test]
fn k_and_queries_are_turned_as_the_oracle_turns_them_in_every_format() {
    let Some(gpu) = gpu() else { return };
    for format in KvDtype::ALL {
        for (style, io_format) in STYLES.into_iter().flat_map(|style| IO_FORMATS.map(|io_format| (style, io_format))) {
            let offset = if style == RotaryStyle::HalfSplit { 5 } else { -3 };
            // All of a head, and a part of it that ends within a unit of every format.
            check(&gpu, &Case::new(format, 16, 8), io_format, &Turn { offset, ..Turn::new(style, 16) });
            check(&gpu, &Case::new(format, 42, 6), io_format, &Turn { base: 500.0, ..Turn::new(style, 10) });
        }
    }
}

#[test]
fn rotation_keeps_the_default_limits_and_needs_no_feature() {
    let case = Case::new(KvDtype::Int4, 64, 64);
    for gpu in [gpu_default_limits(), gpu_featureless()].into_iter().flatten() {
        check(&gpu, &case, IoFormat::F16, &Turn::new(RotaryStyle::HalfSplit, 64));
    }
}

#[test]
fn wrong_rotations_are_noticed() {
    let Some(gpu) = gpu() else { return };
    let case = Case::new(KvDtype::F32, 16, 8);
    let right = Turn::new(RotaryStyle::HalfSplit, 8);
    assert_eq!(run(&gpu, &case, IoFormat::F32, &right, &right), Ok(()));
    let wrong = [
        Turn { offset: 1, ..right.clone() },
        Turn { style: RotaryStyle::Interleaved, ..right.clone() },
        Turn { dims: 10, ..right.clone() },
        Turn { base: 10_100.0, ..right.clone() },
    ];
    for told in wrong {
        assert!(run(&gpu, &case, IoFormat::F32, &right, &told).is_err(), "nothing was noticed of {told:?}");
    }
}

#[test]
fn far_positions_are_as_exact_as_near_ones() {
    let Some(gpu) = gpu() else { return };
    // By way of the offset, and by that of the position.
    let case = Case { lens: vec![100_000, 0, 65_537, 3], ..Case::new(KvDtype::F32, 8, 8) };
    let layout = || case.config().with_max_seq_len(100_000).with_num_blocks(25_000).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout()).unwrap();
    let spec = RotarySpec::new(RotaryStyle::HalfSplit, 8).with_offset(900_000);
    let with = cache.appender(case.append(spec)).unwrap();
    let (plan, rows) = (case.plan(&cache), case.rows(5));
    assert_eq!(plan.positions(), [99_998, 99_999, -1, 65_536, 2]);
    let got = append(&gpu, &cache, (&with, IoFormat::F32, true), &plan, &rows);
    let inv_freq = inverse_frequencies(10_000.0, 8);
    let rotary = Rotary { interleaved: false, inv_freq: &inv_freq, offset: 900_000 };
    compare(&got, &oracle(&rotary, &rows[2], 8, plan.positions()), 6e-7, 0.0).unwrap();
    let off_by_one = Rotary { offset: 899_999, ..rotary };
    assert!(compare(&got, &oracle(&off_by_one, &rows[2], 8, plan.positions()), 0.01, 0.0).is_err());
}

#[test]
fn given_frequencies_take_the_place_of_the_base() {
    let Some(gpu) = gpu() else { return };
    let case = Case::new(KvDtype::F32, 8, 8);
    // Quarter turns: (x, y) becomes (y, −x) after three of them, and (x, y) again after four.
    let inv_freq = vec![std::f64::consts::FRAC_PI_2, 0.0];
    let turn = Turn { inv_freq: Some(inv_freq), ..Turn::new(RotaryStyle::Interleaved, 4) };
    check(&gpu, &case, IoFormat::F32, &turn);
    let cache = KvCache::new(&gpu.device, &case.layout()).unwrap();
    let with = cache.appender(case.append(turn.spec())).unwrap();
    let rows = case.rows(1);
    let got = append(&gpu, &cache, (&with, IoFormat::F32, true), &case.plan(&cache), &rows);
    // Positions 39 and 40.
    let (got, q) = (got.chunks(32).take(2), rows[2].chunks(32));
    for ((got, q), three) in got.zip(q).zip([true, false]) {
        let want = if three { [q[1], -q[0], q[2], q[3]] } else { [q[0], q[1], q[2], q[3]] };
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got} instead of {want}");
        }
    }
}

#[test]
fn rows_that_are_not_turned_are_stored_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    for format in KvDtype::ALL {
        let case = Case::new(format, 34, 10);
        let (layout, mut rows) = (case.layout(), case.rows(8));
        for (at, x) in [65_504.0, -0.0, 6e-8, f32::INFINITY, 1e-5].into_iter().enumerate() {
            rows[0][at * 17] = x;
        }
        let mut pools = Vec::new();
        for io_format in IO_FORMATS {
            let cache = KvCache::new(&gpu.device, &layout).unwrap();
            fill_pools(&gpu, &cache, BLANK);
            let with = cache.appender(AppendSpec::new().with_io_format(io_format)).unwrap();
            append(&gpu, &cache, (&with, io_format, false), &case.plan(&cache), &rows);
            let [k, v, _] = rows.each_ref().map(|rows| given(io_format, rows));
            let got = pool_words(&gpu, &cache);
            assert!(got == pool_model(&layout, &case.slots, &k, &v, BLANK), "{format} from {io_format:?}");
            pools.push(got);
        }
        // What is stored in f16 was rounded to it anyway.
        assert_eq!(pools[0] == pools[1], format == KvDtype::F16, "{format}");
    }
}

/// Attention of the last token of a sequence whose first token is at position `first`, by way of the cache.
fn attend_from(gpu: &Gpu, style: RotaryStyle, first: u32, offset: i32) -> Vec<f32> {
    let config = CacheConfig::new(1, 1, 16).with_kv_dtype(KvDtype::F32).with_block_size(4).with_num_blocks(64);
    let layout = config.with_max_seq_len(256).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(gpu, &cache, u32::MAX);
    let rotary = RotarySpec::new(style, 12).with_base(100.0).with_offset(offset);
    let spec = AttentionSpec::new(2).with_window(21);
    let with = cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary)).unwrap();
    // A window that ends where the data begins: what stands before it was never written.
    let attention = cache.attention(spec).unwrap();
    let mut rng = StdRng::seed_from_u64(4);
    let mut rows = |len| -> Vec<f32> { (0..len).map(|_| rng.random_range(-2.0..2.0)).collect() };
    let (k, v, q) = (rows(21 * 16), rows(21 * 16), rows(21 * 32));
    let [k, v, q] = [&k, &v, &q].map(|rows| gpu.storage("rows", rows));
    let [rotated, out] = ["rotated", "out"].map(|label| gpu.storage(label, &vec![9.0_f32; 21 * 32]));

    let block_table: Vec<u32> = (0..64).rev().collect();
    let mut plan = cache.new_plan();
    let tables = Tables::Dense { block_table: &block_table, max_blocks: 64, seq_lens: &[first + 21] };
    let raw = RawTables { tables, cu_seqlens_q: Some(&[0, 21]), append: Append::FromTables };
    plan.plan_tables(&layout, &raw).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan).unwrap();
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let io = AppendIo::new(k.slice(..), v.slice(..)).with_queries(q.slice(..), rotated.slice(..));
        cache.append(&mut pass, &with, &step, 0, io).unwrap();
        let io = AttentionIo::new(rotated.slice(..), out.slice(..));
        cache.attend(&mut pass, &attention, &step, 0, io).unwrap();
    }
    gpu.submit(encoder);
    gpu.read::<f32>(&out).unwrap().split_off(20 * 32)
}

#[test]
fn attention_depends_on_distances_only() {
    let Some(gpu) = gpu() else { return };
    for style in STYLES {
        let want: Vec<f64> = attend_from(&gpu, style, 0, 0).into_iter().map(Into::into).collect();
        assert!(want.iter().all(|x| x.is_finite()));
        for (first, offset) in [(1, 0), (130, 0), (235, 7), (0, 77), (30, -30)] {
            let got = attend_from(&gpu, style, first, offset);
            compare(&got, &want, 1e-5, 0.0).unwrap_or_else(|error| panic!("{style:?} from {first}, {offset}: {error}"));
        }
    }
    // The two styles are not the same thing.
    let [interleaved, half_split] = STYLES.map(|style| attend_from(&gpu, style, 0, 0));
    let half_split: Vec<f64> = half_split.into_iter().map(Into::into).collect();
    assert!(compare(&interleaved, &half_split, 1e-3, 0.0).is_err());
}

#[test]
fn a_spec_that_contradicts_itself_or_the_cache_is_refused() {
    let Some(gpu) = gpu() else { return };
    let cache = |head_dim, v_head_dim| {
        let layout = Case { heads: 2, ..Case::new(KvDtype::F16, head_dim, v_head_dim) }.layout();
        KvCache::new(&gpu.device, &layout).unwrap()
    };
    let even = cache(16, 8);
    let rotary = |dims| RotarySpec::new(RotaryStyle::HalfSplit, dims);
    let freq = |inv_freq: &[f64]| RotarySpec::from_inv_freq(RotaryStyle::Interleaved, inv_freq);
    let cases = [
        ("rotary dims is 3; it must be an even number from 2 to head_dim, which is 16", rotary(3)),
        ("rotary dims is 0", rotary(0)),
        ("rotary dims is 18", rotary(18)),
        ("rotary base is 0", rotary(8).with_base(0.0)),
        ("rotary base is NaN", rotary(8).with_base(f32::NAN)),
        ("rotary dims is 0", freq(&[])),
        ("inv_freq[1] is inf", freq(&[1.0, f64::INFINITY])),
        ("inv_freq[0] is 1", freq(&[1e300])),
    ];
    for (words, rotary) in cases {
        let said = even.appender(AppendSpec::new().with_rotary(rotary)).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    let three = AppendSpec::for_attention(&AttentionSpec::new(3)).with_rotary(rotary(8));
    let said = even.appender(three).unwrap_err().to_string();
    assert!(said.starts_with("num_q_heads is 3, not a positive multiple of the 2 KV heads"), "{said}");
    for (name, cache) in [("head_dim", cache(7, 8)), ("v_head_dim", cache(8, 7))] {
        assert!(cache.appender(AppendSpec::new()).is_ok());
        let error = cache.appender(AppendSpec::new().with_io_format(IoFormat::F16)).unwrap_err();
        assert!(
            matches!(&error, GpuError::Spec(spec) if spec.option == name && spec.problem.starts_with("is 7;")),
            "{error:?}"
        );
    }
    // 64 positions of 16 words are one too many for the binding.
    let mut profile = DeviceProfile::of(&gpu.device);
    profile.max_binding_bytes = 64 * 16 * 4 - 1;
    let layout = Case::new(KvDtype::F16, 16, 16).config().with_max_sequences(1).with_num_blocks(4);
    let small = KvCache::with_profile(&gpu.device, &layout.layout().unwrap(), profile).unwrap();
    let error = small.appender(AppendSpec::new().with_rotary(rotary(16))).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::Limit { needed: 4096, limit: 4095, .. })), "{error:?}");
    assert!(small.appender(AppendSpec::new().with_rotary(rotary(14))).is_ok());
}

#[test]
fn buffers_that_cannot_be_right_are_refused_and_leave_no_trace() {
    let Some(gpu) = gpu() else { return };
    let case = Case::new(KvDtype::F16, 16, 8);
    let cache = KvCache::new(&gpu.device, &case.layout()).unwrap();
    fill_pools(&gpu, &cache, BLANK);
    let spec = AppendSpec::new().with_io_format(IoFormat::F16);
    let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 16);
    let rotating = case.append(rotary.clone()).with_io_format(IoFormat::F16);
    let keys_only = cache.appender(spec.clone().with_rotary(rotary)).unwrap();
    let (plain, with) = (cache.appender(spec).unwrap(), cache.appender(rotating.clone()).unwrap());
    let other = KvCache::new(&gpu.device, &case.layout()).unwrap().appender(rotating).unwrap();
    // 5 tokens: 2 heads of K of 16 and of V of 8, 4 heads of q, in f16.
    let [k, v, q, rotated] = [320, 160, 640, 640].map(|bytes: usize| gpu.storage("rows", &vec![0_u8; bytes]));
    let pool = &cache.head_shards(0).unwrap()[0].k;
    let rows = |k_bytes: u64, v_bytes: u64| AppendIo::new(k.slice(..k_bytes), v.slice(..v_bytes));
    let io = rows(320, 160).with_queries(q.slice(..), rotated.slice(..));
    let queries = |q, rotated| rows(320, 160).with_queries(q, rotated);
    let cases = [
        ("queries were given, but the append rotates nothing", &plain, 0, io),
        ("queries were given, but the spec names no query heads", &keys_only, 0, io),
        ("appender was made for another cache", &other, 0, io),
        ("layer 1 does not exist", &with, 1, io),
        ("k has 316 bytes, but 320 are needed", &with, 0, rows(316, 160)),
        ("v has 156 bytes, but 160 are needed", &plain, 0, rows(320, 156)),
        ("q has 320 bytes, but 640 are needed", &with, 0, queries(k.slice(..), rotated.slice(..))),
        ("rotated has 636 bytes", &with, 0, queries(q.slice(..), rotated.slice(..636))),
        ("q and rotated overlap", &with, 0, queries(q.slice(..), q.slice(..))),
        ("rotated and the pool of K share a buffer", &with, 0, queries(q.slice(..), pool.slice(..))),
        ("k and the pool of K share a buffer", &with, 0, AppendIo::new(pool.slice(..), v.slice(..))),
    ];
    let record = |with: &Appender, layer, io| {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &case.plan(&cache)).unwrap();
        let recorded = cache.append(&mut encoder.begin_compute_pass(&Default::default()), with, &step, layer, io);
        gpu.submit(encoder);
        recorded
    };
    for (words, with, layer, io) in cases {
        let said = record(with, layer, io).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    assert!(pool_words(&gpu, &cache).iter().all(|&word| word == BLANK));
    // Rotated K without queries is fine, and so is a fused buffer of rows.
    let fused = gpu.storage("qkv", &[0_u8; 512 + 256 + 640]);
    let io = AppendIo::new(fused.slice(..), fused.slice(512..));
    record(&with, 0, io).unwrap();
    let mut zeros = vec![0; 8];
    encode_row(KvDtype::F16, &[0.0; 16], &mut zeros).unwrap();
    let at = cache.layout().row_index(2, 39, 0) as usize * 8;
    // A turned 0 may have either sign.
    let unsigned = pool_words(&gpu, &cache)[at..at + 8].iter().map(|word| word & 0x7fff_7fff).collect::<Vec<_>>();
    assert_eq!(unsigned, zeros);
}
