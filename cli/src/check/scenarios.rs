//! The scenarios of a check: few, for every one costs the compilation of its kernels, so each has many lengths, and the drawn
//! ones of a format have their kernels in common.

use std::fmt::Write;

use rand::RngExt;
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::IoFormat;
use wgpu_paged_attention::testkit::{ScenarioSpec, ScenarioVariant, StepForm as Form, draw_form};

use super::CheckOptions;
use crate::bench::measured;
use crate::seed::rng_for;

/// No token, one, the edges of blocks of 16, and ragged lengths of several splits of [`SHORT_SPLIT`] tokens.
const LENGTHS: [u32; 12] = [1, 15, 16, 17, 0, 33, 64, 65, 5, 129, 0, 300];
/// Splits so short that a merge needs no long sequences.
const SHORT_SPLIT: u32 = 64;
/// Tokens that the sequences of a drawn cascade share.
const CASCADE_TOKENS: u32 = 64;
/// Groups of 7 and of 9, of which the latter leaves a tile unfilled, and rows that fill no unit or no power of two.
const ODD: [(u32, u32, u32); 3] = [(7, 1, 80), (6, 2, 100), (9, 1, 5)];
/// Where heads do not matter: kernels for few of them compile soonest.
const SMALL: (u32, u32, u32) = (4, 2, 8);

#[derive(Clone, Debug, PartialEq)]
pub struct CheckScene {
    pub form: Form,
    pub spec: ScenarioSpec,
    /// Keys in one split; `None` leaves what the device uses.
    pub split_tokens: Option<u32>,
}

impl CheckScene {
    fn ragged((num_q_heads, num_kv_heads, head_dim): (u32, u32, u32)) -> Self {
        let mut spec = ScenarioSpec::decode(num_q_heads, num_kv_heads, head_dim, &LENGTHS);
        (spec.shared_blocks, spec.lse) = (3, true);
        Self { form: Form::Split, spec, split_tokens: Some(SHORT_SPLIT) }
    }

    fn block_size(block_size: u32) -> Self {
        let lens = [1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, 0, 70];
        let mut spec = ScenarioSpec::decode(SMALL.0, SMALL.1, SMALL.2, &lens);
        (spec.block_size, spec.shared_blocks) = (block_size, 1);
        Self { form: Form::Split, spec, split_tokens: Some(SHORT_SPLIT) }
    }

    /// So long that rows are split by the device's own measure.
    fn long() -> Self {
        Self { form: Form::Decode, spec: ScenarioSpec::decode(2, 1, 64, &[3, 2085, 1024, 4100]), split_tokens: None }
    }

    /// A form with an option of its own and as few kernels as it can have: a quick check compiles each of them once. Prompts and
    /// mixed steps, which go to formats without and with scales, have chunks.
    fn quick(form: Form) -> Self {
        const PLAIN: ScenarioVariant = ScenarioVariant::PLAIN;
        let (seq_lens, query_lens, variant): (&[u32], Option<&[u32]>, _) = match form {
            Form::Decode => (&[0, 1, 16, 17, 77], None, ScenarioVariant { soft_cap: Some(5.0), ..PLAIN }),
            Form::Split => (&[5, 0, 24, 25, 130], None, PLAIN),
            Form::Prefill => (&[33, 16, 50], Some(&[33, 16, 50]), ScenarioVariant { window: Some(7), ..PLAIN }),
            Form::Mixed => (&[33, 0, 77], Some(&[1, 2, 20]), ScenarioVariant { alibi: true, sinks: true, ..PLAIN }),
            Form::Speculative => (&[17, 100], Some(&[3, 4]), ScenarioVariant { causal: false, ..PLAIN }),
            Form::Cascade => (&[64, 70, 100], None, ScenarioVariant { io_format: IoFormat::F16, ..PLAIN }),
        };
        let mut spec = ScenarioSpec::decode(SMALL.0, SMALL.1, SMALL.2, seq_lens);
        (spec.query_lens, spec.variant, spec.lse) = (query_lens.map(<[u32]>::to_vec), variant, true);
        spec.shared_blocks = if form == Form::Cascade { 4 } else { 0 };
        let split_tokens = matches!(form, Form::Split | Form::Cascade).then_some(SHORT_SPLIT / 4);
        Self { form, spec, split_tokens }
    }

    /// Where all faults show that are planted: every option, a first sequence whose queries see its first block, and
    /// several blocks, so that one can be missed. With `chunks` there are some beside a token.
    pub fn for_faults(format: KvDtype, paged: bool, chunks: bool) -> Self {
        let mut spec = ScenarioSpec::decode(SMALL.0, SMALL.1, SMALL.2, &[10, 40, 100]);
        let queries = if chunks { vec![10, 1, 70] } else { vec![2, 1, 2] };
        (spec.kv_dtype, spec.paged, spec.lse, spec.query_lens) = (format, paged, true, Some(queries));
        spec.variant = ScenarioVariant {
            window: Some(30),
            soft_cap: Some(2.0),
            alibi: true,
            sinks: true,
            ..ScenarioVariant::PLAIN
        };
        Self { form: Form::Mixed, spec, split_tokens: Some(SHORT_SPLIT) }
    }

