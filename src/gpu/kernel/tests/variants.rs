//! The kernel variants that the static checks look at.

use crate::formats::KvDtype;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::{AttentionForm, AttentionShape};
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::shape::{KvShape, LaneComm, Scoring};
use crate::gpu::kernel::variant::{IoFormat, Variant};
use crate::gpu::value::{
    ExternalElement, ExternalLayout, ExternalOrder, MropeSections, RotaryShape, RotaryStyle, RowChange,
};

/// The forms that devices use: every subgroup size, and none.
pub(super) const FORMS: [AttentionForm; 15] = [
    subgroup(4),
    subgroup(8),
    subgroup(16),
    subgroup(32),
    subgroup(64),
    AttentionForm { lane_comm: LaneComm::Workgroup { lanes: 32 }, tile_rows: 8, ..WORKGROUP },
    WORKGROUP,
    AttentionForm { unrolled: false, ..subgroup(32) },
    AttentionForm { whole: true, wide_loads: true, ..subgroup(8) },
    AttentionForm { scoring: Scoring::RowLanes, unrolled: false, ..subgroup(32) },
    AttentionForm { scoring: Scoring::RowLanes, ..subgroup(16) },
    AttentionForm { scoring: Scoring::RowLanes, whole: true, ..subgroup(4) },
    AttentionForm { scoring: Scoring::SharedQueries, unrolled: false, ..subgroup(32) },
    AttentionForm { scoring: Scoring::RowLanes, unrolled: false, subgroups: 4, ..subgroup(32) },
    AttentionForm { subgroups: 2, ..subgroup(8) },
];

pub(super) const WORKGROUP: AttentionForm = AttentionForm {
    lane_comm: LaneComm::Workgroup { lanes: 64 },
    scoring: Scoring::KeyLanes,
    tile_rows: 16,
    unrolled: false,
    loads: 1,
    whole: false,
    wide_loads: false,
    subgroups: 1,
};

pub(super) const fn subgroup(lanes: u32) -> AttentionForm {
    AttentionForm { lane_comm: LaneComm::Subgroup { lanes }, unrolled: true, loads: 4, ..WORKGROUP }
}

/// The pools of other engines: every element, and both orders.
const EXTERNAL: [ExternalLayout; 3] = [
    ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F32 },
    ExternalLayout { order: ExternalOrder::HeadMajor, element: ExternalElement::F16 },
    ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::Bf16 },
];

/// Without options, with all of them, and with queries in halves, at any word, that see every key.
pub(super) const ATTENTIONS: [Variant; 3] = [
    Variant::PLAIN,
    Variant {
        window: true,
        soft_cap: true,
        alibi: true,
        sinks: true,
        write_lse: true,
        shared_io: true,
        head_terms: 24,
        ..Variant::PLAIN
    },
    Variant { causal: false, io_format: IoFormat::F16, word_io: true, ..Variant::PLAIN },
];

/// Classes of query tiles: a token, a few, and as many as there may be.
pub(super) const CLASSES: [u32; 3] = [0, 2, 4];

/// A kernel over `kv`, of the class asked for or the highest below it that its devices use.
pub(super) fn attention(
    kv: KvShape,
    paged: bool,
    group: u32,
    class: u32,
    form: AttentionForm,
    variant: Variant,
) -> Kernel {
    let class = class.min(max_class(&kv, form));
    Kernel::PagedAttention { kv, paged, group, class, form, variant }
}

/// The highest class of query tiles that a device with this form ever gets.
pub(super) fn max_class(kv: &KvShape, form: AttentionForm) -> u32 {
    AttentionShape::max_tile_tokens(kv, form).ilog2()
}

