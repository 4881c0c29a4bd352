//! The front of a line: the task, the time, and what kind of line it is.

use super::call;
use super::time::{SECOND, fraction};
use crate::error::Bad;
use crate::fields::Fields;

/// A line of the text, taken apart as far as all lines are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// The task, where the text has a column for it.
    pub(super) pid: Option<u32>,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    /// What follows.
    pub(super) rest: &'a [u8],
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says<'a> {
    /// A call that returned, or was left by a task that ended in it: the whole text of it.
    Call(&'a [u8]),
    /// A call that had not returned when another task's line came: the text so far.
    Begun(&'a [u8]),
    /// It returned: its name, and the rest of its text.
    Resumed(&'a [u8], &'a [u8]),
    /// `--- SIGNAL {...} ---`, without the dashes.
    Signal(&'a [u8]),
    /// The task ended.
    Ended,
    /// The leader of a process ended because this other task of it did an execve, and took its number.
    Superseded(u32),
    /// Nothing about memory.
    Nothing,
}

/// Lines that strace writes about itself when its text goes to the terminal, and remarks of others.
pub(super) fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"strace: ") || line.starts_with(b"# ")
}

/// Takes a line apart.
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
    fields.blank("a blank behind the time")?;
    while fields.eat(b' ') {}
    Ok(Head { pid, time, rest: fields.rest() })
}

/// Returns the rest of a line behind its task, if it has one, and behind a time of another kind than option
/// `-ttt` gives: a time of day (`-t`, `-tt`), or seconds since the line before (`-r`).
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

/// Returns whether `text` is a call as strace writes it, or the end of a task.
pub(super) fn is_event(text: &[u8]) -> bool {
    let called =
        name(text).is_some_and(|(name, _)| name.starts_with(|first: char| first.is_ascii_lowercase()));
    called
        && (find(text, b") = ").is_some()
            || find(text, b")  ").is_some()
            || text.ends_with(b"<unfinished ...>"))
        || text.starts_with(b"+++ exited with ")
}

/// What the rest of a line, which begins at `at`, says.
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

fn ended(text: &[u8]) -> Option<Says<'_>> {
    let text = text.strip_suffix(b" +++")?;
    if text.starts_with(b"exited with ") || text.starts_with(b"killed by ") {
        return Some(Says::Ended);
    }
    let mut fields = Fields::new(text.strip_prefix(b"superseded by execve in pid ")?);
    let pid = fields.decimal_u32("").ok()?;
    fields.is_empty().then_some(Says::Superseded(pid))
}

/// A line that cannot be read may have changed what a task has mapped. Signals and ends of tasks do not, nor
/// do calls of other names.
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

/// Where `part` first occurs in `text`.
pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The name with which the text of a call begins, and what follows the parenthesis.
pub(super) fn name(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'(')?;
    let name = str::from_utf8(&text[..end]).ok()?;
    is_name(name).then_some((name, &text[end + 1..]))
}

/// It has the form of a call's name; strace shows `???` for one that it did not see begin.
pub(super) fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'?';
    (1..=64).contains(&name.len()) && name.bytes().all(letter)
}
