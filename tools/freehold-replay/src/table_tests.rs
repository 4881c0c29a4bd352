//! Tests the layout of tables that are wider than the terminal (`table.rs`). A case is a list of headings
//! with the widths of their columns; `parts` returns the headings of each part into which the table is split,
//! and checks that no part is too wide.

use super::*;

const LAYOUT: Layout = Layout { indent: 4, gap: 2, left: 1 };

fn headings(part: &[Vec<String>]) -> String {
    part[0].iter().map(|heading| heading.trim_end_matches('.')).collect::<Vec<_>>().join(" ")
}

/// Splits headings of the given widths. A heading that begins with a small letter belongs to the previous
/// heading.
fn parts(columns: &[(&str, usize)]) -> Vec<String> {
    let head = columns.iter().map(|(name, width)| format!("{name:.<width$}")).collect();
    let parts = LAYOUT.parts(vec![head, vec!["x".to_owned(); columns.len()]], |heading| {
        heading.starts_with(char::is_lowercase)
    });
    for part in &parts {
        assert!(part.iter().all(|row| row.len() == part[0].len()));
        assert!(LAYOUT.text(part.clone()).lines().all(|line| line.chars().count() <= WIDTH));
    }
    parts.iter().map(|part| headings(part)).collect()
}

#[test]
fn table_that_fits_is_not_split() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 42)]), ["N A B"]);
    assert_eq!(parts(&[("N", 10)]), ["N"]);
}

#[test]
fn each_part_begins_with_the_first_column() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 43)]), ["N A", "N B"]);
    assert_eq!(parts(&[("N", 10), ("A", 30), ("B", 30), ("C", 30), ("D", 30)]), ["N A B", "N C D"]);
}

#[test]
fn groups_stay_together_if_they_fit() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 20), ("c", 30)]), ["N A", "N B c"]);
    assert_eq!(parts(&[("N", 10), ("A", 40), ("b", 30), ("c", 30), ("d", 30)]), ["N A b", "N c d"]);
}

#[test]
fn first_column_gets_the_remaining_width() {
    assert_eq!(LAYOUT.room(&[vec!["x".repeat(99), "y".repeat(20), "z".repeat(9)]]), 100 - 4 - 22 - 11);
    assert_eq!(LAYOUT.room(&[vec!["x".repeat(99), "y".repeat(99)]]), 12);
}
