//! Numbers of bytes, as people write them.

use std::fmt;
use std::str::FromStr;

use crate::common::clip;
use crate::report::fmt::decimal;

const UNITS: [(&str, u64); 9] = [
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];
const MAX_FRACTION: usize = 12;

/// A number of bytes: `26GB`, `1.5 GiB`, or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a size up to {} bytes; give bytes, or a number with kB, MB, GB, TB (powers of 1,000) or KiB, MiB, \
     GiB, TiB (powers of 1,024)",
    u64::MAX
)]
pub struct ByteSizeError {
    given: String,
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        parse(text.trim()).map(Self).ok_or_else(|| ByteSizeError { given: clip(text) })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0))
    }
}

fn parse(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim_start() {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.len() > MAX_FRACTION {
        return None;
    }
    let scale = 10_u64.pow(fraction.len() as u32);
    let bytes = u128::from(whole.parse::<u64>().ok()?) * u128::from(unit)
        + u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / u128::from(scale);
    u64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("26GB", 26_000_000_000),
            ("24GiB", 25_769_803_776),
            (" 1.5 gib ", 1_610_612_736),
            ("0.1kB", 100),
            ("3.", 0),
            ("18446744073709551615", u64::MAX),
            ("16777215.999999TiB", 18_446_744_073_708_452_104),
        ] {
            // A point needs digits behind it.
            let expected = if text == "3." { None } else { Some(ByteSize(bytes)) };
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        for wrong in ["", "GB", "-1", "1e9", "26 GBs", "1..2GB", ".5GB", "18446744073709551616", "16777216TiB", "∞"] {
            let error = wrong.parse::<ByteSize>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{wrong:?} is not a size up to 18446744073709551615 bytes; ")),
                "{error}"
            );
        }
    }
}
