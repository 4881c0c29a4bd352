//! What figures count, and how that is written.

use freehold_replay::units;
use serde::Serialize;

/// A unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A time, in nanoseconds.
    Nanoseconds,
    /// So many.
    Count,
    /// So many in a second.
    PerSecond,
    /// So many in a minute.
    PerMinute,
    /// A size, in bytes.
    Bytes,
    /// A part of one, written in percent with its sign.
    Change,
    /// A part of one, written in percent.
    Share,
    /// How many times as much.
    Times,
}

impl Unit {
    /// A value with its unit, three digits where they are enough.
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

    /// A value at the mark of an axis: short, and without what [`of_axis`](Self::of_axis) says.
    pub fn tick(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::PerSecond | Unit::PerMinute => {
                let (value, suffix) = match value {
                    1e9.. => (value / 1e9, " G"),
                    1e6.. => (value / 1e6, " M"),
                    1e3.. => (value / 1e3, " k"),
                    _ => (value, ""),
                };
                // At most three digits, and none that say nothing.
                format!("{}{suffix}", (value * 100.0).round() / 100.0)
            }
            Unit::Nanoseconds if value < 1e3 => format!("{value:.0} ns"),
            // Marks are round numbers.
            Unit::Nanoseconds => self.text(value).replace(".00 ", " "),
            _ => self.text(value),
        }
    }

    /// What stands beside an axis' name.
    pub fn of_axis(self) -> &'static str {
        match self {
            Unit::Nanoseconds | Unit::Bytes | Unit::Times | Unit::Count => "",
            Unit::PerSecond => " (1/s)",
            Unit::PerMinute => " (1/min)",
            Unit::Change | Unit::Share => " (%)",
        }
    }
}

fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        // Where a tenth of a nanosecond means something.
        0.05..99.95 => format!("{nanoseconds:.1} ns"),
        value => units::nanoseconds(value.round() as u64),
    }
}

fn share(part: f64) -> String {
    let percent = part * 100.0;
    let digits = if percent > 0.0 && percent < 1.0 { (-percent.log10() - 1e-9).ceil() as usize } else { 0 };
    format!("{percent:.digits$} %")
}

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
