//! The kernels of a model as texts, for tools that compile them without a device, and changes in them for tests.

use std::cell::RefCell;
use std::rc::Rc;

use crate::gpu::error::SpecError;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::make::runtime_checks;
use crate::gpu::ops::class_kernel::class_kernels;
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::value::{ClearValue, RotaryShape, RotaryStyle, RowChange};
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
    // As in most models of today.
    let rotary = RotaryShape { style: RotaryStyle::HalfSplit, dims: kv.head_dim / 2 * 2, sections: None };
    let change = RowChange { norm: true, rotary: (rotary.dims > 0).then_some(rotary) };
    let others = [
        Kernel::MergePartials { v_head_dim: kv.v_head_dim, variant },
        Kernel::MergeStates { io_format: variant.io_format },
        Kernel::KvAppend { kv, io_format: variant.io_format, change: RowChange::default() },
        Kernel::KvAppend { kv, io_format: variant.io_format, change },
        Kernel::RotateQueries { head_dim: kv.head_dim, io_format: variant.io_format, change },
        Kernel::TableUpdate,
        Kernel::BlockCopy { kv },
        Kernel::BlockClear { kv, fill: ClearValue::default() },
    ];
    let classes = class_kernels(profile, layout, attention);
    let attention = classes.iter().enumerate().filter(|(class, _)| schedule.needs(*class, MAX_TILE_TOKENS));
    let attention = attention.map(|(_, class)| KernelText::new(&class.kernel, Some(class.shape.tokens())));
    Ok(attention.chain(others.iter().map(|kernel| KernelText::new(kernel, None))).collect())
}

type Change = dyn Fn(&str, String) -> String;

thread_local! {
    static CHANGE: RefCell<Option<Rc<Change>>> = const { RefCell::new(None) };
}

/// Runs `run`, and puts every kernel that this thread compiles meanwhile through `change`, which gets a kernel's label and its
/// text: to plant faults, and to count what a kernel does. Nothing that is compiled here serves anybody afterwards.
pub fn with_changed_texts<T>(change: impl Fn(&str, String) -> String + 'static, run: impl FnOnce() -> T) -> T {
    struct Restore(Option<Rc<Change>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHANGE.set(self.0.take());
        }
    }
    let _restore = Restore(CHANGE.replace(Some(Rc::new(change))));
    run()
}

/// Whether this thread changes texts.
pub(crate) fn are_changed() -> bool {
    CHANGE.with_borrow(Option::is_some)
}

/// A kernel's text, and the checks that it needs: the loops of a changed one may not end.
pub(crate) fn to_compile(kernel: &Kernel) -> (String, wgpu::ShaderRuntimeChecks) {
    match CHANGE.with_borrow(Clone::clone) {
        Some(change) => (change(&kernel.to_string(), kernel.wgsl()), wgpu::ShaderRuntimeChecks::checked()),
        None => (kernel.wgsl(), runtime_checks()),
    }
}
