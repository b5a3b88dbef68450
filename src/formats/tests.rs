use half::{bf16, f16};
use proptest::prelude::*;

use super::code::{decode, encode};
use super::*;
use crate::error::FormatError;

/// Encoded and decoded with a scale of 1.
fn unscaled(format: KvDtype, x: f32) -> f32 {
    decode(format, encode(format, x.to_bits(), 1.0_f32.to_bits()))
}

fn words_of(format: KvDtype, row: &[f32]) -> Vec<u32> {
    let mut words = vec![0xaaaa_aaaa; 4 * format.row_units(row.len() as u32) as usize];
    encode_row(format, row, &mut words).unwrap();
    words
}

fn stored(format: KvDtype, row: &[f32]) -> Vec<f32> {
    let mut row = row.to_vec();
    let dim = row.len();
    round_rows(format, dim, &mut row);
    row
}

#[test]
fn rows_are_whole_units_of_data_and_then_of_scales() {
    let sizes = |format: KvDtype, dim| (format.data_units(dim), format.num_scales(dim), format.row_units(dim));
    for (dim, f32, f16) in [(1, 1, 1), (4, 1, 1), (5, 2, 1), (8, 2, 1), (9, 3, 2), (80, 20, 10), (512, 128, 64)] {
        assert_eq!(sizes(KvDtype::F32, dim), (f32, 0, f32), "{dim}");
        assert_eq!(sizes(KvDtype::F16, dim), (f16, 0, f16), "{dim}");
        assert_eq!(sizes(KvDtype::Bf16, dim), (f16, 0, f16), "{dim}");
    }
    for (dim, units) in [(1, 1), (16, 1), (17, 2), (80, 5), (128, 8), (512, 32)] {
        assert_eq!(sizes(KvDtype::Int8, dim), (units, 1, units + 1), "{dim}");
        assert_eq!(sizes(KvDtype::Fp8, dim), (units, 1, units + 1), "{dim}");
    }
    // A scale per unit, four of them to a unit.
    for (dim, units, row) in [(1, 1, 2), (32, 1, 2), (33, 2, 3), (128, 4, 5), (129, 5, 7), (512, 16, 20)] {
        assert_eq!(sizes(KvDtype::Int4, dim), (units, units, row), "{dim}");
    }
    let used = |dim| KvDtype::ALL.map(|format| format.used_bytes(dim));
    assert_eq!(used(128), [512, 256, 256, 132, 132, 64 + 16]);
    assert_eq!(used(5), [20, 10, 10, 9, 9, 3 + 4]);
}

#[test]
fn every_f16_and_bf16_survives() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        // A signalling NaN becomes a quiet one.
        let quiet = |nan: bool, bit: u16| u32::from(if nan { bits | bit } else { bits });
        assert_eq!(encode(KvDtype::F16, half.to_f32().to_bits(), 0), quiet(half.is_nan(), 0x200), "{bits:#x}");
        assert_eq!(encode(KvDtype::Bf16, brain.to_f32().to_bits(), 0), quiet(brain.is_nan(), 0x40), "{bits:#x}");
        assert_eq!(decode(KvDtype::Bf16, bits.into()).to_bits(), u32::from(bits) << 16);
    }
}

#[test]
fn halves_round_to_nearest_even_at_every_edge() {
    // The f32 next to and at the middle between every two neighbours, zero and the overflow among them.
    for bits in 0..0x7c00_u16 {
        let middle = |low: f32, high: f32| ((f64::from(low) + f64::from(high)) / 2.0) as f32;
        let half = middle(
            f16::from_bits(bits).to_f32(),
            if bits == 0x7bff { 65_536.0 } else { f16::from_bits(bits + 1).to_f32() },
        );
        for x in [half.to_bits() - 1, half.to_bits(), half.to_bits() + 1, half.to_bits() | 1 << 31] {
            let want = f16::from_f32(f32::from_bits(x)).to_bits();
            assert_eq!(encode(KvDtype::F16, x, 0), u32::from(want), "{x:#x}");
        }
    }
    for bits in 0..0x7f80_u32 {
        for x in [bits << 16 | 0x7fff, bits << 16 | 0x8000, bits << 16 | 0x8001, bits << 16 | 0x8000_8000] {
            let want = bf16::from_f32(f32::from_bits(x)).to_bits();
            assert_eq!(encode(KvDtype::Bf16, x, 0), u32::from(want), "{x:#x}");
        }
    }
    // 2,049 is a tie between 2,048 and 2,050; 1/3 is nearest to 1,365/4,096; 65,520 leaves the range.
    let row = stored(KvDtype::F16, &[2049.0, 1.0 / 3.0, 65519.0, 65520.0]);
    assert_eq!(row, [2048.0, 1365.0 / 4096.0, 65504.0, f32::INFINITY]);
}

