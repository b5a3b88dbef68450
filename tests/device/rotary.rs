//! The fused append: rotary embedding of K and of the queries, and rows in f16, against the oracle's rotation in f64.

use crate::common::{fill_pools, gpu, gpu_default_limits, gpu_featureless, pool_model, pool_words};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::formats::encode_row;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, AttentionIo, AttentionSpec, DeviceError, DeviceProfile, GpuError, IoFormat,
    KvCache, MropeSections, QueryIo, RotarySpec, RotaryStyle,
};
use wgpu_paged_attention::plan::{Append, RawTables, StepPlan, Tables};
use wgpu_paged_attention::reference::{Rotary, compare, inverse_frequencies, rotate};
use wgpu_paged_attention::testkit::{BLANK, Gpu, RotationFault, RotationScenario, Turn, round_io};
use wgpu_paged_attention::wgpu;

const STYLES: [RotaryStyle; 2] = [RotaryStyle::Interleaved, RotaryStyle::HalfSplit];
const IO_FORMATS: [IoFormat; 2] = [IoFormat::F32, IoFormat::F16];

/// The usual step, from f32, with whatever rotation.
fn case(format: KvDtype, head_dim: u32, v_head_dim: u32) -> RotationScenario {
    RotationScenario::new(format, head_dim, v_head_dim, IoFormat::F32, Turn::new(RotaryStyle::HalfSplit, 0))
}

/// The append that rotates the queries of a case.
fn rotating(case: &RotationScenario, rotary: RotarySpec) -> AppendSpec {
    AppendSpec::for_attention(&AttentionSpec::new(case.num_q_heads)).with_rotary(rotary)
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
    let mut values = values.to_vec();
    round_io(&mut values, io_format);
    values
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

/// The oracle's rotation of rows of all heads, token after token.
fn oracle(rotary: &Rotary<'_>, rows: &[f32], dim: u32, positions: &[i32]) -> Vec<f64> {
    let per_token = rows.len() / positions.len();
    let tokens = rows.chunks(per_token).zip(positions);
    tokens
        .flat_map(|(token, &at)| token.chunks(dim as usize).flat_map(move |row| rotate(rotary, row, at.into())))
        .collect()
}

#[track_caller]
fn check(gpu: &Gpu, scenario: &RotationScenario) {
    if let Err(error) = scenario.run(gpu, 3, None) {
        panic!("{scenario}, {:?}: {error}", scenario.turn);
    }
}

/// Rotations of all of a head of 16 and of a part of one of 42, which ends within a unit of every format, with what may come
/// with them in turn.
fn turns(style: RotaryStyle, at: usize) -> [(u32, u32, Turn); 2] {
    let whole = Turn { norm_eps: [Some(0.05), None, Some(1e-6)][at % 3], ..Turn::new(style, 16) };
    let whole = match at % 4 {
        0 => Turn { sections: Some(MropeSections::new([2, 3, 3])), ..whole },
        1 => Turn { sections: Some(MropeSections::new([4, 2, 2]).with_interleaved(true)), ..whole },
        _ => Turn { offset: if style == RotaryStyle::HalfSplit { 5 } else { -3 }, ..whole },
    };
    let part = Turn { base: 500.0, norm_eps: [None, Some(1e-5)][at % 2], ..Turn::new(style, 10) };
    [(16, 8, whole), (42, 6, Turn { attention_factor: [1.25, 1.0][at % 2], ..part })]
}

#[test]
fn k_and_queries_are_turned_as_the_oracle_turns_them_in_every_format() {
    let Some(gpu) = gpu() else { return };
    let forms = || STYLES.into_iter().flat_map(|style| IO_FORMATS.map(|io_format| (style, io_format)));
    for (row, format) in KvDtype::ALL.into_iter().enumerate() {
        for (column, (style, io_format)) in forms().enumerate() {
            for (head_dim, v_head_dim, turn) in turns(style, row + column) {
                check(&gpu, &RotationScenario::new(format, head_dim, v_head_dim, io_format, turn));
            }
        }
    }
}

#[test]
fn a_norm_needs_no_rotation_and_heads_of_any_width() {
    let Some(gpu) = gpu() else { return };
    for (at, head_dim) in [1, 3, 5, 6, 64, 130].into_iter().enumerate() {
        let format = KvDtype::ALL[at];
        let turn = Turn { norm_eps: Some(1e-5), ..Turn::new(RotaryStyle::HalfSplit, 0) };
        check(&gpu, &RotationScenario::new(format, head_dim, 8, IoFormat::F32, turn.clone()));
        let turn = Turn { dims: head_dim / 2 * 2, ..turn };
        check(&gpu, &RotationScenario::new(format, head_dim, 8, IoFormat::F32, turn));
    }
}

#[test]
fn rotation_keeps_the_default_limits_and_needs_no_feature() {
    let turn = Turn { norm_eps: Some(1e-6), ..Turn::new(RotaryStyle::HalfSplit, 64) };
    let scenario = RotationScenario::new(KvDtype::Int4, 64, 64, IoFormat::F16, turn);
    for gpu in [gpu_default_limits(), gpu_featureless()].into_iter().flatten() {
        check(&gpu, &scenario);
    }
}

#[test]
fn planted_rotations_and_norms_are_noticed() {
    let Some(gpu) = gpu() else { return };
    let scenarios = turns(RotaryStyle::HalfSplit, 0).map(|(head_dim, v_head_dim, turn)| {
        RotationScenario::new(KvDtype::F32, head_dim, v_head_dim, IoFormat::F32, turn)
    });
    scenarios.iter().for_each(|scenario| check(&gpu, scenario));
    for fault in RotationFault::ALL {
        let scenario = scenarios.iter().find(|scenario| fault.shows_in(scenario));
        let scenario = scenario.unwrap_or_else(|| panic!("{fault:?} shows in none"));
        assert!(scenario.run(&gpu, 3, Some(fault)).is_err(), "{scenario}: nothing was noticed of {fault:?}");
    }
}

#[test]
fn what_is_not_rotated_stays_as_it_is_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    // Ten of 16 elements are pairs, and the rest holds what any arithmetic would change.
    let case = case(KvDtype::F32, 16, 4);
    let cache = KvCache::new(&gpu.device, &case.layout().unwrap()).unwrap();
    let odd = [f32::NAN, f32::INFINITY, -0.0, 1e-42, f32::MAX, f32::from_bits(0xffc1_2345)];
    let mut rows = case.rows(2);
    for part in [0, 2] {
        rows_of(&mut rows[part]).for_each(|head| head[10..].copy_from_slice(&odd));
    }
    for style in STYLES {
        fill_pools(&gpu, &cache, BLANK);
        let rotary = RotarySpec::new(style, 10).with_attention_factor(1.5);
        let with = cache.appender(rotating(&case, rotary)).unwrap();
        let mut got = append(&gpu, &cache, (&with, IoFormat::F32, true), &case.plan(&cache).unwrap(), &rows);
        let tail = |head: &[f32]| head[10..].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let want = odd.map(f32::to_bits);
        rows_of(&mut got).for_each(|head| assert_eq!(tail(head), want));
        let pools = pool_words(&gpu, &cache);
        for slot in [39, 17, 2, 6] {
            for head in 0..2 {
                let at = cache.layout().row_index(2, slot, head) as usize * 16;
                assert_eq!(pools[at + 10..][..6], want);
            }
        }
    }
}

