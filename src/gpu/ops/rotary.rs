//! Rotary position embedding: which elements form pairs, and how far they are turned.

use crate::gpu::binding::element_bytes;
use crate::gpu::compat;
use crate::gpu::error::{DeviceError, SpecError};
use crate::gpu::make::Maker;
use crate::gpu::ops::spec::check_positive;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::value::{MropeSections, RotaryShape, RotaryStyle};
use crate::layout::KvLayout;
use crate::rope::Rope;
use crate::setters::setters;

/// The base of most models.
const USUAL_BASE: f32 = 10_000.0;
/// Positions whose rotations are computed at a time, so that the host holds few of them.
const CHUNK: u32 = 1024;

/// Rotary position embedding: pair `i` of a head is turned by `(position + offset) · inv_freq[i]`.
///
/// `(x, y)` becomes `(x·cos − y·sin, y·cos + x·sin)`, times the attention factor. Angles are computed in f64 and their cosines
/// and sines rounded to f32, once for all positions that the cache allows; elements from `dims` on stay as they are, to the
/// bit. [`RotaryStyle`] says which weights pair their elements how.
///
/// [`from_rope`](Self::from_rope) makes the spec from what a model's `config.json` says. A model whose layers rotate in
/// several ways (the local and the global ones of Gemma 3) has a spec, and an [`Appender`](crate::gpu::Appender), for each.
#[derive(Clone, Debug, PartialEq)]
pub struct RotarySpec {
    style: RotaryStyle,
    dims: u32,
    /// Radians per position of every pair, if they are given.
    inv_freq: Option<Vec<f64>>,
    base: f32,
    offset: i32,
    attention_factor: f64,
    sections: Option<MropeSections>,
}

impl RotarySpec {
    /// The first `dims` elements of a head: even, and at most `head_dim`. `inv_freq[i]` is `base^(−2i / dims)` with a base
    /// of 10,000; the offset is 0.
    pub fn new(style: RotaryStyle, dims: u32) -> Self {
        Self { style, dims, inv_freq: None, base: USUAL_BASE, offset: 0, attention_factor: 1.0, sections: None }
    }

    /// Pairs with frequencies of the caller's, in radians per position, for models that scale them: twice as many elements
    /// are rotated.
    pub fn from_inv_freq(style: RotaryStyle, inv_freq: impl Into<Vec<f64>>) -> Self {
        let inv_freq = inv_freq.into();
        // More pairs than can be counted are more than any head has.
        let dims = u32::try_from(inv_freq.len()).unwrap_or(u32::MAX).saturating_mul(2);
        Self { inv_freq: Some(inv_freq), ..Self::new(style, dims) }
    }

    /// The rotation of a model, of which [`RopeParameters::rope`](crate::rope::RopeParameters::rope) works out the numbers.
    pub fn from_rope(style: RotaryStyle, rope: Rope) -> Self {
        let spec = Self::from_inv_freq(style, rope.inv_freq).with_attention_factor(rope.attention_factor);
        match rope.mrope_section {
            Some(pairs) => spec.with_sections(MropeSections::new(pairs).with_interleaved(rope.mrope_interleaved)),
            None => spec,
        }
    }

    setters! {
        /// Sets the base of the frequencies, unless they are given.
        with_base(base: f32);
        /// Sets what is added to every position.
        with_offset(offset: i32);
        /// Sets what cosines and sines are multiplied by; 1 unless set. Both K and the queries get it, and scores its square.
        with_attention_factor(attention_factor: f64);
        /// Turns the pairs by three positions of each token, which the step has to bring:
        /// [`StepPlan::set_mrope_positions`](crate::plan::StepPlan::set_mrope_positions). The sections are all pairs.
        with_sections(sections: MropeSections) => Some(sections);
    }

    /// Radians per position of every pair.
    pub fn inv_freq(&self) -> Vec<f64> {
        let by_base = |pair: u32| f64::from(self.base).powf(-2.0 * f64::from(pair) / f64::from(self.dims));
        self.inv_freq.clone().unwrap_or_else(|| (0..self.dims / 2).map(by_base).collect())
    }

