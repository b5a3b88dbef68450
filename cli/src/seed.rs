//! Random streams and input hashes that depend on a case and its seed alone.
//!
//! A generator shared by all cases would hand each of them other inputs as soon as a filter leaves one out. Here each
//! case starts its own stream from its label, so its inputs, and with them its hash in the report, are the same
//! whatever ran before it.

use std::hash::Hasher;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use twox_hash::XxHash3_64;

/// The generator behind every random input. Named, rather than rand's `StdRng`, which is free to change its algorithm
/// from one release to the next.
pub type CaseRng = Xoshiro256PlusPlus;

/// A stream that depends on `label` and `seed` only, on every platform.
pub fn rng_for(label: &str, seed: u64) -> CaseRng {
    CaseRng::seed_from_u64(XxHash3_64::oneshot_with_seed(seed, label.as_bytes()))
}

/// Collects what a case computes on, for the `input_hash` of the report: 64-bit XXH3.
/// It tells inputs apart that differ by accident. It is no guard against inputs made to collide.
#[derive(Clone, Default)]
pub struct InputHash(twox_hash::xxhash3_64::Hasher);

impl InputHash {
    /// Adds an array of plain numbers. Its length goes in first, so that moving an element from one array to the next
    /// gives another hash.
    pub fn update<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> &mut Self {
        self.0.write(&(values.len() as u64).to_le_bytes());
        self.0.write(bytemuck::cast_slice(values));
        self
    }

    pub fn finish(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    fn first_draws(label: &str, seed: u64) -> [u64; 2] {
        let mut rng = rng_for(label, seed);
        [rng.next_u64(), rng.next_u64()]
    }

    #[test]
    fn a_stream_depends_on_label_and_seed_only() {
        let expected = first_draws("decode/llama-13b", 7);
        first_draws("another case in between", 7);
        assert_eq!(first_draws("decode/llama-13b", 7), expected);
        assert_ne!(first_draws("decode/llama-13b", 8), expected);
        assert_ne!(first_draws("decode/llama-13c", 7), expected);
    }

    #[test]
    fn the_hash_sees_values_order_and_boundaries() {
        let hash = |arrays: &[&[u32]]| {
            let mut hash = InputHash::default();
            for array in arrays {
                hash.update(array);
            }
            hash.finish()
        };
        let expected = hash(&[&[1, 2], &[3]]);
        assert_eq!(expected.len(), 16);
        assert_eq!(hash(&[&[1, 2], &[3]]), expected);
        for other in [&[&[1, 2][..], &[4]][..], &[&[1], &[2, 3]], &[&[2, 1], &[3]], &[&[1, 2, 3]]] {
            assert_ne!(hash(other), expected, "{other:?}");
        }
    }

    #[test]
    fn streams_and_hashes_stay_as_published() {
        // Values of the first release: a change here changes the inputs of every published run.
        assert_eq!(first_draws("decode", 1), [16959662975562698798, 11718646136311676933]);
        assert_eq!(InputHash::default().update(&[1.0_f32, 2.0]).finish(), "48006e2535d9172f");
    }
}