/// Heads of 16 elements.
fn rows_of(rows: &mut [f32]) -> impl Iterator<Item = &mut [f32]> {
    rows.chunks_mut(16)
}

#[test]
fn a_token_alone_gets_the_bits_that_it_gets_among_others() {
    let Some(gpu) = gpu() else { return };
    let turn = Turn { norm_eps: Some(1e-6), attention_factor: 1.1, ..Turn::new(RotaryStyle::HalfSplit, 34) };
    let all = RotationScenario::new(KvDtype::Int8, 34, 10, IoFormat::F32, turn);
    let cache = KvCache::new(&gpu.device, &all.layout().unwrap()).unwrap();
    let with = cache.appender(all.append_spec()).unwrap();
    let weights = gpu.storage("weights", &(0..34).map(|d| 0.5 + d as f32 / 34.0).collect::<Vec<_>>());
    let rows = all.rows(6);
    let run = |case: &RotationScenario, rows: &[Vec<f32>; 3]| {
        fill_pools(&gpu, &cache, BLANK);
        let [k, v, q] = rows.each_ref().map(|rows| gpu.storage("rows", rows));
        let rotated = gpu.storage("rotated", &vec![9.0_f32; rows[2].len()]);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &case.plan(&cache).unwrap()).unwrap();
        let io = AppendIo::new(k.slice(..), v.slice(..)).with_queries(q.slice(..), rotated.slice(..));
        let io = io.with_k_norm(weights.slice(..)).with_q_norm(weights.slice(..));
        cache.append(&mut encoder.begin_compute_pass(&Default::default()), &with, &step, 0, io).unwrap();
        gpu.submit(encoder);
        (gpu.read::<u32>(&rotated).unwrap(), pool_words(&gpu, &cache))
    };
    let (queries, pools) = run(&all, &rows);
    for (token, (seq_len, slot)) in [(40, 39), (41, 17), (0, 2), (7, 6)].into_iter().enumerate() {
        let alone = RotationScenario { seq_lens: vec![seq_len], query_lens: vec![1], slots: vec![slot], ..all.clone() };
        let of_token = rows.each_ref().map(|rows| rows.chunks(rows.len() / 5).nth(token).unwrap().to_vec());
        let (got, stored) = run(&alone, &of_token);
        assert_eq!(got, queries.chunks(queries.len() / 5).nth(token).unwrap(), "queries of token {token}");
        let written = stored.iter().zip(&pools).filter(|(word, _)| **word != BLANK);
        assert!(written.clone().count() > 20 && written.clone().all(|(got, among)| got == among), "token {token}");
    }
}

