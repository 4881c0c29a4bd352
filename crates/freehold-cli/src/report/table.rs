//! Aligned columns without lines.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Columns of a terminal that a report keeps to.
const WIDTH: usize = 100;
/// A first column is not cut shorter.
const LEAST_NAME: usize = 12;

/// Where columns stand.
pub struct Layout {
    /// Blanks before each row.
    pub indent: usize,
    /// Blanks between columns.
    pub gap: u16,
    /// Columns that are flush left; the others are flush right.
    pub left: usize,
}

impl Layout {
    /// How many columns of the terminal the columns behind the first leave to it.
    pub fn room(&self, rows: &[Vec<String>]) -> usize {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let others: usize = (1..columns).map(|column| width(rows, column) + usize::from(self.gap)).sum();
        WIDTH.saturating_sub(self.indent + others).max(LEAST_NAME)
    }

    /// Rows as text.
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

/// Of a column: its widest cell.
fn width(rows: &[Vec<String>], column: usize) -> usize {
    rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
}

/// Cells of a row.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Words in lines of at most 100 columns, each after `indent`, the further ones two deeper.
pub fn wrapped(indent: &str, words: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in words.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
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
