//! Tests the reader of lines (`lines.rs`): sizes of reads, long lines, and the last line.
//!
//! The input of a test is a string, or a [`Read`] that returns few bytes per call ([`Slow`]), so that line
//! ends fall on every place of the buffer.

use super::*;
use std::io::Cursor;

/// An input that returns a few bytes per read.
struct Slow(Cursor<Vec<u8>>, usize);

impl Read for Slow {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let few = space.len().min(self.1);
        self.0.read(&mut space[..few])
    }
}

/// Returns all lines, and checks their numbers.
fn all(mut lines: Lines) -> Result<Vec<String>, ReadError> {
    let mut found = Vec::new();
    while lines.advance()? {
        found.push(String::from_utf8_lossy(lines.line()).into_owned());
        assert_eq!(lines.number() as usize, found.len());
    }
    Ok(found)
}

#[test]
fn lines_do_not_depend_on_the_size_of_reads() {
    let expected: Vec<String> = (0..4000).map(|length| "x".repeat(length % 157)).collect();
    let text: String = expected.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    for few in [1, 7, 4096, 1 << 20] {
        let slow = Slow(Cursor::new(text.clone().into_bytes()), few);
        assert_eq!(all(Lines::new(Box::new(slow), Path::new("test"))).unwrap(), expected);
    }
}

#[test]
fn long_lines_are_read_up_to_the_limit() {
    let longest = format!("a\n{}\nb\n", "x".repeat(LONGEST));
    assert_eq!(all(Lines::of_text(longest)).unwrap().len(), 3);
    let longer = format!("a\n{}\nb\n", "x".repeat(LONGEST + 1));
    let error = all(Lines::of_text(longer)).unwrap_err();
    assert_eq!(error.to_string(), format!("test:2: the line is longer than {LONGEST} bytes"));
}

#[test]
fn endless_line_uses_bounded_memory() {
    let endless = Box::new(io::repeat(b'x'));
    let mut lines = Lines::new(endless, Path::new("test"));
    assert!(matches!(lines.advance(), Err(ReadError::TooLong { .. })));
    assert!(lines.buffer.len() <= 4 * LONGEST, "{}", lines.buffer.len());
}

#[test]
fn last_line_must_have_a_line_end() {
    let error = all(Lines::of_text("one\ntwo")).unwrap_err();
    assert_eq!(error.to_string(), "test:2: the file is cut off here: the last line has no line end");
}