#[test]
fn far_positions_are_as_exact_as_near_ones() {
    let Some(gpu) = gpu() else { return };
    // By way of the offset, and by that of the position.
    let case = RotationScenario { seq_lens: vec![100_000, 0, 65_537, 3], ..case(KvDtype::F32, 8, 8) };
    let config = CacheConfig::new(1, 2, 8).with_kv_dtype(KvDtype::F32).with_block_size(4);
    let layout = config.with_max_seq_len(100_000).with_num_blocks(25_000).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    let spec = RotarySpec::new(RotaryStyle::HalfSplit, 8).with_offset(900_000);
    let with = cache.appender(rotating(&case, spec)).unwrap();
    let (plan, rows) = (case.plan(&cache).unwrap(), case.rows(5));
    assert_eq!(plan.positions(), [99_998, 99_999, -1, 65_536, 2]);
    let got = append(&gpu, &cache, (&with, IoFormat::F32, true), &plan, &rows);
    let inv_freq = inverse_frequencies(10_000.0, 8);
    let rotary = Rotary { offset: 900_000, ..Rotary::new(false, &inv_freq) };
    compare(&got, &oracle(&rotary, &rows[2], 8, plan.positions()), 6e-7, 0.0).unwrap();
    let off_by_one = Rotary { offset: 899_999, ..rotary };
    assert!(compare(&got, &oracle(&off_by_one, &rows[2], 8, plan.positions()), 0.01, 0.0).is_err());
}

#[test]
fn given_frequencies_take_the_place_of_the_base() {
    let Some(gpu) = gpu() else { return };
    let case = case(KvDtype::F32, 8, 8);
    // Quarter turns: (x, y) becomes (y, −x) after three of them, and (x, y) again after four.
    let inv_freq = vec![std::f64::consts::FRAC_PI_2, 0.0];
    let turn = Turn { inv_freq: Some(inv_freq), ..Turn::new(RotaryStyle::Interleaved, 4) };
    check(&gpu, &RotationScenario { turn: turn.clone(), ..case.clone() });
    let cache = KvCache::new(&gpu.device, &case.layout().unwrap()).unwrap();
    let with = cache.appender(rotating(&case, turn.rotary())).unwrap();
    let rows = case.rows(1);
    let got = append(&gpu, &cache, (&with, IoFormat::F32, true), &case.plan(&cache).unwrap(), &rows);
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
        let case = case(format, 34, 10);
        let (layout, mut rows) = (case.layout().unwrap(), case.rows(8));
        for (at, x) in [65_504.0, -0.0, 6e-8, f32::INFINITY, 1e-5].into_iter().enumerate() {
            rows[0][at * 17] = x;
        }
        let mut pools = Vec::new();
        for io_format in IO_FORMATS {
            let cache = KvCache::new(&gpu.device, &layout).unwrap();
            fill_pools(&gpu, &cache, BLANK);
            let with = cache.appender(AppendSpec::new().with_io_format(io_format)).unwrap();
            append(&gpu, &cache, (&with, io_format, false), &case.plan(&cache).unwrap(), &rows);
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
        KvCache::new(&gpu.device, &case(KvDtype::F16, head_dim, v_head_dim).layout().unwrap()).unwrap()
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
        ("attention_factor is NaN; it must be positive", rotary(8).with_attention_factor(f64::NAN)),
        ("attention_factor is 0", rotary(8).with_attention_factor(0.0)),
        (
            "mrope_section is [1, 2, 2]; these must be the 4 pairs",
            rotary(8).with_sections(MropeSections::new([1, 2, 2])),
        ),
        (
            "mrope_section is [0, 2, 2]; these must be the 4 pairs that are rotated, dealt out in turn",
            rotary(8).with_sections(MropeSections::new([0, 2, 2]).with_interleaved(true)),
        ),
        ("mrope_section is [4294967295, 1, 4]", rotary(8).with_sections(MropeSections::new([u32::MAX, 1, 4]))),
    ];
    for (words, rotary) in cases {
        let said = even.appender(AppendSpec::new().with_rotary(rotary)).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    for eps in [0.0, -1e-6, f32::NAN, f32::INFINITY] {
        let said = even.appender(AppendSpec::new().with_qk_norm(eps)).unwrap_err().to_string();
        assert!(said.starts_with(&format!("qk_norm eps is {eps}; it must be positive")), "{said}");
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
    let config = CacheConfig::new(1, 2, 16).with_kv_dtype(KvDtype::F16).with_block_size(4).with_max_seq_len(64);
    let layout = config.with_max_sequences(1).with_num_blocks(4).layout().unwrap();
    let small = KvCache::with_profile(&gpu.device, &layout, profile).unwrap();
    let error = small.appender(AppendSpec::new().with_rotary(rotary(16))).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::Limit { needed: 4096, limit: 4095, .. })), "{error:?}");
    assert!(small.appender(AppendSpec::new().with_rotary(rotary(14))).is_ok());
}

