//! Reads figures back from a results document, as `text::markdown` writes it.
//!
//! The page compares the figures of its run with those of the stored documents (`docs/results`), so it reads
//! both in the same way. [`Results::row`] finds a row by words of its titles, because the wording of a stored
//! document may be older than that of the program. `five_steps_tests.rs` checks that the stored documents
//! have the wanted rows.

/// A results document.
pub struct Results<'t>(&'t str);

/// A row of a table: its name, and two of its cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Name of the row.
    pub row: String,
    /// The cell before the change, with its value.
    pub before: (String, f64),
    /// The cell after the change.
    pub after: (String, f64),
}

impl<'t> Results<'t> {
    pub fn of(text: &'t str) -> Results<'t> {
        Results(text)
    }

    /// Returns the last row of an experiment's tables for which `wanted(title, row)` is true and both columns
    /// have values. Spreads are left out.
    pub fn row(
        &self,
        experiment: &str,
        wanted: impl Fn(&str, &str) -> bool,
        [before, after]: [&str; 2],
    ) -> Option<Pair> {
        let heading = format!("## {experiment}");
        let lines = self.0.lines().skip_while(|line| *line != heading).skip(1);
        let (mut title, mut columns, mut found) = ("", Vec::new(), None);
        for line in lines.take_while(|line| !line.starts_with("## ")) {
            if let Some(named) = line.strip_prefix("**").and_then(|rest| rest.strip_suffix("**")) {
                (title, columns) = (named, Vec::new());
            }
            let Some(cells) = line.strip_prefix("| ") else { continue };
            let cells: Vec<&str> = cells.trim_end_matches(" |").split(" | ").map(str::trim).collect();
            if columns.is_empty() {
                columns = cells;
                continue;
            }
            let cell = |name| {
                let at = columns.iter().position(|column| *column == name)?;
                value(cells.get(at)?)
            };
            if let (true, Some(before), Some(after)) = (wanted(title, cells[0]), cell(before), cell(after)) {
                found = Some(Pair { row: cells[0].to_owned(), before, after });
            }
        }
        found
    }
}

/// Returns the text of a cell without its spread, and its value: a time in nanoseconds, or a number.
fn value(cell: &str) -> Option<(String, f64)> {
    let text = cell.split(['±', '[']).next()?.trim();
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: f64 = number.replace(',', "").parse().ok()?;
    let factor = match unit {
        "" | "ns" => 1.0,
        "us" => 1e3,
        "ms" | "million" => 1e6,
        "s" | "billion" => 1e9,
        _ => return None,
    };
    Some((text.to_owned(), number * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Results\n\n## other\n\n**time**\n\n| size | A | B |\n| --- | --- | --- |\n| 1 | 7 | 8 |\n\n\
        ## one\n\n**time**\n\n| size | A | change | B |\n| --- | --- | --- | --- |\n| 1 GiB | 5 us ±2 % | - | 2.5 million |\n\
        | 2 GiB | 472 ms [1 ms, 2 s] | +1.0 % | 1,812 |\n| 4 GiB | - | - | 3 |\n\n**count**\n\n| size | A | B |\n| 9 | 1 | 1 |\n";

    #[test]
    fn last_row_with_both_values_is_found() {
        let found = Results::of(TEXT).row("one", |title, _| title == "time", ["A", "B"]).expect("a row");
        assert_eq!(found.row, "2 GiB");
        assert_eq!((found.before, found.after), (("472 ms".to_owned(), 472e6), ("1,812".to_owned(), 1812.0)));
        let first = Results::of(TEXT).row("one", |_, row| row.starts_with('1'), ["A", "B"]).expect("a row");
        assert_eq!((first.before.1, first.after.1), (5e3, 2.5e6));
    }

    #[test]
    fn absent_experiment_table_or_column_has_no_row() {
        let text = Results::of(TEXT);
        assert_eq!(text.row("two", |_, _| true, ["A", "B"]), None);
        assert_eq!(text.row("one", |title, _| title == "waits", ["A", "B"]), None);
        assert_eq!(text.row("one", |title, _| title == "time", ["A", "C"]), None);
    }
}
