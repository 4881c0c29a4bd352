//! Judges the run of a test: compares status and output with the expected ones. `mod.rs` judges each run, and
//! `ltp.rs` uses [`tail`]. The checks run in the order of their usefulness for a reader: the status with the
//! last lines, then the first different line, then missing texts.

use super::table::Test;

/// Result of a run of a test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The exit status.
    pub status: u8,
    /// The output.
    pub output: String,
    /// A text to add to the message if the run failed.
    pub note: String,
}

/// Number of output lines that the message for a failed test shows.
const TAIL: usize = 20;

/// Judges a run.
///
/// # Errors
///
/// Fails with a description of what is wrong.
pub fn judge(test: &Test, seen: &Seen, linux: Option<&Seen>) -> Result<(), String> {
    look_at(test, seen, linux).map_err(|why| why + &seen.note)
}

/// Judges a run. `linux` is the run on Linux, if the test expects the same result as on Linux.
fn look_at(test: &Test, seen: &Seen, linux: Option<&Seen>) -> Result<(), String> {
    let wanted = linux.map_or(test.status, |linux| linux.status);
    if seen.status != wanted {
        return Err(format!("status {} instead of {wanted}{}", seen.status, tail(&seen.output)));
    }
    let expected = linux.map(|linux| linux.output.as_str()).or(test.output.as_deref());
    if let Some(expected) = expected
        && let Some(difference) = difference(expected, &seen.output)
    {
        return Err(difference);
    }
    match test.contains.iter().find(|part| !seen.output.contains(*part)) {
        Some(part) => Err(format!("the output lacks {part:?}{}", tail(&seen.output))),
        None => Ok(()),
    }
}

/// Describes the first line in which two texts differ. Returns `None` if the texts are equal.
#[must_use]
pub fn difference(expected: &str, seen: &str) -> Option<String> {
    if expected == seen {
        return None;
    }
    let (mut left, mut right) = (expected.lines(), seen.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (left, right) if left != right => {
                let side =
                    |line: Option<&str>| line.map_or("end of output".into(), |line| format!("{line:?}"));
                let (left, right) = (side(left), side(right));
                return Some(format!("line {number}:\n  expected {left}\n  found    {right}"));
            }
            _ => {}
        }
    }
    Some("the ends of the last lines differ".into())
}

/// Returns the last lines of a text, one below the other.
#[must_use]
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL)..];
    if last.is_empty() {
        return "; no output".into();
    }
    last.iter().fold("; last lines:".into(), |text, line| text + "\n  | " + line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: u8, output: &str) -> Seen {
        Seen { status, output: output.into(), note: String::new() }
    }

    #[test]
    fn status_output_and_contained_texts_are_checked() {
        let test = Test { output: Some("a\nb\n".into()), contains: vec!["b".into()], ..Test::default() };
        assert_eq!(judge(&test, &seen(0, "a\nb\n"), None), Ok(()));
        let why = judge(&test, &seen(1, "a\nb\n"), None).expect_err("the status");
        assert!(why.starts_with("status 1 instead of 0") && why.ends_with("| b"), "{why}");
        let why = judge(&test, &seen(0, "a\nc\n"), None).expect_err("the output");
        assert_eq!(why, "line 2:\n  expected \"b\"\n  found    \"c\"");
        let test = Test { contains: vec!["x".into()], ..Test::default() };
        assert!(judge(&test, &seen(0, ""), None).is_err_and(|why| why.contains("no output")));
    }

    #[test]
    fn run_on_linux_is_the_expected_result() {
        let test = Test { same_as_linux: true, ..Test::default() };
        assert_eq!(judge(&test, &seen(3, "x"), Some(&seen(3, "x"))), Ok(()));
        assert!(judge(&test, &seen(0, "x"), Some(&seen(3, "x"))).is_err());
        let why = judge(&test, &seen(0, "x"), Some(&seen(0, "x\n"))).expect_err("another end");
        assert_eq!(why, "the ends of the last lines differ");
        let why = judge(&test, &seen(0, "x"), Some(&seen(0, "x\ny"))).expect_err("fewer lines");
        assert_eq!(why, "line 2:\n  expected \"y\"\n  found    end of output");
    }
}