#[test]
fn buffers_that_cannot_be_right_are_refused_and_leave_no_trace() {
    let Some(gpu) = gpu() else { return };
    let case = case(KvDtype::F16, 16, 8);
    let cache = KvCache::new(&gpu.device, &case.layout().unwrap()).unwrap();
    fill_pools(&gpu, &cache, BLANK);
    let spec = AppendSpec::new().with_io_format(IoFormat::F16);
    let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 16);
    let rotating = rotating(&case, rotary.clone()).with_io_format(IoFormat::F16);
    let keys_only = cache.appender(spec.clone().with_rotary(rotary.clone())).unwrap();
    let (plain, with) = (cache.appender(spec).unwrap(), cache.appender(rotating.clone()).unwrap());
    let norming = cache.appender(rotating.clone().with_qk_norm(1e-6)).unwrap();
    let sections = rotary.with_sections(MropeSections::new([4, 2, 2]));
    let sectioned = cache.appender(rotating.clone().with_rotary(sections)).unwrap();
    let other = KvCache::new(&gpu.device, &case.layout().unwrap()).unwrap().appender(rotating).unwrap();
    // 5 tokens: 2 heads of K of 16 and of V of 8, 4 heads of q, in f16.
    let [k, v, q, rotated] = [320, 160, 640, 640].map(|bytes: usize| gpu.storage("rows", &vec![0_u8; bytes]));
    let weights = gpu.storage("weights", &[1.0_f32; 16]);
    let weights = weights.slice(..);
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
        ("k_norm is missing; the spec has a norm, so give its weights by with_k_norm", &norming, 0, io),
        ("q_norm is missing", &norming, 0, io.with_k_norm(weights)),
        ("k_norm was given, but the spec has no norm", &with, 0, io.with_k_norm(weights)),
        ("q_norm was given, but the spec has no norm", &with, 0, io.with_q_norm(weights)),
        ("q_norm was given without queries", &norming, 0, rows(320, 160).with_q_norm(weights)),
        ("k_norm has 60 bytes, but 64 are needed", &norming, 0, io.with_k_norm(weights.buffer().slice(..60))),
        ("k_norm and the pool of K share a buffer", &norming, 0, io.with_k_norm(pool.slice(..))),
        ("q_norm and rotated share a buffer", &norming, 0, io.with_k_norm(weights).with_q_norm(rotated.slice(..64))),
        ("step has no positions in time, height and width", &sectioned, 0, io),
    ];
    let record = |with: &Appender, layer, io| {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &case.plan(&cache).unwrap()).unwrap();
        let recorded = cache.append(&mut encoder.begin_compute_pass(&Default::default()), with, &step, layer, io);
        gpu.submit(encoder);
        recorded
    };
    for (words, with, layer, io) in cases {
        let said = record(with, layer, io).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    let rotate = |with: &Appender, io| {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &case.plan(&cache).unwrap()).unwrap();
        let recorded = cache.rotate_queries(&mut encoder.begin_compute_pass(&Default::default()), with, &step, io);
        gpu.submit(encoder);
        recorded
    };
    let io = QueryIo::new(q.slice(..), rotated.slice(..));
    for (words, with, io) in [
        ("queries were given, but the append rotates nothing", &plain, io),
        ("queries were given, but the spec names no query heads", &keys_only, io),
        ("appender was made for another cache", &other, io),
        ("q has 320 bytes, but 640 are needed", &with, QueryIo::new(k.slice(..), rotated.slice(..))),
        ("q and rotated overlap", &with, QueryIo::new(q.slice(..), q.slice(..))),
        ("rotated and the pool of K share a buffer", &with, QueryIo::new(q.slice(..), pool.slice(..))),
        ("q_norm is missing", &norming, io),
        ("q_norm was given, but the spec has no norm", &with, io.with_q_norm(weights)),
        ("q_norm and q share a buffer", &norming, io.with_q_norm(q.slice(..))),
        ("step has no positions in time, height and width", &sectioned, io),
    ] {
        let said = rotate(with, io).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    assert!(gpu.read::<u8>(&rotated).unwrap().iter().all(|&byte| byte == 0));
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
