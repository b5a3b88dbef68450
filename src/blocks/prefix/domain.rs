//! What keeps equal texts apart.

use serde::{Deserialize, Serialize};

use crate::setters::setters;

/// What K and V depend on besides the tokens, and who may share them: only sequences of equal domains share blocks of the
/// prefix cache.
///
/// A field that is not set differs from one that is set to nothing.
///
/// ```
/// use wgpu_paged_attention::blocks::Domain;
///
/// let tenant = Domain::default().with_salt(b"tenant 17").with_adapter(b"lora-3");
/// assert_ne!(tenant, Domain::default().with_salt(b"tenant 1").with_adapter(b"7lora-3"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Domain {
    salt: Option<Vec<u8>>,
    adapter: Option<Vec<u8>>,
    other: Option<Vec<u8>>,
}

impl Domain {
    setters! {
        /// Sets the salt of a tenant, so that other tenants cannot find its texts by guessing them.
        with_salt(salt: &[u8]) => Some(salt.to_vec());
        /// Sets the adapter whose weights made K and V.
        with_adapter(adapter: &[u8]) => Some(adapter.to_vec());
        /// Sets whatever else K and V depend on, the hash of an image for instance.
        with_other(other: &[u8]) => Some(other.to_vec());
    }

    /// Appends the fields that are set, each behind its tag and its length, so that no two domains look alike.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (tag, field) in [(1_u8, &self.salt), (2, &self.adapter), (3, &self.other)] {
            if let Some(bytes) = field {
                out.push(tag);
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
}
