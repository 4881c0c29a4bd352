//! The lines of strace output. Looks ahead where the order of lines is not the order of effects.
//!
//! [`Feed`] is a queue between the file (`lines.rs`) and the reader (`mod.rs`). strace may print the first
//! line of a new task before the line in which the creating clone returns. strace may also print a call that
//! maps freed addresses before the line in which the munmap of these addresses returns. The reader then asks
//! for a later line ([`Feed::take_return`], [`Feed::see_return`], [`Feed::parent`]), and the feed reads
//! ahead, within limits of lines and bytes. A line that was taken is not returned again. If the limits are
//! reached, the answer is "not found", and events stay in the order of their lines. The tests of such outputs
//! are in `tests.rs`, for example `creator_of_a_child_is_found_in_later_lines`.

use super::head::{Says, head, is_remark, says};
use crate::error::{Bad, Place, ReadError};
use crate::lines::Lines;
use std::collections::VecDeque;

/// Maximum number of bytes that are read ahead.
const MAX_AHEAD: usize = 16 << 20;
/// Number of lines ahead that are searched for the end of a call. Enough for several calls of each task that
/// runs at the same time.
const FAR: usize = 1 << 12;
/// Number of lines ahead that are searched for the creator of a task. This number is larger than [`FAR`],
/// because a vfork returns only after the child's exec or exit.
const FURTHER: usize = 1 << 16;

/// A line of the output.
pub(super) struct Line {
    /// The number, from 1.
    pub(super) number: u32,
    /// The text.
    pub(super) text: Vec<u8>,
}

/// The queue of lines.
pub(super) struct Feed {
    /// The file.
    lines: Lines,
    /// True if the current line of `lines` is the first line and has not been returned.
    first: bool,
    /// Lines that were read and not yet returned.
    ahead: VecDeque<Line>,
    /// Number of bytes of the lines in `ahead`.
    bytes: usize,
}

impl Feed {
    /// Reads strace output from `lines`, whose current line is the first line.
    pub(super) fn new(lines: Lines) -> Self {
        Feed { lines, first: true, ahead: VecDeque::new(), bytes: 0 }
    }

    /// Returns the next line. Comments and strace's remarks about itself are skipped.
    pub(super) fn next(&mut self) -> Result<Option<Line>, ReadError> {
        if let Some(line) = self.ahead.pop_front() {
            self.bytes -= line.text.len();
            return Ok(Some(line));
        }
        self.read()
    }

    /// Returns the error about `line`.
    pub(super) fn wrong(&self, bad: Bad, line: &Line) -> ReadError {
        bad.at(Place { line: line.number, ..self.lines.place() }, &line.text)
    }

    /// Returns the number of the last line read.
    pub(super) fn last(&self) -> u32 {
        self.lines.number()
    }

    /// Returns the place of `line`.
    pub(super) fn place(&self, line: u32) -> Place {
        Place { line, ..self.lines.place() }
    }

    /// Removes and returns the line in which the begun call of task `pid` returns. Returns `None` if the line
    /// is not found.
    pub(super) fn take_return(&mut self, pid: u32) -> Result<Option<Line>, ReadError> {
        let mut index = 0;
        while index < FAR && self.reach(index)? {
            match of(&self.ahead[index]) {
                Some((of, Says::Resumed(..))) if of == pid => {
                    let line = self.ahead.remove(index);
                    self.bytes -= line.as_ref().map_or(0, |line| line.text.len());
                    return Ok(line);
                }
                Some((of, _)) if of == pid => return Ok(None),
                _ => index += 1,
            }
        }
        Ok(None)
    }

    /// Returns the text after `resumed>` in the line in which the begun call of task `pid` returns. The line
    /// stays in the queue. Returns `None` if the line is not found.
    pub(super) fn see_return(&mut self, pid: u32) -> Result<Option<Vec<u8>>, ReadError> {
        let mut index = 0;
        while index < FAR && self.reach(index)? {
            match of(&self.ahead[index]) {
                Some((of, Says::Resumed(_, rest))) if of == pid => return Ok(Some(rest.to_vec())),
                Some((of, _)) if of == pid => return Ok(None),
                _ => index += 1,
            }
        }
        Ok(None)
    }

    /// Returns the task that has created task `child`. The `candidates` are the tasks whose clone has not
    /// returned. The creator is the candidate whose clone returns the number of the child. A candidate whose
    /// clone returns another number is excluded; if only one candidate remains, that candidate is the
    /// creator. If the lines ahead do not decide, returns the first candidate.
    pub(super) fn parent(&mut self, child: u32, mut candidates: Vec<u32>) -> Result<Option<u32>, ReadError> {
        let mut index = 0;
        while candidates.len() > 1 && index < FURTHER && self.reach(index)? {
            if let Some((pid, Says::Resumed(_, rest))) = of(&self.ahead[index])
                && candidates.contains(&pid)
            {
                if returns(rest, child) {
                    return Ok(Some(pid));
                }
                candidates.retain(|candidate| *candidate != pid);
            }
            index += 1;
        }
        Ok(candidates.first().copied())
    }

    /// Reads ahead until `ahead` has line `index`. Returns false if the output ends before that line, or if
    /// the lines in `ahead` exceed their limit.
    fn reach(&mut self, index: usize) -> Result<bool, ReadError> {
        while self.ahead.len() <= index {
            if self.bytes > MAX_AHEAD {
                return Ok(false);
            }
            let Some(line) = self.read()? else { return Ok(false) };
            self.bytes += line.text.len();
            self.ahead.push_back(line);
        }
        Ok(true)
    }

    /// Reads the next line of the file, past the lines in `ahead`.
    fn read(&mut self) -> Result<Option<Line>, ReadError> {
        loop {
            if !std::mem::take(&mut self.first) && !self.lines.advance()? {
                return Ok(None);
            }
            if !is_remark(self.lines.line()) {
                let (number, text) = (self.lines.number(), self.lines.line().to_vec());
                return Ok(Some(Line { number, text }));
            }
        }
    }
}

/// Returns the task and the contents of a line.
fn of(line: &Line) -> Option<(u32, Says<'_>)> {
    let head = head(&line.text).ok()?;
    Some((head.pid?, says(head.rest, 0).ok()?))
}

/// Returns true if `rest`, the end of a call's text, shows that the call returned `child`.
fn returns(rest: &[u8], child: u32) -> bool {
    let Some(at) = rest.windows(4).rposition(|window| window == b") = ") else { return false };
    let mut fields = crate::fields::Fields::new(&rest[at + 4..]);
    fields.decimal_u32("").is_ok_and(|pid| pid == child)
}
