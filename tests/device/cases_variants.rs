//! Public bug reports about windows, sinks, ALiBi and soft caps, as small scenarios whose answer is known in closed form, in
//! decode, split decode and prefill alike. The comment above each test names the cases that it stands for.

use crate::common;

use std::path::Path;

use crate::common::{assert_near, gpu, mean_scene, profiles, run, with_splits};
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{Fault, Gpu, Outcome, Scenario, ScenarioSpec, ScenarioVariant, Verdict, changed};

/// How the rows of a sequence come to the device.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// The newest token of every sequence, its keys in one piece.
    Decode,
    /// The same, in pieces.
    SplitDecode,
    /// All tokens of every sequence.
    Prefill,
    /// The same, in pieces.
    SplitPrefill,
}

impl Form {
    const ALL: [Self; 4] = [Self::Decode, Self::SplitDecode, Self::Prefill, Self::SplitPrefill];

    fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill | Self::SplitPrefill)
    }

    fn profile(self, profile: &DeviceProfile, split_tokens: u32) -> DeviceProfile {
        match self {
            Self::Decode | Self::Prefill => profile.clone(),
            Self::SplitDecode => with_splits(profile, split_tokens),
            // However many queries there are.
            Self::SplitPrefill => changed(&with_splits(profile, split_tokens), |it| it.chunk_queries = u32::MAX),
        }
    }

    fn spec(self, spec: &ScenarioSpec) -> ScenarioSpec {
        ScenarioSpec { query_lens: self.is_prefill().then(|| spec.seq_lens.clone()), ..spec.clone() }
    }
}

/// Calls `test` with every form of the kernels, in pieces of `split_tokens` where it splits.
fn in_every_form(split_tokens: u32, test: impl Fn(&Gpu, &DeviceProfile, Form)) {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for form in Form::ALL {
            println!("{form:?} on {}", profile.lane_comm);
            test(&gpu, &form.profile(&profile, split_tokens), form);
        }
    }
}

fn windowed(window: u32) -> ScenarioVariant {
    ScenarioVariant { window: Some(window), ..ScenarioVariant::PLAIN }
}

fn capped(soft_cap: f32) -> ScenarioVariant {
    ScenarioVariant { soft_cap: Some(soft_cap), ..ScenarioVariant::PLAIN }
}

/// Asserts one number per row and query head, all elements of an output row being equal.
#[track_caller]
fn assert_rows(spec: &ScenarioSpec, got: &Outcome, tolerance: f32, want: impl Fn(usize, i64, u32) -> f32) {
    let (rows, heads, width) = (spec.rows(), spec.num_q_heads as usize, spec.v_dim() as usize);
    assert_eq!(got.out.len(), rows.len() * heads * width);
    let want = |at: usize| {
        let (seq, row) = rows[at / width / heads];
        want(seq, row.position, (at / width % heads) as u32)
    };
    assert_near(&got.out, want, tolerance);
}

/// The mean of the positions that a causal query sees in a window, which is its output if K is 0 and V the position.
fn windowed_mean(position: i64, window: u32) -> f32 {
    let oldest = (position + 1 - i64::from(window)).max(0);
    (oldest + position) as f32 / 2.0
}

#[track_caller]
fn assert_windowed_means(gpu: &Gpu, profile: &DeviceProfile, spec: &ScenarioSpec) {
    let scenario = mean_scene(spec, |_, t, _, _| t as f32);
    let got = run(gpu, profile, &scenario);
    let window = spec.variant.window.unwrap();
    assert_rows(spec, &got, 1e-3, |_, position, _| windowed_mean(position, window));
}

// S01: a window of 4 is four keys, the query's own among them: 7.5 of ten, not 7, 8 or 4.5.
#[test]
fn a_window_holds_as_many_keys_as_it_says() {
    assert_eq!(windowed_mean(9, 4), 7.5);
    in_every_form(3, |gpu, profile, form| {
        let spec = ScenarioSpec { variant: windowed(4), ..ScenarioSpec::decode(2, 1, 16, &[10, 1, 2, 3, 4, 5, 6]) };
        assert_windowed_means(gpu, profile, &form.spec(&spec));
    });
}

// S04: a window of two blocks' length touches three blocks wherever the length is not a multiple of theirs.
#[test]
fn a_window_may_begin_inside_a_block() {
    assert_eq!(windowed_mean(32, 32), 16.5);
    in_every_form(16, |gpu, profile, form| {
        let spec = ScenarioSpec { variant: windowed(32), ..ScenarioSpec::decode(2, 1, 16, &[33, 32, 49, 64]) };
        assert_windowed_means(gpu, profile, &form.spec(&spec));
    });
}

// S06: tiles at both ends of the window are cut where the window is, not where the tile is.
#[test]
fn the_edges_of_a_window_are_right_in_every_row_of_a_chunk() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for window in [1, 15, 16, 17, 31, 33] {
            let spec = ScenarioSpec {
                variant: windowed(window),
                query_lens: Some(vec![50]),
                ..ScenarioSpec::decode(1, 1, 16, &[90])
            };
            for split_tokens in [profile.split_tokens, 24] {
                assert_windowed_means(&gpu, &with_splits(&profile, split_tokens), &spec);
            }
        }
    }
}

