//! Reads strace output: the lines that strace writes about the calls of a program.
//!
//! A call that returns before another task's line is one line. Otherwise the call has an unfinished and a
//! resumed line, and took effect between them. The reader reports the call at its return, with two exceptions
//! in which the output itself shows an earlier effect:
//!
//! - The creation of a task precedes the task's first line.
//! - A call that frees addresses (munmap, mremap, shmdt) precedes the call to which the kernel gave these
//!   addresses.
//!
//! `docs/reference/trace-format.md` describes the supported output and its interpretation.
//!
//! | file | contents |
//! | --- | --- |
//! | `feed.rs` | the lines, with a look ahead |
//! | `head.rs`, `time.rs` | the beginning of a line: task, time, kind of line |
//! | `text.rs`, `value.rs`, `vectors.rs`, `symbols.rs`, `errno.rs` | the text of a call: arguments, values, lists, names of constants and errors |
//! | `call.rs`, `signal.rs` | a parsed call ([`Made`]), a signal |
//! | `tasks.rs`, `descriptors.rs`, `mapped.rs`, `credentials.rs` | state: tasks and processes, descriptors, files, capabilities |
//! | `beside.rs` | calls that overlap in time |
//!
//! Terms: to *report* an event is to append it to the events that `next_event` returns. A call is *begun*
//! while its unfinished line was read and its resumed line was not. If a line that cannot be read may concern
//! memory, the line becomes a loss of events of its task. Any bytes must be accepted in bounded memory. The
//! tests are in `tests.rs` (single lines), `tests/strace.rs` (outputs of strace 6.1) and `tests/mutations.rs`
//! (damaged outputs). A new call is parsed in `call.rs`; its effect on tasks, files or limits belongs in
//! `StraceReader::meaning`.

mod beside;
mod call;
mod credentials;
mod descriptors;
mod errno;
mod feed;
mod head;
mod mapped;
mod signal;
mod symbols;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod value;
mod vectors;

use crate::error::{Bad, Place, ReadError};
use crate::fields::Fields;
use crate::files::Files;
use crate::lines::Lines;
use crate::operation::capability;
use crate::unread::Unread;
use crate::{Call, CallName, Cost, Event, Kind, Limits, Returned, Transfer};
use beside::Recent;
use call::{Made, MadeError};
use credentials::Credentials;
use feed::{Feed, Line};
use head::{Says, head, is_remark, says};
use mapped::Mapped;
use std::collections::{BTreeMap, VecDeque};
use tasks::{Begun, NAMELESS, Tasks};

/// Maximum number of names of skipped calls that are counted separately. All further names are counted
/// together.
const MAX_SKIPPED: usize = 1000;
/// Maximum length of a chain of calls in which each call is reported only after the next call of the chain.
/// Further calls stay in the order of their lines.
const MAX_WAITING: u32 = 8;

/// Reads the events of strace output.
pub(crate) struct StraceReader {
    /// The lines.
    feed: Feed,
    /// The limits in the first line (`# limits`), until they are reported.
    limits: Option<Limits>,
    /// The first task's effective user, if the first line contains it.
    user: Option<u32>,
    /// The time of the first line, in nanoseconds since 1970.
    begin: u64,
    /// The time of the current line and of the events that it reports, in nanoseconds since the first line.
    now: u64,
    /// The tasks and processes.
    tasks: Tasks,
    /// The files that calls have mapped.
    mapped: Mapped,
    /// Calls that later calls may overlap.
    recent: Recent,
    /// Events that were read and not returned yet.
    ready: VecDeque<Event>,
    /// Names of calls that do not concern memory, with their numbers of occurrences.
    skipped: BTreeMap<String, u64>,
    /// The lines that could not be read.
    unread: Unread,
    /// True if the last line was read.
    ended: bool,
}

