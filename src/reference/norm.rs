//! RMS norm, in f64.

/// A row over its root mean square, times a weight for each element: `x[i] · weights[i] / √(mean(x²) + eps)`.
///
/// # Panics
/// If there are more or fewer weights than elements.
pub fn rms_norm(row: &[f32], weights: &[f32], eps: f64) -> Vec<f64> {
    assert_eq!(row.len(), weights.len(), "weights");
    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    let root = (mean + eps).sqrt();
    row.iter().zip(weights).map(|(&x, &weight)| f64::from(x) / root * f64::from(weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_divided_by_its_root_mean_square() {
        // The mean of 1, 49, 1 and 49 is 25.
        assert_eq!(rms_norm(&[1.0, -7.0, 1.0, 7.0], &[1.0, 2.0, -1.0, 0.5], 0.0), [0.2, -2.8, -0.2, 0.7]);
        // 9 + 16 under the root.
        assert_eq!(rms_norm(&[3.0, 3.0], &[5.0, 10.0], 16.0), [3.0, 6.0]);
        assert_eq!(rms_norm(&[0.0; 3], &[1.0; 3], 1e-6), [0.0; 3]);
    }
}
