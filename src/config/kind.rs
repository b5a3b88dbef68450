//! What layers of a model have in common.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::setters::options;

/// The shape of a layer's K and V, and how far back its queries look.
///
/// A model whose layers are not all alike is described by one of these for each of them:
/// [`CacheConfig::of_layers`](crate::config::CacheConfig::of_layers). Layers of one kind share block tables.
///
/// ```
/// use wgpu_paged_attention::config::{CacheConfig, LayerKind};
///
/// // GPT-OSS-20B: every other layer looks back 128 tokens.
/// let (full, windowed) = (LayerKind::new(8, 64), LayerKind::new(8, 64).with_window(128));
/// let layers: Vec<LayerKind> = (0..24).map(|layer| if layer % 2 == 0 { windowed } else { full }).collect();
/// let layout = CacheConfig::of_layers(&layers).with_memory_budget_bytes(1 << 30).layout()?;
/// assert_eq!((layout.num_groups(), layout.layers_per_group()), (2, 12));
/// # Ok::<(), wgpu_paged_attention::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LayerKind {
    pub(crate) num_kv_heads: u32,
    pub(crate) head_dim: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) v_head_dim: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
}

impl LayerKind {
    /// Layers whose queries see all keys, and whose V is as wide as K.
    pub const fn new(num_kv_heads: u32, head_dim: u32) -> Self {
        Self { num_kv_heads, head_dim, v_head_dim: None, window: None }
    }

    options! {
        /// KV heads of a layer.
        num_kv_heads: u32;
        /// Elements of one head of K, 1 to [`MAX_HEAD_DIM`](crate::config::MAX_HEAD_DIM).
        head_dim: u32;
        /// Elements of one head of V, where they differ from K's; 1 to [`MAX_HEAD_DIM`](crate::config::MAX_HEAD_DIM).
        v_head_dim: Option<u32>, with_v_head_dim(u32) => Some(v_head_dim);
        /// Keys that a query sees, its own included, at least 1; `None` where it sees all. Blocks that left it return to the
        /// pool.
        window: Option<u32>, with_window(u32) => Some(window);
    }

    /// The same kind, with the width of V said in any case.
    pub(crate) fn plain(self) -> Self {
        Self { v_head_dim: Some(self.v_head_dim.unwrap_or(self.head_dim)), ..self }
    }
}

impl fmt::Display for LayerKind {
    /// As in "8 KV heads of 64 and 32 elements, window 128".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KV heads of {}", self.num_kv_heads, self.head_dim)?;
        if let Some(dim) = self.v_head_dim.filter(|&dim| dim != self.head_dim) {
            write!(f, " and {dim}")?;
        }
        f.write_str(" elements")?;
        self.window.map_or(Ok(()), |window| write!(f, ", window {window}"))
    }
}
