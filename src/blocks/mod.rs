//! Who owns which block: ids, the pool, the tables and the manager above them.
//!
//! Nothing here knows tensors or devices. Blocks are counted and handed out, a sequence's block table says where its
//! tokens lie, and [`CacheManager`] turns "these sequences get so many new tokens" into a step that either happens
//! as a whole or not at all.

mod ids;
mod manager;
mod pool;
mod table;

pub use ids::{BlockId, SeqId};
pub use manager::CacheManager;
pub use pool::BlockPool;
pub use table::BlockTables;