/// e4m3 as it is defined: sign, 4 bits of exponent from −7, 3 bits of mantissa, and NaN where all of them are set.
fn e4m3(code: u32) -> f64 {
    let (exponent, mantissa) = ((code >> 3 & 0xf) as i32, f64::from(code & 7) / 8.0);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2_f64.powi(-6),
        _ => (1.0 + mantissa) * 2_f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

// Q04
#[test]
fn the_256_codes_of_fp8_are_those_of_the_definition() {
    for code in 0..256 {
        let (got, want) = (decode(KvDtype::Fp8, code), e4m3(code));
        assert!(f64::from(got) == want || (got.is_nan() && want.is_nan()), "{code:#x}: {got} instead of {want}");
        if !want.is_nan() {
            let back = encode(KvDtype::Fp8, got.to_bits(), 1.0_f32.to_bits());
            assert_eq!(back, if code == 0x80 { 0 } else { code }, "{code:#x}");
        }
    }
    assert_eq!(
        [0x7e, 0x01, 0x08, 0xfe].map(|code| decode(KvDtype::Fp8, code)),
        [448.0, 1.0 / 512.0, 1.0 / 64.0, -448.0]
    );
    assert!([0x7f, 0xff].iter().all(|&code| decode(KvDtype::Fp8, code).is_nan()));
}

// Q04
#[test]
fn fp8_rounds_to_nearest_even_and_saturates() {
    let code = |x: f32| encode(KvDtype::Fp8, x.to_bits(), 1.0_f32.to_bits());
    assert_eq!([448.0, 464.0, 465.0, 1000.0, f32::INFINITY].map(code), [0x7e; 5]);
    assert_eq!(code(-1000.0), 0xfe);
    // 2⁻¹⁰ is a tie between 0 and 2⁻⁹.
    assert_eq!([1.0 / 512.0, 1.0 / 1024.0, -1.0 / 1024.0, 1.1 / 1024.0, -1.1 / 1024.0].map(code), [1, 0, 0, 1, 0x81]);
    for low in 0..0x7e {
        let middle = ((e4m3(low) + e4m3(low + 1)) / 2.0) as f32;
        let (below, above) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
        assert_eq!([below, middle, above].map(code), [low, low + low % 2, low + 1], "{low:#x}");
    }
    // In a row a scale keeps everything in range, unless it is no number.
    let row = stored(KvDtype::Fp8, &[1000.0, -1000.0, 448.0]);
    assert!((row[0] - 1000.0).abs() < 1e-3 && row[1] == -row[0] && (row[2] - 448.0).abs() <= 28.0, "{row:?}");
    for x in [f32::NAN, f32::INFINITY] {
        assert!(stored(KvDtype::Fp8, &[1.0, x]).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn codes_and_scales_lie_where_they_should() {
    // 33 elements of int4: codes −7 to 7 over and over with a scale of 7 · (1/7) = 1, and a second unit of one element.
    let row: Vec<f32> = (0..33).map(|e| (e % 15) as f32 - 7.0).collect();
    let words = words_of(KvDtype::Int4, &row);
    // Element 0 in the lowest nibble: −7 + 8 = 1, then 2, 3, …
    assert_eq!(words[..4], [0x8765_4321, 0x1fed_cba9, 0x9876_5432, 0x21fe_dcba]);
    // Element 32 is −5: the largest of its unit, and so its code is −7; codes of 0 behind it.
    assert_eq!(words[4..8], [0x8888_8881, 0x8888_8888, 0x8888_8888, 0x8888_8888]);
    let scale = (5.0 * (1.0_f32 / 7.0)).to_bits();
    assert_eq!(words[8..], [1.0_f32.to_bits(), scale, 0, 0]);

    let words = words_of(KvDtype::Int8, &[127.0, -127.0, 1.0, -1.0, 64.0]);
    let scale = 127.0 * (1.0_f32 / 127.0);
    assert_eq!(words, [0xff01_817f, 0x40, 0, 0, scale.to_bits(), 0, 0, 0]);
    assert_eq!(words_of(KvDtype::Bf16, &[1.0, -2.0, 3.0]), [0xc000_3f80, 0x4040, 0, 0]);
    assert_eq!(words_of(KvDtype::F16, &[1.0, -2.0, 3.0]), [0xc000_3c00, 0x4200, 0, 0]);
    assert_eq!(words_of(KvDtype::F32, &[1.0, -0.0]), [0x3f80_0000, 0x8000_0000, 0, 0]);
}

#[test]
fn rows_of_zeros_and_of_next_to_nothing_have_no_scale() {
    for row in [[0.0, -0.0, 0.0], [1e-31, -1e-40, 0.0]] {
        assert_eq!(words_of(KvDtype::Int8, &row), [0; 8]);
        assert_eq!(words_of(KvDtype::Fp8, &row), [0; 8]);
        assert_eq!(words_of(KvDtype::Int4, &row), [[0x8888_8888; 4], [0; 4]].concat());
        for format in [KvDtype::Int8, KvDtype::Fp8, KvDtype::Int4] {
            assert_eq!(stored(format, &row), [0.0; 3], "{format}");
        }
    }
    // 2⁻¹⁰⁰ is kept.
    let edge = 2_f32.powi(-100);
    for format in [KvDtype::Int8, KvDtype::Fp8, KvDtype::Int4] {
        let got = stored(format, &[edge])[0];
        assert!((got / edge - 1.0).abs() < 1e-6, "{format}: {got:e}");
    }
}

#[test]
fn what_is_not_finite_makes_its_row_or_unit_nan() {
    for x in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut row = vec![1.0; 40];
        row[35] = x;
        for format in [KvDtype::Int8, KvDtype::Fp8] {
            let words = words_of(format, &row);
            assert_eq!(words[..12], [0; 12], "{format}");
            assert_eq!(words[12..], [0x7fc0_0000, 0, 0, 0], "{format}");
            assert!(stored(format, &row).iter().all(|x| x.is_nan()), "{format}");
        }
        let words = words_of(KvDtype::Int4, &row);
        assert_eq!(
            words[4..],
            [0x8888_8888, 0x8888_8888, 0x8888_8888, 0x8888_8888, (1.0_f32 / 7.0).to_bits(), 0x7fc0_0000, 0, 0]
        );
        let read = stored(KvDtype::Int4, &row);
        assert_eq!(read[..32], [1.0; 32], "the other unit is as it was");
        assert!(read[32..].iter().all(|x| x.is_nan()));
    }
}

// Q03: 63 values in [−1, 4] and one outlier.
#[test]
fn an_outlier_coarsens_its_row_and_makes_nothing_infinite() {
    let mut row: Vec<f32> = (0..64).map(|e| e as f32 / 12.6 - 1.0).collect();
    row[17] = -1.0e5;
    for (format, steps) in [(KvDtype::Int8, 127.0), (KvDtype::Int4, 7.0)] {
        for (at, (got, want)) in stored(format, &row).iter().zip(&row).enumerate() {
            assert!((got - want).abs() <= 1e5 / steps / 2.0 * 1.0001, "{format} {at}: {got} instead of {want}");
        }
        assert!((stored(format, &row)[17] / -1e5 - 1.0).abs() < 1e-6, "{format}");
    }
    // In int4 the second unit has a scale of its own: at most 4/7 a step.
    let read = stored(KvDtype::Int4, &row);
    assert!(read[32..].iter().zip(&row[32..]).all(|(got, want)| (got - want).abs() <= 2.0 / 7.0 * 1.0001));
    // The largest f32 there is stays finite.
    for format in [KvDtype::Bf16, KvDtype::Int8, KvDtype::Fp8, KvDtype::Int4] {
        let got = stored(format, &[f32::MAX * (1.0 - 1.0 / 256.0), 1.0]);
        assert!(got.iter().all(|x| x.is_finite()), "{format}: {got:?}");
    }
    for format in [KvDtype::Int8, KvDtype::Fp8, KvDtype::Int4] {
        assert!(stored(format, &[f32::MAX])[0].is_finite(), "{format}");
    }
}

#[test]
fn words_of_another_length_are_refused_and_left_alone() {
    for format in KvDtype::ALL {
        let needed = 4 * format.row_units(40) as usize;
        for given in [0, needed - 1, needed + 4] {
            let error = FormatError::RowWords { format: format.name(), elements: 40, given, needed };
            let mut words = vec![7; given];
            assert_eq!(encode_row(format, &[1.0; 40], &mut words), Err(error));
            assert_eq!(words, vec![7; given]);
            assert_eq!(decode_row(format, &words, &mut [0.0; 40]), Err(error));
        }
        assert_eq!(encode_row(format, &[], &mut vec![0; 4 * format.row_units(0) as usize]), Ok(()));
        round_rows(format, 0, &mut []);
    }
}

#[test]
fn a_shorter_last_row_is_rounded_by_itself() {
    let mut rows = [1.0, 0.1, 100.0, 0.1, 0.1];
    round_rows(KvDtype::Int4, 2, &mut rows);
    assert_eq!(
        rows,
        [stored(KvDtype::Int4, &[1.0, 0.1]), stored(KvDtype::Int4, &[100.0, 0.1]), stored(KvDtype::Int4, &[0.1])]
            .concat()[..]
    );
}

/// Rows of ordinary size, each on a scale of its own.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    (prop::collection::vec(-1.0_f32..1.0, 1..100), -60..60_i32)
        .prop_map(|(row, exponent)| row.into_iter().map(|x| x * 2_f32.powi(exponent)).collect())
}

fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |top, x| x.abs().max(top))
}

