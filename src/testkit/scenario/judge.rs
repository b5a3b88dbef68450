//! What the oracle says of a scenario, and how near a device has to come.

use super::{Outcome, Scenario, ScenarioVariant};
use crate::error::{ConfigError, TableError};
use crate::formats::{KvDtype, round_rows};
use crate::gpu::{GpuError, IoFormat};
use crate::plan::slot_at;
use crate::reference::{Attended, Heads, Mismatch, QueryRow, attend_rows, compare};
use crate::testkit::round_io;

/// Why a scenario failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Verdict {
    /// The scenario describes no possible cache.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tables were refused.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// The device, or the library on it, refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Nothing could be read back.
    #[error("the device is lost")]
    Lost,
    /// The output is wrong.
    #[error("wrong output: {0}")]
    Output(Mismatch),
    /// Rows of a pool are wrong.
    #[error("wrong rows: {0}")]
    Rows(&'static str),
    /// The log-sum-exp is wrong.
    #[error("wrong log-sum-exp: {0}")]
    Lse(Mismatch),
}

/// Absolute and relative tolerance.
pub type Tolerance = (f64, f64);

impl Scenario {
    /// The oracle's answer.
    pub fn expected(&self) -> Attended {
        let (spec, variant) = (&self.spec, &self.spec.variant);
        let heads = Heads {
            num_q_heads: spec.num_q_heads as usize,
            num_kv_heads: spec.num_kv_heads as usize,
            head_dim: spec.head_dim as usize,
            v_head_dim: spec.v_dim() as usize,
        };
        let scale = self.scale.map_or(1.0 / f64::from(spec.head_dim).sqrt(), f64::from);
        let scoring = variant.scoring(scale, (&self.alibi_slopes, &self.sinks));
        let (k, v) = (stored(spec.kv_dtype, &self.k, heads.head_dim), stored(spec.kv_dtype, &self.v, heads.v_head_dim));
        let mut q = self.q.clone();
        round_io(&mut q, variant.io_format);
        let (seqs, rows): (Vec<usize>, Vec<QueryRow>) = spec.rows().into_iter().unzip();
        let at = |row: usize, position: usize, head: usize| {
            let slot = slot_at(&self.layout, &self.tables[seqs[row]], position as u32) as usize;
            slot * heads.num_kv_heads + head
        };
        let key = |row, position, head| &k[at(row, position, head) * heads.head_dim..][..heads.head_dim];
        let value = |row, position, head| &v[at(row, position, head) * heads.v_head_dim..][..heads.v_head_dim];
        attend_rows(&heads, &scoring, &q, &rows, key, value)
    }

    /// Compares an answer with the oracle's; returns the largest absolute error of the output.
    ///
    /// # Errors
    /// [`Verdict::Output`] or [`Verdict::Lse`], with the first element out of tolerance.
    pub fn judge(&self, outcome: &Outcome) -> Result<f64, Verdict> {
        self.judge_by(&self.expected(), outcome)
    }

    /// Compares an answer with one from elsewhere, as closely as with the oracle's.
    ///
    /// # Errors
    /// As [`judge`](Self::judge).
    pub fn judge_by(&self, want: &Attended, outcome: &Outcome) -> Result<f64, Verdict> {
        let allowed = self.tolerances();
        if self.spec.lse {
            compare(&outcome.lse, &want.lse, allowed.lse.0, allowed.lse.1).map_err(Verdict::Lse)?;
        }
        compare(&outcome.out, &want.output, allowed.output.0, allowed.output.1).map_err(Verdict::Output)
    }

    fn tolerances(&self) -> Tolerances {
        let largest = self.v.iter().filter(|v| v.is_finite()).fold(1.0_f32, |top, v| top.max(v.abs()));
        let longest = self.spec.seq_lens.iter().copied().max().unwrap_or(0);
        let steepest = self.alibi_slopes.iter().fold(0.0_f32, |top, slope| top.max(slope.abs()));
        Tolerances::new(&self.spec.variant, largest, longest, steepest)
    }
}

/// How far a device may be from the oracle, which sees q, K and V as they are stored: only the device's own rounding in
/// f32 is left, and that of an output in f16.
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    /// Of outputs.
    pub output: Tolerance,
    /// Of log-sum-exps.
    pub lse: Tolerance,
}

impl Tolerances {
    /// For values up to `largest`, sequences up to `longest` and slopes up to `steepest`: errors grow with the largest
    /// value that is averaged, and a little with the size of the scores.
    pub fn new(variant: &ScenarioVariant, largest: f32, longest: u32, steepest: f32) -> Self {
        // A few units in the last place of a hyperbolic tangent near 1, and of a distance-times-slope where far keys
        // weigh most.
        let cap = variant.soft_cap.map_or(0.0, |cap| 1e-6 * f64::from(cap));
        let ahead = if variant.alibi && !variant.causal { f64::from(steepest) * f64::from(longest) } else { 0.0 };
        let score_error = cap + 4.0 * f64::from(f32::EPSILON) * ahead;
        let (atol, rtol) = ((4e-6 + score_error) * f64::from(largest), 2e-6);
        let output = match variant.io_format {
            IoFormat::F32 => (atol, rtol),
            // Half of the last of 11 bits, and of the smallest number that there is.
            IoFormat::F16 => (atol + 2_f64.powi(-25), rtol + 2_f64.powi(-11)),
        };
        Self { output, lse: (2e-5 + score_error, 2e-6) }
    }
}

/// K or V, whose rows are `dim` long, after a round trip through the storage format.
fn stored(format: KvDtype, values: &[f32], dim: usize) -> Vec<f32> {
    let mut values = values.to_vec();
    round_rows(format, dim, &mut values);
    values
}
