//! Tables of aligned columns without lines.
//!
//! Reports (`report/`, `tasks.rs`) build rows of texts, and [`Layout`] arranges the rows: cells flush left or
//! right, lines of at most 100 characters. A wider table is split into several tables with the same first
//! column. The contents of the cells do not matter here. The tests are in `table_tests.rs`.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Width of a report in columns of a terminal.
const WIDTH: usize = 100;
/// Smallest width of the first column.
const LEAST_NAME: usize = 12;

/// Positions of columns.
pub struct Layout {
    /// Number of blanks before each row.
    pub indent: usize,
    /// Number of blanks between columns.
    pub gap: u16,
    /// Number of columns that are flush left. The other columns are flush right.
    pub left: usize,
}

impl Layout {
    /// Returns the width that the other columns leave to the first column.
    pub fn room(&self, rows: &[Vec<String>]) -> usize {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let others: usize = (1..columns).map(|column| width(rows, column) + usize::from(self.gap)).sum();
        WIDTH.saturating_sub(self.indent + others).max(LEAST_NAME)
    }

    /// Splits a table that is too wide for a terminal into several tables, each with the first column. The
    /// first row contains the headings. If a heading `belongs` to the previous heading, their columns stay in
    /// one table. A group of such columns that is too wide is split.
    pub fn parts(&self, rows: Vec<Vec<String>>, belongs: impl Fn(&str) -> bool) -> Vec<Vec<Vec<String>>> {
        let wide = |column: &usize| usize::from(self.gap) + width(&rows, *column);
        let all = WIDTH.saturating_sub(self.indent + width(&rows, 0));
        let (mut parts, mut left) = (vec![vec![0]], all);
        for group in groups(&rows, belongs) {
            let together: usize = group.iter().map(wide).sum();
            // A group that fits into no part is split at any column.
            let mut needed = if together <= all { together } else { 0 };
            for column in &group {
                if needed.max(wide(column)) > left {
                    parts.push(vec![0]);
                    left = all;
                }
                parts.last_mut().expect("at least one part").push(*column);
                left = left.saturating_sub(wide(column));
                needed = 0;
            }
        }
        let of = |part: &Vec<usize>, row: &Vec<String>| {
            part.iter().filter_map(|at| row.get(*at).cloned()).collect()
        };
        parts.iter().map(|part| rows.iter().map(|row| of(part, row)).collect()).collect()
    }

    /// Returns the rows as text.
    pub fn text(&self, rows: Vec<Vec<String>>) -> String {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .add_rows(rows);
        for index in 0..columns {
            if let Some(column) = table.column_mut(index) {
                let left = index < self.left;
                column.set_padding((if index == 0 { 0 } else { self.gap }, 0));
                column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
            }
        }
        let mut text = String::new();
        for line in table.to_string().lines() {
            text.push_str(&" ".repeat(self.indent));
            text.push_str(line);
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}

/// Returns groups of columns, without the first column, that must stay together.
fn groups(rows: &[Vec<String>], belongs: impl Fn(&str) -> bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let headings = rows.first().map_or(&[][..], Vec::as_slice);
    for (column, heading) in headings.iter().enumerate().skip(1) {
        match groups.last_mut() {
            Some(group) if belongs(heading) => group.push(column),
            _ => groups.push(vec![column]),
        }
    }
    groups
}

/// Returns the width of the widest cell in a column.
fn width(rows: &[Vec<String>], column: usize) -> usize {
    rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
}

/// Returns the cells of a row.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Wraps words into lines of at most 100 columns. Each line begins with `indent`. All lines after the first
/// are indented by two more columns.
pub fn wrapped(indent: &str, words: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in words.split_whitespace() {
        let line = lines.last_mut().expect("at least one line");
        let used = line.chars().count();
        if used > indent.len() + 2 && used + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}  {word}"));
        } else {
            if used > indent.len() && !line.ends_with(' ') {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
