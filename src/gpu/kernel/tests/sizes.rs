//! How long the texts are: what naga and the drivers take to compile them grows with that.

use super::variants::{ATTENTIONS, max_class};
use crate::formats::KvDtype;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionForm;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::makers::maker_form;

/// Bytes of a text of the usual model, and of one of any model. Drivers with subgroups of four write out most.
const USUAL_BYTES: usize = 161 << 10;
const MOST_BYTES: usize = 280_000;
/// The same for drivers that count the rounds of loops, whose texts have none over K and V.
const COUNTED_USUAL_BYTES: usize = 340_000;
const COUNTED_MOST_BYTES: usize = 420_000;

/// The form that devices get: their maker, type and smallest subgroup; 0 for none.
fn form(vendor: u32, device_type: wgpu::DeviceType, lanes: u32) -> AttentionForm {
    let mut info = wgpu::AdapterInfo::new(device_type, wgpu::Backend::Vulkan);
    (info.vendor, info.subgroup_min_size, info.subgroup_max_size) = (vendor, lanes, lanes);
    maker_form(&info, if lanes > 0 { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() })
}

/// Those of software drivers.
fn software_forms() -> Vec<AttentionForm> {
    [0, 4, 8, 16].map(|lanes| form(0x10005, wgpu::DeviceType::Cpu, lanes)).to_vec()
}

fn forms() -> Vec<AttentionForm> {
    use wgpu::DeviceType::{DiscreteGpu, IntegratedGpu};
    let mut forms = software_forms();
    for (vendor, lanes) in [(0x10de, 32), (0x1002, 32), (0x1002, 64), (0x8086, 8), (0x13b5, 16), (0x5143, 64)] {
        forms.push(form(vendor, DiscreteGpu, lanes));
    }
    forms.push(form(0x106b, IntegratedGpu, 32));
    assert!(forms.iter().any(|form| form.unrolled) && forms.iter().any(|form| !form.unrolled));
    forms
}

#[test]
fn no_device_gets_a_long_text() {
    check(forms(), USUAL_BYTES, MOST_BYTES);
}

#[test]
fn where_rounds_are_counted_texts_have_a_bound_too() {
    let forms = software_forms().into_iter().map(|form| AttentionForm { whole: true, ..form });
    check(forms.collect(), COUNTED_USUAL_BYTES, COUNTED_MOST_BYTES);
}

#[track_caller]
fn check(forms: Vec<AttentionForm>, usual_bytes: usize, most_bytes: usize) {
    let (mut usual, mut most) = (0, 0);
    for form in forms {
        for format in KvDtype::ALL {
            for (head_dim, group) in [(64, 1), (64, 8), (128, 1), (128, 4), (128, 8), (256, 2), (256, 8)] {
                let kv = KvShape { format, head_dim, v_head_dim: head_dim, block_size: 16 };
                for class in 0..=max_class(&kv, form) {
                    let variant = ATTENTIONS[1];
                    let kernel = Kernel::PagedAttention { kv, paged: true, group, class, form, variant };
                    let bytes = kernel.wgsl().len();
                    assert!(bytes <= most_bytes, "{bytes} bytes: {kernel}");
                    most = most.max(bytes);
                    if (format, head_dim, group) == (KvDtype::F16, 128, 4) && form.lane_comm.lanes() > 4 {
                        assert!(bytes <= usual_bytes, "{bytes} bytes: {kernel}");
                        usual = usual.max(bytes);
                    }
                }
            }
        }
    }
    // Bounds that nothing comes near would notice nothing.
    assert!(usual > usual_bytes / 4 * 3 && most > most_bytes / 4 * 3, "the usual is {usual}, the most {most}");
}
