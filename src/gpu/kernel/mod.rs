//! The kernels: their names, their texts, and the numbers that these are specialised for.
//!
//! From the README to a kernel in three steps: the call (`KvCache::append`) lies in the file of its name in `gpu/ops/`;
//! it names its kernel, [`Kernel::KvAppend`]; and the text is `shaders/kv_append.wgsl`, under the name that also labels its
//! pipeline in a capture, `paged.kv_append`. A kernel's file opens with a card (dispatch, shapes, twin, source) and ends with
//! the entry point, `main`. What it takes from `shaders/common/`, and its constants, stand in `parts.rs`.

pub(crate) mod attention_shape;
pub(crate) mod chunk_form;
pub(crate) mod displayed;
mod matrices;
pub(crate) mod params;
mod parts;
pub(crate) mod prefill_shape;
pub(crate) mod shape;
#[cfg(test)]
mod tests;
pub(crate) mod unroll;
pub(crate) mod variant;

use std::fmt;

use crate::gpu::kernel::attention_shape::AttentionForm;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::prefill_shape::PrefillShape;
use crate::gpu::kernel::shape::{KvShape, LaneComm};
use crate::gpu::kernel::unroll::unroll;
use crate::gpu::kernel::variant::{IoFormat, Variant};
use crate::gpu::value::{ClearValue, ExternalLayout, RowChange};

/// Invocations in a workgroup of a kernel that serves one item per invocation.
pub(crate) const ITEM_LANES: u32 = 64;

/// What the device must offer for matrix units.
pub(crate) const MATRIX_FEATURES: wgpu::Features =
    wgpu::Features::SUBGROUP.union(wgpu::Features::SHADER_F16).union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

/// A kernel together with everything its text is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    /// Writes the K and V rows of a step, of type `io_format`, into the pool; K may be normed and rotated.
    KvAppend { kv: KvShape, io_format: IoFormat, change: RowChange },
    /// Norms and rotates the queries of a step.
    RotateQueries { head_dim: u32, io_format: IoFormat, change: RowChange },
    /// Joins attention over two sets of keys.
    MergeStates { io_format: IoFormat },
    /// Brings the resident block tables up to date.
    TableUpdate,
    /// Copies blocks within the pool.
    BlockCopy { kv: KvShape },
    /// Overwrites blocks.
    BlockClear { kv: KvShape, fill: ClearValue },
    /// Copies blocks of another engine's pool into K's or V's, whose width `kv` has in both places.
    PoolImport { kv: KvShape, external: ExternalLayout },
    /// The other way round.
    PoolExport { kv: KvShape, external: ExternalLayout },
    /// Attention of query tiles over the pool.
    PagedAttention {
        kv: KvShape,
        /// Whether the block is looked up for every key, or once per sequence: the contiguous twin.
        paged: bool,
        /// Query heads per KV head.
        group: u32,
        /// Class of the query tiles: they have room for `2^class` tokens.
        class: u32,
        form: AttentionForm,
        variant: Variant,
    },
    /// Attention of the chunks of prompts over the pool.
    PagedPrefill {
        kv: KvShape,
        /// As in [`PagedAttention`](Self::PagedAttention).
        paged: bool,
        /// Query heads per KV head.
        group: u32,
        /// How they are served; query tiles stand for the plain form.
        form: ChunkForm,
        variant: Variant,
    },
    /// Merges the partial results of queries that see several splits.
    MergePartials { v_head_dim: u32, variant: Variant },
}

