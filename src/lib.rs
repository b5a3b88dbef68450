#![doc = include_str!("../README.md")]
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | block | `block_size` tokens of K and V, of all KV heads, in every layer |
//! | block table | the blocks of one sequence, in the order of its tokens; one table serves all layers |
//! | slot | the place of one token: `block * block_size + position % block_size` |
//! | row | one query token of a step; a sequence may bring none, one (decode) or many (prefill) |
//! | position | of a row: query `i` of `n` of a sequence of length `L`, this step included, stands at `L - n + i` |
//! | query tile | rows that are served together, because they read the same blocks: up to 16 |
//! | split | `split_tokens` keys of a query tile, served by one workgroup; the results of several splits are merged |
//! | record | what a split leaves for the merge, per row and head: the weighted sum of V, the top score, the sum of weights |
//! | state | attention over a set of keys: its output and its log-sum-exp; states over other keys can be merged into it |
//! | head shard | the KV heads of a layer that share one pair of bindings, where a layer is larger than a binding may be |
//!
//! # The page table
//!
//! A token at `position` of a sequence lies in block `table[position / block_size]`. Inside a head shard of `H` KV heads,
//! its row for head `h` is the row number
//!
//! ```text
//! row = (block * H + h) * block_size + position % block_size
//! ```
//!
//! of the head shard's K pool and of its V pool. Rows are whole units of 16 bytes, those of the data and then those of the
//! scales: K's row begins at unit `row * k_row_units`, V's, which may be of another width, at `row * v_row_units`. What
//! the units hold is told by [`formats`].
//!
//! [`layout::KvLayout::row_index`] is this formula on the host, `shaders/common/paging.wgsl` on the device; nothing
//! else computes an address.
//!
//! # Where to find a kernel
//!
//! [`gpu::KvCache::append`] and [`gpu::KvCache::attend`] record kernels, [`gpu::Kernel`] names them, and `shaders/` holds
//! a file by each name. [`plan::StepPlan`] is what the host tells them.
//!
//! * [`gpu::KvCache::append_with`] is an append that also takes rows in f16, and applies rotary embedding to K and to the
//!   queries.
//! * [`gpu::StateMerger`] joins attention over two sets of keys.
//!
//! # Two doors
//!
//! * [`blocks::CacheManager`] owns the blocks: it reserves them for a step, all or nothing, and fills the plan.
//! * [`plan::StepPlan::plan_tables`] takes an engine's own block tables, lengths and slots, checks them, and fills the
//!   same plan; [`engines`] says which field of vLLM, FlashInfer and CANN goes where.
//!
//! [`gpu::KvCache::import_pool`] and [`gpu::KvCache::export_pool`] copy blocks from and to the pools of such engines.

pub mod blocks;
pub mod config;
pub mod engines;
pub mod error;
pub mod formats;
pub mod gpu;
pub mod host;
pub mod layout;
pub mod plan;
pub mod reference;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use wgpu;
