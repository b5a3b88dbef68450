//! Small reports of every kind.

use std::sync::atomic::AtomicBool;

use crate::bench::report::{CaseResult, Ceilings, Failure, Figure, Limit, Mode, Pair, Report};
use crate::blocks::measure::DecodeTime;
use crate::blocks::study;
use crate::blocks::tests::report as block_sizes_report;
use crate::common::files::Report as _;
use crate::html::Page;
use crate::plan::plan;
use crate::plan::tests::options as sizing_options;
use crate::replay::{Clock, LogRecord, ReplayReport, ServeOptions, StepClock, serve};
use crate::report::{Adapter, Head};
use crate::trace::{Log, PrefixIds, Request};
use wgpu_paged_attention::config::CacheConfig;

/// A page of every kind, by name.
pub fn pages() -> [(&'static str, Page); 4] {
    [("bench", bench()), ("replay", replay()), ("blocks", block_sizes()), ("plan", sizing())]
}

/// A benchmark of two models, with figures and a failure.
pub fn bench() -> Page {
    let adapter = Adapter {
        name: "Example <GPU> & Co. 4000".into(),
        backend: "Vulkan".into(),
        driver: "exampledriver 1.2.3 (Mesa 25.0.0)".into(),
        software: true,
        device_type: "Cpu".into(),
        wgpu_version: "30.0".into(),
    };
    let ceilings = Ceilings {
        read_gb_s: Some(512.5),
        copy_gb_s: Some(430.0),
        fma_gflop_s: Some(29_000.0),
        dispatch_us: Some(4.5),
        ..Ceilings::default()
    };
    let command =
        "paged-attention bench --model llama-3-8b,qwen2-7b --kv-dtype f16,int8 --context 256,1024,4096,16384 \
                   --report out.html"
            .to_owned();
    let mut report = Report::new(command, 7, adapter, ceilings);
    for (model, num_q_heads, num_kv_heads) in [("llama-3-8b", 32, 8), ("qwen2-7b", 28, 4)] {
        for op in ["decode", "prefill"] {
            for context in [256, 1024, 4096, 16_384] {
                for (kv_dtype, share) in [("f16", 1.0), ("int8", 0.85)] {
                    let both = [(Mode::Paged, 0.93), (Mode::Contiguous, 0.97)].map(|(mode, of_mode)| {
                        let grown = f64::from(context) / (f64::from(context) + 600.0);
                        let rate = 500.0 * grown * share * of_mode;
                        case(op, model, num_q_heads, num_kv_heads, kv_dtype, context, mode, rate)
                    });
                    report.pairs.extend(Pair::of(&both[0], &both[1]));
                    report.results.extend(both);
                }
            }
        }
    }
    for (what, measured, limit) in [
        ("decode f16 over f32, llama-3-8b 8 × 1024", 0.55, Some(Limit::AtMost(0.6))),
        ("shared prefix of 2048 tokens: time without sharing over time with", 2.7, Some(Limit::AtLeast(4.0))),
        ("decode int8 over f16, llama-3-8b 8 × 1024", 0.61, None),
    ] {
        report.figures.push(Figure { what: what.into(), measured, limit, samples: 30 });
    }
    report.failures.push(Failure {
        op: "mixed".into(),
        model: "qwen2-7b".into(),
        batch: 8,
        context: 4096,
        mode: Mode::Paged,
        error: "element 5: got NaN, want 0.25".into(),
    });
    report.page()
}

#[expect(clippy::too_many_arguments, reason = "as many as differ between the cases")]
fn case(op: &str, model: &str, q: u32, kv: u32, dtype: &str, context: u32, mode: Mode, gb_s: f64) -> CaseResult {
    let row_bytes = if dtype == "f16" { 256 } else { 144 };
    let bytes = 8 * u64::from(context) * u64::from(kv) * row_bytes * 2;
    let median_us = bytes as f64 / gb_s / 1e3;
    let prefill = op == "prefill";
    CaseResult {
        op: op.into(),
        model: model.into(),
        num_q_heads: q,
        num_kv_heads: kv,
        head_dim: 128,
        kv_dtype: dtype.into(),
        batch: 8,
        context,
        tokens: 8 * u64::from(context),
        queries: if prefill { 8 * u64::from(context) } else { 8 },
        mode,
        samples_us: [0.98, 0.99, 1.0, 1.01, 1.02].map(|factor| factor * median_us).into(),
        median_us,
        p25_us: 0.99 * median_us,
        p75_us: 1.01 * median_us,
        bytes,
        gb_s,
        fraction_of_read: Some(gb_s / 512.5),
        flops: 1_000_000,
        gflop_s: Some(gb_s * 45.0),
        fraction_of_fma: prefill.then_some(gb_s * 45.0 / 29_000.0),
        max_abs_error: 3.2e-6,
        ..CaseResult::sample()
    }
}

/// A log served twice, in earnest: requests come in bursts, and their lengths differ.
fn replay() -> Page {
    let requests: Vec<_> = (0..600_u32)
        .map(|i| Request {
            arrival_ns: u64::from(i / 20) * 2_000_000_000 + u64::from(i % 20) * 10_000_000,
            prompt_tokens: 40 + i * 37 % 500,
            output_tokens: 5 + i * 53 % 200,
            ..Request::default()
        })
        .collect();
    let log = Log { name: "bursts.csv".into(), requests, ..Log::default() };
    let cache = CacheConfig::new(32, 8, 128).with_num_blocks(1024).with_max_seq_len(1024).with_max_sequences(64);
    let (options, clock) = (ServeOptions::new(cache.clone()), StepClock { step_s: 0.02 });
    let [contiguous, paged] = [false, true].map(|paged| {
        serve(&log, &options, paged, &clock, None, &mut |_| {}, &AtomicBool::new(false)).expect("the cache is possible")
    });
    let command = "paged-attention replay bursts.csv --model llama-3-8b --report out.html";
    let report = ReplayReport {
        head: Head::new(ReplayReport::KIND, Some(command.into()), Some(1)),
        log: LogRecord::of(&log),
        model: "llama-3-8b".into(),
        cache,
        bytes_per_token: 131_072,
        step_tokens: options.step_tokens,
        clock: clock.describe(),
        contiguous: Some(contiguous),
        paged: Some(paged),
        interrupted: false,
        executed: None,
    };
    report.page()
}

/// LLaMA-13B as in the published table.
fn sizing() -> Page {
    plan(&sizing_options("llama-13b"), "paged-attention plan --report out.html".to_owned())
        .expect("it can be planned")
        .page()
}

/// Block sizes on two workloads, one with published figures beside it and one with prefix ids; decode times are made up.
fn block_sizes() -> Page {
    let sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256];
    let log = |name: &str, tokens_per_id| {
        let prefix = |number: u64| PrefixIds::new([1..=2, 100 + number..=103 + number]);
        let request = |number: u64| Request {
            prompt_tokens: 60 + number as u32,
            output_tokens: 90,
            prefix: prefix(number),
            ..Request::default()
        };
        Log { name: name.to_owned(), requests: (0..40).map(request).collect(), tokens_per_id, ..Log::default() }
    };
    let mut workloads = vec![
        study(&log("short-chat", None), &sizes, 4096).unwrap(),
        study(&log("prefixes", Some(16)), &sizes, 4096).unwrap(),
    ];
    for row in workloads.iter_mut().flat_map(|study| &mut study.rows) {
        let median_us = 900.0 + 600.0 / f64::from(row.block_size);
        row.decode = Some(DecodeTime {
            median_us,
            low_us: 0.99 * median_us,
            high_us: 1.01 * median_us,
            relative: median_us / 937.5,
            noise: 0.01,
        });
    }
    block_sizes_report(workloads).page()
}