impl Kernel {
    /// The name of the file in `shaders/`, without its ending; the label of everything made from it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::KvAppend { .. } => "kv_append",
            Self::RotateQueries { .. } => "rotate_queries",
            Self::MergeStates { .. } => "merge_states",
            Self::TableUpdate => "table_update",
            Self::BlockCopy { .. } => "block_copy",
            Self::BlockClear { .. } => "block_clear",
            Self::PoolImport { .. } => "pool_import",
            Self::PoolExport { .. } => "pool_export",
            Self::PagedAttention { .. } => "paged_attention",
            Self::PagedPrefill { .. } => "paged_prefill",
            Self::MergePartials { .. } => "merge_partials",
        }
    }

    /// What the device must offer.
    pub(crate) fn features(&self) -> wgpu::Features {
        let mut features = wgpu::Features::empty();
        match self {
            Self::PagedAttention { form, .. } => {
                features.set(wgpu::Features::SUBGROUP, matches!(form.lane_comm, LaneComm::Subgroup { .. }));
                features.set(wgpu::Features::SHADER_INT64, form.wide_loads);
            }
            Self::PagedPrefill { kv, group, form, .. } if PrefillShape::new(kv, *group, *form).has_matrices() => {
                features = MATRIX_FEATURES;
            }
            _ => {}
        }
        features
    }

    /// Whether lanes meet in subgroup operations.
    pub(crate) fn needs_subgroups(&self) -> bool {
        self.features().contains(wgpu::Features::SUBGROUP)
    }

    /// The whole text, as naga reads it: constants, shared parts, kernel. Browsers demand directives before it, which naga
    /// refuses.
    pub(crate) fn wgsl(&self) -> String {
        let (constants, parts) = self.parts();
        // The kernel for chunks has but few of each kind.
        let is_unrolled = match self {
            Self::PagedAttention { form, .. } => form.unrolled,
            _ => matches!(self, Self::PagedPrefill { .. }),
        };
        // A loop of one round is written out all the same: not every compiler sees through its counter.
        let longest = if is_unrolled { u32::MAX } else { 1 };
        let mut text = self.matrix_types() + &constants.wgsl();
        for part in parts {
            // A loop that stays is the same program; tests see to it that none does.
            text.push_str(&unroll(part, &constants, longest).unwrap_or_else(|_| part.to_owned()));
        }
        let of_workgroup = "@builtin(local_invocation_index) lane";
        let mut lane = of_workgroup;
        if self.needs_subgroups() && matches!(self, Self::PagedAttention { .. }) {
            // HLSL has a call for this number and no parameter. naga knows that where it is a parameter of `main` itself; as
            // a member of a struct, which the parts could bring, it becomes a text that DXC refuses.
            lane = "@builtin(subgroup_invocation_id) lane";
            text = text.replace(of_workgroup, lane);
        }
        if constants.number("SUBGROUPS").is_some_and(|subgroups| subgroups > 1) {
            let params = format!("{lane}: u32,\n    @builtin(subgroup_id) member: u32,");
            text = text.replace(&format!("{lane}: u32,"), &params).replace("    let member = 0u;\n", "");
        }
        text
    }

    /// What stands before everything else where matrix units multiply.
    fn matrix_types(&self) -> String {
        let Self::PagedPrefill { form: ChunkForm::MatrixTiles { size, .. }, .. } = self else { return String::new() };
        if !self.features().contains(MATRIX_FEATURES) {
            return String::new();
        }
        let types = [("Left", "f16", "A"), ("Right", "f16", "B"), ("Sum", "f32", "C")];
        let alias = |(name, scalar, role)| format!("alias {name} = coop_mat{size}x{size}<{scalar}, {role}>;\n");
        "enable f16;\nenable wgpu_cooperative_matrix;\n".to_owned() + &types.map(alias).concat()
    }
}

impl fmt::Display for Kernel {
    /// A readable key, as in labels and reports: `paged_attention f16 d128 b16 g4 t1 subgroup8 causal`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::TableUpdate => Ok(()),
            Self::BlockCopy { kv } => write!(f, " {kv}"),
            Self::BlockClear { kv, fill } => write!(f, " {kv} {fill}"),
            Self::KvAppend { kv, io_format, change } => write!(f, " {kv} {}-io{change}", io_format.name()),
            Self::RotateQueries { head_dim, io_format, change } => {
                write!(f, " d{head_dim} {}-io{change}", io_format.name())
            }
            Self::MergeStates { io_format } => write!(f, " {}-io", io_format.name()),
            Self::PoolImport { kv, external } => write!(f, " {kv} from {external}"),
            Self::PoolExport { kv, external } => write!(f, " {kv} to {external}"),
            Self::PagedAttention { kv, paged, group, class, form, variant } => {
                let mode = if *paged { "" } else { " contiguous" };
                write!(f, " {kv} g{group} t{} {form}{mode}{variant}", 1_u64 << (*class).min(63))
            }
            Self::PagedPrefill { kv, paged, group, form, variant } => {
                let mode = if *paged { "" } else { " contiguous" };
                let shape = PrefillShape::new(kv, *group, *form);
                let matrices = if shape.has_matrices() { " matrices" } else { "" };
                write!(f, " {kv} g{group} r{}{matrices}{mode}{variant}", shape.rows())
            }
            Self::MergePartials { v_head_dim, variant } => write!(f, " d{v_head_dim}{variant}"),
        }
    }
}
