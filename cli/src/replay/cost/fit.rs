//! Least squares of relative errors, without negative coefficients.

/// A pivot below this share of 1, to which all columns are scaled, is rounding.
const LEAST_PIVOT: f64 = 1e-12;

/// The coefficients `c ≥ 0` that minimise `Σ ((Σ cᵢ·xᵢ − y) / y)²` over rows `(x, y)`; `None` without rows, or if no
/// column can be told from nothing or from the others.
/// A model has two or three terms. So every choice of terms that may differ from 0 is solved, and the best one without a
/// negative coefficient taken: that is the constrained optimum, for it is the unconstrained one of its own terms.
pub(super) fn fit<const N: usize>(rows: &[([f64; N], f64)]) -> Option<[f64; N]> {
    // Divided by what was measured, errors are relative, and the target is 1.
    let mut scaled: Vec<[f64; N]> = rows.iter().map(|(x, y)| x.map(|x| x / y)).collect();
    let norms: [f64; N] = std::array::from_fn(|i| scaled.iter().map(|x| x[i] * x[i]).sum::<f64>().sqrt());
    for x in &mut scaled {
        for (x, norm) in x.iter_mut().zip(norms) {
            *x = if norm > 0.0 { *x / norm } else { 0.0 };
        }
    }
    let residual = |c: &[f64; N]| -> f64 {
        let error = |x: &[f64; N]| x.iter().zip(c).map(|(x, c)| x * c).sum::<f64>() - 1.0;
        scaled.iter().map(|x| error(x).powi(2)).sum()
    };
    let choices = (1..1_u32 << N).filter_map(|chosen| solve(&scaled, chosen));
    let allowed = choices.filter(|c| c.iter().all(|c| c.is_finite() && *c >= 0.0));
    let best = allowed.min_by(|a, b| residual(a).total_cmp(&residual(b)))?;
    Some(std::array::from_fn(|i| if norms[i] > 0.0 { best[i] / norms[i] } else { 0.0 }))
}

fn solve<const N: usize>(rows: &[[f64; N]], chosen: u32) -> Option<[f64; N]> {
    let terms: Vec<usize> = (0..N).filter(|term| chosen >> term & 1 == 1).collect();
    let count = terms.len();
    let mut matrix = vec![vec![0.0; count + 1]; count];
    for x in rows {
        for (row, &i) in matrix.iter_mut().zip(&terms) {
            for (cell, &j) in row.iter_mut().zip(&terms) {
                *cell += x[i] * x[j];
            }
            row[count] += x[i];
        }
    }
    for at in 0..count {
        let pivot = (at..count).max_by(|&a, &b| matrix[a][at].abs().total_cmp(&matrix[b][at].abs()))?;
        matrix.swap(at, pivot);
        let row = matrix[at].clone();
        if row[at].is_nan() || row[at].abs() <= LEAST_PIVOT {
            return None;
        }
        for (_, other) in matrix.iter_mut().enumerate().filter(|(index, _)| *index != at) {
            let factor = other[at] / row[at];
            other.iter_mut().zip(&row).for_each(|(cell, pivot)| *cell -= factor * pivot);
        }
    }
    let mut solution = [0.0; N];
    for (at, &term) in terms.iter().enumerate() {
        solution[term] = matrix[at][count] / matrix[at][at];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_rows_give_their_coefficients() {
        let rows = [1.0, 10.0, 100.0, 1e6].map(|x| ([1.0, x], 3.0 + 0.5 * x));
        let [fixed, slope] = fit(&rows).unwrap();
        assert!((fixed - 3.0).abs() < 1e-6 && (slope - 0.5).abs() < 1e-9, "{fixed} {slope}");
    }

    #[test]
    fn a_negative_optimum_becomes_zero_and_the_rest_is_fitted_again() {
        // The line through both points meets 0 at -1; without a constant, the least squares of relative errors of y = c·x
        // through (1, 1) and (2, 3): 1/1 and 2/3 are the scaled columns, so c = (1 + 2/3) / (1 + 4/9) = 15/13.
        let [fixed, slope] = fit(&[([1.0, 1.0], 1.0), ([1.0, 2.0], 3.0)]).unwrap();
        assert_eq!(fixed, 0.0);
        assert!((slope - 15.0 / 13.0).abs() < 1e-12, "{slope}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_made_up() {
        assert_eq!(fit::<2>(&[]), None);
        assert_eq!(fit(&[([0.0, 0.0], 1.0)]), None);
        assert_eq!(fit(&[([1.0, 2.0], f64::NAN)]), None);
        // One row cannot tell two terms apart, yet one of them explains it.
        let [fixed, slope] = fit(&[([1.0, 2.0], 4.0)]).unwrap();
        assert!((fixed + 2.0 * slope - 4.0).abs() < 1e-9 && (fixed == 0.0 || slope == 0.0), "{fixed} {slope}");
    }
}
