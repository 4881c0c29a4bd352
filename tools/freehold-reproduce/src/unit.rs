//! Units of figures, and their text form.
//!
//! Every cell and axis of the findings has a [`Unit`]. Texts, documents and pages format values with
//! [`Unit::text`], plots with [`Unit::tick`] and [`Unit::of_axis`]. Times are stored in nanoseconds and sizes
//! in bytes. Only the text form has larger units, such as ms and KiB. A new unit needs a variant of [`Unit`],
//! an arm in [`Unit::text`] and [`Unit::of_axis`], and a line in `unit_tests.rs`.

use freehold_replay::units;
use serde::Serialize;

/// A unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A time, in nanoseconds.
    Nanoseconds,
    /// A number.
    Count,
    /// A number per second.
    PerSecond,
    /// A number per minute.
    PerMinute,
    /// A size, in bytes.
    Bytes,
    /// A fraction, written as a signed percentage.
    Change,
    /// A fraction, written as a percentage.
    Share,
    /// A ratio.
    Times,
}

impl Unit {
    /// Returns a value with its unit, rounded as in reports.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => time(value),
            Unit::Count | Unit::PerSecond | Unit::PerMinute => count(value),
            Unit::Bytes => units::bytes(value as u64),
            Unit::Change => format!("{:+.1} %", value * 100.0),
            Unit::Share => share(value),
            Unit::Times => format!("{value:.2}"),
        }
    }

    /// Returns a short form of a value for the mark of an axis. Omits the unit that
    /// [`of_axis`](Self::of_axis) states.
    pub fn tick(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::PerSecond | Unit::PerMinute => {
                let (value, suffix) = match value {
                    1e9.. => (value / 1e9, " G"),
                    1e6.. => (value / 1e6, " M"),
                    1e3.. => (value / 1e3, " k"),
                    _ => (value, ""),
                };
                // At most three digits, without trailing zeroes.
                format!("{}{suffix}", (value * 100.0).round() / 100.0)
            }
            Unit::Nanoseconds if value < 1e3 => format!("{value:.0} ns"),
            // Marks are round numbers, so only zeroes can follow the decimal point.
            Unit::Nanoseconds => self.text(value).replace(".00 ", " "),
            _ => self.text(value),
        }
    }

    /// Returns the unit to write after the name of an axis.
    pub fn of_axis(self) -> &'static str {
        match self {
            Unit::Nanoseconds | Unit::Bytes | Unit::Times | Unit::Count => "",
            Unit::PerSecond => " (1/s)",
            Unit::PerMinute => " (1/min)",
            Unit::Change | Unit::Share => " (%)",
        }
    }
}

/// Formats a time in ns, us, ms or s.
fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        // A tenth of a nanosecond matters only for short times.
        0.05..99.95 => format!("{nanoseconds:.1} ns"),
        value => units::nanoseconds(value.round() as u64),
    }
}

/// Formats a fraction as a percentage.
fn share(part: f64) -> String {
    let percent = part * 100.0;
    let digits = if percent > 0.0 && percent < 1.0 { (-percent.log10() - 1e-9).ceil() as usize } else { 0 };
    format!("{percent:.digits$} %")
}

/// Formats a number. Abbreviates large numbers, such as `12.7 million`.
fn count(value: f64) -> String {
    match value {
        1e9.. => format!("{:.2} billion", value / 1e9),
        1e7.. => format!("{:.1} million", value / 1e6),
        0.05..10.0 if value.fract() != 0.0 => format!("{value:.1}"),
        _ => units::count(value.round() as u64),
    }
}

#[cfg(test)]
#[path = "unit_tests.rs"]
mod tests;
