//! Who owns which block: ids, the pool, the tables and the manager above them.
//!
//! Nothing here knows tensors or devices. Blocks are counted and handed out, a sequence's block table says where its
//! tokens lie, and [`CacheManager`] turns "these sequences get so many new tokens" into a step that either happens
//! as a whole or not at all.
//!
//! A block may have several owners. Forks share theirs until one of them writes, equal beginnings of texts are found in
//! the prefix cache, and a sequence that writes into a block that others can see gets a copy first.

mod events;
mod manager;
mod pool;
mod prefix;
mod table;

pub use crate::ids::{BlockId, RELEASED, SeqId};
pub use events::BlockEvent;
pub use manager::{
    CacheManager, CacheStats, Imported, LateTokens, MAX_LATE_STEPS, ManagerOptions, PreemptMethod, Rank,
    SequenceRecord, StepGuard, Victim,
};
pub use pool::BlockPool;
pub use prefix::{Domain, KeyHash, PrefixKey, sha256};
pub use table::BlockTables;