    /// Cosine and sine of every pair at a position, times the attention factor, as kernels take them.
    pub fn cos_sin(&self, position: u32) -> Vec<[f32; 2]> {
        self.turns(&self.inv_freq(), position).collect()
    }

    fn turns(&self, inv_freq: &[f64], position: u32) -> impl Iterator<Item = [f32; 2]> {
        let (place, factor) = (f64::from(position) + f64::from(self.offset), self.attention_factor);
        inv_freq.iter().map(move |frequency| {
            let (sin, cos) = (place * frequency).sin_cos();
            [(factor * cos) as f32, (factor * sin) as f32]
        })
    }

    pub(crate) fn shape(&self) -> RotaryShape {
        RotaryShape { style: self.style, dims: self.dims, sections: self.sections }
    }

    /// Refuses, by name, what contradicts itself or the cache.
    pub(crate) fn check(&self, layout: &KvLayout) -> Result<(), SpecError> {
        let (dims, head_dim) = (self.dims, layout.head_dim());
        if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
            let problem = format!("is {dims}; it must be an even number from 2 to head_dim, which is {head_dim}");
            return Err(SpecError::new("rotary dims", problem));
        }
        let factor = self.attention_factor as f32;
        if !(factor.is_normal() && factor > 0.0) {
            let problem = format!("is {}; it must be positive and finite, in f32 too", self.attention_factor);
            return Err(SpecError::new("attention_factor", problem));
        }
        self.sections.map_or(Ok(()), |sections| check_sections(sections, dims / 2))?;
        let Some(inv_freq) = &self.inv_freq else { return check_positive("rotary base", self.base) };
        // No position with its offset is as far away.
        let furthest = f64::from(u32::MAX);
        match inv_freq.iter().position(|freq| !(freq * furthest).is_finite()) {
            None => Ok(()),
            Some(pair) => {
                let problem = format!("[{pair}] is {}; every angle made of it must be finite", inv_freq[pair]);
                Err(SpecError::new("inv_freq", problem))
            }
        }
    }

    /// `[max_seq_len, dims / 2]` cosines and sines, times the attention factor, on the device.
    pub(in crate::gpu) fn rotations(
        &self,
        maker: &Maker,
        layout: &KvLayout,
        profile: &DeviceProfile,
    ) -> Result<wgpu::Buffer, DeviceError> {
        const WHAT: &str = "the rotations of all positions up to max_seq_len";
        let (positions, row_bytes) = (layout.max_seq_len(), 4 * u64::from(self.dims));
        let bytes = element_bytes(WHAT, u64::from(positions) * u64::from(self.dims), profile)?;
        let inv_freq = self.inv_freq();
        maker.mapped_buffer("paged.rotations", wgpu::BufferUsages::STORAGE, bytes, |buffer| {
            let mut rotations: Vec<[f32; 2]> = Vec::new();
            for first in (0..positions).step_by(CHUNK as usize) {
                let end = positions.min(first.saturating_add(CHUNK));
                rotations.clear();
                (first..end).for_each(|position| rotations.extend(self.turns(&inv_freq, position)));
                let range = u64::from(first) * row_bytes..u64::from(end) * row_bytes;
                compat::mapped_mut(buffer, range)?.copy_from_slice(bytemuck::cast_slice(&rotations));
            }
            Some(())
        })
    }
}

/// Refuses sections that are not the pairs of the head, each one's once.
fn check_sections(sections: MropeSections, pairs: u32) -> Result<(), SpecError> {
    let mut turned = [0; 3];
    (0..pairs).for_each(|pair| turned[sections.axis(pair)] += 1);
    if turned == sections.pairs() {
        return Ok(());
    }
    let dealt = if sections.is_interleaved() { ", dealt out in turn" } else { "" };
    let problem = format!("is {:?}; these must be the {pairs} pairs that are rotated{dealt}", sections.pairs());
    Err(SpecError::new("mrope_section", problem))
}
