//! A scenario: sequences with tables, K, V and queries on the host, run on a device and judged by the oracle.

mod data;
mod fault;
mod judge;
mod run;
mod spec;

pub use fault::Fault;
pub use judge::Tolerances;
pub use judge::Verdict;
pub use run::Outcome;
pub use spec::{ScenarioSpec, ScenarioVariant};

use crate::layout::KvLayout;

/// A scenario, ready to run. Its data may be changed before.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The shape.
    pub spec: ScenarioSpec,
    /// The cache.
    pub layout: KvLayout,
    /// `[sequences][blocks]`, shuffled.
    pub tables: Vec<Vec<u32>>,
    /// K of every slot, `[num_slots, num_kv_heads, head_dim]`; NaN where no sequence has a token.
    pub k: Vec<f32>,
    /// V, alike, `[num_slots, num_kv_heads, v_head_dim]`.
    pub v: Vec<f32>,
    /// `[rows, num_q_heads, head_dim]`
    pub q: Vec<f32>,
    /// Factor of `q · k`.
    pub scale: Option<f32>,
    /// `[num_q_heads]`, used if the variant has them.
    pub alibi_slopes: Vec<f32>,
    /// `[num_q_heads]`, used if the variant has them.
    pub sinks: Vec<f32>,
}
