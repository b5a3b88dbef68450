//! Holding f32 results against the f64 reference.

/// Largest absolute difference. Infinite if the lengths differ or any difference is not a number, so that a test
/// against a limit fails; equal infinities (the LSE of an empty row) differ by 0.
pub fn max_error(got: &[f32], want: &[f64]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    got.iter().zip(want).map(|(&got, &want)| difference(got, want)).fold(0.0, f64::max)
}

/// Why [`compare`] did not accept a result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The slices have different lengths; no element was looked at.
    #[error("{got} elements where {want} are wanted")]
    Length {
        /// Elements given.
        got: usize,
        /// Elements of the reference.
        want: usize,
    },
    /// The first element outside its tolerance.
    #[error("element {index}: got {got}, want {want} within {tolerance:e}")]
    Value {
        /// Position in the slices.
        index: usize,
        /// Value given.
        got: f32,
        /// Value of the reference.
        want: f64,
        /// `atol + rtol · |want|`.
        tolerance: f64,
    },
}

/// Accepts `got` only if every element satisfies `|got − want| ≤ atol + rtol · |want|`, and returns the largest
/// difference.
///
/// NaN never passes. An infinite `want` is met by the same infinity alone: by the formula its tolerance would be
/// infinite and pass anything.
///
/// # Errors
/// [`Mismatch::Length`] before any element is looked at, or [`Mismatch::Value`] with the first element that is off.
pub fn compare(got: &[f32], want: &[f64], atol: f64, rtol: f64) -> Result<f64, Mismatch> {
    if got.len() != want.len() {
        return Err(Mismatch::Length { got: got.len(), want: want.len() });
    }
    let mut worst = 0.0_f64;
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        let tolerance = if want.is_infinite() { 0.0 } else { atol + rtol * want.abs() };
        let error = difference(got, want);
        // Written as acceptance, because a NaN tolerance must refuse too.
        let accepted = error.is_finite() && error <= tolerance;
        if !accepted {
            return Err(Mismatch::Value { index, got, want, tolerance });
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

/// `|got − want|`, 0 for equal infinities, +∞ instead of NaN.
fn difference(got: f32, want: f64) -> f64 {
    let got = f64::from(got);
    if got == want {
        return 0.0;
    }
    let error = (got - want).abs();
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_catches_a_planted_error() {
        let want = [1.0, -200.0, 0.0];
        // Tolerances 0.01 + 0.001·|want|: 0.011, 0.21 and 0.01.
        assert_eq!(compare(&[1.0, -200.125, 0.0], &want, 0.01, 0.001), Ok(0.125));
        let Err(Mismatch::Value { index, got, want, tolerance }) = compare(&[1.0, -200.25, 0.0], &want, 0.01, 0.001)
        else {
            panic!("0.25 is outside 0.21")
        };
        assert_eq!((index, got, want), (1, -200.25, -200.0));
        assert!((tolerance - 0.21).abs() < 1e-12);
    }

    #[test]
    fn compare_catches_nan_infinities_and_lengths() {
        assert!(compare(&[f32::NAN], &[0.0], f64::INFINITY, 0.0).is_err());
        assert!(compare(&[0.0], &[f64::NAN], 1.0, 1.0).is_err());
        assert!(compare(&[f32::INFINITY], &[1.0], 1.0, 1.0).is_err());
        // The LSE of an empty row: only −∞ will do.
        assert_eq!(compare(&[f32::NEG_INFINITY], &[f64::NEG_INFINITY], 0.0, 0.0), Ok(0.0));
        assert!(compare(&[-1e30], &[f64::NEG_INFINITY], 1.0, 1.0).is_err());
        assert_eq!(compare(&[0.0; 2], &[0.0; 3], 1.0, 1.0), Err(Mismatch::Length { got: 2, want: 3 }));
        assert_eq!(compare(&[], &[], 0.0, 0.0), Ok(0.0));
    }

    #[test]
    fn the_largest_error_hides_neither_nan_nor_length() {
        assert_eq!(max_error(&[1.0, 2.5], &[1.0, 2.0]), 0.5);
        assert_eq!(max_error(&[f32::NAN, 2.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(max_error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(max_error(&[f32::NEG_INFINITY], &[f64::NEG_INFINITY]), 0.0);
    }
}
