//! The lengths of a batch, by their numbers.

use std::fmt;
use std::str::FromStr;

use super::{MAX_BATCH, MAX_CONTEXT};
use crate::common::clip;

/// The lengths of a batch: `32768,256x63` is one sequence of 32,768 tokens and 63 of 256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthList {
    text: String,
    pub lens: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthListError {
    #[error(
        "{given:?} is not TOKENS or TOKENSxCOUNT of 1 to {MAX_CONTEXT} tokens and 1 to {MAX_BATCH} sequences, as in \
         32768,256x63"
    )]
    Item { given: String },
    #[error("{count} sequences, more than {MAX_BATCH}")]
    TooMany { count: u64 },
}

impl FromStr for LengthList {
    type Err = LengthListError;

    fn from_str(text: &str) -> Result<Self, LengthListError> {
        let mut items = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (tokens, count) = item.split_once('x').unwrap_or((item, "1"));
            let number = |text: &str, max: u32| text.parse().ok().filter(|value| (1..=max).contains(value));
            let (Some(tokens), Some(count)) = (number(tokens, MAX_CONTEXT), number(count, MAX_BATCH)) else {
                return Err(LengthListError::Item { given: clip(item) });
            };
            items.push((tokens, count));
        }
        // Before memory is asked for.
        let count: u64 = items.iter().map(|&(_, count)| u64::from(count)).sum();
        if count > MAX_BATCH.into() {
            return Err(LengthListError::TooMany { count });
        }
        let lens = items.iter().flat_map(|&(tokens, count)| std::iter::repeat_n(tokens, count as usize)).collect();
        Ok(Self { text: text.to_owned(), lens })
    }
}

impl fmt::Display for LengthList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_lengths_with_an_optional_count() {
        let list: LengthList = "7, 5x3,1".parse().unwrap();
        assert_eq!(list.lens, [7, 5, 5, 5, 1]);
        assert_eq!(list.to_string(), "7, 5x3,1");
    }

    #[test]
    fn refusals_name_the_item_and_the_limits() {
        for wrong in ["", "5,", "0", "x3", "5x", "5x0", "-1", "5x3x2", "16777217", "5x65536", "1e3"] {
            let error = wrong.parse::<LengthList>().unwrap_err();
            assert!(matches!(error, LengthListError::Item { .. }), "{wrong}: {error}");
        }
        assert_eq!(
            "16,0".parse::<LengthList>().unwrap_err().to_string(),
            "\"0\" is not TOKENS or TOKENSxCOUNT of 1 to 16777216 tokens and 1 to 65535 sequences, as in 32768,256x63"
        );
        assert_eq!("1x65535,2".parse::<LengthList>().unwrap_err().to_string(), "65536 sequences, more than 65535");
    }
}
