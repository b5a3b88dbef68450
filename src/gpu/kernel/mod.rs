//! The kernels and their texts: which files a kernel is made of, for which numbers it is specialised.

pub(crate) mod attention_shape;
pub mod params;
pub(crate) mod shape;
pub(crate) mod unroll;
pub(crate) mod variant;

use std::fmt;

use crate::formats::KvDtype;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::kernel::shape::{Constants, KvShape, LaneComm};
use crate::gpu::kernel::unroll::{UnrollError, unroll};
use crate::gpu::kernel::variant::{IoFormat, Variant};
use crate::gpu::value::{ClearValue, ExternalLayout, ExternalOrder, RotaryShape, RotaryStyle};

const GRID: &str = include_str!("../../../shaders/common/grid.wgsl");
const STEP: &str =
    concat!(include_str!("../../../shaders/common/grid.wgsl"), "\n", include_str!("../../../shaders/common/step.wgsl"));
const PAGING: &str = include_str!("../../../shaders/common/paging.wgsl");
const WHOLE_BLOCKS: &str = include_str!("../../../shaders/common/whole_blocks.wgsl");
const VISIBLE: &str = include_str!("../../../shaders/common/visible.wgsl");
const IO_F32: &str = include_str!("../../../shaders/common/io_f32.wgsl");
const IO_F16: &str = include_str!("../../../shaders/common/io_f16.wgsl");
const SOFTMAX: &str = include_str!("../../../shaders/common/softmax.wgsl");
const KV_STORE: &str = include_str!("../../../shaders/common/kv_store.wgsl");
const KV_SCALED_STORE: &str = include_str!("../../../shaders/common/kv_scaled_store.wgsl");
const KV_WHOLE_STORE: &str = include_str!("../../../shaders/common/kv_whole_store.wgsl");
const SOURCE_PLAIN: &str = include_str!("../../../shaders/common/source_plain.wgsl");
const SOURCE_ROTARY: &str = include_str!("../../../shaders/common/source_rotary.wgsl");
const ROTARY: &str = include_str!("../../../shaders/common/rotary.wgsl");
const EXTERNAL: &str = include_str!("../../../shaders/common/external.wgsl");
const LANES_SUBGROUP: &str = include_str!("../../../shaders/common/lanes_subgroup.wgsl");
const LANES_WORKGROUP: &str = include_str!("../../../shaders/common/lanes_workgroup.wgsl");
const KV_APPEND: &str = include_str!("../../../shaders/kv_append.wgsl");
const TABLE_UPDATE: &str = include_str!("../../../shaders/table_update.wgsl");
const BLOCK_COPY: &str = include_str!("../../../shaders/block_copy.wgsl");
const BLOCK_CLEAR: &str = include_str!("../../../shaders/block_clear.wgsl");
const PAGED_ATTENTION: &str = include_str!("../../../shaders/paged_attention.wgsl");
const POOL_IMPORT: &str = include_str!("../../../shaders/pool_import.wgsl");
const POOL_EXPORT: &str = include_str!("../../../shaders/pool_export.wgsl");
const MERGE_PARTIALS: &str = include_str!("../../../shaders/merge_partials.wgsl");
const ROTATE_QUERIES: &str = include_str!("../../../shaders/rotate_queries.wgsl");
const MERGE_STATES: &str = include_str!("../../../shaders/merge_states.wgsl");

/// Invocations in a workgroup of `kv_append.wgsl`; `tests/shaders.rs` compares the two.
pub const APPEND_LANES: u32 = 64;
/// Invocations in a workgroup of `table_update.wgsl`; `tests/shaders.rs` compares the two.
pub const UPDATE_LANES: u32 = 64;
/// Invocations in a workgroup of `block_copy.wgsl`; `tests/block_shaders.rs` compares the two.
pub const COPY_LANES: u32 = 64;
/// Invocations in a workgroup of `block_clear.wgsl`; `tests/block_shaders.rs` compares the two.
pub const CLEAR_LANES: u32 = 64;
/// Invocations in a workgroup of `pool_import.wgsl`; `tests/shaders.rs` compares the two.
pub const IMPORT_LANES: u32 = 64;
/// Invocations in a workgroup of `pool_export.wgsl`; `tests/shaders.rs` compares the two.
pub const EXPORT_LANES: u32 = 64;
/// Invocations in a workgroup of `rotate_queries.wgsl`; `tests/rotary.rs` compares the two.
pub const ROTATE_LANES: u32 = 64;

/// Who reads the text. The languages differ in what must stand in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// naga, and so wgpu: it refuses `enable subgroups;` although it knows the functions.
    Naga,
    /// tint, and so Dawn and browsers: it demands that line.
    Tint,
}

