//! Rotary position embedding, in f64.

/// How pairs of elements are turned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary<'a> {
    /// Whether pair `i` is elements `2i` and `2i + 1`; if not, it is `i` and `i + inv_freq.len()`.
    pub interleaved: bool,
    /// Radians per position of every pair.
    pub inv_freq: &'a [f64],
    /// Added to every position.
    pub offset: i64,
    /// What a pair is multiplied by.
    pub attention_factor: f64,
}

impl<'a> Rotary<'a> {
    /// Without an offset or a factor.
    pub const fn new(interleaved: bool, inv_freq: &'a [f64]) -> Self {
        Self { interleaved, inv_freq, offset: 0, attention_factor: 1.0 }
    }
}

/// `base^(−2i / dims)` for the pairs of `dims` elements.
pub fn inverse_frequencies(base: f64, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|pair| (-base.ln() * (2 * pair) as f64 / dims as f64).exp()).collect()
}

/// One head of one token, at `position`, after its pairs have been turned; elements behind the pairs stay as they are.
///
/// A token before position 0 is turned like one at 0.
///
/// # Panics
/// If there are more pairs than the row holds.
pub fn rotate<T: Copy + Into<f64>>(rotary: &Rotary<'_>, row: &[T], position: i64) -> Vec<f64> {
    rotate_by_axis(rotary, row, |_| position.max(0))
}

/// The same with a position of its own for every pair, `position(pair)`.
///
/// # Panics
/// If there are more pairs than the row holds.
pub fn rotate_by_axis<T: Copy + Into<f64>>(
    rotary: &Rotary<'_>,
    row: &[T],
    position: impl Fn(usize) -> i64,
) -> Vec<f64> {
    let mut turned: Vec<f64> = row.iter().map(|&x| x.into()).collect();
    let pairs = rotary.inv_freq.len();
    for (pair, frequency) in rotary.inv_freq.iter().enumerate() {
        let (first, second) = if rotary.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
        let angle = (position(pair) + rotary.offset) as f64 * frequency;
        let (x, y) = (turned[first], turned[second]);
        turned[first] = (x * angle.cos() - y * angle.sin()) * rotary.attention_factor;
        turned[second] = (x * angle.sin() + y * angle.cos()) * rotary.attention_factor;
    }
    turned
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_6};

    use super::*;

    #[track_caller]
    fn assert_turned(rotary: Rotary<'_>, position: i64, want: [f64; 5]) {
        let got = rotate(&rotary, &[1.0_f32, 2.0, 3.0, 4.0, 5.0], position);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-14, "{got} instead of {want}");
        }
    }

    #[test]
    fn pairs_are_turned_by_the_position_and_the_rest_stays() {
        // The first pair by a quarter turn for each position, (x, y) → (−y, x); the second by an eighth of a turn, twice.
        let inv_freq = [FRAC_PI_2, FRAC_PI_2 / 2.0];
        let interleaved = Rotary::new(true, &inv_freq);
        assert_turned(interleaved, 0, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_turned(interleaved, 2, [-1.0, -2.0, -4.0, 3.0, 5.0]);
        let half_split = Rotary { interleaved: false, ..interleaved };
        assert_turned(half_split, 2, [-1.0, -4.0, -3.0, 2.0, 5.0]);
        // One position further on by the offset, and none before the first.
        let ahead = Rotary { offset: 1, ..half_split };
        assert_turned(ahead, 1, [-1.0, -4.0, -3.0, 2.0, 5.0]);
        let half = 0.5_f64.sqrt();
        assert_turned(ahead, -7, [-3.0, (2.0 - 4.0) * half, 1.0, (2.0 + 4.0) * half, 5.0]);
        // A factor is the pairs', not the rest's.
        let long = Rotary { attention_factor: 3.0, ..half_split };
        assert_turned(long, 2, [-3.0, -12.0, -9.0, 6.0, 5.0]);
    }

    #[test]
    fn a_third_of_a_right_angle_is_known() {
        let rotary = Rotary::new(true, &[FRAC_PI_6]);
        let turned = rotate(&rotary, &[2.0_f32, 4.0], 1);
        // 2·(√3/2) − 4·(1/2) and 2·(1/2) + 4·(√3/2)
        assert!((turned[0] - (3_f64.sqrt() - 2.0)).abs() < 1e-14);
        assert!((turned[1] - (1.0 + 2.0 * 3_f64.sqrt())).abs() < 1e-14);
    }

    #[test]
    fn pairs_may_have_positions_of_their_own() {
        let rotary = Rotary::new(false, &[FRAC_PI_2, FRAC_PI_2]);
        let turned = rotate_by_axis(&rotary, &[1.0_f32, 2.0, 3.0, 4.0], |pair| [1, 2][pair]);
        for (got, want) in turned.iter().zip([-3.0, -2.0, 1.0, -4.0]) {
            assert!((got - want).abs() < 1e-14, "{got} instead of {want}");
        }
    }

    #[test]
    fn frequencies_fall_from_one_to_nearly_the_inverse_of_the_base() {
        let got = inverse_frequencies(10_000.0, 8);
        for (got, want) in got.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((got - want).abs() < 1e-15, "{got} instead of {want}");
        }
        assert_eq!(got.len(), 4);
    }

    #[test]
    fn dot_products_depend_on_distances_only() {
        let inv_freq = inverse_frequencies(10_000.0, 4);
        let (q, k) = ([0.3_f32, -1.2, 0.7, 2.0], [1.1_f32, 0.4, -0.6, 0.9]);
        for interleaved in [true, false] {
            let rotary = Rotary::new(interleaved, &inv_freq);
            let dot = |query: i64, key: i64| -> f64 {
                rotate(&rotary, &q, query).iter().zip(rotate(&rotary, &k, key)).map(|(x, y)| x * y).sum()
            };
            assert!((dot(12, 5) - dot(100_007, 100_000)).abs() < 1e-10);
            assert!((dot(12, 5) - dot(12, 6)).abs() > 0.01);
        }
    }
}