    /// The same step with heads, blocks and options of attention of another, and so with its kernels.
    fn with_kernels_of(mut self, other: &ScenarioSpec) -> Self {
        let spec = &mut self.spec;
        (spec.num_q_heads, spec.num_kv_heads, spec.head_dim) = (other.num_q_heads, other.num_kv_heads, other.head_dim);
        (spec.v_head_dim, spec.block_size) = (other.v_head_dim, other.block_size);
        (spec.variant, spec.lse) = (other.variant, other.lse);
        if self.form == Form::Cascade {
            spec.shared_blocks = CASCADE_TOKENS.div_ceil(spec.block_size);
        }
        self
    }

    pub fn label(&self) -> String {
        let spec = &self.spec;
        let longest = spec.seq_lens.iter().max().unwrap_or(&0);
        let mut text = format!(
            "{} {}/{}x{} {} b{}, longest {longest}",
            self.form.name(),
            spec.num_q_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.kv_dtype,
            spec.block_size
        );
        // Writing to a string cannot fail, here and below.
        if let Some(v_head_dim) = spec.v_head_dim {
            let _ = write!(text, ", V {v_head_dim} wide");
        }
        if let Some(split_tokens) = self.split_tokens {
            let _ = write!(text, ", splits of {split_tokens}");
        }
        for (on, word) in [(spec.shared_blocks > 0, ", shared"), (spec.lse, ", lse"), (!spec.paged, ", contiguous")] {
            text.push_str(if on { word } else { "" });
        }
        if spec.variant != ScenarioVariant::PLAIN {
            let _ = write!(text, ", {}", spec.variant);
        }
        text
    }
}

fn shapes() -> Vec<CheckScene> {
    let models = measured().map(|model| (model.num_q_heads, model.num_kv_heads, model.head_dim));
    let mut scenarios: Vec<_> = models.chain(ODD).map(CheckScene::ragged).collect();
    scenarios.extend([1, 5, 32, 128].map(CheckScene::block_size));
    scenarios.push(CheckScene::long());
    scenarios
}

