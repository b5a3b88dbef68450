//! Rotary position embedding: which elements form pairs, and how far they are turned.

use std::fmt;

use crate::gpu::binding::element_bytes;
use crate::gpu::error::GpuError;
use crate::gpu::kernel::shape::Constants;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::scope::scoped;
use crate::layout::KvLayout;

/// The base of most models.
const USUAL_BASE: f32 = 10_000.0;
/// Positions whose rotations are computed at a time, so that the host holds few of them.
const CHUNK: u32 = 1024;

/// Which elements of a head form a pair, of the `dims` that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryStyle {
    /// Elements `2i` and `2i + 1`: GPT-J's style.
    Interleaved,
    /// Elements `i` and `i + dims / 2`: GPT-NeoX's and Llama's style.
    HalfSplit,
}

/// Rotary position embedding: pair `i` of a head is turned by `(position + offset) · inv_freq[i]`.
///
/// `(x, y)` becomes `(x·cos − y·sin, y·cos + x·sin)`. Angles are computed in f64 and their cosines and sines rounded to
/// f32, once for all positions that the cache allows; elements from `dims` on stay as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct RotarySpec {
    /// Query heads: a multiple of the cache's KV heads.
    pub num_q_heads: u32,
    /// Which elements form pairs.
    pub style: RotaryStyle,
    /// How many elements of a head are rotated, from the first on: even, and at most `head_dim`.
    pub dims: u32,
    /// `inv_freq[i]` is `base^(−2i / dims)`, unless they are given.
    pub base: f32,
    /// `[dims / 2]` radians per position; for models that scale them.
    pub inv_freq: Option<Vec<f64>>,
    /// Added to every position.
    pub offset: i32,
}

impl RotarySpec {
    /// The first `dims` elements, with a base of 10,000 and no offset.
    pub fn new(num_q_heads: u32, style: RotaryStyle, dims: u32) -> Self {
        Self { num_q_heads, style, dims, base: USUAL_BASE, inv_freq: None, offset: 0 }
    }

    /// Pairs with frequencies of the caller's, in radians per position: twice as many elements are rotated.
    pub fn from_inv_freq(num_q_heads: u32, style: RotaryStyle, inv_freq: impl Into<Vec<f64>>) -> Self {
        let inv_freq = inv_freq.into();
        // More pairs than can be counted are more than any head has.
        let dims = u32::try_from(inv_freq.len()).unwrap_or(u32::MAX).saturating_mul(2);
        Self { inv_freq: Some(inv_freq), ..Self::new(num_q_heads, style, dims) }
    }

    /// Sets the base of the frequencies.
    #[must_use]
    pub fn with_base(mut self, base: f32) -> Self {
        self.base = base;
        self
    }

    /// Sets what is added to every position.
    #[must_use]
    pub fn with_offset(mut self, offset: i32) -> Self {
        self.offset = offset;
        self
    }

    pub(crate) fn shape(&self) -> RotaryShape {
        RotaryShape { style: self.style, dims: self.dims }
    }

    /// Refuses, by name, what contradicts itself or the cache.
    pub(crate) fn check(&self, layout: &KvLayout) -> Result<(), GpuError> {
        let (num_q_heads, num_kv_heads) = (self.num_q_heads, layout.num_kv_heads());
        if num_q_heads == 0 || !num_q_heads.is_multiple_of(num_kv_heads) {
            return Err(GpuError::QueryHeads { num_q_heads, num_kv_heads });
        }
        let (dims, head_dim) = (self.dims, layout.head_dim());
        if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
            return Err(GpuError::RotaryDims { dims, head_dim });
        }
        let Some(inv_freq) = &self.inv_freq else {
            return if self.base.is_finite() && self.base > 0.0 {
                Ok(())
            } else {
                Err(GpuError::NotPositive { option: "rotary base", value: self.base })
            };
        };
        if inv_freq.len() != (dims / 2) as usize {
            return Err(GpuError::InvFreqCount { given: inv_freq.len(), dims });
        }
        // No position with its offset is as far away.
        let furthest = f64::from(u32::MAX);
        match inv_freq.iter().position(|freq| !(freq * furthest).is_finite()) {
            Some(pair) => Err(GpuError::InvFreq { pair, value: inv_freq[pair] }),
            None => Ok(()),
        }
    }

    /// Radians per position of every pair.
    fn frequencies(&self) -> Vec<f64> {
        let by_base = |pair: u32| f64::from(self.base).powf(-2.0 * f64::from(pair) / f64::from(self.dims));
        self.inv_freq.clone().unwrap_or_else(|| (0..self.dims / 2).map(by_base).collect())
    }

    /// `[max_seq_len, dims / 2]` cosines and sines, on the device.
    pub(crate) fn rotations(
        &self,
        device: &wgpu::Device,
        layout: &KvLayout,
        profile: &DeviceProfile,
    ) -> Result<wgpu::Buffer, GpuError> {
        const WHAT: &str = "the rotations of all positions up to max_seq_len";
        let (positions, row_bytes) = (layout.max_seq_len(), 4 * u64::from(self.dims));
        let bytes = element_bytes(WHAT, u64::from(positions) * u64::from(self.dims), profile)?;
        let frequencies = self.frequencies();
        scoped(device, WHAT, bytes, || {
            let buffer = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("paged.rotations"),
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: true,
            });
            let mut rotations: Vec<[f32; 2]> = Vec::new();
            for first in (0..positions).step_by(CHUNK as usize) {
                let end = positions.min(first.saturating_add(CHUNK));
                rotations.clear();
                for position in first..end {
                    let place = f64::from(position) + f64::from(self.offset);
                    rotations.extend(frequencies.iter().map(|frequency| {
                        let (sin, cos) = (place * frequency).sin_cos();
                        [cos as f32, sin as f32]
                    }));
                }
                // A buffer that was not made has no range; the error scope around this knows why.
                let range = u64::from(first) * row_bytes..u64::from(end) * row_bytes;
                if let Ok(mut range) = buffer.get_mapped_range_mut(range) {
                    range.copy_from_slice(bytemuck::cast_slice(&rotations));
                }
            }
            buffer.unmap();
            buffer
        })
    }
}

/// What a kernel that rotates is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryShape {
    /// Which elements form pairs.
    pub style: RotaryStyle,
    /// How many elements of a head are rotated.
    pub dims: u32,
}

impl RotaryShape {
    pub(crate) fn add_to(self, constants: &mut Constants) {
        constants.set("ROTARY_DIMS", self.dims);
        constants.set_flag("INTERLEAVED", self.style == RotaryStyle::Interleaved);
    }
}

impl fmt::Display for RotaryShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = match self.style {
            RotaryStyle::Interleaved => "interleaved",
            RotaryStyle::HalfSplit => "half-split",
        };
        write!(f, "{style}{}", self.dims)
    }
}
