//! What a benchmark can be asked for.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use wgpu_paged_attention::config::{KvDtype, MAX_BLOCK_SIZE};
use wgpu_paged_attention::gpu::IoFormat;

use super::{CaseSpec, LengthList, MAX_BATCH, MAX_CONTEXT, ModelShape, Op};
use crate::common::{AdapterArgs, Failure, ProfileArgs, ReportArgs, seconds, up_to};
use crate::models::Model;
use crate::models::args::{OtherModelArgs, models};
use crate::needs::no_effect;
use crate::trace::args::{TraceArgs, workloads};
use crate::trace::count;
use crate::workload::Workload;

const MAX_SAMPLES: u32 = 100_000;
const LONGEST_DEFAULT: u32 = 32_768;
const MAX_SOFT_CAP: f32 = 1e6;

pub const HELP: &str = "\
Every case is first compared with a reference on the CPU; one that is wrong has no numbers and makes the run fail.
Paged and contiguous runs alternate, so that their quotient is the price of paging; so do storage formats, and batches
with and without a shared prefix.

Examples:
  paged-attention bench                                       all models, sizes that suit the adapter
  paged-attention bench --model llama-3-8b --batch 8 --context 1024,4096
  paged-attention bench --case 8,1024,32,8,128 --kv-dtype f16,f32,int8,int4
  paged-attention bench --op decode --model llama-3-8b --lens 32768,256x63 --lens 32768 --lens 256x63
  paged-attention bench --op decode --model llama-3-8b --batch 64 --context 2112 --shared-prefix 2048
  paged-attention bench --op prefill --model llama-3-8b --batch 1 --context 512 --window 256 --io f16
  paged-attention bench --figures
  paged-attention bench --profile here.toml                   what `tune --save here.toml` found
  paged-attention bench --workload azure-conv --batch 64 --context 8192
  paged-attention bench --trace requests.csv --require-gpu --json out.json
  paged-attention bench --report out.html --svg plots --csv out.csv";

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The adapter.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
    /// Tune first, as `tune` does in its time, and take the profile that it finds.
    #[arg(long, conflicts_with = "profile")]
    pub tune: bool,
    /// Measure the project's own figures and say which are met: prompts against the multiply-adds, formats, windows,
    /// shared prefixes and ragged batches against each other, and the error of every format.
    #[arg(long, conflicts_with_all = ["op", "model", "config", "heads", "case", "kv_dtype", "block_size", "batch", "context", "lens",
        "trace", "workload", "queries", "shared_prefix", "window", "soft_cap", "alibi", "sinks", "non_causal", "lse",
        "io", "quick"])]
    pub figures: bool,
    /// Operations [default: all that end in time].
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub op: Vec<Op>,
    /// Models by name [default: llama-13b, llama-3-8b, qwen2-7b and gemma-3-270m].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = models(), conflicts_with = "case")]
    pub model: Vec<Model>,
    /// Another model.
    #[command(flatten)]
    pub other: OtherModelArgs,
    /// One case by its numbers: BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM; may be repeated.
    #[arg(long, value_name = "B,CTX,HQ,HKV,D", conflicts_with_all = ["batch", "context", "config", "heads"])]
    pub case: Vec<CaseSpec>,
    /// Storage of K and V: f32, f16, bf16, int8, fp8, int4, timed in alternation [default: f16].
    #[arg(long, value_name = "FORMAT", value_delimiter = ',')]
    pub kv_dtype: Vec<KvDtype>,
    /// Tokens per block [default: 16].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = up_to(MAX_BLOCK_SIZE))]
    pub block_size: Vec<u32>,
    /// Sequences in a batch [default: what suits the adapter].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = up_to(MAX_BATCH))]
    pub batch: Vec<u32>,
    /// Tokens of a sequence; with --trace or --workload, the most it may have [default: what suits the adapter].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = up_to(MAX_CONTEXT))]
    pub context: Vec<u32>,
    /// Lengths of a batch by their numbers: 32768,256x63 is one of 32,768 tokens and 63 of 256; may be repeated.
    #[arg(long, value_name = "TOKENS[xN],...", conflicts_with_all = ["case", "batch", "context", "trace", "workload"])]
    pub lens: Vec<LengthList>,
    /// Queries of every sequence that decodes, as in speculative decoding.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(MAX_CONTEXT))]
    pub queries: u32,
    /// Let all sequences begin with the same tokens, and compare batches that share their blocks with ones that do not.
    #[arg(long, value_name = "TOKENS", value_parser = up_to(MAX_CONTEXT))]
    pub shared_prefix: Option<u32>,
    /// Let a query see the last N keys only.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_CONTEXT))]
    pub window: Option<u32>,
    /// Cap the scores: X·tanh(score / X).
    #[arg(long, value_name = "X", value_parser = positive)]
    pub soft_cap: Option<f32>,
    /// Let scores fall with the distance of the key.
    #[arg(long)]
    pub alibi: bool,
    /// Give every head an attention sink.
    #[arg(long)]
    pub sinks: bool,
    /// Let a query see the keys behind its own as well.
    #[arg(long)]
    pub non_causal: bool,
    /// Write the log-sum-exp as well.
    #[arg(long)]
    pub lse: bool,
    /// Type of queries and outputs: f32, f16.
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = io_formats())]
    pub io: IoFormat,
    /// Timed runs of every case [default: what fits into the time].
    #[arg(long, value_name = "N", value_parser = up_to(MAX_SAMPLES))]
    pub samples: Option<u32>,
    /// Where lengths come from [default: all sequences are as long as the context].
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Draw the lengths from a fit to a published request log.
    #[arg(long, value_name = "NAME", value_parser = workloads())]
    pub workload: Option<Workload>,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time for the whole run; what is short of it has fewer samples, never fewer than five.
    #[arg(long, value_name = "SECONDS", default_value = "100", value_parser = seconds)]
    pub time_budget: Duration,
    /// Few, small cases: to see that everything works.
    #[arg(long)]
    pub quick: bool,
    /// Files; the JSON is written after every case.
    #[command(flatten)]
    pub report: ReportArgs,
}

