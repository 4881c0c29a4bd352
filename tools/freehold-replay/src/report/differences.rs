//! The list of answers that differ from Linux's, at the end of the reports in `single.rs` and `compare.rs`.
//! Each entry has the line of the recording, the operation, both answers, and the engine's VMAs near the
//! address.

use crate::outcome::{Difference, Outcome};
use crate::units;
use std::fmt::Write;

/// Returns the number of differences and the first of them. Returns an empty string if there are none.
pub fn differences(outcome: &Outcome) -> String {
    if outcome.difference_count == 0 {
        return String::new();
    }
    let mut text = format!("  {}", units::counted(outcome.difference_count, "difference"));
    let shown = outcome.differences.len() as u64;
    if shown < outcome.difference_count {
        write!(text, "; the first {}", units::count(shown)).expect("writing to a String cannot fail");
    }
    text.push_str(":\n");
    for difference in &outcome.differences {
        text.push('\n');
        text.push_str(&one(&outcome.name, difference));
    }
    text.push('\n');
    text
}

fn one(name: &str, difference: &Difference) -> String {
    let Difference { line, task, what, linux, freehold, maps } = difference;
    let mut text = format!("    {name}, line {line}, task {task}: {what}\n");
    answer(&mut text, "Linux", linux);
    answer(&mut text, "Freehold", freehold);
    if !maps.is_empty() {
        text.push_str("      nearby VMAs in Freehold:\n");
        for line in maps {
            writeln!(text, "        {}", line.trim_end()).expect("writing to a String cannot fail");
        }
    }
    text
}

/// Writes an answer. Further lines of the answer are aligned below the first.
fn answer(text: &mut String, whose: &str, answer: &str) {
    for (index, line) in answer.lines().enumerate() {
        let whose = if index == 0 { whose } else { "" };
        writeln!(text, "      {whose:<10}{}", line.trim_end()).expect("writing to a String cannot fail");
    }
}
