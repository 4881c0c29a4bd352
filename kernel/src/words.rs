//! The kernel's command line: `option… -- program argument…`. Without `--` the whole line belongs to the
//! program. Spaces separate words. `\` removes the special meaning of the next character, for example of a
//! space.
//!
//! `start.rs` splits the line and runs the program; `options.rs` interprets the options. `cargo xtask boot`
//! passes the program in the archive instead (`PROTOCOL.md`), so only a kernel that is started by hand gets
//! arguments from here. `cargo test --package freehold-kernel` runs the test below.

/// Splits a command line into the options, and the program with its arguments.
pub fn split(line: &str) -> (&str, &str) {
    if let Some(program) = line.strip_prefix("-- ") {
        return ("", program);
    }
    line.split_once(" -- ").unwrap_or(("", line))
}

/// Returns the words of a line, each as an iterator over its bytes.
pub fn words(line: &str) -> impl Iterator<Item = impl Iterator<Item = u8> + '_> + '_ {
    let mut left = line.as_bytes();
    core::iter::from_fn(move || {
        while let [b' ', rest @ ..] = left {
            left = rest;
        }
        if left.is_empty() {
            return None;
        }
        let (mut end, mut escaped) = (0, false);
        while end < left.len() && (escaped || left[end] != b' ') {
            escaped = !escaped && left[end] == b'\\';
            end += 1;
        }
        let (word, rest) = left.split_at(end);
        left = rest;
        let mut at = word.iter();
        Some(core::iter::from_fn(move || match at.next() {
            Some(b'\\') => at.next().copied(),
            other => other.copied(),
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{string::String, vec::Vec};

    #[test]
    fn command_line_is_split_into_options_and_words() {
        assert_eq!(split("a -- b c"), ("a", "b c"));
        assert_eq!(split("-- b c"), ("", "b c"));
        assert_eq!(split("b c"), ("", "b c"));
        let all: Vec<String> =
            words(r"  sh -c echo\ hi\ \\n  x ").map(|word| word.map(char::from).collect()).collect();
        assert_eq!(all, ["sh", "-c", r"echo hi \n", "x"]);
        assert_eq!(words("").count(), 0);
    }
}