/// Returns true if `line` may be the first line of strace output with option -ttt.
pub(crate) fn recognises(line: &[u8]) -> bool {
    let plausible = |line| {
        // Times of option -r begin at 0.
        let head = head(line).ok().filter(|head| head.time != 0)?;
        match says(head.rest, 0).ok()? {
            Says::Call(text) | Says::Begun(text) => head::name(text).map(|_| ()),
            _ => Some(()),
        }
    };
    is_remark(line) && (!line.starts_with(b"# ") || line.starts_with(LIMITS)) || plausible(line).is_some()
}

/// Returns true if `line` may be the first line of strace output without option -ttt.
pub(crate) fn lacks_times(line: &[u8]) -> bool {
    head::without_time(line).is_some_and(head::is_event)
}

impl StraceReader {
    /// Reads strace output from `lines`, whose current line is the first line.
    pub(crate) fn new(lines: Lines) -> Self {
        let limits = lines
            .line()
            .strip_prefix(LIMITS)
            .map(|text| limits_and_user(text).map_err(|bad| lines.wrong(bad.behind(LIMITS.len()))));
        let mut unread = Unread::default();
        let (limits, user) = match limits.transpose() {
            // If the first line cannot be read, the rest is still read.
            Err(error) => unread.note(error).map_or((None, None), |()| (None, None)),
            Ok(limits) => limits.map_or((None, None), |(limits, user)| (Some(limits), user)),
        };
        StraceReader {
            feed: Feed::new(lines),
            limits,
            user,
            begin: 0,
            now: 0,
            tasks: Tasks::default(),
            mapped: Mapped::default(),
            recent: Recent::default(),
            ready: VecDeque::new(),
            skipped: BTreeMap::new(),
            unread,
            ended: false,
        }
    }

