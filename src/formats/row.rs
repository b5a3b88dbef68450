//! Whole rows: codes packed into units, and their scales.

use super::code::{MAGNITUDE, decode, encode, scale_bits};
use super::{KvDtype, ScaleScope};
use crate::error::FormatError;

/// Words of a unit.
const UNIT_WORDS: usize = 4;

/// Converts a row to its stored words, as the append kernel does.
///
/// `words`: `4 · format.row_units(row.len())`, all of which are written.
///
/// # Errors
/// [`FormatError::RowWords`] if `words` has another length; nothing is written then.
///
/// ```
/// use wgpu_paged_attention::formats::{KvDtype, decode_row, encode_row};
///
/// let mut words = [0; 8];
/// encode_row(KvDtype::Int8, &[0.25, -1.0, 0.0], &mut words)?;
/// // Codes 32, −127 and 0 in the first unit, their scale in the second.
/// let scale = 1.0_f32 / 127.0;
/// assert_eq!(words, [0x0000_8120, 0, 0, 0, scale.to_bits(), 0, 0, 0]);
/// let mut row = [0.0; 3];
/// decode_row(KvDtype::Int8, &words, &mut row)?;
/// assert_eq!(row, [32.0 * scale, -127.0 * scale, 0.0]);
/// # Ok::<(), wgpu_paged_attention::error::FormatError>(())
/// ```
pub fn encode_row(format: KvDtype, row: &[f32], words: &mut [u32]) -> Result<(), FormatError> {
    let data_words = check(format, row.len(), words.len())?;
    let (units, scales) = words.split_at_mut(data_words);
    scales.fill(0);
    if format.scales() == ScaleScope::Row {
        scales[0] = scale_of(format, row);
    }
    let (bits, per_word, per_unit) = packing(format);
    for (idx, (unit, elements)) in units.chunks_mut(UNIT_WORDS).zip(row.chunks(per_unit)).enumerate() {
        if format.scales() == ScaleScope::Unit {
            scales[idx] = scale_of(format, elements);
        }
        let scale = scale_at(format, scales, idx);
        for (at, word) in unit.iter_mut().enumerate() {
            *word = 0;
            for place in 0..per_word {
                let x = elements.get(at * per_word + place).map_or(0, |x| x.to_bits());
                *word |= encode(format, x, scale) << (bits * place);
            }
        }
    }
    Ok(())
}

/// Reads a row of `row.len()` elements back from its stored words, as the attention kernels do.
pub fn decode_row(format: KvDtype, words: &[u32], row: &mut [f32]) -> Result<(), FormatError> {
    let data_words = check(format, row.len(), words.len())?;
    let (units, scales) = words.split_at(data_words);
    let (bits, per_word, per_unit) = packing(format);
    let mask = u32::MAX >> (32 - bits);
    for (idx, (unit, elements)) in units.chunks(UNIT_WORDS).zip(row.chunks_mut(per_unit)).enumerate() {
        let scale = scale_at(format, scales, idx);
        for (at, x) in elements.iter_mut().enumerate() {
            let number = decode(format, (unit[at / per_word] >> (bits * (at % per_word))) & mask);
            *x = if format.scales() == ScaleScope::None { number } else { number * f32::from_bits(scale) };
        }
    }
    Ok(())
}

/// Replaces rows of `dim` elements by what the cache makes of them: encoded and decoded again.
///
/// Elements past the last whole row are a shorter row.
pub fn round_rows(format: KvDtype, dim: usize, rows: &mut [f32]) {
    let mut words = Vec::new();
    for row in rows.chunks_mut(dim.max(1)) {
        words.resize(row_words(format, row.len()), 0);
        // The lengths agree, and so neither fails.
        let _ = encode_row(format, row, &mut words).and_then(|()| decode_row(format, &words, row));
    }
}

/// Bits of a code, codes of a word, elements of a unit.
fn packing(format: KvDtype) -> (usize, usize, usize) {
    let bits = format.code_bits() as usize;
    (bits, 32 / bits, UNIT_WORDS * 32 / bits)
}

/// The scale that these elements share.
fn scale_of(format: KvDtype, elements: &[f32]) -> u32 {
    let largest = elements.iter().map(|x| x.to_bits() & MAGNITUDE).max();
    scale_bits(format, largest.unwrap_or(0))
}

/// The scale of a unit, of those of its row.
fn scale_at(format: KvDtype, scales: &[u32], unit: usize) -> u32 {
    match format.scales() {
        ScaleScope::None => 0,
        ScaleScope::Row => scales[0],
        ScaleScope::Unit => scales[unit],
    }
}

/// Words of the data, of a row whose words are as many as they should be.
fn check(format: KvDtype, elements: usize, words: usize) -> Result<usize, FormatError> {
    let needed = row_words(format, elements);
    if words != needed {
        return Err(FormatError::RowWords { format: format.name(), elements, given: words, needed });
    }
    Ok(UNIT_WORDS * format.data_units(dim(elements)) as usize)
}

fn row_words(format: KvDtype, elements: usize) -> usize {
    UNIT_WORDS * format.row_units(dim(elements)) as usize
}

/// A row of 2^32 elements is beyond any that can be stored, and any slice of words is too short for it.
fn dim(elements: usize) -> u32 {
    u32::try_from(elements).unwrap_or(u32::MAX)
}
