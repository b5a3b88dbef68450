//! What the oracle says of the rows that a device changed.

use super::{BLANK, Inputs, Rotated, RotationScenario};
use crate::formats::{KvDtype, decode_row, encode_row};
use crate::gpu::{IoFormat, KvCache};
use crate::reference::compare;
use crate::testkit::Verdict;

impl RotationScenario {
    pub(super) fn judge(&self, cache: &KvCache, inputs: &Inputs, rotated: &Rotated) -> Result<f64, Verdict> {
        let positions = self.plan(cache)?.positions().to_vec();
        let [k, v, q] = inputs.rows.each_ref().map(|rows| self.given(rows));
        let [k_norm, q_norm] = &inputs.norms;
        let expected =
            |rows: &[f32], weights: &[f32]| self.turn.expected(rows, weights, &positions, &inputs.mrope_positions);
        let want = expected(&q, q_norm);
        let (atol, rtol) = match self.io_format {
            IoFormat::F32 => (self.own_error(&want), 0.0),
            // Half of the last of 11 bits, and of the smallest number that there is.
            IoFormat::F16 => (self.own_error(&want) + 2_f64.powi(-25), 2_f64.powi(-11)),
        };
        let worst = compare(&rotated.queries, &want, atol, rtol).map_err(Verdict::Output)?;
        self.judge_pools(cache, &expected(&k, k_norm), &v, &rotated.pools)?;
        Ok(worst)
    }

    /// V, and the places where nobody writes, to the bit; K as near as the format allows.
    fn judge_pools(
        &self,
        cache: &KvCache,
        k: &[f64],
        v: &[f32],
        [k_pool, v_pool]: &[Vec<u32>; 2],
    ) -> Result<(), Verdict> {
        let (layout, heads) = (cache.layout(), self.num_kv_heads);
        let k_words = 4 * layout.k_row_units() as usize;
        let v_words = 4 * layout.v_row_units() as usize;
        let (head_dim, v_head_dim) = (self.head_dim as usize, self.v_head_dim as usize);
        let (mut expected_v, mut rest) = (vec![BLANK; v_pool.len()], k_pool.clone());
        for (token, &slot) in self.slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            for head in 0..heads {
                let (row, at) =
                    (layout.row_index(heads, slot as u32, head) as usize, token * heads as usize + head as usize);
                let refused = |_| Verdict::Rows("a row has another width than the layout's");
                let words = &mut expected_v[row * v_words..][..v_words];
                encode_row(self.kv_dtype, &v[at * v_head_dim..][..v_head_dim], words).map_err(refused)?;
                let words = &mut rest[row * k_words..][..k_words];
                let mut stored = vec![0.0; head_dim];
                decode_row(self.kv_dtype, words, &mut stored).map_err(refused)?;
                words.fill(BLANK);
                let want = &k[at * head_dim..][..head_dim];
                compare(&stored, want, self.tolerance(want), 0.0).map_err(Verdict::Output)?;
            }
        }
        if *v_pool != expected_v {
            return Err(Verdict::Rows("V is not what was given"));
        }
        if rest.iter().any(|&word| word != BLANK) {
            return Err(Verdict::Rows("K was written where no token goes"));
        }
        Ok(())
    }

    /// How far a number of a device may be off by its own rounding in f32.
    fn own_error(&self, want: &[f64]) -> f64 {
        // Three products and a sum, and a root and a quotient where there is a norm.
        let steps = if self.turn.norm_eps.is_some() { 8.0 } else { 3.0 };
        steps * 2_f64.powi(-24) * 1.2 * largest(want).max(1.0)
    }

    /// How far a stored element may be off: the rounding of the format, and what comes before it.
    fn tolerance(&self, want: &[f64]) -> f64 {
        let largest = largest(want);
        self.own_error(want)
            + largest
                * match self.kv_dtype {
                    KvDtype::F32 => 0.0,
                    KvDtype::F16 => 2_f64.powi(-11),
                    KvDtype::Bf16 => 2_f64.powi(-8),
                    KvDtype::Int8 => 0.5001 / 127.0,
                    KvDtype::Fp8 => 2_f64.powi(-4),
                    KvDtype::Int4 => 0.5001 / 7.0,
                }
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}
