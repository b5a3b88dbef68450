//! Host twins of the shaders' uniform structs; `tests/shaders.rs` compares names, offsets and sizes with a parse of the
//! shaders.

use bytemuck::{Pod, Zeroable};

/// `AppendParams` of `shaders/kv_append.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AppendParams {
    /// First KV head of the segment.
    pub first_kv_head: u32,
    /// KV heads in the segment.
    pub num_kv_heads: u32,
    /// KV heads of the layer.
    pub total_kv_heads: u32,
    /// Unused.
    pub padding: u32,
}

/// `DecodeParams` of `shaders/paged_decode.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct DecodeParams {
    /// The scale of the scores, times log2(e).
    pub scale_log2e: f32,
    /// First KV head of the segment.
    pub first_kv_head: u32,
    /// KV heads in the segment.
    pub num_kv_heads: u32,
    /// Query heads of the layer.
    pub num_q_heads: u32,
}

/// `MergeParams` of `shaders/merge_partials.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct MergeParams {
    /// Query heads of the layer.
    pub num_q_heads: u32,
    /// Unused.
    pub padding_0: u32,
    /// Unused.
    pub padding_1: u32,
    /// Unused.
    pub padding_2: u32,
}
