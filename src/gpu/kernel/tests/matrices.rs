//! The kernel for chunks where matrix units multiply: what naga makes of it, its memory, and the caches that it does not serve.

use super::shader_text::{Reflection, Translated, reflect, translate};
use super::variants::{ATTENTIONS, matrices, prefill};
use crate::formats::KvDtype;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::prefill_shape::{MATRIX_WORKGROUP_BYTES, PrefillShape};
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::{Kernel, MATRIX_FEATURES};

const FORM: ChunkForm = ChunkForm::MatrixTiles { rows: 64, size: 16, lanes: 32 };

#[test]
fn it_is_translated_where_there_are_matrices_and_keeps_their_memory() {
    let mut met = 0;
    for (turn, head_dim) in [1, 5, 8, 64, 80, 128, 256].into_iter().enumerate() {
        for (column, rows) in [64, 32, 16].into_iter().enumerate() {
            let kernel = matrices(head_dim, turn + column, rows);
            let text = kernel.wgsl();
            let Translated { spirv_words, msl, .. } = translate(&kernel, &text);
            assert!(spirv_words > 100 && msl.contains("kernel void main_"), "{kernel}");
            let Kernel::PagedPrefill { kv, group, form, .. } = kernel else { unreachable!("another kernel") };
            let shape = PrefillShape::new(&kv, group, form);
            let Reflection { workgroup_bytes, invocations, .. } = reflect(&kernel, &text);
            assert_eq!((workgroup_bytes, invocations), (shape.workgroup_bytes(), 128), "{kernel}");
            assert!(workgroup_bytes <= MATRIX_WORKGROUP_BYTES, "{kernel} takes {workgroup_bytes} bytes");
            met += usize::from(text.contains("coopMultiplyAdd("));
            assert!(!text.contains("// unroll"), "{kernel} keeps a loop that is to be written out");
        }
    }
    assert!(met > 15, "matrices in {met} kernels");
}

#[test]
fn caches_that_it_does_not_serve_get_the_kernel_of_tiles_in_workgroup_memory() {
    let kv = |format, v_head_dim| KvShape { format, head_dim: 64, v_head_dim, block_size: 16 };
    let kernel = |kv, form| Kernel::PagedPrefill { kv, paged: true, group: 4, form, variant: ATTENTIONS[0] };
    let plain = ChunkForm::WorkgroupTiles { rows: 64 };
    for kv in KvDtype::ALL.into_iter().skip(1).map(|format| kv(format, 64)).chain([kv(KvDtype::F16, 512)]) {
        let (own, lanes) = (kernel(kv, FORM), kernel(kv, plain));
        let is_served = kv.format == KvDtype::F16 && kv.v_head_dim == 64;
        assert_eq!(own.features() == MATRIX_FEATURES, is_served, "{own}");
        assert_eq!(own.wgsl() == lanes.wgsl(), !is_served, "{own}");
    }
    assert!(prefill(KvDtype::F16, 64, 0, 64).features().is_empty());
}

#[test]
fn subgroups_share_all_matrices_of_a_result_and_no_matrix_twice() {
    for (size, lanes, rows) in [(16, 32, 64), (16, 64, 64), (8, 8, 64), (8, 4, 16), (16, 16, 32), (16, 32, 16)] {
        let kv = KvShape { format: KvDtype::F16, head_dim: 128, v_head_dim: 128, block_size: 16 };
        let form = ChunkForm::MatrixTiles { rows, size, lanes };
        let kernel = Kernel::PagedPrefill { kv, paged: true, group: 4, form, variant: ATTENTIONS[0] };
        let constants = reflect(&kernel, &kernel.wgsl()).constants;
        let (members, tall, wide) = (constants["MEMBERS"], constants["MEMBER_ROWS"], constants["MEMBER_COLS"]);
        let cols = 4 * constants["COL_GROUPS"] / size;
        assert_eq!(constants["RESULT_COLS"], cols, "{kernel}");
        // As `member_row` and `member_col` of the text find them.
        let of_member = |member: u32| (member / (cols / wide) * tall, member % (cols / wide) * wide);
        let mut seen: Vec<_> = (0..members)
            .flat_map(|member| {
                let (row, col) = of_member(member);
                (0..tall).flat_map(move |r| (0..wide).map(move |c| (row + r, col + c)))
            })
            .collect();
        seen.sort_unstable();
        let all: Vec<_> = (0..rows / size).flat_map(|row| (0..cols).map(move |col| (row, col))).collect();
        assert_eq!(seen, all, "{kernel} in subgroups of {lanes}");
        assert!(members * lanes <= 128, "{kernel} in subgroups of {lanes}");
    }
}
