//! The whole grid, sampled: forms of a step, variants, storage formats, tables and forms of the kernels, in whatever
//! combination a seed draws. Consecutive seeds go through the forms and formats, and draw the rest.

use crate::common::{check, check_faults, gpu, profiles, with_splits};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{DeviceProfile, IoFormat};
use wgpu_paged_attention::testkit::{Fault, Scenario, ScenarioSpec, ScenarioVariant};

/// The first seed. A round that failed is repeated alone by its seed and one round.
const SEED: &str = "PAGED_ATTENTION_SEED";
/// How many seeds are tried, one after the other.
const ROUNDS: &str = "PAGED_ATTENTION_ROUNDS";

/// What a step brings.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// One query per sequence.
    Decode,
    /// The same, with keys in several pieces.
    SplitDecode,
    /// Whole prompts.
    Prefill,
    /// Chunks, single tokens, nothing, and more queries than tokens.
    Mixed,
    /// A few queries behind a long past.
    Speculative,
}

const FORMS: [Form; 5] = [Form::Decode, Form::SplitDecode, Form::Prefill, Form::Mixed, Form::Speculative];

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// One of `choices`.
fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

/// One of `choices`, or nothing, which is as likely as not.
fn maybe<T: Copy>(rng: &mut StdRng, choices: &[T]) -> Option<T> {
    rng.random_bool(0.5).then(|| pick(rng, choices))
}

fn variant(rng: &mut StdRng) -> ScenarioVariant {
    ScenarioVariant {
        causal: rng.random_bool(0.8),
        window: maybe(rng, &[1, 2, 7, 16, 33, 100]),
        soft_cap: maybe(rng, &[1.0, 5.0, 30.0]),
        alibi: rng.random_bool(0.4),
        sinks: rng.random_bool(0.4),
        io_format: pick(rng, &[IoFormat::F32, IoFormat::F32, IoFormat::F16]),
    }
}

/// Tokens and queries of every sequence.
fn lengths(rng: &mut StdRng, form: Form) -> (Vec<u32>, Option<Vec<u32>>) {
    let num_seqs = rng.random_range(1..=5);
    let mut lens = |choices: &[u32]| -> Vec<u32> { (0..num_seqs).map(|_| pick(rng, choices)).collect() };
    match form {
        Form::Decode => (lens(&[0, 1, 2, 15, 16, 17, 31, 64, 77, 130]), None),
        Form::SplitDecode => (lens(&[0, 5, 63, 64, 65, 130, 300]), None),
        Form::Prefill => {
            let lens = lens(&[1, 2, 7, 16, 33, 50]);
            (lens.clone(), Some(lens))
        }
        Form::Mixed => {
            let lens = lens(&[0, 1, 2, 16, 33, 77, 130]);
            let queries = lens.iter().map(|&len| rng.random_range(0..=len.min(20) + 1)).collect();
            (lens, Some(queries))
        }
        Form::Speculative => {
            let lens = lens(&[8, 16, 17, 40, 100, 200]);
            let queries = lens.iter().map(|_| rng.random_range(2..=8)).collect();
            (lens, Some(queries))
        }
    }
}