// N05: tiles and splits without a visible key lie before the window; their running maximum is nobody's.
#[test]
fn tiles_and_splits_before_the_window_make_no_nan() {
    assert_eq!(windowed_mean(63, 4), 61.5);
    in_every_form(16, |gpu, profile, form| {
        let spec = ScenarioSpec { variant: windowed(4), lse: true, ..ScenarioSpec::decode(1, 1, 64, &[64]) };
        let spec = form.spec(&spec);
        let scenario = mean_scene(&spec, |_, t, _, _| t as f32);
        let got = run(gpu, profile, &scenario);
        assert_rows(&spec, &got, 1e-3, |_, position, _| windowed_mean(position, 4));
        let keys = |row: usize| spec.rows()[row].1.position.min(3) as f32 + 1.0;
        assert_near(&got.lse, |row| keys(row).ln(), 1e-4);
    });
}

// S07: sixteen keys of score 0 and a sink of ln 16, which weighs as much as all of them, in however many splits.
#[test]
fn a_sink_counts_once_in_every_number_of_splits() {
    // With a window, the first split of the last sequence has no visible key.
    for (window, split_tokens) in [(None, 16), (None, 8), (None, 4), (Some(16), 4)] {
        in_every_form(split_tokens, |gpu, profile, form| {
            let variant = ScenarioVariant { window, sinks: true, ..ScenarioVariant::PLAIN };
            let lens: &[u32] = if window.is_some() { &[16, 32, 3] } else { &[16, 3, 1] };
            let spec = form.spec(&ScenarioSpec { variant, lse: true, ..ScenarioSpec::decode(2, 1, 16, lens) });
            let mut scenario = mean_scene(&spec, |_, _, _, _| 1.0);
            // The second head's sink weighs as much as one key.
            scenario.sinks = vec![16_f32.ln(), 0.0];
            let got = run(gpu, profile, &scenario);
            let keys = |position: i64| (position + 1).min(16) as f32;
            let sink = |head: usize| [16.0, 1.0][head];
            assert_rows(&spec, &got, 1e-5, |_, at, head| keys(at) / (keys(at) + sink(head as usize)));
            let rows = spec.rows();
            assert_near(&got.lse, |at| (keys(rows[at / 2].1.position) + sink(at % 2)).ln(), 1e-5);
        });
    }
}

// S10: the bias is relative, 0 at the query's own key, and as exact after 4,096 tokens as after one.
#[test]
fn alibi_does_not_drift_on_long_contexts() {
    let Some(gpu) = gpu() else { return };
    let newest = 3;
    for profile in profiles(&gpu) {
        for queries in [1, newest] {
            for sinks in [false, true] {
                let variant = ScenarioVariant { alibi: true, sinks, ..ScenarioVariant::PLAIN };
                let spec = ScenarioSpec {
                    variant,
                    query_lens: Some(vec![queries]),
                    ..ScenarioSpec::decode(2, 1, 16, &[4096])
                };
                // Without a sink, the share of the newest tokens; with one, that of all.
                let marked = |t: u32| sinks || t >= 4096 - newest;
                let mut scenario = mean_scene(&spec, |_, t, _, _| f32::from(u8::from(marked(t))));
                (scenario.alibi_slopes, scenario.sinks) = (vec![1.0, 0.5], vec![0.0; 2]);
                let want = |position: i64, slope: f32| {
                    // Weights 1, e^−slope, e^−2·slope, …: a geometric series.
                    let sum = |terms: i64| (1.0 - (-slope * terms as f32).exp()) / (1.0 - (-slope).exp());
                    let seen = position + 1;
                    if sinks {
                        sum(seen) / (sum(seen) + 1.0)
                    } else {
                        sum(seen - (4096 - i64::from(newest))) / sum(seen)
                    }
                };
                assert!((want(4093, 1.0) - if sinks { 0.612_700 } else { 0.632_121 }).abs() < 1e-6);
                for split_tokens in [profile.split_tokens, 4096] {
                    let got = run(&gpu, &with_splits(&profile, split_tokens), &scenario);
                    assert_rows(&spec, &got, 1e-5, |_, at, head| want(at, scenario.alibi_slopes[head as usize]));
                }
            }
        }
    }
}

// S11: tanh(±160) is ±1; as a ratio of exponentials it would be NaN.
#[test]
fn a_soft_cap_stands_scores_far_beyond_it() {
    in_every_form(1, |gpu, profile, form| {
        let spec = form.spec(&ScenarioSpec { variant: capped(5.0), ..ScenarioSpec::decode(1, 1, 64, &[2]) });
        let mut scenario = Scenario::random(&spec, 1).unwrap();
        scenario.fill(|_, t, _, _| [10.0, -10.0][t as usize], |_, t, _, _| [1.0, 0.0][t as usize]);
        scenario.q.fill(10.0);
        scenario.scale = Some(0.125);
        let got = run(gpu, profile, &scenario);
        // 1/(1 + e^−10)
        assert_rows(&spec, &got, 1e-6, |_, position, _| if position == 0 { 1.0 } else { 0.999_954_6 });
    });
}

