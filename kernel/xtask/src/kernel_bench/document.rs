//! Reads the figures that `bench.rs` printed, makes tables of them, and writes the tables to their place in
//! documents.
//!
//! The tables of instructions have one row for each entry of `rows.rs`, the median of its figures, and its
//! target. The tables of times have the best of many runs, because other load of the host only makes runs
//! slower. A later run replaces the text between two marks in a document, so the marks must not change while
//! documents contain them.
//!
//! A new row of instructions belongs in `rows.rs`, and a new row of times in `times`. The tests below check
//! figures, targets and the replacement.

use std::{collections::BTreeMap, fs, path::Path};

use super::rows::{Aim, ROWS};

/// The mark before the tables in a document.
const BEGIN: &str = "<!-- kernel: written by `cargo xtask boot --bench --linux --markdown` -->\n";
/// The mark after the tables.
const END: &str = "<!-- end of kernel -->\n";
/// The heading that is written with the tables if a document has no marks. `freehold reproduce` keeps a
/// section with this heading.
const HEADING: &str = "\n## The kernel\n\n";

/// The figures that a program printed: the numbers of each name, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    /// Reads lines with a name and a number. Other lines are ignored.
    #[must_use]
    pub fn read(output: &str) -> Self {
        let mut figures = Self::default();
        for line in output.lines() {
            let number = |text: &str| text.trim().parse::<f64>().ok();
            if let Some((name, number)) = line.split_once(' ').and_then(|(n, text)| Some((n, number(text)?)))
            {
                figures.0.entry(name.into()).or_default().push(number);
            }
        }
        figures
    }

    /// Returns true if the program ran to its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.0.contains_key("done")
    }

    /// Returns the largest figure of a name.
    fn largest(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.iter().copied().reduce(f64::max)
    }

    /// Returns the smallest figure of a name.
    fn smallest(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.iter().copied().reduce(f64::min)
    }

    /// Returns the median of the figures of a name.
    fn median(&self, name: &str) -> Option<f64> {
        let mut all = self.0.get(name)?.clone();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }
}

/// All figures of a kernel.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// The kernel's name in the tables.
    pub name: String,
    /// Instructions.
    pub counts: Figures,
    /// Nanoseconds and rates: the figures with one CPU, then those with two.
    pub times: [Figures; 2],
    /// The longest time with interrupts off, from the kernel's log.
    pub longest: Option<String>,
}

/// Returns the tables of one kernel, or of two kernels side by side.
#[must_use]
pub fn tables(ours: &Measured, linux: Option<&Measured>) -> String {
    let mut text = format!("{}\n", instructions(ours, linux));
    if let Some(longest) = &ours.longest {
        text.push_str(&format!("The longest time with interrupts off, in long calls: {longest}.\n\n"));
    }
    text.push_str(&times(ours, linux));
    text
}

/// Returns the first two lines of a table.
fn head(first: &str, ours: &Measured, linux: Option<&Measured>, last: Option<&str>) -> String {
    let mut cells = vec![first.to_owned(), ours.name.clone()];
    cells.extend(linux.map(|linux| linux.name.clone()));
    cells.extend(linux.map(|_| "ratio".to_owned()));
    cells.extend(last.map(str::to_owned));
    let rule = vec!["---".to_owned(); cells.len()];
    format!("{}{}", line(&cells), line(&rule))
}

/// Returns a line of a table.
fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the table of instructions.
fn instructions(ours: &Measured, linux: Option<&Measured>) -> String {
    let mut text = head("instructions", ours, linux, Some("target"));
    for row in ROWS {
        let own = ours.counts.median(row.name);
        let other = linux.map(|linux| linux.counts.median(row.name));
        let wanted = match (row.aim, other.flatten()) {
            (Aim::AtMost(most), _) => Some(most),
            (Aim::Half, other) => other.map(|other| other / 2.0),
            (Aim::None, _) => None,
        };
        let wanted = wanted.map_or("-".to_owned(), |most| {
            let missed = own.is_some_and(|own| own > most);
            format!("{}{}", whole(Some(most)), if missed { ", missed" } else { "" })
        });
        text.push_str(&line(&cells(row.what, own, other, whole, Some(wanted))));
    }
    text
}