impl BenchArgs {
    pub fn check_lengths(&self) -> Result<(), Failure> {
        let or = |given: &[u32], default: u32| if given.is_empty() { vec![default] } else { given.to_vec() };
        let chosen = !self.batch.is_empty() || !self.context.is_empty();
        let mut batches: Vec<Vec<u32>> = self.lens.iter().map(|list| list.lens.clone()).collect();
        batches.extend(self.case.iter().map(|case| vec![case.context; case.batch as usize]));
        if chosen {
            let contexts = or(&self.context, 1024);
            let of_batch = |batch: u32| contexts.iter().map(move |&context| vec![context; batch as usize]);
            batches.extend(or(&self.batch, 8).into_iter().flat_map(of_batch));
        }
        let longest = batches.iter().flatten().copied().max().unwrap_or(LONGEST_DEFAULT);
        if self.window.is_some_and(|window| window >= longest) {
            return Err(no_effect("window", &format!("on sequences of at most {longest} tokens; give a smaller one")));
        }
        if self.queries > longest {
            return Err(no_effect("queries", &format!("beyond the {longest} tokens of a sequence; give fewer")));
        }
        let Some(prefix) = self.shared_prefix else { return Ok(()) };
        if prefix > longest {
            return Err(no_effect("shared_prefix", &format!("beyond the {longest} tokens of a sequence; give fewer")));
        }
        for (lens, block_size) in
            batches.iter().flat_map(|lens| or(&self.block_size, 16).into_iter().map(move |b| (lens, b)))
        {
            let shared = |len: &u32| prefix.min(*len).min(lens[0]) >= block_size;
            if !lens.iter().skip(1).any(shared) {
                let batch = count(lens.len() as u64, "sequence");
                let why =
                    format!("on {batch} of {} tokens in blocks of {block_size}: no two share a whole block", lens[0]);
                return Err(no_effect("shared_prefix", &why));
            }
        }
        Ok(())
    }

    pub fn shapes(&self) -> Result<Vec<ModelShape>, Failure> {
        // Of a file, the heads alone matter here.
        let other = self.other.model(1, Some(MAX_CONTEXT))?;
        Ok(self.model.iter().chain(&other).map(Model::shape).collect())
    }
}

fn io_formats() -> impl TypedValueParser<Value = IoFormat> {
    let formats = [IoFormat::F32, IoFormat::F16];
    let values = PossibleValuesParser::new(formats.map(IoFormat::name));
    // The parser lets no other name through.
    values.map(move |name| formats.into_iter().find(|format| format.name() == name).unwrap_or_default())
}

fn positive(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| *value > 0.0 && *value <= MAX_SOFT_CAP);
    value.ok_or_else(|| format!("give a number above 0, up to {MAX_SOFT_CAP}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_a_positive_number() {
        assert_eq!(positive("30"), Ok(30.0));
        for wrong in ["0", "-1", "NaN", "inf", "1e7", "x", ""] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
    }
}
