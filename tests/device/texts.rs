//! Kernels whose texts were changed: faults planted in the kernel for chunks that its oracle must notice, and a census of the
//! loop rounds that an invocation takes, which the host's count must not fall short of.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::batches::v_index;
use crate::common::{gpu, matrix_form, mean_scene};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ChunkForm, DeviceError, DeviceProfile, GpuError};
use wgpu_paged_attention::testkit::{
    Gpu, Outcome, Scenario, ScenarioSpec, ScenarioVariant, Verdict, changed, with_changed_texts,
};

/// One split, so that no merge writes what the kernels did.
const SPLIT: u32 = 16_384;

/// Chunks in tiles of so many rows that the lanes multiply.
fn tiles(rows: u32) -> ChunkForm {
    ChunkForm::WorkgroupTiles { rows }
}

/// The device's profile without subgroups, with chunks in this form.
fn profile(gpu: &Gpu, chunk_form: ChunkForm) -> DeviceProfile {
    changed(&DeviceProfile::of(&gpu.device).without_subgroups(), |it| {
        it.chunk_form = chunk_form;
        (it.chunk_queries, it.chunk_split_tokens, it.split_tokens) = (9, SPLIT, SPLIT);
        (it.tile_rows, it.tile_tokens, it.max_loop_rounds) = (4, 4, u32::MAX);
    })
}

/// A chunk of a prompt of so many queries, behind 70 tokens.
fn chunk(queries: u32) -> ScenarioSpec {
    let query_lens = Some(vec![queries]);
    ScenarioSpec { kv_dtype: KvDtype::F32, query_lens, lse: true, ..ScenarioSpec::decode(4, 2, 16, &[70 + queries]) }
}

/// What a device computes where these pieces of the kernel for chunks are others.
fn run_with(gpu: &Gpu, form: ChunkForm, scenario: &Scenario, pieces: &'static [(&str, &str)]) -> Outcome {
    let planted = Rc::new(Cell::new(false));
    let seen = planted.clone();
    let change = move |label: &str, text: String| {
        if !label.starts_with("paged_prefill") {
            return text;
        }
        seen.set(true);
        pieces.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "the kernel has no `{from}`");
            text.replace(from, to)
        })
    };
    let outcome = with_changed_texts(change, || scenario.run(gpu, &profile(gpu, form), None)).unwrap();
    assert!(planted.get(), "the kernel for chunks was not compiled");
    outcome
}

