//! The ids of a prompt's blocks: their text, and how many tokens they stand for.

use super::{PrefixIds, Problem, Request};

const MAX_TOKENS_PER_ID: u32 = 4096;

/// Reads ids and inclusive ranges, `3;14-27`. Where one cannot be read, it is the error.
pub(super) fn parse(text: &str) -> Result<PrefixIds, &str> {
    if text.is_empty() {
        return Ok(PrefixIds::default());
    }
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (id(first)?, id(last)?);
        (first <= last).then_some(first..=last)
    };
    let ranges: Result<Vec<_>, _> = text.split(';').map(|item| range(item.trim()).ok_or(item)).collect();
    ranges.map(PrefixIds::new)
}

/// Digits and nothing else: `parse` alone lets a plus pass.
fn id(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Tokens of one id: the one power of two for which every prompt that has ids has one for each of its blocks, or every
/// one has one for each of its full blocks.
pub(super) fn tokens_per_id(requests: &[Request]) -> Result<u32, Problem> {
    let with_ids = || requests.iter().filter(|request| !request.prefix.is_empty());
    let fits = |tokens: &u32| {
        with_ids().all(|request| request.prefix.len() == u64::from(request.prompt_tokens.div_ceil(*tokens)))
            || with_ids().all(|request| request.prefix.len() == u64::from(request.prompt_tokens / tokens))
    };
    let sizes = (0..=MAX_TOKENS_PER_ID.ilog2()).map(|exponent| 1 << exponent);
    let fitting: Vec<u32> = sizes.filter(fits).collect();
    if let [tokens] = fitting[..] {
        return Ok(tokens);
    }
    let fitting = match &fitting[..] {
        [] => format!("no power of two up to {MAX_TOKENS_PER_ID} tokens"),
        several => several.iter().map(u32::to_string).collect::<Vec<_>>().join(", ") + " tokens",
    };
    Err(Problem::UnclearIds { field: "hash_ids", fitting })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_ranges_are_read_in_their_order() {
        let ids = |text| parse(text).unwrap().iter().collect::<Vec<_>>();
        assert!(parse("").unwrap().is_empty());
        assert_eq!(ids("7"), [7]);
        assert_eq!(ids("9;2-4; 1 ;1"), [9, 2, 3, 4, 1, 1]);
        assert_eq!(parse("0-18446744073709551615").unwrap().len(), u64::MAX, "no memory for each of them");
        for (text, wrong) in [
            ("1;;2", ""),
            ("1;", ""),
            ("-3", "-3"),
            ("+3", "+3"),
            ("5-3", "5-3"),
            ("1-2-3", "1-2-3"),
            ("4;18446744073709551616", "18446744073709551616"),
            ("a", "a"),
            ("1,5", "1,5"),
        ] {
            assert_eq!(parse(text).unwrap_err(), wrong, "{text}");
        }
    }

    #[test]
    fn the_size_of_a_block_follows_from_the_counts() {
        let log = |rows: &[(u32, u64)]| {
            let request = |&(prompt_tokens, ids): &(u32, u64)| Request {
                prompt_tokens,
                prefix: if ids == 0 { PrefixIds::default() } else { PrefixIds::new([1..=ids]) },
                ..Request::default()
            };
            tokens_per_id(&rows.iter().map(request).collect::<Vec<_>>())
        };
        // 6758 / 512 = 13.2, 7322 / 512 = 14.3: 14 and 15 blocks.
        assert_eq!(log(&[(6758, 14), (7322, 15), (90, 0)]).unwrap(), 512);
        // 63 / 16 = 3.9, 373 / 16 = 23.3: 3 and 23 full ones.
        assert_eq!(log(&[(63, 3), (5, 0), (373, 23)]).unwrap(), 16);
        assert_eq!(log(&[(64, 4)]).unwrap(), 16, "no matter which");
        let error = log(&[(500, 1)]).unwrap_err().to_string();
        assert_eq!(
            error,
            "hash_ids fits blocks of 256, 512, 1024, 2048, 4096 tokens, which leaves open how many tokens an id stands for; \
             give --tokens-per-id"
        );
        let error = log(&[(63, 4), (373, 23)]).unwrap_err().to_string();
        assert!(error.contains("fits blocks of no power of two up to 4096 tokens"), "{error}");
    }
}