/// A kernel together with everything its text is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `shaders/kv_append.wgsl`
    KvAppend {
        /// The pool it writes.
        kv: KvShape,
    },
    /// `shaders/kv_append.wgsl`, with rows in another type or K turned by its position.
    FusedAppend {
        /// The pool it writes.
        kv: KvShape,
        /// The type of the rows.
        io_format: IoFormat,
        /// How K is turned, if it is.
        rotary: Option<RotaryShape>,
    },
    /// `shaders/rotate_queries.wgsl`
    RotateQueries {
        /// Elements of one head of K.
        head_dim: u32,
        /// The type of the queries.
        io_format: IoFormat,
        /// How they are turned.
        rotary: RotaryShape,
    },
    /// `shaders/merge_states.wgsl`
    MergeStates {
        /// The type of the outputs.
        io_format: IoFormat,
    },
    /// `shaders/table_update.wgsl`
    TableUpdate,
    /// `shaders/block_copy.wgsl`
    BlockCopy {
        /// Blocks in the pool.
        num_blocks: u32,
    },
    /// `shaders/block_clear.wgsl`
    BlockClear {
        /// Blocks in the pool.
        num_blocks: u32,
        /// What is written.
        fill: ClearValue,
    },
    /// `shaders/pool_import.wgsl`
    PoolImport {
        /// The pool it writes: K's or V's, with that one's width in both places.
        kv: KvShape,
        /// The pool it reads.
        external: ExternalLayout,
    },
    /// `shaders/pool_export.wgsl`
    PoolExport {
        /// The pool it reads, likewise.
        kv: KvShape,
        /// The pool it writes.
        external: ExternalLayout,
    },
    /// `shaders/paged_attention.wgsl`
    PagedAttention {
        /// The pool it reads.
        kv: KvShape,
        /// Whether the block is looked up for every key, or once per sequence: the contiguous twin.
        paged: bool,
        /// Query heads per KV head.
        group: u32,
        /// Class of the query tiles: they have room for `2^class` tokens.
        class: u32,
        /// Query rows (tokens times heads) that a workgroup may hold in registers.
        tile_rows: u32,
        /// How lanes hand values to each other.
        lane_comm: LaneComm,
        /// What is computed.
        variant: Variant,
    },
    /// `shaders/merge_partials.wgsl`
    MergePartials {
        /// Elements of one head of V.
        v_head_dim: u32,
        /// What is computed.
        variant: Variant,
    },
}