#[test]
fn the_oracle_notices_faults_in_the_kernel_for_chunks() {
    let Some(gpu) = gpu() else { return };
    let faults: [(&str, &'static [(&str, &str)]); 5] = [
        (
            "the sums of one row are not brought down to the new maximum",
            &[("(*acc)[i] *= shrink[i / OUT_VEC4S];", "if (i >= OUT_VEC4S) { (*acc)[i] *= shrink[i / OUT_VEC4S]; }")],
        ),
        (
            "the weights of the first slice stand under the old maximum",
            &[
                ("max_score = score_keys(", "let before = max_score; max_score = score_keys("),
                (
                    "find_weights(&score, &sum_exp, max_score,",
                    "find_weights(&score, &sum_exp, select(max_score, before, vec4<bool>(part == 0u) & (before > vec4<f32>(-60.0))),",
                ),
            ],
        ),
        ("the sums of the weights are not brought down", &[("*sum_exp *= shrink;", "")]),
        (
            "a query sees the key after its own",
            &[("visible_keys(work.position + i32(t), ", "visible_keys(work.position + i32(t) + 1, ")],
        ),
        (
            "a query does not see its own key",
            &[("visible_keys(work.position + i32(t), ", "visible_keys(work.position + i32(t) - 1, ")],
        ),
    ];
    let scenario = Scenario::random(&chunk(90), 51).unwrap();
    for rows in [64, 16] {
        scenario.judge(&run_with(&gpu, tiles(rows), &scenario, &[])).unwrap();
        for (name, pieces) in faults {
            assert!(scenario.judge(&run_with(&gpu, tiles(rows), &scenario, pieces)).is_err(), "{rows} rows: {name}");
        }
    }
}

/// A chunk whose last key has NaN for V, which no query but the last sees.
fn with_nan_at_the_end() -> Scenario {
    let spec = chunk(20);
    let last = spec.seq_lens[0] - 1;
    mean_scene(&spec, |_, position, _, _| if position == last { f32::NAN } else { 1.0 })
}

/// Whether all queries but the last have the mean of what they see.
fn are_clean(scenario: &Scenario, outcome: &Outcome) -> bool {
    let last = (scenario.spec.num_q_heads * scenario.spec.v_dim()) as usize;
    let (clean, own) = outcome.out.split_at(outcome.out.len() - last);
    assert!(own.iter().all(|x| x.is_nan()), "{own:?}");
    clean.iter().all(|x| (x - 1.0).abs() < 1e-5)
}

#[test]
fn without_the_second_pass_what_is_not_finite_would_reach_other_queries() {
    let Some(gpu) = gpu() else { return };
    let scenario = with_nan_at_the_end();
    for rows in [64, 16] {
        assert!(are_clean(&scenario, &run_with(&gpu, tiles(rows), &scenario, &[])), "{rows} rows");
        let missing = &[("passes = 1u + work.num_tokens;", "")];
        assert!(
            !are_clean(&scenario, &run_with(&gpu, tiles(rows), &scenario, missing)),
            "{rows} rows: the fault did not show"
        );
    }
}

#[test]
fn where_the_lanes_served_a_token_again_alone_other_rows_would_show_it() {
    let Some(gpu) = gpu() else { return };
    for rows in [64, 16] {
        let Some(form) = matrix_form(&gpu, rows) else { return };
        let spec = ScenarioSpec { kv_dtype: KvDtype::F16, ..chunk(20) };
        let clean = Scenario::random(&spec, 54).unwrap();
        let mut spoilt = clean.clone();
        spoilt.v[v_index(&clean, 0, spec.seq_lens[0] - 1, 0, 5)] = f32::NAN;
        // Of all queries but the last.
        let bits = |scenario: &Scenario, pieces| -> Vec<u32> {
            let out = run_with(&gpu, form, scenario, pieces).out;
            out[..19 * 4 * 16].iter().map(|x| x.to_bits()).collect()
        };
        assert!(bits(&spoilt, &[]) == bits(&clean, &[]), "{form}");
        let all = &[("return select(x, other, (bitcast<vec4<u32>>(x) & exponent) == exponent);", "return other;")];
        assert!(bits(&spoilt, all) != bits(&clean, all), "{form}: the fault did not show");
    }
}

/// The text of a kernel whose first lane leaves, in place of its first row's log-sum-exp, the loop rounds that it took: a loop of n
/// rounds counts n, and one more to end it.
fn counting(text: &str) -> String {
    let is_loop = |line: &str| ["for (", "while (", "loop {"].iter().any(|head| line.trim_start().starts_with(head));
    let mut counted = String::new();
    for line in text.lines() {
        let (code, _) = line.split_once("//").unwrap_or((line, ""));
        match code.rsplit_once('{') {
            Some((head, body)) if is_loop(code) => counted += &format!("census++; {head}{{ census++; {body}\n"),
            _ => counted += &format!("{line}\n"),
        }
    }
    let end = counted.rfind('}').unwrap();
    let write = "if (item.exists && lane == 0u && item.part == 0u) {
        lse[tile_query(header, item.tile, 0u) * params.num_q_heads + first_row_head(item)] = census;
    }
    }
    var<private> census: u32;
    fn first_row_head(item: Item) -> u32 { return (params.first_kv_head + item.kv_head) * GROUP; }
    ";
    counted.replace_range(end..=end, write);
    counted
}

/// Also computes key tiles past the end of a split, of which no query sees a key, in rounds that the host knows nothing of.
fn longer(text: String) -> String {
    let end = "break if at >= served.end;";
    assert!(text.contains(end), "the kernel has no `{end}`");
    text.replace(end, "break if at >= 16u * served.end;")
}

/// The most rounds that any workgroup took with texts that were changed so, and what the host counts for the same step.
fn census(
    gpu: &Gpu,
    profile: &DeviceProfile,
    scenario: &Scenario,
    change: impl Fn(String) -> String + 'static,
) -> (u64, u64) {
    // A driver that counts rounds gets texts of its own.
    let counting_form = changed(profile, |it| it.max_loop_rounds = u32::MAX - 1);
    let attends = |label: &str| label.starts_with("paged_");
    let count = move |label: &str, text: String| if attends(label) { counting(&change(text)) } else { text };
    let outcome = with_changed_texts(count, || scenario.run(gpu, &counting_form, None)).unwrap();
    // Log-sum-exps are no such small numbers of bits.
    let rounds = outcome.lse.iter().map(|lse| lse.to_bits()).filter(|&bits| bits < 1 << 22);
    let refused = scenario.run(gpu, &changed(profile, |it| it.max_loop_rounds = 1), None);
    let Err(Verdict::Gpu(GpuError::Device(DeviceError::LoopRounds { rounds: counted, limit: 1 }))) = refused else {
        panic!("one round is not enough for {:?}", scenario.spec);
    };
    (u64::from(rounds.max().expect("no workgroup left a count")), counted)
}

