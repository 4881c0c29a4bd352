//! The beginning of a line: the task, the time, and the kind of line.
//!
//! 1. [`head`] splits a line into PID, time and rest.
//! 2. [`says`] returns the kind of the rest: a call, its beginning or its end, a signal, the end of a task.
//!
//! `feed.rs` and `mod.rs` call both functions for every line; `text.rs` parses the text of a call. A line of
//! another form is an error, which the reader counts as an unread line; [`may_matter`] then decides if a loss
//! of events is reported. Nothing is stored. The tests are in `tests.rs`.

use super::call;
use super::time::{SECOND, fraction};
use crate::error::Bad;
use crate::fields::Fields;

/// A line, split into the parts that all lines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// The PID of the task, if the output has a column for it (option -f).
    pub(super) pid: Option<u32>,
    /// The time in nanoseconds since 1970.
    pub(super) time: u64,
    /// The rest of the line.
    pub(super) rest: &'a [u8],
}

/// The contents of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says<'a> {
    /// The complete text of a call that returned, or of a call in which its task ended.
    Call(&'a [u8]),
    /// The beginning of a call: strace wrote another task's line before the call returned.
    Begun(&'a [u8]),
    /// The end of a call: its name, and the rest of its text.
    Resumed(&'a [u8], &'a [u8]),
    /// `--- SIGNAL {...} ---`, without the dashes.
    Signal(&'a [u8]),
    /// The end of the task.
    Ended,
    /// The end of a process's leader: another task of the process called execve and takes over the PID of the
    /// leader. Contains the old PID of that task.
    Superseded(u32),
    /// A line without information about memory.
    Nothing,
}

/// Returns true for a message of strace about itself, and for a comment.
pub(super) fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"strace: ") || line.starts_with(b"# ")
}

/// Splits a line into PID, time and rest.
pub(super) fn head(line: &[u8]) -> Result<Head<'_>, Bad> {
    let mut fields = Fields::new(line);
    let mut number = fields.decimal("a task's number or a time")?;
    let mut pid = None;
    if fields.peek() == Some(b' ') {
        pid = Some(u32::try_from(number).map_err(|_| Bad::Expected("a task's number", 0))?);
        while fields.eat(b' ') {}
        number = fields.decimal("a time in seconds since 1970, as option -ttt gives it")?;
    }
    let begin = fields.position();
    let time = fraction(&mut fields)
        .and_then(|fraction| number.checked_mul(SECOND)?.checked_add(fraction))
        .ok_or(Bad::Expected("a time in seconds since 1970, as option -ttt gives it", begin))?;
    fields.blank("a blank after the time")?;
    while fields.eat(b' ') {}
    Ok(Head { pid, time, rest: fields.rest() })
}

/// Returns the rest of a line after its task and its time, both optional. The time may be that of an option
/// other than `-ttt`: a time of day (`-t`, `-tt`), or the seconds since the previous line (`-r`).
pub(super) fn without_time(line: &[u8]) -> Option<&[u8]> {
    let line = line.trim_ascii_start();
    let line = match line.strip_prefix(b"[pid ") {
        Some(line) => &line[find(line, b"] ")? + 2..],
        None => line,
    };
    let is_word = |word: &[u8], others: &[u8]| {
        !word.is_empty() && word.iter().all(|byte| byte.is_ascii_digit() || others.contains(byte))
    };
    let skip = |line: &'_ [u8], others: &[u8]| {
        let end = line.iter().position(|byte| *byte == b' ').filter(|end| is_word(&line[..*end], others));
        end.map_or(0, |end| line.len() - line[end..].trim_ascii_start().len())
    };
    let line = &line[skip(line, b"")..];
    Some(&line[skip(line, b"+.:")..])
}

/// Returns true if `text` is a call in strace's notation, or the end of a task.
pub(super) fn is_event(text: &[u8]) -> bool {
    let called =
        name(text).is_some_and(|(name, _)| name.starts_with(|first: char| first.is_ascii_lowercase()));
    called
        && (find(text, b") = ").is_some()
            || find(text, b")  ").is_some()
            || text.ends_with(b"<unfinished ...>"))
        || text.starts_with(b"+++ exited with ")
}

/// Returns the contents of the rest of a line, which begins at byte `at`.
pub(super) fn says(rest: &[u8], at: usize) -> Result<Says<'_>, Bad> {
    if let Some(signal) = rest.strip_prefix(b"--- ") {
        let signal =
            signal.strip_suffix(b" ---").ok_or(Bad::Expected("` ---` at the end of the line", at))?;
        return Ok(Says::Signal(signal));
    }
    if let Some(end) = rest.strip_prefix(b"+++ ") {
        return ended(end).ok_or(Bad::Expected("`+++ exited with CODE +++` or the like", at));
    }
    if let Some(resumed) = rest.strip_prefix(b"<... ") {
        let missing = Bad::Expected("`<... NAME resumed>`", at);
        let end = find(resumed, b" resumed>").ok_or(missing)?;
        return Ok(Says::Resumed(&resumed[..end], &resumed[end + b" resumed>".len()..]));
    }
    if let Some(begun) = rest.strip_suffix(b"<unfinished ...>") {
        return Ok(Says::Begun(begun.trim_ascii_end()));
    }
    if rest.ends_with(b"<detached ...>") {
        return Ok(Says::Nothing);
    }
    Ok(Says::Call(rest))
}

/// Parses `+++ ... +++`: the end of a task, or of a leader that an execve superseded.
fn ended(text: &[u8]) -> Option<Says<'_>> {
    let text = text.strip_suffix(b" +++")?;
    if text.starts_with(b"exited with ") || text.starts_with(b"killed by ") {
        return Some(Says::Ended);
    }
    let mut fields = Fields::new(text.strip_prefix(b"superseded by execve in pid ")?);
    let pid = fields.decimal_u32("").ok()?;
    fields.is_empty().then_some(Says::Superseded(pid))
}

/// Returns true if an unreadable line may have changed a task's mappings. Returns false for signals, ends of
/// tasks, and calls that do not concern memory.
pub(super) fn may_matter(line: &[u8]) -> bool {
    let Ok(head) = head(line) else { return true };
    if head.rest.starts_with(b"--- ") || head.rest.starts_with(b"+++ ") {
        return false;
    }
    let called = match says(head.rest, 0) {
        Ok(Says::Call(text) | Says::Begun(text)) => name(text).map(|(name, _)| name),
        Ok(Says::Resumed(name, _)) => str::from_utf8(name).ok().filter(|name| is_name(name)),
        _ => None,
    };
    called.is_none_or(|name| call::parse(name).is_some())
}

/// Returns the offset of the first occurrence of `part` in `text`.
pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Returns the name at the beginning of a call's text, and the text after the parenthesis.
pub(super) fn name(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'(')?;
    let name = str::from_utf8(&text[..end]).ok()?;
    is_name(name).then_some((name, &text[end + 1..]))
}

/// Returns true if the text has the form of a call's name. strace shows `???` for a call whose beginning it
/// did not see.
pub(super) fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'?';
    (1..=64).contains(&name.len()) && name.bytes().all(letter)
}
