//! What the text of a kernel is made of: constants, and the files of `shaders/` in the order in which they stand.

use crate::formats::KvDtype;
use crate::gpu::kernel::attention_shape::{AttentionForm, AttentionShape};
use crate::gpu::kernel::prefill_shape::PrefillShape;
use crate::gpu::kernel::shape::{Constants, KvShape, LaneComm, Scoring};
use crate::gpu::kernel::variant::{IoFormat, Variant};
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::value::{ExternalLayout, ExternalOrder, RotaryShape, RotaryStyle, RowChange};

/// The text of a file in `shaders/`.
macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../../../shaders/", $name, ".wgsl"))
    };
}

impl Kernel {
    /// The constants, and the texts.
    pub(super) fn parts(&self) -> (Constants, Vec<&'static str>) {
        let mut constants = self.constants();
        constants.set("ITEM_LANES", ITEM_LANES);
        (constants, [&[shader!("common/grid")], &self.texts()[..]].concat())
    }

    fn constants(&self) -> Constants {
        let mut constants = Constants::default();
        match *self {
            Self::KvAppend { kv, io_format, change } => {
                kv.add_to(&mut constants);
                constants.set("IO_PER_WORD", io_format.per_word());
                change.add_to(&mut constants, 2);
            }
            Self::RotateQueries { head_dim, io_format, change } => {
                io_constants(io_format, &mut constants);
                constants.set("HEAD_DIM", head_dim);
                change.add_to(&mut constants, 1);
            }
            Self::MergeStates { io_format } => {
                io_constants(io_format, &mut constants);
                constants.set_flag("SINKS", false);
            }
            Self::TableUpdate => {}
            Self::BlockCopy { kv } => kv.add_block_units(&mut constants),
            Self::BlockClear { kv, fill } => {
                kv.add_block_units(&mut constants);
                constants.set("CLEAR_WORD", fill.word());
            }
            Self::PoolImport { kv, external } | Self::PoolExport { kv, external } => {
                kv.add_to(&mut constants);
                external.add_to(&mut constants);
            }
            Self::PagedAttention { kv, paged, group, class, form, variant } => {
                let shape = AttentionShape::new(&kv, group, class, form);
                kv.add_to(&mut constants);
                shape.add_to(&mut constants);
                variant.add_to(&mut constants);
                // Then one look at the table serves a whole tile.
                constants.set_flag("TILE_IN_BLOCK", !paged || kv.block_size.is_multiple_of(shape.key_tile()));
                constants.set_flag("PAGED", paged);
            }
            Self::PagedPrefill { kv, paged, group, form, variant } => {
                kv.add_to(&mut constants);
                PrefillShape::new(&kv, group, form).add_to(&mut constants);
                variant.add_to(&mut constants);
                // An element of f16 is one half already.
                constants.set_flag("SPLIT_QUERIES", variant.io_format == IoFormat::F32);
                constants.set_flag("PAGED", paged);
            }
            Self::MergePartials { v_head_dim, variant } => {
                constants.set("V_HEAD_DIM", v_head_dim);
                variant.add_to(&mut constants);
            }
        }
        constants
    }

