//! Numbers for people, the same in text, tables and plots.

pub fn count(number: impl ToString) -> String {
    grouped(&number.to_string())
}

/// Four significant digits at most, no zeros at the end, thousands apart.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { value.to_string() };
    }
    let magnitude = value.abs().log10().floor();
    if !(-5.0..15.0).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let decimals = (3.0 - magnitude).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    grouped(if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text })
}

fn grouped(text: &str) -> String {
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::with_capacity(text.len() + whole / 3);
    for (at, digit) in text.char_indices() {
        let follows_digit = grouped.ends_with(|c: char| c.is_ascii_digit());
        if at < whole && follows_digit && (whole - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Microseconds in the unit that leaves one to three digits before the point.
pub fn duration(us: f64) -> String {
    match us {
        us if us < 999.95 => format!("{} µs", number(us)),
        us if us < 999.95e3 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

pub fn percent(share: f64) -> String {
    // Without the sign of a zero.
    format!("{:.1} %", 100.0 * share + 0.0)
}

pub fn ratio(ratio: f64) -> String {
    format!("{ratio:.3}")
}

pub fn error(error: f64) -> String {
    format!("{error:.1e}")
}

/// Bytes in the largest unit of 1,000s that leaves something before the point, to three digits behind it.
pub fn decimal(bytes: u64) -> String {
    in_units(bytes, 1000, ["kB", "MB", "GB", "TB"])
}

pub fn binary(bytes: u64) -> String {
    in_units(bytes, 1024, ["KiB", "MiB", "GiB", "TiB"])
}

fn in_units(bytes: u64, base: u64, units: [&str; 4]) -> String {
    let power = (1..=4).rev().find(|&power| bytes >= base.pow(power));
    let Some(power) = power else { return format!("{} B", count(bytes)) };
    let value = format!("{:.3}", bytes as f64 / base.pow(power) as f64);
    let value = grouped(value.trim_end_matches('0').trim_end_matches('.'));
    format!("{value} {}", units[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_readable() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.25, "-0.25"),
            (32_768.0, "32,768"),
            (1_234_567.0, "1,234,567"),
            (-1234.4, "-1,234"),
            (-123.4, "-123.4"),
            (2.46913, "2.469"),
            (0.012346, "0.01235"),
            (1e-9, "1.00e-9"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn whole_numbers_keep_their_digits() {
        assert_eq!([count(0), count(999), count(1000)], ["0", "999", "1,000"]);
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn times_have_a_fitting_unit() {
        for (us, expected) in [
            (0.5, "0.5 µs"),
            (999.4, "999.4 µs"),
            (999.96, "1 ms"),
            (15_250.0, "15.25 ms"),
            (999_960.0, "1 s"),
            (14_600_000.0, "14.6 s"),
        ] {
            assert_eq!(duration(us), expected);
        }
    }

    #[test]
    fn sizes_are_shown_in_both_kinds_of_units() {
        assert_eq!((decimal(3_355_443_200), binary(3_355_443_200)), ("3.355 GB".into(), "3.125 GiB".into()));
        assert_eq!((decimal(20_480), binary(20_480)), ("20.48 kB".into(), "20 KiB".into()));
        assert_eq!((decimal(999), binary(1000)), ("999 B".into(), "1,000 B".into()));
        assert_eq!(binary(u64::MAX), "16,777,216 TiB");
    }
}
