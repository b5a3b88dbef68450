//! The kernels and their texts: which files a kernel is made of, for which numbers it is specialised.

use std::fmt;

use super::shape::{Constants, DecodeShape, Exchange, KvShape};
use super::unroll::{UnrollError, unroll};
use crate::config::KvFormat;

const STEP: &str = include_str!("../../shaders/common/step.wgsl");
const PAGING: &str = include_str!("../../shaders/common/paging.wgsl");
const SOFTMAX: &str = include_str!("../../shaders/common/softmax.wgsl");
const KV_F32: &str = include_str!("../../shaders/common/kv_f32.wgsl");
const KV_F16: &str = include_str!("../../shaders/common/kv_f16.wgsl");
const EXCHANGE_SUBGROUP: &str = include_str!("../../shaders/common/exchange_subgroup.wgsl");
const EXCHANGE_WORKGROUP: &str = include_str!("../../shaders/common/exchange_workgroup.wgsl");
const KV_APPEND: &str = include_str!("../../shaders/kv_append.wgsl");
const TABLE_UPDATE: &str = include_str!("../../shaders/table_update.wgsl");
const PAGED_DECODE: &str = include_str!("../../shaders/paged_decode.wgsl");
const MERGE_PARTIALS: &str = include_str!("../../shaders/merge_partials.wgsl");

/// Invocations in a workgroup of `kv_append.wgsl`; `tests/shaders.rs` compares the two.
pub const APPEND_LANES: u32 = 64;
/// Invocations in a workgroup of `table_update.wgsl`; `tests/shaders.rs` compares the two.
pub const UPDATE_LANES: u32 = 64;

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
    /// `shaders/table_update.wgsl`
    TableUpdate,
    /// `shaders/paged_decode.wgsl`
    PagedDecode {
        /// The pool it reads.
        kv: KvShape,
        /// Whether the block is looked up for every key, or once per sequence: the contiguous twin.
        paged: bool,
        /// Query heads per KV head.
        group: u32,
        /// How lanes hand values to each other.
        exchange: Exchange,
        /// Keys in one split.
        split_tokens: u32,
        /// Whether the log-sum-exp is written.
        write_lse: bool,
    },
    /// `shaders/merge_partials.wgsl`
    MergePartials {
        /// Elements of one head.
        head_dim: u32,
        /// Whether the log-sum-exp is written.
        write_lse: bool,
    },
}

impl Kernel {
    /// The name of the file in `shaders/`, without its ending; the label of everything made from it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KvAppend { .. } => "kv_append",
            Self::TableUpdate => "table_update",
            Self::PagedDecode { .. } => "paged_decode",
            Self::MergePartials { .. } => "merge_partials",
        }
    }

    /// Whether the device must offer [`wgpu::Features::SUBGROUP`].
    pub fn needs_subgroups(&self) -> bool {
        matches!(self, Self::PagedDecode { exchange: Exchange::Subgroup { .. }, .. })
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
        }
        text.push_str(&constants.wgsl());
        for part in parts {
            // The only marked loops are the decode kernel's; see DecodeShape::unrolled.
            let unrolled = self.needs_subgroups();
            text.push_str(&if unrolled { unroll(part, &constants)? } else { part.to_owned() });
        }
        Ok(text)
    }

    fn parts(&self) -> (Constants, Vec<&'static str>) {
        match *self {
            Self::KvAppend { kv } => (kv.constants(), vec![STEP, PAGING, format_part(kv.format), KV_APPEND]),
            Self::TableUpdate => (Constants::default(), vec![STEP, TABLE_UPDATE]),
            Self::PagedDecode { kv, paged, group, exchange, split_tokens, write_lse } => {
                let mut constants = kv.constants();
                let shape = DecodeShape::new(&kv, group, exchange);
                shape.add_to(&mut constants);
                constants.set("SPLIT_TOKENS", split_tokens);
                // Then one look at the table serves a whole tile.
                let tile_in_block =
                    split_tokens.is_multiple_of(shape.tile()) && kv.block_size.is_multiple_of(shape.tile());
                constants.set_flag("TILE_IN_BLOCK", tile_in_block || !paged);
                constants.set_flag("PAGED", paged);
                constants.set_flag("WRITE_LSE", write_lse);
                let exchange = match exchange {
                    Exchange::Subgroup { .. } => EXCHANGE_SUBGROUP,
                    Exchange::Workgroup { .. } => EXCHANGE_WORKGROUP,
                };
                (constants, vec![STEP, PAGING, SOFTMAX, format_part(kv.format), exchange, PAGED_DECODE])
            }
            Self::MergePartials { head_dim, write_lse } => {
                let mut constants = Constants::default();
                constants.set("HEAD_DIM", head_dim);
                constants.set_flag("WRITE_LSE", write_lse);
                (constants, vec![STEP, SOFTMAX, MERGE_PARTIALS])
            }
        }
    }
}

impl fmt::Display for Kernel {
    /// A readable key, as in labels and reports: `paged_decode f16 d128 b16 g4 subgroup8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::TableUpdate => Ok(()),
            Self::KvAppend { kv } => write!(f, " {kv}"),
            Self::PagedDecode { kv, paged, group, exchange, split_tokens, write_lse } => {
                let mode = if *paged { "" } else { " contiguous" };
                let lse = if *write_lse { " lse" } else { "" };
                write!(f, " {kv} g{group} {exchange} split{split_tokens}{mode}{lse}")
            }
            Self::MergePartials { head_dim, write_lse } => {
                write!(f, " d{head_dim}{}", if *write_lse { " lse" } else { "" })
            }
        }
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} d{} b{}", self.format, self.head_dim, self.block_size)
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subgroup { lanes } => write!(f, "subgroup{lanes}"),
            Self::Workgroup { lanes } => write!(f, "workgroup{lanes}"),
        }
    }
}

fn format_part(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F32 => KV_F32,
        KvFormat::F16 => KV_F16,
    }
}
