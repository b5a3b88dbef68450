//! Workgroup memory: what the host counts is what the texts declare, and WebGPU's default suffices for heads of every width.

use super::shader_text::{Reflection, reflect};
use super::variants::{ATTENTIONS, FORMS, attention, max_class};
use crate::formats::KvDtype;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::prefill_shape::PrefillShape;
use crate::gpu::kernel::shape::KvShape;

/// WebGPU's default limit.
const WORKGROUP_BYTES: u32 = 16_384;

/// The narrowest query tiles and the widest that devices get, for every width.
#[test]
fn the_memory_of_a_workgroup_suffices_for_heads_of_every_width() {
    let (mut widest, mut most_met) = (0, 0);
    for form in FORMS {
        for format in KvDtype::ALL {
            for (head_dim, v_head_dim) in [(1, 1), (64, 64), (128, 128), (192, 128), (256, 256), (512, 512), (40, 512)]
            {
                let kv = KvShape { format, head_dim, v_head_dim, block_size: 16 };
                let most = AttentionShape::most_workgroup_bytes(&kv, form);
                assert!(most <= WORKGROUP_BYTES, "{form} for {kv} takes {most} bytes");
                if most == 0 {
                    continue;
                }
                let class = max_class(&kv, form);
                for (group, class) in [(8, 0), (1, class)] {
                    let kernel = attention(kv, true, group, class, form, ATTENTIONS[1]);
                    let Reflection { workgroup_bytes, .. } = reflect(&kernel, &kernel.wgsl());
                    assert!(workgroup_bytes <= most, "{kernel} takes {workgroup_bytes} bytes of {most}");
                    most_met += u32::from(workgroup_bytes == most);
                    widest = widest.max(class);
                }
            }
        }
    }
    assert_eq!(widest, 4);
    assert!(most_met > 100, "{most_met} kernels take all that is counted");
    // Lanes that shuffle have no need of it.
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    let kernel = attention(kv, true, 1, 0, FORMS[3], ATTENTIONS[0]);
    let counted = AttentionShape::most_workgroup_bytes(&kv, FORMS[3]);
    assert_eq!((reflect(&kernel, &kernel.wgsl()).workgroup_bytes, counted), (0, 0), "{kernel}");
}

#[test]
fn the_memory_of_a_workgroup_suffices_for_chunks_of_heads_of_every_width() {
    for format in KvDtype::ALL {
        for (rows, v_head_dim) in [16, 32, 64].into_iter().flat_map(|rows| (1..=512).step_by(7).map(move |v| (rows, v)))
        {
            for head_dim in [1, 8, 12, 64, 300, 512] {
                let kv = KvShape { format, head_dim, v_head_dim, block_size: 16 };
                let bytes = PrefillShape::new(&kv, 4, ChunkForm::WorkgroupTiles { rows }).workgroup_bytes();
                assert!(bytes <= WORKGROUP_BYTES, "{kv} in {rows} rows takes {bytes} bytes");
            }
        }
    }
    // What the host counts is what the text declares.
    for (format, rows) in KvDtype::ALL.into_iter().flat_map(|format| [16, 32, 64].map(|rows| (format, rows))) {
        for (head_dim, v_head_dim) in [(1, 1), (64, 64), (128, 128), (40, 512)] {
            let kv = KvShape { format, head_dim, v_head_dim, block_size: 16 };
            let form = ChunkForm::WorkgroupTiles { rows };
            let kernel = Kernel::PagedPrefill { kv, paged: true, group: 4, form, variant: ATTENTIONS[0] };
            let Reflection { workgroup_bytes, invocations, .. } = reflect(&kernel, &kernel.wgsl());
            assert_eq!(workgroup_bytes, PrefillShape::new(&kv, 4, form).workgroup_bytes(), "{kernel}");
            assert_eq!(invocations, 128, "{kernel}");
        }
    }
}