/// Returns the cells of a row: the label, the figures of both kernels, their ratio, and the last cell.
fn cells(
    what: &str,
    own: Option<f64>,
    other: Option<Option<f64>>,
    shown: fn(Option<f64>) -> String,
    last: Option<String>,
) -> Vec<String> {
    let mut cells = vec![what.to_owned(), shown(own)];
    if let Some(other) = other {
        cells.push(shown(other));
        let ratio = own.zip(other).map(|(own, other)| own / other);
        cells.push(ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
    }
    cells.extend(last);
    cells
}

/// Returns the table of times.
fn times(ours: &Measured, linux: Option<&Measured>) -> String {
    /// A function that selects a figure.
    type Figure = fn(&Measured) -> Option<f64>;
    /// A function that formats a figure for a table.
    type Shown = fn(Option<f64>) -> String;
    let rows: [(&str, Figure, Shown); 8] = [
        ("faults per second, one CPU", |m| m.times[0].largest("faults-1"), whole),
        ("faults per second, one thread on two CPUs", |m| m.times[1].largest("faults-1"), whole),
        ("faults per second, two threads", |m| m.times[1].largest("faults-2"), whole),
        (
            "throughput of two threads relative to one",
            |m| Some(m.times[1].largest("faults-2")? / m.times[1].largest("faults-1")?),
            hundredths,
        ),
        ("mmap + munmap without other load, 99th percentile", |m| m.times[1].smallest("alone-p99"), micros),
        (
            "mmap + munmap during a munmap of 1 GiB, 99th percentile",
            |m| m.times[1].smallest("beside-p99"),
            micros,
        ),
        ("mmap + munmap during a munmap of 1 GiB, maximum", |m| m.times[1].smallest("beside-most"), micros),
        ("munmap of 1 GiB", |m| m.times[1].smallest("munmap-gib"), micros),
    ];
    let mut text = head("time, best of many runs", ours, linux, None);
    for (what, figure, shown) in rows {
        text.push_str(&line(&cells(what, figure(ours), linux.map(figure), shown, None)));
    }
    text
}

/// Formats a number without its fraction, in groups of three digits.
#[must_use]
pub fn whole(number: Option<f64>) -> String {
    let Some(number) = number else { return "-".into() };
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with two digits of its fraction.
fn hundredths(number: Option<f64>) -> String {
    number.map_or("-".into(), |number| format!("{number:.2}"))
}

/// Formats nanoseconds as microseconds.
fn micros(number: Option<f64>) -> String {
    let Some(us) = number.map(|ns| ns / 1000.0) else { return "-".into() };
    if us < 100.0 { format!("{us:.1} us") } else { format!("{} us", whole(Some(us))) }
}

/// Writes the tables to their place in a document: between the marks, or at its end.
///
/// # Errors
///
/// Fails if the document cannot be read or written.
pub fn write(path: &Path, tables: &str) -> Result<(), String> {
    let said = |error: std::io::Error| format!("cannot update {}: {error}", path.display());
    let document = fs::read_to_string(path).map_err(said)?;
    fs::write(path, put(&document, tables)).map_err(said)
}

/// Returns the document with the tables between the marks, or with the tables and marks at its end if it has
/// no marks.
fn put(document: &str, tables: &str) -> String {
    let marked = document.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    match marked {
        Some((head, tail)) => format!("{head}{BEGIN}\n{tables}\n{END}{tail}"),
        None => format!("{document}{HEADING}{BEGIN}\n{tables}\n{END}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, counts: &str) -> Measured {
        Measured { name: name.into(), counts: Figures::read(counts), ..Measured::default() }
    }

    #[test]
    fn figures_are_read_from_lines_with_a_name_and_a_number() {
        let figures =
            Figures::read("[    0.1] Linux says something\nfault 12.5\nfault 13\nfault 11\ndone 1\n");
        assert!(figures.is_whole());
        assert_eq!((figures.median("fault"), figures.largest("fault")), (Some(12.5), Some(13.0)));
        assert_eq!(figures.median("other"), None);
    }

    #[test]
    fn missed_target_is_marked() {
        let (own, other) =
            (measured("A", "fault 1500\nfork-page 40"), measured("B", "fault 3000\nfork-page 100"));
        let both = instructions(&own, Some(&other));
        assert!(both.contains("| 1,500 | 3,000 | 0.50 | 1,400, missed |"), "{both}");
        assert!(both.contains("| 40 | 100 | 0.40 | 50 |"), "{both}");
        let alone = instructions(&own, None);
        assert!(alone.contains("| 40 | - |\n") && alone.contains("| 1,500 | 1,400, missed |"), "{alone}");
    }

    #[test]
    fn new_tables_replace_the_old_ones() {
        let once = put("text\n", "| old |\n");
        assert_eq!(once, format!("text\n{HEADING}{BEGIN}\n| old |\n\n{END}"));
        assert_eq!(put(&once, "| new |\n"), once.replace("old", "new"));
    }
}