impl Kernel {
    /// The name of the file in `shaders/`, without its ending; the label of everything made from it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KvAppend { .. } | Self::FusedAppend { .. } => "kv_append",
            Self::RotateQueries { .. } => "rotate_queries",
            Self::MergeStates { .. } => "merge_states",
            Self::TableUpdate => "table_update",
            Self::BlockCopy { .. } => "block_copy",
            Self::BlockClear { .. } => "block_clear",
            Self::PagedAttention { .. } => "paged_attention",
            Self::PoolImport { .. } => "pool_import",
            Self::PoolExport { .. } => "pool_export",
            Self::MergePartials { .. } => "merge_partials",
        }
    }

    /// Whether the device must offer [`wgpu::Features::SUBGROUP`].
    pub fn needs_subgroups(&self) -> bool {
        matches!(self, Self::PagedAttention { lane_comm: LaneComm::Subgroup { .. }, .. })
    }

    /// The whole text: directives, constants, shared parts, kernel.
    ///
    /// # Errors
    /// [`UnrollError`] if a marked loop cannot be expanded, which the tests rule out for every variant.
    pub fn wgsl(&self, dialect: Dialect) -> Result<String, UnrollError> {
        let (constants, parts) = self.parts();
        let mut text = String::new();
        if self.needs_subgroups() && dialect == Dialect::Tint {
            text.push_str("enable subgroups;\n");
            // Tokens are served again where `subgroupAny` says so, and a workgroup is one subgroup: all of it follows.
            text.push_str("diagnostic(off, subgroup_uniformity);\n");
        }
        text.push_str(&constants.wgsl());
        for part in parts {
            // See AttentionShape::unrolled. A loop of one round is written out all the same: not every compiler sees
            // through the counter that naga puts into every loop.
            let longest = if self.needs_subgroups() { u32::MAX } else { 1 };
            text.push_str(&unroll(part, &constants, longest)?);
        }
        Ok(text)
    }

    fn parts(&self) -> (Constants, Vec<&'static str>) {
        match *self {
            Self::KvAppend { kv } => append_parts(&kv, IoFormat::F32, None),
            Self::FusedAppend { kv, io_format, rotary } => append_parts(&kv, io_format, rotary),
            Self::RotateQueries { head_dim, io_format, rotary } => {
                let mut constants = io_constants(io_format);
                constants.set("HEAD_DIM", head_dim);
                rotary.add_to(&mut constants);
                let mut parts = vec![STEP, io_part(io_format)];
                parts.extend(store_parts(io_format.kv_dtype()));
                parts.extend([ROTARY, ROTATE_QUERIES]);
                (constants, parts)
            }
            Self::MergeStates { io_format } => {
                let mut parts = vec![GRID, io_part(io_format)];
                parts.extend(store_parts(io_format.kv_dtype()));
                parts.extend([SOFTMAX, MERGE_STATES]);
                let mut constants = io_constants(io_format);
                constants.set_flag("SINKS", false);
                (constants, parts)
            }
            Self::TableUpdate => (Constants::default(), vec![STEP, TABLE_UPDATE]),
            Self::BlockCopy { num_blocks } => {
                let mut constants = Constants::default();
                constants.set("NUM_BLOCKS", num_blocks);
                (constants, vec![STEP, WHOLE_BLOCKS, BLOCK_COPY])
            }
            Self::BlockClear { num_blocks, fill } => {
                let mut constants = Constants::default();
                constants.set("NUM_BLOCKS", num_blocks);
                constants.set("CLEAR_WORD", fill.word());
                (constants, vec![STEP, WHOLE_BLOCKS, BLOCK_CLEAR])
            }
            Self::PoolImport { kv, external } => {
                let mut parts = vec![GRID, PAGING, EXTERNAL, load_part(external.element.format()), KV_STORE];
                parts.extend(store_parts(kv.format));
                parts.push(POOL_IMPORT);
                (transfer_constants(&kv, external), parts)
            }
            Self::PoolExport { kv, external } => {
                let mut parts = vec![GRID, PAGING, EXTERNAL, load_part(kv.format)];
                parts.extend(store_parts(external.element.format()));
                parts.push(POOL_EXPORT);
                (transfer_constants(&kv, external), parts)
            }
            Self::PagedAttention { kv, paged, group, class, tile_rows, lane_comm, variant } => {
                let mut constants = kv.constants();
                let shape = AttentionShape::new(&kv, group, class, lane_comm, tile_rows);
                shape.add_to(&mut constants);
                variant.add_to(&mut constants);
                // Then one look at the table serves a whole tile.
                let tile_in_block = kv.block_size.is_multiple_of(shape.key_tile());
                constants.set_flag("TILE_IN_BLOCK", tile_in_block || !paged);
                constants.set_flag("PAGED", paged);
                let lane_comm = match lane_comm {
                    LaneComm::Subgroup { .. } => LANES_SUBGROUP,
                    LaneComm::Workgroup { .. } => LANES_WORKGROUP,
                };
                let mut parts = vec![STEP, PAGING, VISIBLE, SOFTMAX, load_part(kv.format), lane_comm];
                parts.extend(output_parts(variant.io_format));
                parts.push(PAGED_ATTENTION);
                (constants, parts)
            }
            Self::MergePartials { v_head_dim, variant } => {
                let mut constants = Constants::default();
                constants.set("V_HEAD_DIM", v_head_dim);
                variant.add_to(&mut constants);
                let mut parts = vec![STEP, VISIBLE, SOFTMAX];
                parts.extend(output_parts(variant.io_format));
                parts.push(MERGE_PARTIALS);
                (constants, parts)
            }
        }
    }
}

impl fmt::Display for Kernel {
    /// A readable key, as in labels and reports: `paged_attention f16 d128 b16 g4 t1 subgroup8 causal`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::TableUpdate => Ok(()),
            Self::BlockCopy { num_blocks } => write!(f, " n{num_blocks}"),
            Self::BlockClear { num_blocks, fill } => write!(f, " n{num_blocks} {fill}"),
            Self::KvAppend { kv } => write!(f, " {kv}"),
            Self::FusedAppend { kv, io_format, rotary } => {
                write!(f, " {kv} {}-io", io_format.name())?;
                rotary.map_or(Ok(()), |rotary| write!(f, " {rotary}"))
            }
            Self::RotateQueries { head_dim, io_format, rotary } => {
                write!(f, " d{head_dim} {}-io {rotary}", io_format.name())
            }
            Self::MergeStates { io_format } => write!(f, " {}-io", io_format.name()),
            Self::PoolImport { kv, external } => write!(f, " {kv} from {external}"),
            Self::PoolExport { kv, external } => write!(f, " {kv} to {external}"),
            Self::PagedAttention { kv, paged, group, class, lane_comm, variant, .. } => {
                let mode = if *paged { "" } else { " contiguous" };
                write!(f, " {kv} g{group} t{} {lane_comm}{mode}{variant}", 1_u64 << (*class).min(63))
            }
            Self::MergePartials { v_head_dim, variant } => write!(f, " d{v_head_dim}{variant}"),
        }
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} d{}", self.format, self.head_dim)?;
        if self.v_head_dim != self.head_dim {
            write!(f, "v{}", self.v_head_dim)?;
        }
        write!(f, " b{}", self.block_size)
    }
}

