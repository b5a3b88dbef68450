//! What keeps equal texts apart.

use serde::{Deserialize, Serialize};

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
    /// Sets the salt of a tenant, so that nobody else finds its texts by guessing them.
    #[must_use]
    pub fn with_salt(mut self, salt: &[u8]) -> Self {
        self.salt = Some(salt.to_vec());
        self
    }

    /// Sets the adapter whose weights made K and V.
    #[must_use]
    pub fn with_adapter(mut self, adapter: &[u8]) -> Self {
        self.adapter = Some(adapter.to_vec());
        self
    }

    /// Sets whatever else K and V depend on, the hash of an image for instance.
    #[must_use]
    pub fn with_other(mut self, other: &[u8]) -> Self {
        self.other = Some(other.to_vec());
        self
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