    /// The texts behind `common/grid.wgsl`; the kernel itself is the last.
    fn texts(&self) -> Vec<&'static str> {
        match *self {
            Self::KvAppend { kv, io_format, change } => {
                let source = if change.is_none() {
                    vec![shader!("common/source_plain")]
                } else {
                    [change.texts(), vec![shader!("common/source_rows")]].concat()
                };
                let step = vec![shader!("common/step"), shader!("common/paging"), shader!("common/kv_store")];
                [step, store(kv.format), vec![io(io_format)], source, vec![shader!("kv_append")]].concat()
            }
            Self::RotateQueries { io_format, change, .. } => {
                let step = vec![shader!("common/step"), io(io_format)];
                [step, store(io_format.kv_dtype()), change.texts(), vec![shader!("rotate_queries")]].concat()
            }
            Self::MergeStates { io_format } => {
                let merge = vec![shader!("common/softmax"), shader!("merge_states")];
                [vec![io(io_format)], store(io_format.kv_dtype()), merge].concat()
            }
            Self::TableUpdate => vec![shader!("common/step"), shader!("table_update")],
            Self::BlockCopy { .. } => {
                vec![shader!("common/step"), shader!("common/whole_blocks"), shader!("block_copy")]
            }
            Self::BlockClear { .. } => {
                vec![shader!("common/step"), shader!("common/whole_blocks"), shader!("block_clear")]
            }
            Self::PoolImport { kv, external } => {
                let rows = vec![shader!("common/paging"), shader!("common/external"), load(external.element.format())];
                [rows, vec![shader!("common/kv_store")], store(kv.format), vec![shader!("pool_import")]].concat()
            }
            Self::PoolExport { kv, external } => {
                let rows = vec![shader!("common/paging"), shader!("common/external"), load(kv.format)];
                [rows, store(external.element.format()), vec![shader!("pool_export")]].concat()
            }
            Self::PagedAttention { kv, form, variant, group, class, .. } => {
                let lanes = match form.lane_comm {
                    LaneComm::Subgroup { .. } => shader!("common/lanes_subgroup"),
                    LaneComm::Workgroup { .. } => shader!("common/lanes_workgroup"),
                };
                let pool = if form.wide_loads { shader!("common/pool_u64") } else { shader!("common/pool_u32") };
                let many = AttentionShape::new(&kv, group, class, form).subgroups > 1;
                let team = if many { shader!("common/team_many") } else { shader!("common/team_one") };
                let lanes = [vec![pool, lanes, team], score(form)].concat();
                [attending(&kv, &variant), lanes, vec![shader!("paged_attention")]].concat()
            }
            Self::PagedPrefill { kv, group, form, variant, .. } => {
                let matrices = PrefillShape::new(&kv, group, form).has_matrices();
                let tiles = if matrices { shader!("common/tiles_matrices") } else { shader!("common/tiles_lanes") };
                [attending(&kv, &variant), vec![shader!("common/pool_u32"), tiles, shader!("paged_prefill")]].concat()
            }
            Self::MergePartials { v_head_dim, variant } => {
                let step = vec![shader!("common/step"), shader!("common/visible"), shader!("common/softmax")];
                [step, output(&variant, v_head_dim), vec![shader!("merge_partials")]].concat()
            }
        }
    }
}

impl RowChange {
    /// For a kernel whose bind group `group` ends with the rotations, if there are any, and the weights of the norm.
    fn add_to(self, constants: &mut Constants, group: u32) {
        if !self.is_none() {
            constants.set("ROW_GROUP", group);
        }
        if self.norm {
            constants.set("NORM_BINDING", 3 + u32::from(self.rotary.is_some()));
        }
        self.rotary.iter().for_each(|rotary| rotary.add_to(constants));
    }

    fn texts(self) -> Vec<&'static str> {
        let norm = if self.norm { shader!("common/norm_rms") } else { shader!("common/norm_none") };
        let rotary = match self.rotary {
            None => vec![shader!("common/rotary_none")],
            Some(RotaryShape { sections: None, .. }) => vec![shader!("common/rotary"), shader!("common/turns_one")],
            Some(_) => vec![shader!("common/rotary"), shader!("common/turns_sections")],
        };
        [vec![norm], rotary].concat()
    }
}

impl RotaryShape {
    fn add_to(self, constants: &mut Constants) {
        constants.set("ROTARY_DIMS", self.dims);
        constants.set_flag("INTERLEAVED", self.style == RotaryStyle::Interleaved);
        let Some(sections) = self.sections else { return };
        for (name, pairs) in ["SECTION_T", "SECTION_H", "SECTION_W"].into_iter().zip(sections.pairs()) {
            constants.set(name, pairs);
        }
        constants.set_flag("SECTIONS_DEALT", sections.is_interleaved());
    }
}

impl ExternalLayout {
    fn add_to(self, constants: &mut Constants) {
        constants.set("EXTERNAL_PER_WORD", self.element.per_word());
        constants.set_flag("TOKEN_MAJOR", self.order == ExternalOrder::TokenMajor);
    }
}