/// What a seed stands for: a shape, and the keys in one split.
fn draw(seed: u64) -> (ScenarioSpec, Option<u32>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let rng = &mut rng;
    let forms = FORMS.len() as u64;
    let form = FORMS[(seed % forms) as usize];
    let (seq_lens, query_lens) = lengths(rng, form);
    let kv_dtype = KvDtype::ALL[(seed / forms) as usize % KvDtype::ALL.len()];
    let variant = variant(rng);
    // Wide heads serve few queries, because software devices take long to compile both, above all with small codes.
    let (widest, group) = pick(rng, &[(96, 1), (48, 2), (40, 4), (16, 9)]);
    let num_kv_heads = rng.random_range(1..=3);
    let num_q_heads = num_kv_heads * rng.random_range(1..=group);
    let widest = match form {
        Form::Decode | Form::SplitDecode => widest,
        _ => widest.min(if kv_dtype == KvDtype::Int4 { 32 } else { 40 }),
    };
    // Two halves to a word.
    let even = |dim: u32| dim.next_multiple_of(variant.io_format.per_word());
    let head_dim = even(rng.random_range(1..=widest));
    let v_head_dim = maybe(rng, &[1, 3, 16, 32, 40]).map(|dim| even(dim.min(widest)));
    let spec = ScenarioSpec {
        kv_dtype,
        v_head_dim,
        block_size: pick(rng, &[1, 5, 8, 16, 17, 32]),
        paged: rng.random_bool(0.8),
        query_lens,
        csr: rng.random_bool(0.5),
        shared_blocks: rng.random_range(0..=2),
        variant,
        lse: rng.random_bool(0.5),
        ..ScenarioSpec::decode(num_q_heads, num_kv_heads, head_dim, &seq_lens)
    };
    let split_tokens = match form {
        Form::SplitDecode => Some(pick(rng, &[8, 24, 64])),
        Form::Decode => None,
        _ => maybe(rng, &[16, 50]),
    };
    (spec, split_tokens)
}

/// One of the forms of the kernels, which takes turns as well.
fn profile(profiles: &[DeviceProfile], seed: u64, split_tokens: Option<u32>) -> DeviceProfile {
    let period = (FORMS.len() * KvDtype::ALL.len()) as u64;
    let profile = &profiles[((seed + seed / period) % profiles.len() as u64) as usize];
    with_splits(profile, split_tokens.unwrap_or(profile.split_tokens))
}

#[test]
fn whatever_a_seed_draws_is_right() {
    let Some(gpu) = gpu() else { return };
    let profiles = profiles(&gpu);
    let (first, rounds) = (setting(SEED, 2026), setting(ROUNDS, 30));
    println!("{SEED}={first} {ROUNDS}={rounds}");
    for seed in first..first.saturating_add(rounds) {
        let (spec, split_tokens) = draw(seed);
        check(&gpu, &profile(&profiles, seed, split_tokens), &spec, seed);
    }
}

#[test]
fn faults_are_noticed_in_what_a_seed_draws() {
    let Some(gpu) = gpu() else { return };
    let profiles = profiles(&gpu);
    let first = setting(SEED, 2026);
    println!("{SEED}={first}");
    for fault in Fault::ALL {
        for seed in first.. {
            let (mut spec, split_tokens) = draw(seed);
            // An output in f16 forgives what is smaller than its last place.
            spec.variant.io_format = IoFormat::F32;
            if fault.shows_in(&spec) {
                let scenario = Scenario::random(&spec, seed).unwrap();
                check_faults(&gpu, &profile(&profiles, seed, split_tokens), &scenario, &[fault]);
                break;
            }
        }
    }
}

#[test]
fn seeds_go_through_every_form_format_and_variant() {
    let period = FORMS.len() * KvDtype::ALL.len();
    let drawn: Vec<ScenarioSpec> = (0..period as u64).map(|seed| draw(seed).0).collect();
    for format in KvDtype::ALL {
        let of_format = drawn.iter().filter(|spec| spec.kv_dtype == format);
        assert_eq!(of_format.clone().count(), FORMS.len());
        assert!(of_format.clone().any(|spec| spec.query_lens.is_none()), "{format}");
        assert!(of_format.clone().any(|spec| spec.query_lens.is_some()), "{format}");
    }
    let many: Vec<ScenarioSpec> = (0..200).map(|seed| draw(seed).0).collect();
    for fault in Fault::ALL {
        assert!(many.iter().filter(|spec| fault.shows_in(spec)).count() > 5, "{fault:?}");
    }
    let differ = |spec: &&ScenarioSpec| spec.v_head_dim.is_some_and(|dim| dim != spec.head_dim);
    assert!(many.iter().filter(differ).count() > 20 && many.iter().filter(|spec| spec.csr).count() > 20);
    assert!(many.iter().any(|spec| !spec.paged) && many.iter().any(|spec| spec.variant.io_format == IoFormat::F16));
    assert_eq!(draw(7), draw(7));
}
