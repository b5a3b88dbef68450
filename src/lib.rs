#![doc = include_str!("../README.md")]
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | block | `block_size` tokens of K and V, of all KV heads, in every layer |
//! | block table | the blocks of one sequence, in the order of its tokens; one table serves all layers |
//! | slot | the place of one token: `block * block_size + position % block_size` |
//! | row | one query token of a step; a sequence may bring none, one (decode) or many (prefill), in the order of the requests |
//! | position | of a row: query `i` of `n` of a sequence of length `L`, this step included, stands at `L - n + i` |
//! | query tile | up to 16 rows, in a chunk up to 64, that are served together, because they read the same blocks |
//! | split | `split_tokens` keys of a query tile, served by one workgroup; the results of several splits are merged |
//! | partial | what a split leaves for the merge, per row and head: the weighted sum of V, the largest score, the sum of weights |
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
//! scales: K's row begins at unit `row * k_row_units`, V's, which may be of another width, at `row * v_row_units`.
//! [`formats`] says what the units hold.
//!
//! [`layout::KvLayout::row_index`] is this formula on the host, `shaders/common/paging.wgsl` on the device; nothing
//! else computes an address.
//!
//! # Where to find a kernel
//!
//! [`KvCache::append`] records the kernels that an [`AppendSpec`] asks for, norm and rotary embedding included, and
//! [`KvCache::attend`] those of an [`AttentionSpec`]; `shaders/` holds each in a file by its name. [`rope`] reads how a
//! model rotates from its `config.json`. A
//! [`StepPlan`] tells them what to do. [`gpu::StateMerger`] joins attention over two sets of keys.
//!
//! # Two doors
//!
//! * [`CacheManager`] owns the blocks: it reserves them for a step, all or nothing, and fills the plan.
//! * [`StepPlan::plan_tables`] takes an engine's own block tables, lengths and slots, checks them, and fills the
//!   same plan; [`engines`] says which field of vLLM, FlashInfer and CANN goes where.
//!
//! [`KvCache::import_pool`] and [`KvCache::export_pool`] copy blocks from and to the pools of such engines.

pub mod blocks;
pub mod config;
pub mod engines;
pub mod error;
pub mod formats;
pub mod gpu;
pub mod host;
mod ids;
pub mod layout;
pub mod plan;
pub mod reference;
pub mod rope;
mod setters;
#[cfg(feature = "testkit")]
pub mod testkit;

// What an engine needs for a step.
pub use blocks::{CacheManager, SeqId};
pub use config::CacheConfig;
pub use gpu::{AppendIo, AppendSpec, AttentionIo, AttentionSpec, GpuError, KvCache, QueryIo, RotarySpec, RotaryStyle};
pub use plan::StepPlan;
pub use wgpu;