/// What the kernels that attend have in common.
fn attending(kv: &KvShape, variant: &Variant) -> Vec<&'static str> {
    let by_fours = kv.head_dim.is_multiple_of(4) && !variant.word_io;
    let query = if by_fours { shader!("common/query_vec4") } else { shader!("common/query_words") };
    let q = if variant.shared_io { shader!("common/q_shared") } else { shader!("common/q_read") };
    let step = vec![shader!("common/step"), shader!("common/paging"), shader!("common/visible")];
    let attention = vec![shader!("common/softmax"), load(kv.format), shader!("common/attention"), query, q];
    [step, attention, output(variant, kv.v_head_dim)].concat()
}

/// For kernels that write words of the caller's.
fn io_constants(io_format: IoFormat, constants: &mut Constants) {
    constants.set("IO_PER_WORD", io_format.per_word());
    constants.set("CODE_BITS", io_format.kv_dtype().code_bits());
}

/// How keys are scored, and where the queries lie.
fn score(form: AttentionForm) -> Vec<&'static str> {
    let (shuffled, shared) = (shader!("common/queries_shuffled"), shader!("common/queries_shared"));
    let key_lanes = shader!("common/score_key_lanes");
    match (form.scoring, form.lane_comm) {
        (Scoring::RowLanes, _) => vec![shader!("common/score_row_lanes")],
        (Scoring::KeyLanes, LaneComm::Subgroup { .. }) => vec![shuffled, key_lanes],
        (Scoring::KeyLanes, LaneComm::Workgroup { .. }) | (Scoring::SharedQueries, _) => vec![shared, key_lanes],
    }
}

/// `kv_load` of a format: a part of a data unit as numbers, before they are scaled.
fn load(format: KvDtype) -> &'static str {
    match format {
        KvDtype::F32 => shader!("common/kv_f32"),
        KvDtype::F16 => shader!("common/kv_f16"),
        KvDtype::Bf16 => shader!("common/kv_bf16"),
        KvDtype::Int8 => shader!("common/kv_int8"),
        KvDtype::Fp8 => shader!("common/kv_fp8"),
        KvDtype::Int4 => shader!("common/kv_int4"),
    }
}

/// `kv_code` of a format: the code of an element. In texts of their own, because kernels that read need none of it.
fn store(format: KvDtype) -> Vec<&'static str> {
    let (scaled, whole) = (shader!("common/kv_scaled_store"), shader!("common/kv_whole_store"));
    match format {
        KvDtype::F32 => vec![shader!("common/kv_f32_store")],
        KvDtype::F16 => vec![shader!("common/kv_f16_store")],
        KvDtype::Bf16 => vec![shader!("common/kv_bf16_store")],
        KvDtype::Int8 => vec![scaled, whole, shader!("common/kv_int8_store")],
        KvDtype::Fp8 => vec![scaled, shader!("common/kv_fp8_store")],
        KvDtype::Int4 => vec![scaled, whole, shader!("common/kv_int4_store")],
    }
}

/// Queries and outputs of a kernel that reads or copies them.
fn io(format: IoFormat) -> &'static str {
    match format {
        IoFormat::F32 => shader!("common/io_f32"),
        IoFormat::F16 => shader!("common/io_f16"),
    }
}

/// The same of a kernel that computes outputs, of heads so many elements wide, and partials.
fn output(variant: &Variant, v_head_dim: u32) -> Vec<&'static str> {
    let by_fours = v_head_dim.is_multiple_of(4) && !variant.word_io;
    let out = if by_fours { shader!("common/out_vec4") } else { shader!("common/out_words") };
    let (io, rows, partials) = (io(variant.io_format), shader!("common/out_rows"), shader!("common/partials"));
    match variant.io_format {
        IoFormat::F32 => vec![io, out, rows, partials],
        IoFormat::F16 => vec![io, shader!("common/kv_f16_store"), out, rows, partials],
    }
}
