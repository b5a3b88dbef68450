//! How the elements of K and V are stored: the formats, the sizes of their rows, and the conversion on the host.
//!
//! A row is one token of one KV head. It takes whole *units* of 16 bytes, first those of the data, then those of the
//! scales, so no two rows share a word:
//!
//! | format | elements of a unit | a code | scales |
//! |---|---|---|---|
//! | `f32` | 4 | IEEE single precision, kept as it is | none |
//! | `f16` | 8 | IEEE half precision, rounded to nearest even; ±∞ from 65,520 on | none |
//! | `bf16` | 8 | the upper half of an f32, rounded to nearest even | none |
//! | `int8` | 16 | two's complement, −127 to 127 | one per row |
//! | `fp8` | 16 | e4m3 without infinities, up to 448 | one per row |
//! | `int4` | 32 | code + 8 in a nibble, codes −7 to 7 | one per unit |
//!
//! Codes fill a word from its low bits on: element `e` of a unit lies in word `e / n`, `n` being the codes of a word.
//! Scale `j` is the f32 in word `j % 4` of scale unit `j / 4`. Past the last element and the last scale, the rest of
//! a unit holds codes of 0 and words of 0.
//!
//! A scale is the largest magnitude of its elements, times the f32 nearest to 1/127, 1/448 or 1/7. An element is the
//! code times the scale, and gets the code that is nearest, the even one of two; a code of 0 has no sign. Two cases are
//! apart:
//!
//! * Elements that are all smaller than 2⁻¹⁰⁰ have a scale of 0 and codes of 0: near there, some devices take numbers
//!   for 0, and the same row must become the same bits everywhere.
//! * One element that is not finite makes the scale NaN, with codes of 0: its row (for `int4`, its unit) reads as NaN.
//!
//! [`encode_row`] and [`decode_row`] are the twins of `shaders/common/kv_*.wgsl`, bit for bit.

mod code;
mod row;

pub use row::{decode_row, encode_row, round_rows};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// Bits of a unit.
const UNIT_BITS: u32 = 128;
/// Scales in a unit.
const SCALES_PER_UNIT: u32 = 4;

/// How the elements of K and V are stored; sums are f32 whatever the storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum KvDtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision, two elements to a word.
    #[default]
    F16,
    /// The upper half of an f32, two elements to a word: its range with 8 bits of precision.
    Bf16,
    /// Integers from −127 to 127, four to a word, with a scale for each row.
    Int8,
    /// 8-bit floating point, e4m3 without infinities, four to a word, with a scale for each row.
    Fp8,
    /// Integers from −7 to 7, eight to a word, with a scale for each 32 elements.
    Int4,
}

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScaleScope {
    /// There is no scale.
    None,
    /// Those of a row: one token of one KV head.
    Row,
    /// Those of a data unit.
    Unit,
}

impl KvDtype {
    /// Every format, for tables and sweeps.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::Int8, Self::Fp8, Self::Int4];

    /// The name used in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
            Self::Int4 => "int4",
        }
    }

    /// Bits of one element, its share of a scale left out.
    pub const fn code_bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Int8 | Self::Fp8 => 8,
            Self::Int4 => 4,
        }
    }

    /// Which elements share a scale.
    pub const fn scales(self) -> ScaleScope {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => ScaleScope::None,
            Self::Int8 | Self::Fp8 => ScaleScope::Row,
            Self::Int4 => ScaleScope::Unit,
        }
    }

    /// The largest number that a code stands for, where there are scales; 1 where there are none.
    pub(crate) const fn largest(self) -> u32 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Int8 => 127,
            Self::Fp8 => 448,
            Self::Int4 => 7,
        }
    }

    /// Elements of one data unit.
    pub const fn elements_per_unit(self) -> u32 {
        UNIT_BITS / self.code_bits()
    }

    /// Units that the codes of a row of `dim` elements take.
    pub const fn data_units(self, dim: u32) -> u32 {
        dim.div_ceil(self.elements_per_unit())
    }

    /// Scales of a row of `dim` elements.
    pub const fn num_scales(self, dim: u32) -> u32 {
        match self.scales() {
            ScaleScope::None => 0,
            ScaleScope::Row => 1,
            ScaleScope::Unit => self.data_units(dim),
        }
    }

    /// Units of a row of `dim` elements, those of its scales included.
    pub const fn row_units(self, dim: u32) -> u32 {
        self.data_units(dim) + self.num_scales(dim).div_ceil(SCALES_PER_UNIT)
    }

    /// Bytes of a row of `dim` elements that say something: codes and scales, without the rest of their units.
    pub const fn used_bytes(self, dim: u32) -> u64 {
        (dim as u64 * self.code_bits() as u64).div_ceil(8) + 4 * self.num_scales(dim) as u64
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| ConfigError::UnknownFormat { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests;
