use super::*;

const LAYOUT: Layout = Layout { indent: 4, gap: 2, left: 1 };

fn headings(part: &[Vec<String>]) -> String {
    part[0].iter().map(|heading| heading.trim_end_matches('.')).collect::<Vec<_>>().join(" ")
}

/// Headings of so many letters each; those that begin with a small one belong to the one before.
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
fn what_fits_stays_one() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 42)]), ["N A B"]);
    assert_eq!(parts(&[("N", 10)]), ["N"]);
}

#[test]
fn what_does_not_fit_begins_again_with_the_names() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 43)]), ["N A", "N B"]);
    assert_eq!(parts(&[("N", 10), ("A", 30), ("B", 30), ("C", 30), ("D", 30)]), ["N A B", "N C D"]);
}

#[test]
fn what_belongs_together_stays_together_where_it_fits() {
    assert_eq!(parts(&[("N", 10), ("A", 40), ("B", 20), ("c", 30)]), ["N A", "N B c"]);
    assert_eq!(parts(&[("N", 10), ("A", 40), ("b", 30), ("c", 30), ("d", 30)]), ["N A b", "N c d"]);
}

#[test]
fn a_long_name_leaves_little_room() {
    assert_eq!(LAYOUT.room(&[vec!["x".repeat(99), "y".repeat(20), "z".repeat(9)]]), 100 - 4 - 22 - 11);
    assert_eq!(LAYOUT.room(&[vec!["x".repeat(99), "y".repeat(99)]]), 12);
}
