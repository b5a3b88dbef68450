//! Values of options that several commands take.

use std::time::Duration;

use clap::builder::TypedValueParser;

const MAX_SECONDS: f64 = 86_400.0;

pub fn up_to(max: u32) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(max))
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_SECONDS);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("give seconds above 0, up to {MAX_SECONDS}"))
}

/// Enough of a text to recognise it in a message.
pub fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_limits() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "86401", "ten", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
