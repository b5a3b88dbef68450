//! Which blocks hold the beginnings of texts, so that another sequence with such a beginning need not compute it again.
//!
//! A full block is found by its **key**, a 256-bit hash over the key of the block before it and its own tokens; the first
//! block's parent is the key of its [`Domain`]. A key is an address, not a proof: on a hit the tokens, the parent and the
//! domain are compared.

mod domain;
mod index;
mod key;

pub use domain::Domain;
pub(crate) use index::{Parent, PrefixIndex, Seat};
pub(crate) use key::KeyMaker;
pub use key::{KeyHash, PrefixKey, sha256};