impl fmt::Display for LaneComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subgroup { lanes } => write!(f, "subgroup{lanes}"),
            Self::Workgroup { lanes } => write!(f, "workgroup{lanes}"),
        }
    }
}

impl RotaryShape {
    fn add_to(self, constants: &mut Constants) {
        constants.set("ROTARY_DIMS", self.dims);
        constants.set_flag("INTERLEAVED", self.style == RotaryStyle::Interleaved);
    }
}

fn append_parts(kv: &KvShape, io_format: IoFormat, rotary: Option<RotaryShape>) -> (Constants, Vec<&'static str>) {
    let mut constants = kv.constants();
    constants.set("IO_PER_WORD", io_format.per_word());
    let mut parts = vec![STEP, PAGING, KV_STORE];
    parts.extend(store_parts(kv.format));
    parts.push(io_part(io_format));
    match rotary {
        Some(rotary) => {
            rotary.add_to(&mut constants);
            parts.extend([ROTARY, SOURCE_ROTARY]);
        }
        None => parts.push(SOURCE_PLAIN),
    }
    parts.push(KV_APPEND);
    (constants, parts)
}

/// For kernels that write words of the caller's.
fn io_constants(io_format: IoFormat) -> Constants {
    let mut constants = Constants::default();
    constants.set("IO_PER_WORD", io_format.per_word());
    constants.set("CODE_BITS", io_format.kv_dtype().code_bits());
    constants
}

fn transfer_constants(kv: &KvShape, external: ExternalLayout) -> Constants {
    let mut constants = kv.constants();
    constants.set("EXTERNAL_PER_WORD", external.element.per_word());
    constants.set_flag("TOKEN_MAJOR", external.order == ExternalOrder::TokenMajor);
    constants
}

/// `kv_load` of a format: a part of a data unit as numbers, before they are scaled.
fn load_part(format: KvDtype) -> &'static str {
    match format {
        KvDtype::F32 => include_str!("../../../shaders/common/kv_f32.wgsl"),
        KvDtype::F16 => include_str!("../../../shaders/common/kv_f16.wgsl"),
        KvDtype::Bf16 => include_str!("../../../shaders/common/kv_bf16.wgsl"),
        KvDtype::Int8 => include_str!("../../../shaders/common/kv_int8.wgsl"),
        KvDtype::Fp8 => include_str!("../../../shaders/common/kv_fp8.wgsl"),
        KvDtype::Int4 => include_str!("../../../shaders/common/kv_int4.wgsl"),
    }
}

/// `kv_code` of a format: the code of an element. In texts of their own, for kernels that read need none of it.
fn store_parts(format: KvDtype) -> Vec<&'static str> {
    match format {
        KvDtype::F32 => vec![include_str!("../../../shaders/common/kv_f32_store.wgsl")],
        KvDtype::F16 => vec![include_str!("../../../shaders/common/kv_f16_store.wgsl")],
        KvDtype::Bf16 => vec![include_str!("../../../shaders/common/kv_bf16_store.wgsl")],
        KvDtype::Int8 => {
            vec![KV_SCALED_STORE, KV_WHOLE_STORE, include_str!("../../../shaders/common/kv_int8_store.wgsl")]
        }
        KvDtype::Fp8 => vec![KV_SCALED_STORE, include_str!("../../../shaders/common/kv_fp8_store.wgsl")],
        KvDtype::Int4 => {
            vec![KV_SCALED_STORE, KV_WHOLE_STORE, include_str!("../../../shaders/common/kv_int4_store.wgsl")]
        }
    }
}

/// [`io_part`], for a kernel that writes outputs.
fn output_parts(format: IoFormat) -> Vec<&'static str> {
    match format {
        IoFormat::F32 => vec![IO_F32],
        IoFormat::F16 => vec![IO_F16, include_str!("../../../shaders/common/kv_f16_store.wgsl")],
    }
}

fn io_part(format: IoFormat) -> &'static str {
    match format {
        IoFormat::F32 => IO_F32,
        IoFormat::F16 => IO_F16,
    }
}