proptest! {
    #[test]
    fn integers_are_off_by_half_a_step_at_most(row in any_row()) {
        for (format, steps, group) in [(KvDtype::Int8, 127.0, row.len()), (KvDtype::Int4, 7.0, 32)] {
            for (got, want) in stored(format, &row).chunks(group).zip(row.chunks(group)) {
                // And a little for the rounding of the scale and of the product.
                let most = largest(want) / steps / 2.0 * 1.000_01;
                for (got, want) in got.iter().zip(want) {
                    prop_assert!((got - want).abs() <= most, "{}: {} instead of {}", format, got, want);
                }
            }
        }
    }

    #[test]
    fn fp8_is_off_by_a_sixteenth_at_most(row in any_row()) {
        let step = largest(&row) / 448.0 / 512.0;
        for (got, want) in stored(KvDtype::Fp8, &row).iter().zip(&row) {
            let most = (want.abs() / 16.0).max(step / 2.0) * 1.000_01;
            prop_assert!((got - want).abs() <= most, "{} instead of {}", got, want);
        }
    }

    #[test]
    fn a_code_is_the_nearest_of_all(x in 0.0..1.0_f32, scale in 1e-3..1.0_f32) {
        for (format, codes) in [(KvDtype::Int8, 0..128), (KvDtype::Fp8, 0..0x7f), (KvDtype::Int4, 8..16)] {
            let distance = |code| (f64::from(decode(format, code)) * f64::from(scale) - f64::from(x)).abs();
            let got = encode(format, x.to_bits(), scale.to_bits());
            let best = codes.map(distance).fold(f64::INFINITY, f64::min);
            // Products are rounded, so that next to a tie the other one may win.
            prop_assert!(distance(got) <= best + 1e-6 * f64::from(x), "{}: {} for {} in steps of {}", format, got, x, scale);
        }
    }

    #[test]
    fn halves_round_as_the_half_crate_does(bits in any::<u32>()) {
        let x = f32::from_bits(bits);
        prop_assert_eq!(encode(KvDtype::F16, bits, 0), u32::from(f16::from_f32(x).to_bits()));
        prop_assert_eq!(encode(KvDtype::Bf16, bits, 0), u32::from(bf16::from_f32(x).to_bits()));
        prop_assert_eq!(unscaled(KvDtype::F32, x).to_bits(), bits);
    }

    #[test]
    fn encoding_twice_changes_nothing_in_formats_without_scales(bits in prop::collection::vec(any::<u32>(), 1..40)) {
        let row: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for format in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let once = words_of(format, &row);
            let mut read = vec![0.0; row.len()];
            decode_row(format, &once, &mut read).unwrap();
            prop_assert_eq!(words_of(format, &read), once);
        }
    }
}
