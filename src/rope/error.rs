//! What can be wrong with the rotation of a model.

use super::RopeType;

/// Parameters that describe no rotation. Names are the keys of the object or of the `config.json` around it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// The type needs a key that is not there.
    #[error("{key} is missing, but rope type {rope_type} needs it")]
    Missing {
        /// The key.
        key: &'static str,
        /// The type.
        rope_type: RopeType,
    },
    /// A key that would be ignored: the type, or the key, is not what was meant.
    #[error("{key} is given, but rope type {rope_type} has no use for it; take it out, or correct rope_type")]
    Unused {
        /// The key.
        key: &'static str,
        /// The type.
        rope_type: RopeType,
    },
    /// A value outside of its range.
    #[error("{key} is {value}; it must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it held.
        value: String,
        /// What it may hold.
        expected: String,
    },
    /// An element outside of its range.
    #[error("{key}[{index}] is {value}; it must be positive and finite")]
    Element {
        /// The key of the list.
        key: &'static str,
        /// The element.
        index: usize,
        /// What it held.
        value: f64,
    },
    /// A list of the wrong length.
    #[error("{key} has {given} elements instead of {expected}")]
    Length {
        /// The key of the list.
        key: &'static str,
        /// Elements it has.
        given: usize,
        /// Elements that the rotation takes.
        expected: usize,
    },
    /// Two keys that cannot both be right.
    #[error("{key} is {value}, but {other} is {other_value}; {remedy}")]
    Contradiction {
        /// The one key.
        key: &'static str,
        /// What it held.
        value: String,
        /// The other.
        other: &'static str,
        /// What that held.
        other_value: String,
        /// How they go together.
        remedy: &'static str,
    },
}
