//! A hasher for handles and a few words, several times in every call that records: their hash must cost less than the call.

use std::hash::{BuildHasherDefault, Hasher};

/// Odd, with no pattern in its bits: 2⁶⁴ over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies and rotates. Its users compare what was hashed, or give numbers that do not repeat; it is no defence
/// against keys chosen to collide.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(u64);

/// For maps whose keys are hashed by it.
pub(super) type MixState = BuildHasherDefault<Mix>;

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    /// The upper bits depend on all that was written, the lower ones on little.
    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(FACTOR).rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    fn hash(value: impl Hash) -> u64 {
        let mut mix = Mix::default();
        value.hash(&mut mix);
        mix.finish()
    }

    #[test]
    fn neighbours_have_hashes_that_differ_in_their_lower_and_upper_bits() {
        let hashes: Vec<u64> = (0..1_u64 << 12).map(|number| hash((number % 64, number / 64))).collect();
        let differ = |bits: fn(u64) -> u64| hashes.iter().map(|&hash| bits(hash)).collect::<HashSet<_>>().len();
        assert_eq!(differ(|hash| hash), 1 << 12);
        // As random numbers would: 1 - 1/e of all values.
        assert!(differ(|hash| hash & 0xfff) > 2300 && differ(|hash| hash >> 52) > 2300);
    }
}
