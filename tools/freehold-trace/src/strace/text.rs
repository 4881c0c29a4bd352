//! The text of one call: its arguments, its result and its duration.
//!
//! `mod.rs` splits a line into a head (`head.rs`) and a text such as `munmap(0x7f00, 4096) = 0 <0.000013>`.
//! [`args`] returns the arguments as slices of the text, and [`end`] parses the rest. `value.rs` and
//! `call.rs` determine the meaning of the arguments. A *note* is the path that option -y adds in `<...>`
//! after a descriptor. All functions must accept any bytes: strings, nested brackets and notes may contain
//! commas and parentheses. Errors name the offset in the text. The tests are in `tests.rs`.

use super::errno;
use super::head::find;
use super::time::seconds;
use crate::Returned;
use crate::error::Bad;
use crate::fields::Fields;

/// Maximum number of arguments of a call, and of elements of a list. The kernel refuses longer lists.
const MAX_ARGS: usize = 1024;
/// The mark that strace writes into a call that never returned.
const LEFT: &[u8] = b"<unfinished ...>)";

/// An argument as strace wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arg<'a> {
    /// The text, without blanks around it.
    pub(super) text: &'a [u8],
    /// The offset in the text of the call.
    pub(super) at: usize,
}

/// The parts of the text after the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End<'a> {
    /// The result of the call.
    pub(super) returned: Returned,
    /// The note on a returned descriptor, if strace wrote one (option -y).
    pub(super) note: Option<&'a [u8]>,
    /// The duration in nanoseconds, if strace wrote it (option -T).
    pub(super) took: Option<u64>,
}

/// Returns the comma-separated parts of `text` from `begin` on (arguments, members of a structure, or
/// elements of a list), and the offset of the closing bracket after them. The offset is `None` if the text
/// ends before a closing bracket.
pub(super) fn args(text: &[u8], begin: usize) -> Result<(Vec<Arg<'_>>, Option<usize>), Bad> {
    let mut found = Vec::new();
    let (mut at, mut start, mut depth) = (begin, begin, 0_usize);
    let mut push = |start: usize, end: usize| {
        let untrimmed = &text[start..end];
        let trimmed = untrimmed.trim_ascii_start();
        let at = start + untrimmed.len() - trimmed.len();
        found.push(Arg { text: trimmed.trim_ascii_end(), at });
        if found.len() > MAX_ARGS { Err(Bad::Expected("fewer arguments", at)) } else { Ok(()) }
    };
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = string_end(text, at)?,
            b'/' if text[at..].starts_with(b"/*") => at = behind(text, at, b"*/")?,
            b'<' if is_note(text, at) => at = note_end(text, at)?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => {
                if at > begin {
                    push(start, at)?;
                }
                return Ok((found, Some(at)));
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                push(start, at)?;
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if !text[start.min(text.len())..].trim_ascii().is_empty() {
        push(start, text.len())?;
    }
    Ok((found, None))
}

/// Parses the text after the arguments, which end at offset `at`.
pub(super) fn end(text: &[u8], at: usize) -> Result<End<'_>, Bad> {
    let mut fields = Fields::new(&text[at..]);
    while fields.eat(b' ') {}
    if !fields.eat_text(b"= ") {
        return Err(Bad::Expected("`= ` and the result", at + fields.position()));
    }
    let begin = at + fields.position();
    let missing = Bad::Expected("the result: a number, `-1 ERROR`, or `?`", begin);
    let (returned, note) = returned(&text[begin..]).ok_or(missing)?;
    Ok(End { returned, note, took: took(text) })
}

/// Removes the mark `<unfinished ...>` from the text of a call that never returned.
pub(super) fn without_mark(text: Vec<u8>) -> Vec<u8> {
    let Some(at) = text.windows(LEFT.len()).rposition(|window| window == LEFT) else { return text };
    let mut without = text[..at].trim_ascii_end().to_vec();
    without.extend_from_slice(&text[at + LEFT.len() - 1..]);
    without
}

/// Parses the result at the beginning of `text`, with its errno or note. Returns `None` if it is invalid.
fn returned(text: &[u8]) -> Option<(Returned, Option<&[u8]>)> {
    if let Some(why) = text.strip_prefix(b"?") {
        let mut words = Fields::new(why.trim_ascii_start());
        let error = str::from_utf8(words.until(b' ')).ok().and_then(errno::number);
        return Some((error.map_or(Returned::Never, Returned::Error), None));
    }
    if let Some(why) = text.strip_prefix(b"-1 ") {
        if let Some(number) = why.strip_prefix(b"(errno ") {
            let number = Fields::new(number).decimal("").ok()?;
            return Some((
                Returned::Error(u16::try_from(number).ok().filter(|number| *number < 4096)?),
                None,
            ));
        }
        let name = str::from_utf8(Fields::new(why).until(b' ')).ok()?;
        return Some((Returned::Error(errno::number(name)?), None));
    }
    let mut fields = Fields::new(text);
    let value = if fields.eat_text(b"0x") {
        fields.hex("").ok()?
    } else if fields.eat(b'-') {
        fields.decimal("").ok()?.wrapping_neg()
    } else {
        fields.decimal("").ok()?
    };
    let at = fields.position();
    let note = if is_note(text, at) { note_end(text, at).ok().map(|end| &text[at + 1..end]) } else { None };
    let behind = note.map_or(at, |note| at + note.len() + 2);
    matches!(text.get(behind), None | Some(b' ' | b'(')).then_some((Returned::Value(value), note))
}

/// Parses ` <0.000013>` at the end of the text.
fn took(text: &[u8]) -> Option<u64> {
    let front = text.strip_suffix(b">")?;
    let at = front.iter().rposition(|byte| *byte == b'<')?;
    seconds(&front[at + 1..])
}

/// Returns the index of the quote that ends the string at `at`.
fn string_end(text: &[u8], at: usize) -> Result<usize, Bad> {
    let mut end = at + 1;
    while let Some(byte) = text.get(end) {
        match byte {
            b'"' => return Ok(end),
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    Err(Bad::Expected("a complete string", at))
}

/// Returns the index of the last byte of the first `part` after `at`.
fn behind(text: &[u8], at: usize, part: &[u8]) -> Result<usize, Bad> {
    let found = find(&text[at..], part).ok_or(Bad::Expected("a complete comment", at))?;
    Ok(at + found + part.len() - 1)
}

/// Returns true if the `<` at `at` begins a note on a descriptor, as in `3</etc/passwd>`. A shift, as in
/// `21<<MAP_HUGE_SHIFT`, is not a note.
pub(super) fn is_note(text: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| text.get(before));
    text.get(at) == Some(&b'<')
        && before.is_some_and(u8::is_ascii_alphanumeric)
        && !matches!(text.get(at + 1), None | Some(b'<' | b' ' | b'.'))
}

/// Returns the index of the `>` that ends the note at `at`. Notes on sockets contain `->` before an address,
/// and names of files may end in `-`.
fn note_end(text: &[u8], at: usize) -> Result<usize, Bad> {
    let is_path = text.get(at + 1) == Some(&b'/');
    let ends = |index: usize| {
        let next = text.get(index + 1);
        text[index] == b'>'
            && (is_path || text[index - 1] != b'-')
            && matches!(next, None | Some(b',' | b')' | b']' | b'}' | b' ' | b'('))
    };
    let found = (at + 1..text.len()).find(|index| ends(*index));
    found.ok_or(Bad::Expected("a complete note on a descriptor", at))
}