/// Kernels over formats, head dims, groups, forms, classes and variants. Every pair of a format and a form meets
/// a few of the others' combinations, so that each meets all while the number of kernels stays small.
pub(super) fn variants() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::TableUpdate];
    kernels.extend(with_rotary_or_states());
    let head_dims = [1, 5, 8, 64, 80, 128, 256];
    let groups = [1, 4, 7, 8, 9, 71];
    for (row, format) in KvDtype::ALL.into_iter().enumerate() {
        for (head_dim, v_head_dim) in [(192, 128), (1, 512), (300, 33), (512, 512)] {
            kernels.push(append(format, head_dim, v_head_dim, 16));
        }
        for external in EXTERNAL {
            for head_dim in [1, 130] {
                let kv = KvShape { format, head_dim, v_head_dim: head_dim, block_size: 16 };
                kernels.extend([Kernel::PoolImport { kv, external }, Kernel::PoolExport { kv, external }]);
            }
        }
        for (at, head_dim) in head_dims.into_iter().enumerate() {
            for block_size in [1, 16, 17] {
                kernels.push(append(format, head_dim, head_dim, block_size));
            }
            for (column, form) in FORMS.into_iter().enumerate() {
                // The texts of wide tiles of wide heads are long: a few of them are enough.
                let turn = row + 2 * at + 4 * column;
                if (row + at + column) % if head_dim < 128 { 2 } else { 4 } != 0 {
                    continue;
                }
                let (class, variant) = (CLASSES[turn % 3], ATTENTIONS[turn / 3 % 3]);
                let variant = if head_dim % 2 == 1 { Variant { io_format: IoFormat::F32, ..variant } } else { variant };
                let group = if head_dim == 256 { [1, 8][turn % 2] } else { groups[turn % groups.len()] };
                // Narrower values and wider ones.
                let v_head_dim = [head_dim, head_dim, 40][turn % 3];
                let kv = KvShape { format, head_dim, v_head_dim, block_size: [16, 128, 5][turn % 3] };
                kernels.push(attention(kv, turn % 4 != 0, group, class, form, variant));
            }
            for (column, rows) in [64, 32, 16].into_iter().enumerate() {
                let turn = row + 2 * at + 5 * column;
                if (row + at + column).is_multiple_of(2) {
                    kernels.push(prefill(format, head_dim, turn, rows));
                }
            }
        }
    }
    for v_head_dim in head_dims {
        for variant in ATTENTIONS {
            let io_format = if v_head_dim % 2 == 1 { IoFormat::F32 } else { variant.io_format };
            for write_lse in [false, true] {
                let variant = Variant { io_format, write_lse, ..variant };
                kernels.push(Kernel::MergePartials { v_head_dim, variant });
            }
        }
    }
    kernels
}

/// A kernel for chunks.
pub(super) fn prefill(format: KvDtype, head_dim: u32, turn: usize, rows: u32) -> Kernel {
    let variant = ATTENTIONS[turn % 3];
    let variant = if head_dim % 2 == 1 { Variant { io_format: IoFormat::F32, ..variant } } else { variant };
    let v_head_dim = [head_dim, 40, head_dim, 512][turn % 4];
    let kv = KvShape { format, head_dim, v_head_dim, block_size: [16, 128, 5][turn % 3] };
    let form = ChunkForm::WorkgroupTiles { rows };
    Kernel::PagedPrefill { kv, paged: !turn.is_multiple_of(5), group: [1, 4, 7, 8, 71][turn % 5], form, variant }
}

/// The same by matrix units, with as many options.
pub(super) fn matrices(head_dim: u32, turn: usize, rows: u32) -> Kernel {
    let Kernel::PagedPrefill { kv, paged, group, variant, .. } = prefill(KvDtype::F16, head_dim, turn, rows) else {
        unreachable!("another kernel");
    };
    let (size, lanes) = [(16, 32), (8, 8), (16, 64), (8, 4)][turn % 4];
    Kernel::PagedPrefill { kv, paged, group, form: ChunkForm::MatrixTiles { rows, size, lanes }, variant }
}

fn append(format: KvDtype, head_dim: u32, v_head_dim: u32, block_size: u32) -> Kernel {
    let kv = KvShape { format, head_dim, v_head_dim, block_size };
    Kernel::KvAppend { kv, io_format: IoFormat::F32, change: RowChange::default() }
}

/// Rows that are turned, rows in halves, and states that are merged.
fn with_rotary_or_states() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for io_format in [IoFormat::F32, IoFormat::F16] {
        kernels.push(Kernel::MergeStates { io_format });
        for style in [RotaryStyle::Interleaved, RotaryStyle::HalfSplit] {
            for (head_dim, dims) in [(2, 2), (80, 64), (512, 512)] {
                let pairs = dims / 2;
                let sections = MropeSections::new([pairs - 2 * (pairs / 3), pairs / 3, pairs / 3]);
                let turned = |sections| Some(RotaryShape { style, dims, sections });
                let change = |norm, rotary| RowChange { norm, rotary };
                let changes = [
                    change(false, turned(None)),
                    change(true, None),
                    change(true, turned(Some(sections))),
                    change(false, turned(Some(sections.with_interleaved(true)))),
                    change(true, turned(None)),
                ];
                kernels.extend(changes.map(|change| Kernel::RotateQueries { head_dim, io_format, change }));
                let none = [RowChange::default()];
                for (at, (format, change)) in KvDtype::ALL
                    .into_iter()
                    .flat_map(|format| none.into_iter().chain(changes).map(move |change| (format, change)))
                    .enumerate()
                {
                    // Half of the pairs with each type, and others with the next format.
                    if (at + at / 6) % 2 == usize::from(io_format == IoFormat::F16) {
                        let kv = KvShape { format, head_dim, v_head_dim: 64, block_size: 5 };
                        kernels.push(Kernel::KvAppend { kv, io_format, change });
                    }
                }
            }
        }
    }
    kernels
}
