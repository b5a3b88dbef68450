//! Host twins of the shaders' uniform structs; `tests/shaders.rs` compares names, offsets and sizes with a parse of the
//! shaders.

use bytemuck::{Pod, Zeroable};

/// `AppendParams` of `shaders/kv_append.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AppendParams {
    /// First KV head of the head shard.
    pub first_kv_head: u32,
    /// KV heads in the head shard.
    pub num_kv_heads: u32,
    /// KV heads of the layer.
    pub total_kv_heads: u32,
    /// Unused.
    pub padding: u32,
}

/// `RotateParams` of `shaders/rotate_queries.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RotateParams {
    /// Query heads of the layer.
    pub num_q_heads: u32,
    /// Unused.
    pub padding_0: u32,
    /// Unused.
    pub padding_1: u32,
    /// Unused.
    pub padding_2: u32,
}

/// `StateParams` of `shaders/merge_states.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct StateParams {
    /// Heads of all tokens.
    pub num_states: u32,
    /// Words of one head.
    pub head_words: u32,
    /// Unused.
    pub padding_0: u32,
    /// Unused.
    pub padding_1: u32,
}

/// `TransferParams` of `shaders/common/external.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TransferParams {
    /// Pairs of blocks.
    pub num_pairs: u32,
    /// First KV head of the head shard.
    pub first_kv_head: u32,
    /// KV heads in the head shard.
    pub num_kv_heads: u32,
    /// KV heads of the layer, and of the other engine's pool.
    pub total_kv_heads: u32,
}

/// `AttentionParams` of `shaders/paged_attention.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AttentionParams {
    /// The factor of q: the scale, times log2(e); with a soft cap, the scale over the cap.
    pub query_factor: f32,
    /// The soft cap, times log2(e).
    pub score_factor: f32,
    /// Keys that a query sees, its own included, where there is a window.
    pub window: u32,
    /// First KV head of the head shard.
    pub first_kv_head: u32,
    /// KV heads in the head shard.
    pub num_kv_heads: u32,
    /// Query heads of the layer.
    pub num_q_heads: u32,
    /// First work item of the dispatch.
    pub first_item: u32,
    /// Unused.
    pub padding: u32,
}

/// `MergeParams` of `shaders/merge_partials.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct MergeParams {
    /// Query heads of the layer.
    pub num_q_heads: u32,
    /// Keys that a query sees, its own included, where there is a window.
    pub window: u32,
    /// Unused.
    pub padding_0: u32,
    /// Unused.
    pub padding_1: u32,
}

/// An element of `head_terms` in both: what a query head adds to its scores.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct HeadTerms {
    /// The ALiBi slope, times log2(e).
    pub slope_log2e: f32,
    /// The attention sink, times log2(e).
    pub sink_log2e: f32,
    /// Unused.
    pub padding: [f32; 2],
}
