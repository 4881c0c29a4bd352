//! The lines of the text, with a look ahead where the order of lines is not the order of what happened.

use super::head::{Says, head, is_remark, says};
use crate::error::{Bad, Place, ReadError};
use crate::lines::Lines;
use std::collections::VecDeque;

/// Most bytes that are read ahead.
const MOST_AHEAD: usize = 16 << 20;
/// How many lines ahead the end of a call is looked for: the calls of all tasks that run, several times over.
const FAR: usize = 1 << 12;
/// How many lines ahead the creator of a task is looked for: until a vfork's child has let its creator go on.
const FURTHER: usize = 1 << 16;

/// A line that has been read.
pub(super) struct Line {
    /// Its number, from 1.
    pub(super) number: u32,
    /// Its text.
    pub(super) text: Vec<u8>,
}

/// The lines of the text.
pub(super) struct Feed {
    lines: Lines,
    /// The current line of `lines` is the first one, which nobody has taken yet.
    first: bool,
    ahead: VecDeque<Line>,
    bytes: usize,
}

impl Feed {
    /// Those of `lines`, whose current line is the first.
    pub(super) fn new(lines: Lines) -> Self {
        Feed { lines, first: true, ahead: VecDeque::new(), bytes: 0 }
    }

    /// The next line.
    pub(super) fn next(&mut self) -> Result<Option<Line>, ReadError> {
        if let Some(line) = self.ahead.pop_front() {
            self.bytes -= line.text.len();
            return Ok(Some(line));
        }
        self.read()
    }

    /// The error about `line`.
    pub(super) fn wrong(&self, bad: Bad, line: &Line) -> ReadError {
        bad.at(Place { line: line.number, ..self.lines.place() }, &line.text)
    }

    /// The number of the last line read.
    pub(super) fn last(&self) -> u32 {
        self.lines.number()
    }

    /// Where `line` is.
    pub(super) fn place(&self, line: u32) -> Place {
        Place { line, ..self.lines.place() }
    }

    /// Takes the line in which the unfinished call of task `pid` returns, if it can be found.
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

    /// What the line says in which the unfinished call of task `pid` returns, if it can be found; the line
    /// stays.
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

    /// Which of the tasks `candidates`, each within a clone, has made task `child`: the one whose clone
    /// returns that number, or the one that is left when the others' have returned another. The first, if
    /// the text does not tell.
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

    /// Reads until line `index` of those ahead is there; false if the text ends before or is too long.
    fn reach(&mut self, index: usize) -> Result<bool, ReadError> {
        while self.ahead.len() <= index {
            if self.bytes > MOST_AHEAD {
                return Ok(false);
            }
            let Some(line) = self.read()? else { return Ok(false) };
            self.bytes += line.text.len();
            self.ahead.push_back(line);
        }
        Ok(true)
    }

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

/// Whose line it is, and what it says.
fn of(line: &Line) -> Option<(u32, Says<'_>)> {
    let head = head(&line.text).ok()?;
    Some((head.pid?, says(head.rest, 0).ok()?))
}

/// The rest of a call's text says that it returned `child`.
fn returns(rest: &[u8], child: u32) -> bool {
    let Some(at) = rest.windows(4).rposition(|window| window == b") = ") else { return false };
    let mut fields = crate::fields::Fields::new(&rest[at + 4..]);
    fields.decimal_u32("").is_ok_and(|pid| pid == child)
}
