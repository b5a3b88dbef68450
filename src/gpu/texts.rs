//! The kernels of a model as texts, for tools that compile them without a device.

use crate::gpu::error::SpecError;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::make::runtime_checks;
use crate::gpu::ops::class_kernel::class_kernels;
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::value::ClearValue;
use crate::layout::KvLayout;
use crate::plan::MAX_TILE_TOKENS;

/// A kernel as it goes to wgpu.
#[derive(Clone, Debug)]
pub struct KernelText {
    /// Its readable key, as in captures: `paged_attention f16 d128 b16 g4 t1 subgroup8 causal`.
    pub label: String,
    /// Tokens of its query tiles, if it is one of an attention.
    pub tile_tokens: Option<u32>,
    /// Whether these are the tiles of chunks of prompts.
    pub is_chunk: bool,
    /// The text.
    pub wgsl: String,
    /// What wgpu is asked to add to it.
    pub checks: wgpu::ShaderRuntimeChecks,
}

/// A kernel's text for tint, and so for Dawn and browsers: they demand directives where there are subgroups, which naga
/// refuses. The workgroup is one subgroup then, so that every flow of control which is uniform over workgroups is uniform
/// over subgroups too.
pub fn browser_wgsl(wgsl: &str) -> String {
    let needs_subgroups = wgsl.contains("@builtin(subgroup_");
    let directives = if needs_subgroups { "enable subgroups;\ndiagnostic(off, subgroup_uniformity);\n" } else { "" };
    directives.to_owned() + wgsl
}

impl KernelText {
    fn new(kernel: &Kernel, tile_tokens: Option<u32>) -> Self {
        let is_chunk = matches!(kernel, Kernel::PagedPrefill { .. });
        Self { label: kernel.to_string(), tile_tokens, is_chunk, wgsl: kernel.wgsl(), checks: runtime_checks() }
    }
}

/// The kernels that a model with this attention takes on devices of this profile: first those of the attention, one for
/// every size of query tile from a single token up to the widest of the profile, and one for chunks where these have their
/// own.
///
/// # Errors
/// [`SpecError`] if the attention does not fit the layout.
pub fn kernel_texts(
    profile: &DeviceProfile,
    layout: &KvLayout,
    attention: &AttentionSpec,
) -> Result<Vec<KernelText>, SpecError> {
    attention.check(layout)?;
    let kv = KvShape::of(layout);
    let schedule = profile.schedule(&kv);
    let variant = attention.variant();
    let others = [
        Kernel::MergePartials { v_head_dim: kv.v_head_dim, variant },
        Kernel::MergeStates { io_format: variant.io_format },
        Kernel::KvAppend { kv, io_format: variant.io_format, rotary: None },
        Kernel::TableUpdate,
        Kernel::BlockCopy { kv },
        Kernel::BlockClear { kv, fill: ClearValue::default() },
    ];
    let classes = class_kernels(profile, layout, attention);
    let attention = classes.iter().enumerate().filter(|(class, _)| schedule.needs(*class, MAX_TILE_TOKENS));
    let attention = attention.map(|(_, class)| KernelText::new(&class.kernel, Some(class.shape.tokens())));
    Ok(attention.chain(others.iter().map(|kernel| KernelText::new(kernel, None))).collect())
}
