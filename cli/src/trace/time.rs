//! Time: in which unit a log tells it, read exactly and kept in nanoseconds.

use clap::ValueEnum;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

use super::{MIN_LOAD, Problem, ReadOptions, is_overload};
use crate::common::clip;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    S,
    Ms,
    Us,
    Ns,
    /// Dates and times of day.
    #[value(skip)]
    Date,
}

impl TimeUnit {
    const NUMBERS: [Self; 4] = [Self::S, Self::Ms, Self::Us, Self::Ns];

    pub const fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::Ms => "ms",
            Self::Us => "us",
            Self::Ns => "ns",
            Self::Date => "dates",
        }
    }

    const fn nanoseconds(self) -> i128 {
        match self {
            Self::S => 1_000_000_000,
            Self::Ms => 1_000_000,
            Self::Us => 1000,
            Self::Ns | Self::Date => 1,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Clock {
    Named(TimeUnit),
    /// In this unit where published; a log of the same form may use another.
    Usually(TimeUnit),
    Calendar,
}

/// The latest time: 292 years of nanoseconds, dates of this century in any unit included.
const MAX_NANOSECONDS: i128 = i64::MAX as i128;
/// Times are read in billionths of their unit, since the unit is known only after the last row.
const BILLIONTHS: i128 = 1_000_000_000;
/// Seconds of the years 2001 to 2096 in Unix time. No log begins that long after its own start.
const DATES_S: std::ops::Range<i128> = 1_000_000_000..4_000_000_000;
/// Tokens per second of a typical published log: they lie between 200 and 60,000.
const TYPICAL_TOKENS_PER_S: f64 = 5000.0;

pub(super) struct Time {
    billionths: i128,
    has_offset: Option<bool>,
}

pub(super) struct Times {
    field: &'static str,
    clock: Clock,
    asked: Option<TimeUnit>,
    /// A field that no log in milliseconds has was seen.
    pub(super) in_seconds_by: Option<&'static str>,
    first: Option<i128>,
    last: i128,
    has_offset: Option<bool>,
    fractional: bool,
}

impl Times {
    pub(super) fn new(field: &'static str, clock: Clock, options: &ReadOptions) -> Result<Self, Problem> {
        let is_calendar = matches!(clock, Clock::Calendar);
        if options.time_unit.is_some() && is_calendar {
            return Err(Problem::UnitOfDates { field });
        }
        let asked = if options.any_unit && !is_calendar { Some(TimeUnit::Ns) } else { options.time_unit };
        let last = i128::MIN;
        Ok(Self { field, clock, asked, in_seconds_by: None, first: None, last, has_offset: None, fractional: false })
    }

    pub(super) fn read(&self, text: &str) -> Result<Time, Problem> {
        let time = if matches!(self.clock, Clock::Calendar) { self.date(text)? } else { self.number(text)? };
        if time.billionths < self.last {
            return Err(Problem::Unsorted { field: self.field, value: clip(text) });
        }
        Ok(time)
    }

    /// Goes on from the time of a row that is good. Returns it, in billionths of the unit since the first.
    pub(super) fn accept(&mut self, time: Time) -> i128 {
        self.has_offset = time.has_offset;
        self.last = time.billionths;
        self.fractional |= time.billionths % BILLIONTHS != 0;
        time.billionths - *self.first.get_or_insert(time.billionths)
    }

    fn date(&self, text: &str) -> Result<Time, Problem> {
        let (field, value) = (self.field, || clip(text));
        let (instant, has_offset) = match text.parse::<Timestamp>() {
            Ok(instant) => (instant, true),
            // A date without an offset is taken as UTC.
            Err(_) => match text.parse::<DateTime>().and_then(|date| Offset::UTC.to_timestamp(date)) {
                Ok(instant) if !text.contains('[') => (instant, false),
                _ => {
                    let expected = match text.contains('[') {
                        true => "a date and time with an offset; give one, or Z, in place of the zone in brackets",
                        false => "a date and time like 2023-11-16 18:17:03.97996",
                    };
                    return Err(Problem::Value { field, value: value(), expected });
                }
            },
        };
        if self.has_offset.is_some_and(|before| before != has_offset) {
            let is = if has_offset { "has an offset" } else { "has no offset" };
            return Err(Problem::MixedOffsets { field, value: value(), is });
        }
        let nanoseconds = instant.as_nanosecond();
        if self.first.is_some_and(|first| nanoseconds - first / BILLIONTHS > MAX_NANOSECONDS) {
            let limit = "292 years after the first".to_owned();
            return Err(Problem::TooLate { field, value: value(), limit, remedy: "correct the date" });
        }
        Ok(Time { billionths: nanoseconds * BILLIONTHS, has_offset: Some(has_offset) })
    }

    fn number(&self, text: &str) -> Result<Time, Problem> {
        let (field, value) = (self.field, || clip(text));
        let Some(billionths) = billionths(text) else {
            return Err(Problem::Value { field, value: value(), expected: "a finite number, 0 or later" });
        };
        let unit = match (self.asked, self.clock) {
            (Some(unit), _) | (None, Clock::Named(unit)) => unit,
            // The one that allows the largest numbers.
            (None, _) => TimeUnit::Ns,
        };
        self.check(billionths, unit, text)?;
        Ok(Time { billionths, has_offset: None })
    }

    fn check(&self, billionths: i128, unit: TimeUnit, text: &str) -> Result<(), Problem> {
        let most = |unit: TimeUnit| MAX_NANOSECONDS / unit.nanoseconds();
        if billionths <= most(unit) * BILLIONTHS {
            return Ok(());
        }
        // Commands without --time-unit read nanoseconds, so what is too late for them is too late in any unit.
        let (unit, remedy) = match self.clock {
            _ if billionths <= most(TimeUnit::Ns) * BILLIONTHS => {
                (unit, "give the unit of the log's times with --time-unit")
            }
            Clock::Named(own) | Clock::Usually(own) => (own, "correct the time"),
            Clock::Calendar => (unit, "correct the date"),
        };
        let limit = format!("{} {}, which is 292 years", most(unit), unit.name());
        Err(Problem::TooLate { field: self.field, value: clip(text), limit, remedy })
    }

    /// The unit, why it is that, and what speaks against it: asked for or named by the form, else as such logs are
    /// published unless the load of `requests` with `tokens` is then beyond any device's.
    pub(super) fn unit(&self, requests: usize, tokens: u64) -> Result<(TimeUnit, String, Option<String>), Problem> {
        let (field, usual) = match (self.asked, self.clock) {
            (Some(unit), _) => return Ok((unit, "--time-unit".to_owned(), None)),
            (None, Clock::Named(unit)) => return Ok((unit, format!("the name of {}", self.field), None)),
            (None, Clock::Calendar) => return Ok((TimeUnit::Date, format!("{} holds dates", self.field), None)),
            (None, Clock::Usually(unit)) => (self.field, unit),
        };
        let first = self.first.unwrap_or_default();
        let is_date = |unit: &TimeUnit| DATES_S.contains(&(first / BILLIONTHS * unit.nanoseconds() / BILLIONTHS));
        let found = if let Some(unit) = TimeUnit::NUMBERS.into_iter().find(is_date) {
            (unit, format!("{field} is the Unix time of a date"), None)
        } else {
            let (unit, why) = match self.in_seconds_by {
                Some(other) => (TimeUnit::S, format!("the field {other}")),
                None => (usual, "as such logs are published".to_owned()),
            };
            self.by_load(requests, tokens, unit, why)
        };
        self.check(self.last, found.0, &(self.last / BILLIONTHS).to_string())?;
        Ok(found)
    }

    fn by_load(&self, requests: usize, tokens: u64, unit: TimeUnit, why: String) -> (TimeUnit, String, Option<String>) {
        let span = self.last - self.first.unwrap_or(self.last);
        let rates = |unit: TimeUnit| {
            let seconds = span as f64 * unit.nanoseconds() as f64 / 1e18;
            ((requests - 1) as f64 / seconds, tokens as f64 / seconds)
        };
        let distance = |unit: &TimeUnit| (rates(*unit).1.max(1e-9) / TYPICAL_TOKENS_PER_S).ln().abs();
        let (is_load, (arrivals, rate)) = (requests >= MIN_LOAD, rates(unit));
        let other = if is_load && arrivals < 0.01 && rate < 10.0 {
            TimeUnit::NUMBERS.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(unit)
        } else if self.fractional || is_load && (arrivals > 10.0 || rate > 60_000.0) {
            TimeUnit::S
        } else {
            unit
        };
        if span == 0 || other == unit || is_overload(rates(other)) {
            return (unit, why, None);
        }
        let reading = |unit: TimeUnit| {
            let (arrivals, rate) = rates(unit);
            format!("in {} it would be {arrivals:.3} arrivals and {rate:.0} tokens a second", unit.name())
        };
        if is_load && is_overload((arrivals, rate)) {
            return (other, reading(unit), None);
        }
        let (field, name, readings) = (self.field, unit.name(), [unit, other].map(reading).join(", "));
        let doubt = format!("{field} is read in {name} ({why}): {readings}; --time-unit says which it is");
        (unit, why, Some(doubt))
    }
}

pub(super) fn nanoseconds(billionths: i128, unit: TimeUnit) -> u64 {
    // At most `MAX_NANOSECONDS`, which the reader has checked.
    u64::try_from(billionths * unit.nanoseconds() / BILLIONTHS).unwrap_or(u64::MAX)
}

/// A decimal number from 0 on, in billionths; digits after those are cut off, and what is too large for any use becomes the
/// largest number.
fn billionths(text: &str) -> Option<i128> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let negative = whole.starts_with('-');
    let digits = [whole.trim_start_matches(['-', '+']), fraction].concat();
    if digits.is_empty()
        || whole.rfind(['-', '+']).is_some_and(|at| at > 0)
        || !digits.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    if negative {
        return None;
    }
    // Digits that count: those up to the ninth after the point.
    let shift = i64::from(exponent) + 9 - fraction.len() as i64;
    let kept = (digits.len() as i64 + shift.min(0)).max(0) as usize;
    let number = |zeros: i64| {
        let number: i128 = digits[..kept].parse().ok()?;
        number.checked_mul(10_i128.checked_pow(u32::try_from(zeros).ok()?)?)
    };
    Some(if kept == 0 { 0 } else { number(shift.max(0)).unwrap_or(i128::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x18_numbers_are_read_to_the_last_digit() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0.0", Some(0)),
            ("4.5", Some(4_500_000_000)),
            (".5", Some(500_000_000)),
            ("1.", Some(1_000_000_000)),
            ("+1", Some(1_000_000_000)),
            ("1700000000.123456789", Some(1_700_000_000_123_456_789)),
            ("1700000000123456789", Some(1_700_000_000_123_456_789_000_000_000)),
            ("0.0000000019", Some(1)),
            ("1e-10", Some(0)),
            ("1.5E3", Some(1_500_000_000_000)),
            ("12e-1", Some(1_200_000_000)),
            ("1e308", Some(i128::MAX)),
            ("1e2147483647", Some(i128::MAX)),
            ("0e99", Some(0)),
        ] {
            assert_eq!(billionths(text), expected, "{text}");
        }
        for wrong in ["", "-", ".", "e5", "-1", "--1", "1-", "NaN", "inf", "1e", "1e99999999999", "0x10", "1 2", "soon"]
        {
            assert_eq!(billionths(wrong), None, "{wrong}");
        }
    }
}