/// The scenarios of one storage format, paged or contiguous, with subgroups or without; `alone` where the device has only one
/// of these two.
/// A quick check has one: paged, the formats go through the forms of a step; contiguous, they decode. Else the forms are
/// shared out: paged, every second one, and without subgroups the others, so that no format goes without any form;
/// contiguous, which differs in the look-up alone, one. They have one draw of heads and options in common. The next seed
/// shares them out the other way round, and draws other heads, lengths and options. The shapes, all paged, take turns with
/// the formats and, where there are both, with subgroups, for heads as wide as a model's compile slowly.
pub fn scenarios(
    options: &CheckOptions,
    format: KvDtype,
    paged: bool,
    subgroups: bool,
    alone: bool,
) -> Vec<CheckScene> {
    let formats = KvDtype::ALL.len();
    let place = KvDtype::ALL.iter().position(|&other| other == format).unwrap_or(0);
    let mut scenarios = Vec::new();
    if options.quick {
        let form = if paged { Form::ALL[place % Form::ALL.len()] } else { Form::Decode };
        scenarios.push(CheckScene::quick(form));
    } else {
        let shift = place + (options.seed % 12) as usize + usize::from(subgroups);
        let turn = |number: usize| (number + shift).is_multiple_of(if paged { 2 } else { Form::ALL.len() });
        let drawn = |label: &str, form: Form| {
            draw_form(form, format, rng_for(&format!("check {label} {format} {subgroups}"), options.seed).random())
        };
        // Prompts have the narrower heads.
        let common = drawn("kernels", Form::Prefill).spec;
        scenarios.extend(Form::ALL.into_iter().enumerate().filter(|(number, _)| turn(*number)).map(|(_, form)| {
            let drawn = drawn(&format!("{} {paged}", form.name()), form);
            CheckScene { form, spec: drawn.spec, split_tokens: drawn.split_tokens }.with_kernels_of(&common)
        }));
        let half = (shift + usize::from(subgroups)) % 2;
        let mine = |number: usize| {
            number % formats == place && (alone || (number / formats + half) % 2 == usize::from(subgroups))
        };
        let shapes = shapes().into_iter().enumerate().filter(|(number, _)| paged && mine(*number));
        scenarios.extend(shapes.map(|(_, scenario)| scenario));
    }
    for scenario in &mut scenarios {
        (scenario.spec.kv_dtype, scenario.spec.paged) = (format, paged);
    }
    scenarios
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use wgpu_paged_attention::testkit::Fault;

    fn all(quick: bool, seed: u64) -> Vec<CheckScene> {
        let options = CheckOptions { quick, every_form: false, seed };
        let of =
            |paged, subgroups| KvDtype::ALL.map(|format| scenarios(&options, format, paged, subgroups, false)).concat();
        [of(true, true), of(true, false), of(false, true), of(false, false)].concat()
    }

    #[test]
    fn labels_tell_scenes_apart() {
        let options = CheckOptions { quick: false, every_form: false, seed: 1 };
        let scenarios =
            |paged, alone| KvDtype::ALL.map(|format| scenarios(&options, format, paged, true, alone)).concat();
        let [own, contiguous] = [true, false].map(|paged| scenarios(paged, true));
        let mut labels: Vec<_> = [own, contiguous].concat().iter().map(CheckScene::label).collect();
        let count = labels.len();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), count);
        // Half of the forms paged, one contiguous, and the shapes.
        assert_eq!(count, 6 * 3 + 6 + 12);
        // Beside the other form of the kernels, which has the other shapes.
        assert_eq!(scenarios(true, false).len(), 6 * 3 + 6);
    }

    #[test]
    fn the_scenes_hold_what_the_check_promises() {
        let scenarios = all(false, 1);
        let any = |test: &dyn Fn(&CheckScene) -> bool| scenarios.iter().any(test);
        for model in measured() {
            assert!(any(&|s| (s.spec.num_q_heads, s.spec.num_kv_heads) == (model.num_q_heads, model.num_kv_heads)));
        }
        for head_dim in [5, 8, 80, 100, 128, 256] {
            assert!(any(&|s| s.spec.head_dim == head_dim), "{head_dim}");
        }
        assert!(any(&|s| s.spec.num_q_heads == 7 * s.spec.num_kv_heads));
        assert!(any(&|s| s.spec.num_q_heads == 9 * s.spec.num_kv_heads));
        assert!(any(&|s| s.spec.lse && s.spec.shared_blocks > 0));
        assert!(any(&|s| s.spec.seq_lens.contains(&0)) && any(&|s| s.spec.seq_lens.contains(&1)));
        // Longer than two splits of any profile.
        assert!(any(&|s| s.split_tokens.is_none() && s.spec.seq_lens.iter().any(|&len| len > 2048)));
    }

    #[test]
    fn every_form_has_every_format_and_every_option_is_drawn() {
        for seed in [1, 2] {
            let scenarios = all(false, seed);
            for form in Form::ALL {
                for format in KvDtype::ALL {
                    let found = |s: &CheckScene| (s.form, s.spec.kv_dtype, s.spec.paged) == (form, format, true);
                    assert!(scenarios.iter().any(found), "{form:?} {format}");
                }
                assert!(scenarios.iter().any(|s| s.form == form && !s.spec.paged), "{form:?} contiguous");
            }
            let variants: Vec<ScenarioVariant> = scenarios.iter().map(|s| s.spec.variant).collect();
            let drawn = scenarios.iter().filter(|s| s.spec.kv_dtype == KvDtype::Int8 && s.spec.num_q_heads != 4);
            let kernels: BTreeSet<String> =
                drawn.map(|s| format!("{:?} {}", s.spec.variant, s.spec.head_dim)).collect();
            assert!(kernels.len() < 8, "the drawn scenarios of a format have their kernels in common: {kernels:?}");
            assert!(variants.iter().any(|v| !v.causal) && variants.iter().any(|v| v.io_format == IoFormat::F16));
            assert!(variants.iter().any(|v| v.window.is_some()) && variants.iter().any(|v| v.soft_cap.is_some()));
            assert!(variants.iter().any(|v| v.alibi) && variants.iter().any(|v| v.sinks));
            assert!(scenarios.iter().any(|s| s.spec.v_head_dim.is_some()));
        }
        assert_ne!(all(false, 1), all(false, 2));
    }

    #[test]
    fn a_quick_check_has_every_form_format_and_option() {
        let scenarios = all(true, 1);
        assert_eq!(scenarios.len(), 4 * KvDtype::ALL.len());
        for form in Form::ALL {
            assert!(scenarios.iter().any(|s| s.form == form && s.spec.paged), "{form:?}");
        }
        let any = |test: fn(&ScenarioVariant) -> bool| scenarios.iter().any(|s| s.spec.paged && test(&s.spec.variant));
        assert!(any(|v| !v.causal) && any(|v| v.window.is_some()) && any(|v| v.soft_cap.is_some()));
        assert!(any(|v| v.alibi && v.sinks) && any(|v| v.io_format == IoFormat::F16));
    }

    #[test]
    fn all_faults_show_where_they_are_planted() {
        for chunks in [false, true] {
            let scenario = CheckScene::for_faults(KvDtype::F16, true, chunks);
            assert!(Fault::ALL.into_iter().all(|fault| fault.shows_in(&scenario.spec)));
        }
    }
}
