//! Host twins of the shaders' uniform structs; tests compare names, offsets and sizes with a parse of the shaders.

use bytemuck::{Pod, Zeroable};

/// `ShardParams` of `shaders/common/whole_blocks.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ShardParams {
    /// KV heads in the head shard.
    pub(crate) num_kv_heads: u32,
    /// Unused.
    pub(crate) padding_0: u32,
    /// Unused.
    pub(crate) padding_1: u32,
    /// Unused.
    pub(crate) padding_2: u32,
}

/// `AppendParams` of `shaders/kv_append.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AppendParams {
    /// First KV head of the head shard.
    pub(crate) first_kv_head: u32,
    /// KV heads in the head shard.
    pub(crate) num_kv_heads: u32,
    /// Words before the first token's K.
    pub(crate) k_base: u32,
    /// Words from one token to the next.
    pub(crate) k_stride: u32,
    /// Words before the first token's V.
    pub(crate) v_base: u32,
    /// Words from one token to the next.
    pub(crate) v_stride: u32,
    /// Words before the weights of K's norm.
    pub(crate) norm_base: u32,
    /// What is added to the mean of the squares.
    pub(crate) norm_eps: f32,
}

/// `RotateParams` of `shaders/rotate_queries.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RotateParams {
    /// Query heads of the layer.
    pub(crate) num_q_heads: u32,
    /// Words before the first query.
    pub(crate) q_base: u32,
    /// Words from one query to the next.
    pub(crate) q_stride: u32,
    /// Words before the first query that is written.
    pub(crate) rotated_base: u32,
    /// Words from one query to the next.
    pub(crate) rotated_stride: u32,
    /// Words before the weights of the norm.
    pub(crate) norm_base: u32,
    /// What is added to the mean of the squares.
    pub(crate) norm_eps: f32,
    /// Unused.
    pub(crate) padding_0: u32,
}

/// `StateParams` of `shaders/merge_states.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StateParams {
    /// Heads of all tokens.
    pub(crate) num_states: u32,
    /// Heads of one token.
    pub(crate) num_heads: u32,
    /// Words of one head.
    pub(crate) head_words: u32,
    /// Words before the first token's output of the state that is written.
    pub(crate) a_base: u32,
    /// Words from one token to the next.
    pub(crate) a_stride: u32,
    /// Words before the first token's output of the other.
    pub(crate) b_base: u32,
    /// Words from one token to the next.
    pub(crate) b_stride: u32,
    /// Words before the first log-sum-exp of the state that is written.
    pub(crate) a_lse_base: u32,
    /// Words before the first log-sum-exp of the other.
    pub(crate) b_lse_base: u32,
    /// Unused.
    pub(crate) padding_0: u32,
    /// Unused.
    pub(crate) padding_1: u32,
    /// Unused.
    pub(crate) padding_2: u32,
}

/// `TransferParams` of `shaders/common/external.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TransferParams {
    /// Pairs of blocks.
    pub(crate) num_pairs: u32,
    /// First KV head of the head shard.
    pub(crate) first_kv_head: u32,
    /// KV heads in the head shard.
    pub(crate) num_kv_heads: u32,
    /// KV heads of the layer, and of the other engine's pool.
    pub(crate) total_kv_heads: u32,
}

/// `AttentionParams` of `shaders/paged_attention.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttentionParams {
    /// The factor of q: the scale, times log2(e); with a soft cap, the scale over the cap.
    pub(crate) query_factor: f32,
    /// The soft cap, times log2(e).
    pub(crate) score_factor: f32,
    /// Keys that a query sees, its own included, where there is a window.
    pub(crate) window: u32,
    /// First KV head of the head shard.
    pub(crate) first_kv_head: u32,
    /// KV heads in the head shard.
    pub(crate) num_kv_heads: u32,
    /// Query heads of the layer.
    pub(crate) num_q_heads: u32,
    /// First work item of the dispatch.
    pub(crate) first_item: u32,
    /// Units before the first query: words, or four elements.
    pub(crate) q_base: u32,
    /// Units from one query to the next.
    pub(crate) q_stride: u32,
    /// Units before the first output.
    pub(crate) out_base: u32,
    /// Units from one query's output to the next.
    pub(crate) out_stride: u32,
    /// Words before the first log-sum-exp.
    pub(crate) lse_base: u32,
    /// Unused.
    pub(crate) padding_0: u32,
    /// Unused.
    pub(crate) padding_1: u32,
    /// Unused.
    pub(crate) padding_2: u32,
    /// Unused.
    pub(crate) padding_3: u32,
}

/// `MergeParams` of `shaders/merge_partials.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MergeParams {
    /// Query heads of the layer.
    pub(crate) num_q_heads: u32,
    /// Keys that a query sees, its own included, where there is a window.
    pub(crate) window: u32,
    /// Units before the first output.
    pub(crate) out_base: u32,
    /// Units from one query's output to the next.
    pub(crate) out_stride: u32,
    /// Words before the first log-sum-exp.
    pub(crate) lse_base: u32,
    /// Unused.
    pub(crate) padding_0: u32,
    /// Unused.
    pub(crate) padding_1: u32,
    /// Unused.
    pub(crate) padding_2: u32,
}

/// An element of `head_terms` in both: what a query head adds to its scores.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct HeadTerms {
    /// The ALiBi slope, times log2(e).
    pub(crate) slope_log2e: f32,
    /// The attention sink, times log2(e).
    pub(crate) sink_log2e: f32,
    /// Unused.
    pub(crate) padding: [f32; 2],
}
