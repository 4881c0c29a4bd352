//! Formats numbers for readers: separated thousands, at most three significant digits, a unit.
//!
//! Reports, tables and pictures format all their numbers here, so that one quantity has one form. The
//! functions are pure. They return `None` for a value that cannot be computed, such as a ratio to zero. The
//! JSON report does not use this file: it has plain numbers with a unit in the key. The tests are in
//! `units_tests.rs`.

use std::time::Duration;

/// Formats a count as `1,846`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun as `1 call`, `1,846 calls`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats nanoseconds as `840 ns`, `2.1 us`, `31 us`, `4.4 ms`, `10.1 s`.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} us", short(ns as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", short(ns as f64 / 1e6)),
        _ => format!("{} s", long(ns as f64 / 1e9)),
    }
}

/// Formats a duration like [`nanoseconds`].
pub fn duration(time: Duration) -> String {
    nanoseconds(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Formats the mean time of `count` operations, which took `time` in total.
pub fn each(time: Duration, count: u64) -> String {
    match count {
        0 => "-".to_owned(),
        _ => nanoseconds(u64::try_from(time.as_nanos() / u128::from(count)).unwrap_or(u64::MAX)),
    }
}

/// Formats the ratio of `whole` to `part` as `48`, `3.2`, `1,200`. Returns `None` if either is zero.
pub fn ratio(whole: Duration, part: Duration) -> Option<String> {
    if whole.is_zero() || part.is_zero() {
        return None;
    }
    let ratio = whole.as_secs_f64() / part.as_secs_f64();
    Some(match ratio {
        ..0.1 => "<0.1".to_owned(),
        0.1..1.0 => format!("{ratio:.2}"),
        1.0..10.0 => short(ratio),
        _ => count(ratio.round() as u64),
    })
}

/// Formats a share as `98.7 %`.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0 %".to_owned(),
        _ if part == 0 || part == whole => format!("{} %", part / whole * 100),
        _ => {
            // A share below 100 % is never rounded to 100 %.
            let percent = (part as f64 / whole as f64 * 100.0).clamp(0.01, 99.99);
            if (0.1..99.9).contains(&percent) { format!("{percent:.1} %") } else { format!("{percent:.2} %") }
        }
    }
}

/// Formats the number of events per second, for example as `1.45 million`.
pub fn rate(events: u64, time: Duration) -> Option<String> {
    if time.is_zero() || events == 0 {
        return None;
    }
    let rate = events as f64 / time.as_secs_f64();
    Some(if rate >= 1e6 { format!("{rate:.2} million", rate = rate / 1e6) } else { count(rate as u64) })
}

/// Formats bytes in the largest binary unit with a value of at least 1: `1 GiB`, `132 KiB`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(value), UNITS[unit])
}

/// Formats a value below ten with two digits, and a larger value as a whole number.
fn short(value: f64) -> String {
    let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Formats a value with three digits.
fn long(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => count(value.round() as u64),
    }
}

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;