/// Asserts that the host counts enough rounds for a scenario. Returns the share of them that was taken.
#[track_caller]
fn assert_counted(gpu: &Gpu, profile: &DeviceProfile, scenario: &Scenario) -> f64 {
    let (taken, counted) = census(gpu, profile, scenario, |text| text);
    let form = profile.form_name();
    println!("{form}, {:?}: {taken} of {counted} rounds", profile.chunk_form);
    assert!(taken <= counted, "{form}, {:?}: {taken} rounds, {counted} counted", scenario.spec);
    taken as f64 / counted as f64
}

#[test]
fn no_invocation_takes_more_rounds_than_the_host_counts() {
    let Some(gpu) = gpu() else { return };
    let window = ScenarioVariant { window: Some(33), ..ScenarioVariant::PLAIN };
    let whole = ScenarioVariant { causal: false, ..ScenarioVariant::PLAIN };
    for (turn, (rows, variant)) in [(64, ScenarioVariant::PLAIN), (32, window), (16, whole)].into_iter().enumerate() {
        for (kv_dtype, head_dim, lens) in [(KvDtype::F32, 128, vec![300, 64, 700]), (KvDtype::Int8, 24, vec![12; 20])] {
            let query_lens = Some(lens.iter().map(|len| [*len, 9][turn % 2].min(*len)).collect());
            let spec = ScenarioSpec { kv_dtype, variant, query_lens, ..ScenarioSpec::decode(8, 2, head_dim, &lens) };
            let scenario = Scenario::random(&ScenarioSpec { lse: true, ..spec }, 52).unwrap();
            assert_counted(&gpu, &profile(&gpu, tiles(rows)), &scenario);
        }
    }
    // Where every token is served again, the count is not far above, and notices what it should.
    let scenario = with_nan_at_the_end();
    assert!(assert_counted(&gpu, &profile(&gpu, tiles(64)), &scenario) > 0.2);
    let (taken, counted) = census(&gpu, &profile(&gpu, tiles(64)), &scenario, longer);
    assert!(taken > counted, "{taken} rounds are too few to notice, {counted} are counted");
}

#[test]
fn nor_does_one_where_matrix_units_multiply() {
    let Some(gpu) = gpu() else { return };
    for (rows, head_dim) in [(64, 128), (32, 24), (16, 64)] {
        let Some(form) = matrix_form(&gpu, rows) else { return };
        let spec =
            ScenarioSpec { kv_dtype: KvDtype::F16, lse: true, ..ScenarioSpec::decode(4, 2, head_dim, &[90, 64]) };
        let spec = ScenarioSpec { query_lens: Some(vec![20, 64]), ..spec };
        assert_counted(&gpu, &profile(&gpu, form), &Scenario::random(&spec, 55).unwrap());
        // Every product of a value is one of the lanes, too.
        let last = |_: usize, position: u32, _: u32, _: u32| if position > 60 { f32::INFINITY } else { 1.0 };
        assert_counted(&gpu, &profile(&gpu, form), &mean_scene(&spec, last));
    }
}

#[test]
fn nor_does_one_of_any_other_form() {
    let Some(gpu) = gpu() else { return };
    let forms = DeviceProfile::of(&gpu.device).forms(&gpu.device);
    for (turn, form) in forms.iter().filter(|form| form.subgroups == 1).enumerate() {
        let narrow = changed(form, |it| {
            (it.tile_rows, it.tile_tokens, it.split_tokens, it.chunk_form) = (4, 2, SPLIT, ChunkForm::QueryTiles);
        });
        let (kv_dtype, head_dim) = [(KvDtype::F16, 64), (KvDtype::Int8, 20)][turn % 2];
        let spec = ScenarioSpec { kv_dtype, lse: true, ..ScenarioSpec::decode(4, 2, head_dim, &[300, 90, 64]) };
        let spec = ScenarioSpec { query_lens: Some(vec![1, 2, 5]), ..spec };
        assert_counted(&gpu, &narrow, &Scenario::random(&spec, 53).unwrap());
        let last = |_: usize, position: u32, _: u32, _: u32| if position == 63 { f32::NAN } else { 1.0 };
        let scenario = mean_scene(&spec, last);
        assert!(assert_counted(&gpu, &narrow, &scenario) > 0.1);
        let (taken, counted) = census(&gpu, &narrow, &scenario, longer);
        assert!(taken > counted, "{}: {taken} rounds are too few to notice, {counted} are counted", narrow.form_name());
    }
}
