//! JSON as Python writes it: `NaN`, `Infinity` and `-Infinity` for numbers that JSON does not have.

use std::borrow::Cow;

const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];

/// The text with `null` for those words, line for line and column for column.
pub fn without_nan(text: &[u8]) -> Cow<'_, [u8]> {
    let mut text = Cow::Borrowed(text);
    let (mut at, mut quoted) = (0, false);
    while at < text.len() {
        match text[at] {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            b'N' | b'-' | b'I' if !quoted => {
                if let Some(word) = WORDS.into_iter().find(|word| text[at..].starts_with(word)) {
                    let null = b"null     ".iter().copied().take(word.len().max(4));
                    text.to_mut().splice(at..at + word.len(), null);
                }
            }
            _ => {}
        }
        at += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x17_only_words_outside_of_texts_are_replaced() {
        for (text, expected) in [
            (r#"{"a": NaN, "b": [-Infinity,Infinity]}"#, r#"{"a": null, "b": [null     ,null    ]}"#),
            (r#"{"NaN": "Infinity \" NaN", "b": -1}"#, r#"{"NaN": "Infinity \" NaN", "b": -1}"#),
            ("\\NaN\"", "\\null\""),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_nan(text.as_bytes())), expected);
        }
        assert!(matches!(without_nan(b"{\"a\": 1}"), Cow::Borrowed(_)));
    }
}
