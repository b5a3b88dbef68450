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
//! | `kv_len` | keys that a row sees: query `i` of `n` of a sequence of length `L`, this step included, sees the first `L - n + i + 1` |
//! | split | `split_tokens` keys of a row, served by one workgroup; the results of several splits are merged |
//! | segment | the KV heads of a layer that share one pair of bindings, where a layer is larger than a binding may be |
//!
//! # The page table
//!
//! A token at `position` of a sequence lies in block `table[position / block_size]`. Inside a segment of `H` KV heads,
//! the 16-byte units of its row for head `h` begin at
//!
//! ```text
//! unit = ((block * H + h) * block_size + position % block_size) * row_units
//! ```
//!
//! [`layout::KvLayout::row_unit_offset`] is this formula on the host, `shaders/common/paging.wgsl` on the device; nothing
//! else computes an address.
//!
//! # Where to find a kernel
//!
//! [`gpu::KvCache::append`] and [`gpu::KvCache::attend`] record kernels, [`gpu::Kernel`] names them, and `shaders/` holds
//! a file by each name. [`plan::StepPlan`] is what the host tells them.
//!
//! # Two doors
//!
//! * [`blocks::CacheManager`] owns the blocks: it reserves them for a step, all or nothing, and fills the plan.
//! * [`plan::StepPlan::plan_tables`] takes an engine's own block tables, lengths and slots, checks them, and fills the
//!   same plan.

#[cfg(feature = "cli")]
pub mod bench;
pub mod blocks;
#[cfg(feature = "cli")]
pub mod check;
pub mod config;
pub mod error;
pub mod gpu;
#[cfg(feature = "cli")]
pub mod harness;
pub mod layout;
pub mod plan;
pub mod reference;

pub use wgpu;
