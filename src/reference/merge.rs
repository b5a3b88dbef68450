//! Joining attention over two sets of keys.

use super::{Attended, maximum};

/// Attention over the keys of both, given attention over each: what it would be had all keys been seen at once.
///
/// No key may belong to both, and a sink to one of them only. An LSE of −∞ is a part without a key: the other one comes
/// back as it is, and two of them give 0 and −∞. An LSE of +∞ is what some libraries write for such a part; it means the
/// same here.
///
/// # Panics
/// If the parts differ in shape.
pub fn merge_states(a: &Attended, b: &Attended) -> Attended {
    assert_eq!((a.output.len(), a.lse.len()), (b.output.len(), b.lse.len()), "elements of the two parts");
    let mut merged = Attended { output: vec![0.0; a.output.len()], lse: vec![f64::NEG_INFINITY; a.lse.len()] };
    let width = a.output.len().checked_div(a.lse.len()).unwrap_or(0);
    for (index, lse) in merged.lse.iter_mut().enumerate() {
        let mut parts = vec![(a.lse[index], &a.output), (b.lse[index], &b.output)];
        parts.retain(|(lse, _)| !lse.is_infinite());
        let Some(max) = maximum(&parts.iter().map(|(lse, _)| *lse).collect::<Vec<_>>()) else {
            continue;
        };
        let row = index * width..(index + 1) * width;
        let out = &mut merged.output[row.clone()];
        let mut denominator = 0.0;
        for (lse, output) in parts {
            let weight = (lse - max).exp();
            denominator += weight;
            for (o, &part) in out.iter_mut().zip(&output[row.clone()]) {
                *o += weight * part;
            }
        }
        for o in out {
            *o /= denominator;
        }
        *lse = max + denominator.ln();
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(output: &[f64], lse: f64) -> Attended {
        Attended { output: output.to_vec(), lse: vec![lse] }
    }

    #[test]
    fn parts_weigh_what_their_denominators_do() {
        // Denominators 1 and 3: (1·[8, 0] + 3·[4, −4]) / 4 = [5, −3], and ln(1 + 3).
        let merged = merge_states(&state(&[8.0, 0.0], 0.0), &state(&[4.0, -4.0], 3.0_f64.ln()));
        for (got, want) in merged.output.iter().zip([5.0, -3.0]) {
            assert!((got - want).abs() < 1e-14, "{merged:?}");
        }
        assert!((merged.lse[0] - 4.0_f64.ln()).abs() < 1e-14);
    }

    #[test]
    fn a_part_without_keys_changes_nothing_whatever_its_output_holds() {
        let part = state(&[0.1, -7.0], 2.5);
        for nothing in [f64::NEG_INFINITY, f64::INFINITY] {
            let empty = state(&[f64::NAN, 9.0], nothing);
            assert_eq!(merge_states(&part, &empty), part);
            assert_eq!(merge_states(&empty, &part), part);
            assert_eq!(merge_states(&empty, &empty), state(&[0.0, 0.0], f64::NEG_INFINITY));
        }
    }

    #[test]
    fn denominators_beyond_any_float_do_not_overflow() {
        // e^2000 and e^2000·e^−1000: the second part weighs nothing that shows.
        assert_eq!(merge_states(&state(&[2.0], 2000.0), &state(&[5.0], 1000.0)), state(&[2.0], 2000.0));
        let even = merge_states(&state(&[2.0], -2000.0), &state(&[5.0], -2000.0));
        assert_eq!(even, state(&[3.5], -2000.0 + 2.0_f64.ln()));
    }

    #[test]
    fn a_nan_shows() {
        let merged = merge_states(&state(&[1.0], f64::NAN), &state(&[1.0], 0.0));
        assert!(merged.output[0].is_nan() && merged.lse[0].is_nan());
    }

    #[test]
    fn every_head_is_merged_by_its_own_weights() {
        let a = Attended { output: vec![1.0, 2.0, 3.0, 4.0], lse: vec![0.0, f64::NEG_INFINITY] };
        let b = Attended { output: vec![3.0, 4.0, 5.0, 6.0], lse: vec![0.0, 1.0] };
        let want = Attended { output: vec![2.0, 3.0, 5.0, 6.0], lse: vec![2.0_f64.ln(), 1.0] };
        assert_eq!(merge_states(&a, &b), want);
        let nothing = Attended { output: Vec::new(), lse: Vec::new() };
        assert_eq!(merge_states(&nothing, &nothing), nothing);
    }
}