    /// Returns the next event.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.feed.next()? {
                Some(line) => {
                    if let Err(error) = self.line(&line) {
                        self.pass_over(error, &line)?;
                    }
                }
                None => self.end(),
            }
        }
    }

    /// Returns the place of the last line read.
    pub(crate) fn place(&self) -> Place {
        self.feed.place(self.feed.last())
    }

    /// Returns the files that were mapped so far.
    pub(crate) fn files(&self) -> &Files {
        self.mapped.files()
    }

    /// Returns the calls that do not concern memory, each with its number of occurrences.
    pub(crate) fn skipped(&self) -> &BTreeMap<String, u64> {
        &self.skipped
    }

    /// Returns the lines that could not be read.
    pub(crate) fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Counts a line that cannot be read. If the line may concern memory, reports a loss of events: the
    /// mappings of its task are unknown afterwards.
    fn pass_over(&mut self, error: ReadError, line: &Line) -> Result<(), ReadError> {
        self.unread.note(error)?;
        if head::may_matter(&line.text) {
            let pid = head(&line.text).ok().map(|head| head.pid.unwrap_or(NAMELESS));
            let task = pid.and_then(|pid| self.tasks.get(pid)).map_or(0, |task| task.serial);
            self.report_of(task, line.number, Kind::Lost { events: 1 }, Cost::default());
        }
        Ok(())
    }

    /// Counts an error in a line that is used nevertheless.
    fn remark(&mut self, bad: Bad, line: &Line) -> Result<(), ReadError> {
        self.unread.note(self.feed.wrong(bad, line))
    }

    /// Reads a line: reports its events, or notes the beginning of a call.
    fn line(&mut self, line: &Line) -> Result<(), ReadError> {
        let head = head(&line.text).map_err(|bad| self.feed.wrong(bad, line))?;
        if self.tasks.is_empty() {
            self.begin = head.time;
            let pid = head.pid.unwrap_or(NAMELESS);
            self.tasks.first(pid).map_err(|bad| self.feed.wrong(bad, line))?;
            if let Some(credentials) = self.tasks.credentials(pid) {
                *credentials = Credentials::of_user(self.user);
            }
            if let Some(limits) = self.limits.take() {
                self.report(pid, line.number, Kind::Limits(Box::new(limits)), Cost::default());
            }
        }
        let before = self.begin.saturating_add(self.now);
        if head.time < before {
            // The clock was set back.
            self.remark(Bad::OutOfOrder(head.time, before), line)?;
        }
        let time = head.time.saturating_sub(self.begin).max(self.now);
        self.now = time;
        let at = line.text.len() - head.rest.len();
        let said = says(head.rest, at).map_err(|bad| self.feed.wrong(bad, line))?;
        let pid = head.pid.unwrap_or(NAMELESS);
        if !self.meet(pid, &said, line)? {
            return Ok(());
        }
        match said {
            Says::Call(text) => self.whole(pid, text, line, at),
            Says::Begun(text) => {
                self.give_up_another(pid, line)?;
                self.begun(pid, text, line).map_err(|bad| self.feed.wrong(bad.behind(at), line))
            }
            Says::Resumed(name, rest) => self.resumed(pid, name, rest, line, time, 0),
            Says::Signal(text) => {
                if let Some(kind) = signal::kind(text).map_err(|bad| self.feed.wrong(bad, line))? {
                    self.report(pid, line.number, kind, Cost::default());
                }
                Ok(())
            }
            Says::Ended => {
                self.exit(pid, line.number);
                Ok(())
            }
            Says::Superseded(by) => {
                self.exit(pid, line.number);
                match self.tasks.rename(by, pid) {
                    true => Ok(()),
                    false => self.stranger(pid, Bad::UnknownTask(by), line),
                }
            }
            Says::Nothing => Ok(()),
        }
    }

    /// Adds the task of a line to the known tasks, if it is new. If the line precedes the return of the clone
    /// that creates the task, the creation is reported now. Returns false if the line belongs to a task that
    /// an execve of its process has ended.
    fn meet(&mut self, pid: u32, said: &Says<'_>, line: &Line) -> Result<bool, ReadError> {
        if self.tasks.get(pid).is_some() {
            return Ok(true);
        }
        let ended = self.tasks.knows(pid);
        if ended && matches!(said, Says::Ended) {
            return Ok(true);
        }
        let candidates = self.tasks.cloning();
        match self.feed.parent(pid, candidates)? {
            Some(parent) => self.early(parent, pid).map(|()| true).map_err(|bad| self.feed.wrong(bad, line)),
            None if ended => Ok(false),
            None => self.stranger(pid, Bad::UnknownTask(pid), line).map(|()| true),
        }
    }

    /// Adds a task without a known creator. Its address space is unknown, so a loss of its events is
    /// reported.
    fn stranger(&mut self, pid: u32, bad: Bad, line: &Line) -> Result<(), ReadError> {
        self.remark(bad, line)?;
        self.report_of(0, line.number, Kind::Lost { events: 1 }, Cost::default());
        self.tasks.first(pid).map_err(|bad| self.feed.wrong(bad, line))?;
        self.report(pid, line.number, Kind::Lost { events: 1 }, Cost::default());
        Ok(())
    }

    /// Reports that the unfinished clone of `parent` has created `child`.
    fn early(&mut self, parent: u32, child: u32) -> Result<(), Bad> {
        let begun = self.tasks.get(parent).and_then(|task| task.begun.as_ref());
        let Some(begun) = begun else { return Err(Bad::UnknownTask(child)) };
        let (line, time) = (begun.line, begun.time);
        let flags = call::clone_flags(&begun.text, begun.name)?;
        let kind = self.tasks.create(parent, Some(child), flags)?;
        self.tasks.made(parent, child);
        let cost = Cost { before: self.now.checked_sub(time), ..Cost::default() };
        self.report(parent, line, kind, cost);
        Ok(())
    }

    /// Reports a call on a single line, whose text begins at byte `at`.
    fn whole(&mut self, pid: u32, text: &[u8], line: &Line, at: usize) -> Result<(), ReadError> {
        let (name, known) = call::which(text).map_err(|bad| self.feed.wrong(bad.behind(at), line))?;
        self.give_up_another(pid, line)?;
        let Some(known) = known else {
            self.not_held(pid, name, text, line.number);
            return Ok(());
        };
        let text = text::without_mark(text.to_vec());
        let made = call::read(&text, known).map_err(|bad| self.feed.wrong(bad.behind(at), line))?;
        if let Some(bad) = made.odd {
            self.remark(bad.behind(at), line)?;
        }
        let cost = Cost { after: made.end.took, ..Cost::default() };
        let lines = (line.number, line.number);
        self.made(pid, &made, lines, cost, 0)
            .map_err(|error| error.in_text(|bad| self.feed.wrong(bad.behind(at), line)))
    }

    /// Notes the beginning of a call.
    fn begun(&mut self, pid: u32, text: &[u8], line: &Line) -> Result<(), Bad> {
        let (name, known) = call::which(text)?;
        let Some(known) = known else {
            self.not_held(pid, name, text, line.number);
            return Ok(());
        };
        let frees = call::frees(text, known);
        let begun = Begun {
            name: known,
            text: text.to_vec(),
            line: line.number,
            time: self.now,
            frees,
            extent: None,
            child: None,
        };
        self.tasks.begin(pid, begun, call::clones(known))
    }

    /// Reports a loss of events if the task has begun an earlier call whose end is missing.
    fn give_up_another(&mut self, pid: u32, line: &Line) -> Result<(), ReadError> {
        if self.tasks.get(pid).is_some_and(|task| task.begun.is_some()) {
            self.tasks.take_begun(pid);
            self.remark(Bad::Expected(WITHIN, 0), line)?;
            self.report(pid, line.number, Kind::Lost { events: 1 }, Cost::default());
        }
        Ok(())
    }

    /// Reports a begun call at its end, at `time`. If the line was read ahead, the reported events have the
    /// time of the current line, which is earlier than `time`. `depth` is the number of calls that wait for
    /// this call.
    fn resumed(
        &mut self,
        pid: u32,
        name: &[u8],
        rest: &[u8],
        line: &Line,
        time: u64,
        depth: u32,
    ) -> Result<(), ReadError> {
        let name = str::from_utf8(name).ok().filter(|name| head::is_name(name));
        let Some(name) = name else {
            return Err(self.feed.wrong(Bad::Expected("the name of a call", 0), line));
        };
        let Some(begun) = self.tasks.take_begun(pid) else {
            let lost = call::parse(name).is_some_and(|known| {
                !matches!(known, CallName::Prctl | CallName::Fcntl | CallName::Ioctl) && !known.is_of_limits()
            });
            return if lost { Err(self.feed.wrong(Bad::Expected(NOT_BEGUN, 0), line)) } else { Ok(()) };
        };
        if call::parse(name) != Some(begun.name) {
            return Err(self.feed.wrong(Bad::Expected(NOT_BEGUN, 0), line));
        }
        let mut text = begun.text;
        text.extend_from_slice(rest);
        let text = text::without_mark(text);
        let wrong = |bad: Bad, place| bad.at(place, &text);
        let made = call::read(&text, begun.name).map_err(|bad| wrong(bad, self.feed.place(line.number)))?;
        if let Some(bad) = made.odd {
            self.unread.note(wrong(bad, self.feed.place(line.number)))?;
        }
        let took = made.end.took.or(time.checked_sub(begun.time));
        if let Some(child) = begun.child {
            let same = made.value().is_none_or(|value| value == u64::from(child));
            let other = Bad::Expected("the task whose lines are between those of this call", 0);
            return if same { Ok(()) } else { Err(self.feed.wrong(other, line)) };
        }
        let cost = Cost { before: took, after: Some(0), ..Cost::default() };
        self.made(pid, &made, (begun.line, line.number), cost, depth)
            .map_err(|error| error.in_text(|bad| wrong(bad, self.feed.place(line.number))))
    }

    /// Reports a call that has returned. Before this call, reports the calls that must have taken effect
    /// earlier. `lines` are the lines of the call's beginning and its return, and `depth` is the number of
    /// calls that wait for this call.
    fn made(
        &mut self,
        pid: u32,
        made: &Made<'_>,
        lines: (u32, u32),
        cost: Cost,
        depth: u32,
    ) -> Result<(), MadeError> {
        if let Some((from, to)) = made.took() {
            self.recent.enter((pid, made), &self.tasks);
            self.make_free(pid, from, to, depth)?;
            self.recent.leave();
        }
        let beside = self.recent.beside((pid, made), lines, &mut self.tasks, &mut self.feed)?;
        if let Some(mut kind) = self.meaning(pid, made, lines.0)? {
            if let Kind::Call(call) = &mut kind {
                call.beside = beside;
            }
            self.report(pid, lines.0, kind, cost);
        }
        Ok(())
    }

    /// Reports the calls that other tasks have begun and that must have freed these addresses. The resumed
    /// lines of these calls come later.
    fn make_free(&mut self, pid: u32, from: u64, to: u64, depth: u32) -> Result<(), ReadError> {
        if depth >= MAX_WAITING {
            return Ok(());
        }
        for other in self.tasks.freeing(pid, from, to) {
            if !beside::made_free(other, from..to, &mut self.tasks, &mut self.feed)? {
                continue;
            }
            let Some(line) = self.feed.take_return(other)? else { continue };
            let head = head(&line.text).map_err(|bad| self.feed.wrong(bad, &line))?;
            let Ok(Says::Resumed(name, rest)) = says(head.rest, 0) else { continue };
            let time = head.time.saturating_sub(self.begin);
            self.resumed(other, name, rest, &line, time, depth + 1)?;
        }
        Ok(())
    }

    /// Returns the event for a call that has returned, and applies the call to the state of its task. Returns
    /// `None` if no event is needed.
    fn meaning(&mut self, pid: u32, made: &Made<'_>, line: u32) -> Result<Option<Kind>, Bad> {
        let name = made.name;
        match (name, made.value()) {
            (CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork, Some(child)) => {
                let child = u32::try_from(child).map_err(|_| Bad::Expected("the number of a task", 0))?;
                let followed = (pid != NAMELESS).then_some(child);
                if self.tasks.knows(child) && followed.is_some() {
                    self.exit(child, line);
                }
                return self.tasks.create(pid, followed, made.flags()).map(Some);
            }
            (CallName::Execve | CallName::Execveat, Some(_)) => {
                for other in self.tasks.exec(pid) {
                    self.report_of(other, line, Kind::Exit { last: false }, Cost::default());
                }
                if let Some(may) = self.tasks.credentials(pid).and_then(Credentials::exec) {
                    self.may_lock(pid, may, line);
                }
                return Ok(Some(Kind::Exec { snapshot: None }));
            }
            (CallName::Exit, _) => self.tasks.leave(pid, false),
            (CallName::ExitGroup, _) => self.tasks.leave(pid, true),
            _ => {}
        }
        if name.is_of_limits() {
            return Ok(self.limits(pid, made));
        }
        let file = match self.tasks.descriptors(pid) {
            Some(descriptors) => self.mapped.file(made, descriptors, line)?,
            None => None,
        };
        let (args, returned) = (made.args, made.end.returned);
        let mut call = Call { name, args, returned, file, transfer: None, beside: Vec::new() };
        call.transfer = self.transfer(pid, made, &call).map(Box::new);
        Ok(Some(Kind::Call(Box::new(call))))
    }

    /// Applies a call that recordings do not contain. A call that cannot change the credentials is only
    /// counted. `text` may be incomplete.
    fn not_held(&mut self, pid: u32, name: &str, text: &[u8], line: u32) {
        if !credentials::concern(name, text) {
            return self.skip(name);
        }
        if let Some(may) = self.tasks.credentials(pid).and_then(|known| known.call(name, text)) {
            self.may_lock(pid, may, line);
        }
    }

    /// Reports, as a capset, whether the process of `pid` may lock more than its limit from now on.
    fn may_lock(&mut self, pid: u32, may: bool, line: u32) {
        let args = [if may { capability::IPC_LOCK } else { 0 }, 0, 0, 0, 0, 0];
        let (name, returned) = (CallName::Capset, Returned::Value(0));
        let call = Call { name, args, returned, file: None, transfer: None, beside: Vec::new() };
        self.report(pid, line, Kind::Call(Box::new(call)), Cost::default());
    }

    /// Returns the event for a call that has changed limits. The process that the call names is given by its
    /// serial number.
    fn limits(&mut self, pid: u32, made: &Made<'_>) -> Option<Kind> {
        let mut args = made.args;
        if made.name == CallName::Capset && self.tasks.credentials(pid)?.is_apart() {
            args[0] = 0;
        }
        if made.name == CallName::Prlimit64 && args[0] != 0 {
            let other = u32::try_from(args[0]).ok().and_then(|pid| self.tasks.get(pid))?;
            args[0] = other.process.into();
        }
        made.value()?;
        let (name, returned) = (made.name, made.end.returned);
        let (file, transfer, beside) = (None, None, Vec::new());
        Some(Kind::Call(Box::new(Call { name, args, returned, file, transfer, beside })))
    }

    /// Returns the ranges of memory that a call names, if strace shows all of them.
    fn transfer(&self, pid: u32, made: &Made<'_>, call: &Call) -> Option<Transfer> {
        let (local, remote) = made.vectors.as_ref()?;
        if !local.complete || !remote.complete || made.end.returned == Returned::Never {
            return None;
        }
        // strace shows only a part of the list.
        if made.name == CallName::ProcessMadvise && made.args[2] != remote.pieces.len() as u64 {
            return None;
        }
        let other = match made.name {
            CallName::ProcessMadvise => call.advises_itself().then_some(pid),
            _ => u32::try_from(made.args[0]).ok(),
        };
        let process = other.and_then(|pid| self.tasks.get(pid));
        Some(Transfer {
            process: process.map(|task| task.process),
            local: local.pieces.clone(),
            remote: remote.pieces.clone(),
            shown: local.shown.clone(),
        })
    }

    /// Counts a call that does not concern memory.
    fn skip(&mut self, name: &str) {
        let known = self.skipped.contains_key(name) || self.skipped.len() < MAX_SKIPPED;
        *self.skipped.entry(if known { name } else { "others" }.to_owned()).or_default() += 1;
    }

    /// Reports the exit of a task, unless it was reported before.
    fn exit(&mut self, pid: u32, line: u32) {
        if let Some((serial, last)) = self.tasks.exit(pid) {
            self.report_of(serial, line, Kind::Exit { last }, Cost::default());
        }
    }

    /// Ends the tasks that were about to exit when the output ended: with option -qq, strace writes no lines
    /// about exits.
    fn end(&mut self) {
        self.ended = true;
        for pid in self.tasks.leaving() {
            self.exit(pid, self.feed.last());
        }
    }

    /// Reports an event of the task with this PID, if the task is known.
    fn report(&mut self, pid: u32, line: u32, kind: Kind, cost: Cost) {
        if let Some(serial) = self.tasks.get(pid).map(|task| task.serial) {
            self.report_of(serial, line, kind, cost);
        }
    }

    /// Reports an event of the task with this serial number. 0 means an unknown task.
    fn report_of(&mut self, task: u32, line: u32, kind: Kind, cost: Cost) {
        self.ready.push_back(Event { line, time: self.now, cpu: None, task, kind, cost });
    }
}

/// Parses the rest of the first line, after `# limits`. `freehold record` writes this line before the output
/// of strace.
fn limits_and_user(text: &[u8]) -> Result<(Limits, Option<u32>), Bad> {
    let mut fields = Fields::new(text);
    let limits = Limits::read(&mut fields)?;
    let user = fields.eat_text(b" u").then(|| fields.decimal_u32("the effective user")).transpose()?;
    fields.end().map(|()| (limits, user))
}

/// The beginning of the first line that `freehold record` writes before the output of strace. The command's
/// resource limits follow.
const LIMITS: &[u8] = b"# limits";
/// The expected line of a task that has begun a call, for messages.
const WITHIN: &str = "the end of the call that this task has begun";
/// The expected contents of a resumed line, for messages.
const NOT_BEGUN: &str = "the end of a call that this task has begun";