/// Lines that take the hyperbolic tangent of something that is not clamped at once.
fn unclamped_tanh(text: &str) -> Vec<&str> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().replace(' ', "");
    let bare = |line: &&str| code(line).split("tanh(").skip(1).any(|argument| !argument.starts_with("clamp("));
    text.lines().filter(bare).collect()
}

fn shaders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { shaders(&path) } else { vec![path] }).collect()
}

// S11: no software driver shows the fault, so the text has to.
#[test]
fn every_argument_of_a_hyperbolic_tangent_is_clamped() {
    let files = shaders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders"));
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(unclamped_tanh(&text), Vec::<&str>::new(), "{}", file.display());
    }
    assert_eq!(unclamped_tanh("a = tanh(x);\nb = c * tanh( clamp(x, -15.0, 15.0)); // tanh(x)\n"), ["a = tanh(x);"]);
    assert_eq!(unclamped_tanh("c = tanh(clamp(x, y, z)) + tanh(z);").len(), 1);
}

// S12: a cap after the mask would turn −∞ into −5, and masked keys of value 100 would weigh in with 10.0874 for 1.
#[test]
fn masked_keys_do_not_leak_through_a_soft_cap() {
    in_every_form(4, |gpu, profile, form| {
        let spec = form.spec(&ScenarioSpec { variant: capped(5.0), ..ScenarioSpec::decode(1, 1, 16, &[1, 16]) });
        let mut scenario = mean_scene(&spec, |_, t, _, _| if t == 0 { 1.0 } else { 100.0 });
        // Both sequences lie in the block of the longer one, so that the rest of the shorter one's block holds 100.
        scenario.tables[0] = scenario.tables[1].clone();
        let got = run(gpu, profile, &scenario);
        assert_rows(&spec, &got, 1e-3, |_, position, _| (1.0 + 100.0 * position as f32) / (position + 1) as f32);
    });
}

// S14: an option must change the result, or be refused.
#[test]
fn no_option_is_accepted_and_ignored() {
    in_every_form(8, |gpu, profile, form| {
        let spec = form.spec(&ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 16, &[21, 40]) });
        let plain = Scenario::random(&spec, 14).unwrap();
        let with = |change: &dyn Fn(&mut Scenario)| {
            let mut scenario = plain.clone();
            change(&mut scenario);
            scenario
        };
        let mut options = vec![
            ("scale", with(&|scenario| scenario.scale = Some(0.5))),
            ("window", with(&|scenario| scenario.spec.variant.window = Some(7))),
            ("soft cap", with(&|scenario| scenario.spec.variant.soft_cap = Some(0.5))),
            ("ALiBi slopes", with(&|scenario| scenario.spec.variant.alibi = true)),
            ("sinks", with(&|scenario| scenario.spec.variant.sinks = true)),
        ];
        if form.is_prefill() {
            options.push(("no causal mask", with(&|scenario| scenario.spec.variant.causal = false)));
        }
        let base = run(gpu, profile, &plain);
        let differs = |other: &Outcome| base.out.iter().zip(&other.out).any(|(a, b)| (a - b).abs() > 1e-3);
        assert!(!differs(&run(gpu, profile, &plain)), "the same twice");
        for (option, scenario) in options {
            match scenario.run(gpu, profile, None) {
                Ok(outcome) => assert!(differs(&outcome), "{option} changes nothing"),
                Err(verdict) => assert!(matches!(verdict, Verdict::Gpu(_)), "{option}: {verdict}"),
            }
        }
        let stray = plain.run(gpu, profile, Some(Fault::StrayBlock)).unwrap();
        assert!(stray.out.iter().any(|x| x.is_nan()), "the block table is not used");
    });
}

// The faults that the oracle has to notice, whatever else is on.
#[test]
fn the_oracle_notices_every_fault_of_a_variant() {
    in_every_form(8, |gpu, profile, form| {
        let variants = [
            ScenarioVariant { window: Some(6), sinks: true, ..ScenarioVariant::PLAIN },
            ScenarioVariant { alibi: true, soft_cap: Some(1.5), ..ScenarioVariant::PLAIN },
            ScenarioVariant { window: Some(9), alibi: true, sinks: true, ..capped(2.0) },
        ];
        // They take turns, for every fault is another kernel to compile.
        let variant = variants[(form as usize + usize::from(common::subgroup_lanes(profile).is_some())) % 3];
        let spec = form.spec(&ScenarioSpec { variant, ..ScenarioSpec::decode(4, 2, 16, &[21, 3, 40]) });
        let scenario = Scenario::random(&spec, 15).unwrap();
        let shown: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| fault.shows_in(&spec)).collect();
        assert!(shown.len() >= 3, "{shown:?}");
        common::check_faults(gpu, profile, &scenario, &shown);
    });
}
