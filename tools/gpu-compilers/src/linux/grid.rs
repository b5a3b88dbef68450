//! The shapes of models whose kernels are compiled.

use anyhow::Context as _;
use wgpu_paged_attention::AttentionSpec;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::formats::KvDtype;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{KernelText, kernel_texts};

/// Of a model: what its kernels are specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kv_dtype: KvDtype,
    pub head_dim: u32,
    /// Query heads per KV head.
    pub group: u32,
}

const NUM_KV_HEADS: u32 = 8;

/// All shapes, or with `quick` those that a change in the kernels reaches first.
pub fn shapes(quick: bool) -> Vec<Shape> {
    let mut shapes = Vec::new();
    let mut add = |kv_dtype, head_dim, group| shapes.push(Shape { kv_dtype, head_dim, group });
    add(KvDtype::F16, 128, 4);
    add(KvDtype::Int8, 128, 4);
    if quick {
        add(KvDtype::F16, 64, 1);
        add(KvDtype::F16, 128, 8);
        add(KvDtype::F16, 256, 8);
        return shapes;
    }
    for kv_dtype in [KvDtype::F16, KvDtype::Int8] {
        for head_dim in [64, 128, 256] {
            for group in [1, 4, 8].into_iter().filter(|&group| (head_dim, group) != (128, 4)) {
                add(kv_dtype, head_dim, group);
            }
        }
    }
    for kv_dtype in KvDtype::ALL.into_iter().filter(|dtype| ![KvDtype::F16, KvDtype::Int8].contains(dtype)) {
        add(kv_dtype, 128, 4);
    }
    shapes
}

impl Shape {
    /// Its kernels on devices of this profile. Of the attention those for one token, for the widest tile and for chunks: what
    /// lies between has fewer rows than the widest.
    fn texts(&self, profile: &DeviceProfile) -> anyhow::Result<Vec<KernelText>> {
        let config = CacheConfig::new(1, NUM_KV_HEADS, self.head_dim).with_kv_dtype(self.kv_dtype);
        let layout = config.with_num_blocks(4096).layout()?;
        let attention = AttentionSpec::new(NUM_KV_HEADS * self.group);
        let mut texts = kernel_texts(profile, &layout, &attention)?;
        let tiles = texts.iter().filter(|text| !text.is_chunk);
        let widest = tiles.filter_map(|text| text.tile_tokens).max().context("an attention without kernels")?;
        texts.retain(|text| text.is_chunk || text.tile_tokens.is_none_or(|tokens| tokens == 1 || tokens == widest));
        Ok(texts)
    }
}

/// The kernels of all these shapes, each once.
pub fn kernels(shapes: &[Shape], profile: &DeviceProfile) -> anyhow::Result<Vec<KernelText>> {
    let mut all: Vec<KernelText> = Vec::new();
    for shape in shapes {
        for text in shape.texts(profile).with_context(|| format!("{shape:?}"))? {
            if !all.iter().any(|known| known.label == text.label) {
                all.push(text);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_each_shape_once_and_the_quick_one_is_a_part_of_it() {
        let all = shapes(false);
        assert_eq!(all.len(), 2 * 9 + 4);
        for (at, shape) in all.iter().enumerate() {
            assert!(!all[..at].contains(shape), "{shape:?}");
        }
        assert!(shapes(true).iter().all(|shape| all.contains(shape)));
    }
}
