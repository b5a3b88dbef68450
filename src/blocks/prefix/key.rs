//! The keys of the prefix cache.

use std::fmt;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::Domain;

/// The hash behind the keys: of a message of any length, 256 bits.
pub type KeyHash = fn(&[u8]) -> [u8; 32];

/// The hash that is used unless another is given: SHA-256, under which no two texts can be made to collide.
pub fn sha256(message: &[u8]) -> [u8; 32] {
    Sha256::digest(message).into()
}

/// The key of a block: of its tokens, of all before them, and of their domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey(pub(super) [u8; 32]);

impl PrefixKey {
    /// The 256 bits.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for PrefixKey {
    /// As 64 hexadecimal digits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// First word of a message: what follows is a domain, or a block. The two can never be mistaken for each other.
const DOMAIN: u32 = 0;
const BLOCK: u32 = 1;

/// Makes keys; keeps the memory of its messages.
#[derive(Clone, Debug)]
pub(crate) struct KeyMaker {
    hash: KeyHash,
    message: Vec<u8>,
}

impl KeyMaker {
    pub(crate) fn new(hash: KeyHash, block_size: u32) -> Self {
        Self { hash, message: Vec::with_capacity(8 + 32 + 4 * block_size as usize) }
    }

    /// The key that stands for the parent of a first block.
    pub(crate) fn root(&mut self, domain: &Domain) -> PrefixKey {
        self.message.clear();
        self.message.extend_from_slice(&DOMAIN.to_le_bytes());
        domain.encode(&mut self.message);
        PrefixKey((self.hash)(&self.message))
    }

    /// The key of a block with these tokens behind the block with the key `parent`.
    pub(crate) fn child(&mut self, parent: &PrefixKey, tokens: &[u32]) -> PrefixKey {
        self.message.clear();
        self.message.extend_from_slice(&BLOCK.to_le_bytes());
        self.message.extend_from_slice(&(tokens.len() as u32).to_le_bytes());
        self.message.extend_from_slice(&parent.0);
        tokens.iter().for_each(|token| self.message.extend_from_slice(&token.to_le_bytes()));
        PrefixKey((self.hash)(&self.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn keys_are_the_published_hash_of_the_documented_message() {
        // FIPS 180: the hash of "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_vec(), hex(abc));
        assert_eq!(PrefixKey(sha256(b"abc")).to_string(), abc);

        let mut keys = KeyMaker::new(sha256, 2);
        let domain = Domain::default().with_salt(b"s");
        let root = keys.root(&domain);
        assert_eq!(root.0, sha256(b"\0\0\0\0\x01\x01\0\0\0\0\0\0\0s"));
        let mut message = vec![1, 0, 0, 0, 2, 0, 0, 0];
        message.extend_from_slice(root.bytes());
        message.extend_from_slice(&[7, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(keys.child(&root, &[7, 256]).0, sha256(&message));
    }

    #[test]
    fn every_part_of_a_domain_and_its_boundaries_count() {
        let domains = [
            Domain::default(),
            Domain::default().with_salt(b""),
            Domain::default().with_salt(b"ab"),
            Domain::default().with_adapter(b"ab"),
            Domain::default().with_other(b"ab"),
            Domain::default().with_salt(b"a").with_adapter(b"b"),
            Domain::default().with_salt(b"a").with_other(b"b"),
            Domain::default().with_salt(b"a\x02\x01\0\0\0\0\0\0\0b"),
        ];
        let mut keys = KeyMaker::new(sha256, 1);
        let roots: std::collections::HashSet<_> = domains.iter().map(|domain| keys.root(domain)).collect();
        assert_eq!(roots.len(), domains.len());
        let turned = Domain::default().with_adapter(b"b").with_salt(b"a");
        assert_eq!(keys.root(&turned), keys.root(&domains[5]));
    }
}
