//! Reads `NAME.trace`: one event per line, after a header with the version and the name.
//!
//! The reader checks each line by itself and against the earlier lines ([`Seen`]: times ascend, tasks and
//! files are known). An unreadable line becomes a loss of events, and the lines after it are read. `write.rs`
//! writes this format, and the tests (`trace_tests.rs`) read its output. A new operation, field or letter
//! needs an arm here and in `write.rs`, a line in `docs/reference/trace-format.md`, and a higher [`VERSION`].

use crate::error::{Bad, Place, ReadError, excerpt};
use crate::fields::Fields;
use crate::files::Files;
use crate::lines::Lines;
use crate::numbers::Numbers;
use crate::operation::{rlimit, uffdio};
use crate::unread::Unread;
use crate::{
    Call, CallName, Cost, Event, FaultCode, FileInfo, Kind, Limits, Returned, TmpfsHuge, Transfer, Why,
};
use std::collections::BTreeMap;

/// The latest version of `NAME.trace`; older versions are also read. `NAME.snap` has only one version.
pub(crate) const VERSION: u32 = 3;
pub(crate) const SNAP_VERSION: u32 = 1;
/// `CLONE_THREAD`: the new task belongs to the process of its creator.
const CLONE_THREAD: u64 = 0x10000;
/// Maximum number of settings of the machine.
const MAX_SETTINGS: usize = 1000;
/// Maximum length of a setting in bytes. Longer settings are ignored.
const MAX_OF_SETTING: usize = 200;

/// Reads the events of a recording.
pub(crate) struct TraceReader {
    /// The lines of the file. The current line is the line that was read last.
    lines: Lines,
    /// The contents of earlier lines.
    seen: Seen,
    unread: Unread,
    /// The next event to return: the end of a loss of an unknown task, if there is one. An unreadable line is
    /// a loss that begins and ends at that line.
    over: Option<Event>,
}

/// The contents of earlier lines that decide whether a line is valid.
pub(crate) struct Seen {
    /// The version in the header.
    version: u32,
    /// The time of the last event, in nanoseconds.
    time: u64,
    /// The tasks that were created so far.
    tasks: Numbers,
    /// The tasks that have exited.
    exited: Numbers,
    /// The files that are defined.
    files: Files,
    /// The settings of the machine by name.
    machine: BTreeMap<String, String>,
}

/// The contents of a first line `# FORMAT VERSION NAME`.
pub(crate) enum Header {
    /// A header of a supported version, with the version and the name.
    Name(u32, String),
    /// A header of an unsupported version.
    Version(String),
    /// Not a header.
    None,
}

/// Parses a first line. `latest` is the highest supported version.
pub(crate) fn header(line: &[u8], format: &str, latest: u32) -> Header {
    let Some(rest) = line.strip_prefix(b"# ").and_then(|rest| rest.strip_prefix(format.as_bytes())) else {
        return Header::None;
    };
    let Some(rest) = rest.strip_prefix(b" ") else { return Header::None };
    let mut fields = Fields::new(rest);
    let version = fields.until(b' ');
    let Some(known) = (1..=latest).find(|known| version == known.to_string().as_bytes()) else {
        return Header::Version(excerpt(version));
    };
    match fields.blank("").and_then(|()| fields.rest_text()) {
        Ok(name) if !name.is_empty() => Header::Name(known, name.to_owned()),
        _ => Header::None,
    }
}

impl TraceReader {
    /// Reads the lines after the header. The current line of `lines` is the header.
    pub(crate) fn new(lines: Lines, version: u32) -> Self {
        TraceReader { lines, seen: Seen { version, ..Seen::new() }, unread: Unread::default(), over: None }
    }

    /// Returns the next event.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        if let Some(over) = self.over.take() {
            return Ok(Some(over));
        }
        while self.lines.advance()? {
            let line = self.lines.line();
            let number = self.lines.number();
            let read = match line.first() {
                Some(b'#') => self.seen.comment(line).map(|()| None),
                _ => self.seen.event(line, number).map(Some),
            };
            let event = match read {
                Ok(event) => event,
                Err(bad) => {
                    self.unread.note(self.lines.wrong(bad))?;
                    let lost = self.seen.lost_with(line, number);
                    let nobodys = lost.clone().filter(|lost| lost.task == 0);
                    self.over = nobodys.map(|lost| Event { kind: Kind::Lost { events: 0 }, ..lost });
                    lost
                }
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Returns the lines that could not be read.
    pub(crate) fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Returns the place of the current line.
    pub(crate) fn place(&self) -> Place {
        self.lines.place()
    }

    /// Returns the files that are defined so far.
    pub(crate) fn files(&self) -> &Files {
        &self.seen.files
    }

    /// Returns the settings of the machine by name.
    pub(crate) fn machine(&self) -> &BTreeMap<String, String> {
        &self.seen.machine
    }
}

impl Seen {
    /// Returns the state before the first line, in which only task 1 exists.
    pub(crate) fn new() -> Self {
        let mut tasks = Numbers::default();
        let first = tasks.insert(1, "task", "tasks");
        debug_assert_eq!(first, Ok(()));
        Seen {
            version: VERSION,
            time: 0,
            tasks,
            exited: Numbers::default(),
            files: Files::default(),
            machine: BTreeMap::new(),
        }
    }

    /// Parses a line that begins with `#`: the definition of a file, a setting of the machine, or a comment.
    pub(crate) fn comment(&mut self, line: &[u8]) -> Result<(), Bad> {
        let mut fields = Fields::new(line);
        if fields.eat_text(b"# fhtrace ") || fields.eat_text(b"# fhsnap ") {
            return Err(Bad::Expected("no second header: this looks like two files in one", 0));
        }
        if self.version >= 2 && fields.eat_text(b"# machine ") {
            let (name, value) = fields.rest_text()?.split_once(' ').unwrap_or_default();
            if self.machine.len() < MAX_SETTINGS && name.len() + value.len() < MAX_OF_SETTING {
                self.machine.insert(name.to_owned(), value.to_owned());
            }
            return Ok(());
        }
        if self.version >= 2 && fields.eat_text(b"# huge ") {
            let id = fields.decimal_u32("a file's number")?;
            fields.blank("the size of its pages")?;
            let begin = fields.position();
            let bytes = fields.decimal("the size of its pages in bytes")?;
            if !bytes.is_power_of_two() || bytes < 4096 {
                return Err(Bad::Expected("a power of two, 4096 or more", begin));
            }
            return self.files.set_huge(id, bytes);
        }
        if self.version >= 2 && fields.eat_text(b"# tmpfs ") {
            let id = fields.decimal_u32("a file's number")?;
            fields.blank("its option huge")?;
            let begin = fields.position();
            let tmpfs = TmpfsHuge::of_name(fields.rest_text()?);
            return self
                .files
                .set_tmpfs(id, tmpfs.ok_or(Bad::Expected("a value of tmpfs's option huge", begin))?);
        }
        if !fields.eat_text(b"# file ") {
            return Ok(());
        }
        let id = fields.decimal_u32("a file's number")?;
        fields.blank("its size")?;
        let size = if fields.eat(b'-') { None } else { Some(fields.decimal("its size in bytes, or `-`")?) };
        fields.blank("its path")?;
        let path = fields.rest_text()?.to_owned();
        if path.is_empty() {
            return fields.expected("a path");
        }
        self.files.define(FileInfo { id, size, huge: None, tmpfs: None, path })
    }

    /// Parses a line with an event.
    pub(crate) fn event(&mut self, line: &[u8], number: u32) -> Result<Event, Bad> {
        let mut fields = Fields::new(line);
        let time = fields.decimal("a time in nanoseconds")?;
        if time < self.time {
            return Err(Bad::OutOfOrder(time, self.time));
        }
        self.time = time;
        fields.blank("a processor")?;
        let cpu = if fields.eat(b'-') { None } else { Some(processor(&mut fields)?) };
        fields.blank("a task")?;
        let task = if fields.eat(b'-') { None } else { Some(self.task(&mut fields)?) };
        fields.blank("an operation")?;
        let mut cost = Cost::default();
        let kind = match (fields.until(b' '), task) {
            (b"Z", _) => Kind::Frozen { ns: number_after(&mut fields, "nanoseconds")? },
            (b"L", _) => Kind::Lost { events: number_after(&mut fields, "the number of lost events")? },
            (_, None) => return fields.expected("`Z` or `L`, the only operations without a task"),
            (b"F", _) => fault(&mut fields, false)?,
            (b"f", _) => fault(&mut fields, true)?,
            (b"N", Some(task)) => self.clone_(&mut fields, task)?,
            (b"E", _) => exec(&mut fields)?,
            (b"X", Some(task)) => {
                self.exited.insert(task, "the exit of task", "tasks")?;
                exit(&mut fields)?
            }
            (b"R", _) => Kind::Limits(Box::new(Limits::read(&mut fields)?)),
            (b"D", _) => Kind::TornDown { process: self.process(&mut fields)? },
            (b"G", _) => signal(&mut fields)?,
            (b"S", _) => self.snapshot(&mut fields)?,
            (name, Some(task)) => self.call(name, &mut fields, task)?,
        };
        costs(&mut fields, &kind, &mut cost)?;
        Ok(Event { line: number, time, cpu, task: task.unwrap_or(0), kind, cost })
    }

    /// Returns the loss of events that an unreadable line stands for. The loss belongs to the task that the
    /// line names, or to task 0 if the line names no known task. Returns `None` if the line does not concern
    /// address spaces.
    fn lost_with(&self, line: &[u8], number: u32) -> Option<Event> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let task = fields.next().and_then(|task| str::from_utf8(task).ok()?.parse().ok());
        let task = task.filter(|task| self.tasks.contains(*task)).unwrap_or(0);
        let harmless = [b"Z".as_slice(), b"S", b"D", b"G", b"X"];
        if line.first() == Some(&b'#') || fields.next().is_some_and(|operation| harmless.contains(&operation))
        {
            return None;
        }
        let kind = Kind::Lost { events: 1 };
        Some(Event { line: number, time: self.time, cpu: None, task, kind, cost: Cost::default() })
    }

    fn task(&self, fields: &mut Fields) -> Result<u32, Bad> {
        let task = fields.decimal_u32("a task's serial number")?;
        if self.tasks.contains(task) { Ok(task) } else { Err(Bad::UnknownTask(task)) }
    }

    fn process(&self, fields: &mut Fields) -> Result<u32, Bad> {
        fields.blank("a process")?;
        self.task(fields)
    }

    fn clone_(&mut self, fields: &mut Fields, parent: u32) -> Result<Kind, Bad> {
        fields.blank("the new task")?;
        let begin = fields.position();
        let child = fields.decimal_u32("the new task's serial number")?;
        if child == 0 {
            return Err(Bad::Expected("a serial number above 0", begin));
        }
        self.tasks.insert(child, "task", "tasks")?;
        let begin = fields.position();
        let process = self.process(fields)?;
        fields.blank("flags")?;
        let flags = fields.hex("flags of clone, hexadecimal")?;
        let thread = flags & CLONE_THREAD != 0;
        if thread == (process == child) {
            return Err(Bad::Expected(
                "the new task itself, or its creator's process for CLONE_THREAD",
                begin,
            ));
        }
        debug_assert_ne!(parent, child, "only the creator is a known task");
        Ok(Kind::Clone { child, process, flags })
    }

    fn snapshot(&self, fields: &mut Fields) -> Result<Kind, Bad> {
        fields.blank("a snapshot's number")?;
        let id = fields.decimal_u32("a snapshot's number")?;
        fields.blank("the reason")?;
        let begin = fields.position();
        let why = fields.until(b' ');
        let why = Why::of_word(why).ok_or(Bad::Expected("exec, freeze, exit or midexec", begin))?;
        Ok(Kind::Snapshot { id, why, process: self.process(fields)? })
    }

    fn call(&self, name: &[u8], fields: &mut Fields, task: u32) -> Result<Kind, Bad> {
        let begin = fields.position() - name.len();
        let known = str::from_utf8(name).ok().and_then(CallName::parse);
        let name = known.ok_or(Bad::Expected("an operation or call of the format", begin))?;
        let mut args = [0; 6];
        for (index, arg) in args.iter_mut().take(name.arity()).enumerate() {
            fields.blank("an argument")?;
            let begin = fields.position();
            *arg = if name == CallName::Mmap && index == 4 {
                descriptor(fields)?
            } else {
                fields.hex("an argument, hexadecimal")?
            };
            if name == CallName::Ioctl && index == 1 && !uffdio::KEPT.contains(arg) {
                return Err(Bad::Expected(
                    "c020aa00, 8010aa01, c018aa3f or aa00: UFFDIO_REGISTER, _UNREGISTER, _API, or USERFAULTFD_IOC_NEW",
                    begin,
                ));
            }
            let resource =
                name == CallName::Setrlimit && index == 0 || name == CallName::Prlimit64 && index == 1;
            if resource && !rlimit::KEPT.contains(arg) {
                return Err(Bad::Expected("2, 3, 8 or 9: RLIMIT_DATA, _STACK, _MEMLOCK or _AS", begin));
            }
            if name == CallName::Prlimit64 && index == 0 && *arg != 0 {
                let task = u32::try_from(*arg)
                    .map_err(|_| Bad::Expected("0 or a process's serial number", begin))?;
                if !self.tasks.contains(task) {
                    return Err(Bad::UnknownTask(task));
                }
            }
        }
        fields.eat(b' ');
        if name.arity() == 0 {
            fields.eat(b' ');
        }
        if !fields.eat(b'=') {
            return fields.expected("`=` after the last argument");
        }
        fields.blank("the result")?;
        let returned = returned(fields)?;
        let file = self.mapped_file(fields)?;
        let mut call = Call { name, args, returned, file, transfer: None, beside: Vec::new() };
        if name == CallName::ProcessMadvise && fields.eat_text(b" v") {
            let process = call.advises_itself().then_some(task);
            let remote = ranges(fields, args[2])?;
            call.transfer = Some(Box::new(Transfer { process, remote, ..Transfer::default() }));
        }
        Ok(Kind::Call(Box::new(call)))
    }

    fn mapped_file(&self, fields: &mut Fields) -> Result<Option<u32>, Bad> {
        if !fields.eat_text(b" f") {
            return Ok(None);
        }
        let id = fields.decimal_u32("a file's number")?;
        if self.files.get(id).is_some() { Ok(Some(id)) } else { Err(Bad::UnknownFile(id)) }
    }
}

fn processor(fields: &mut Fields) -> Result<u16, Bad> {
    let begin = fields.position();
    let number = fields.decimal("a processor's number, or `-`")?;
    u16::try_from(number).map_err(|_| Bad::Expected("a processor's number below 65536", begin))
}

fn number_after(fields: &mut Fields, what: &'static str) -> Result<u64, Bad> {
    fields.blank(what)?;
    fields.decimal(what)
}

fn fault(fields: &mut Fields, in_exec: bool) -> Result<Kind, Bad> {
    fields.blank("the faulting address")?;
    let address = fields.hex("the faulting address, hexadecimal")?;
    fields.blank("error-code bits")?;
    let begin = fields.position();
    let code = fields.hex("error-code bits, hexadecimal")?;
    let code = u8::try_from(code).map_err(|_| Bad::Expected("error-code bits below 100", begin))?;
    Ok(Kind::Fault { address, code: FaultCode(code), in_exec })
}

fn exec(fields: &mut Fields) -> Result<Kind, Bad> {
    fields.blank("a snapshot's number, or `-`")?;
    let snapshot =
        if fields.eat(b'-') { None } else { Some(fields.decimal_u32("a snapshot's number, or `-`")?) };
    Ok(Kind::Exec { snapshot })
}

fn exit(fields: &mut Fields) -> Result<Kind, Bad> {
    let last = fields.eat(b' ');
    if last && !fields.eat(b'g') {
        return fields.expected("`g`");
    }
    Ok(Kind::Exit { last })
}

fn signal(fields: &mut Fields) -> Result<Kind, Bad> {
    fields.blank("a signal")?;
    let begin = fields.position();
    let signal = match fields.decimal("a signal's number")? {
        signal @ (7 | 11) => signal as u8,
        _ => return Err(Bad::Expected("7 or 11", begin)),
    };
    fields.blank("its code")?;
    let begin = fields.position();
    let negative = fields.eat(b'-');
    let code = i64::try_from(fields.decimal("the signal's code")?).unwrap_or(i64::MAX);
    let code = if negative { -code } else { code };
    let code = i32::try_from(code).map_err(|_| Bad::Expected("the signal's code", begin))?;
    Ok(Kind::Signal { signal, code })
}

/// Parses a decimal descriptor. The kernel takes an int: it ignores the upper 32 bits of a register.
fn descriptor(fields: &mut Fields) -> Result<u64, Bad> {
    let negative = fields.eat(b'-');
    let value = fields.decimal("a descriptor, decimal")?;
    let register = if negative { value.wrapping_neg() } else { value };
    Ok(i64::from(register as i32) as u64)
}

/// Parses comma-separated ranges. Fails if their number is not `count`.
fn ranges(fields: &mut Fields, count: u64) -> Result<Vec<(u64, u64)>, Bad> {
    let begin = fields.position();
    let mut found = Vec::new();
    while fields.peek().is_some_and(|byte| byte != b' ') {
        if !found.is_empty() && !fields.eat(b',') {
            return fields.expected("a comma, or a blank after the last range");
        }
        let start = fields.hex("the start of a range, hexadecimal")?;
        if !fields.eat(b'+') {
            return fields.expected("`+` and the range's length");
        }
        found.push((start, fields.hex("a range's length, hexadecimal")?));
    }
    match found.len() as u64 == count {
        true => Ok(found),
        false => Err(Bad::Expected("as many ranges as the third argument gives", begin)),
    }
}

fn returned(fields: &mut Fields) -> Result<Returned, Bad> {
    if fields.eat(b'?') {
        return Ok(Returned::Never);
    }
    let begin = fields.position();
    if !fields.eat(b'-') {
        return Ok(Returned::Value(fields.hex("the result: hexadecimal, -ERRNO or `?`")?));
    }
    match fields.decimal("an error number, decimal")? {
        errno @ 1..4096 => Ok(Returned::Error(errno as u16)),
        _ => Err(Bad::Expected("an error number from 1 to 4095", begin)),
    }
}

/// Parses the optional fields at the end of a line: the costs of the event, each a letter and a number.
fn costs(fields: &mut Fields, kind: &Kind, cost: &mut Cost) -> Result<(), Bad> {
    let costs_something =
        matches!(kind, Kind::Fault { .. } | Kind::Call(_) | Kind::Clone { .. } | Kind::Exec { .. });
    if !costs_something {
        return fields.end();
    }
    while !fields.is_empty() {
        fields.blank("a blank, or the end of the line")?;
        let begin = fields.position();
        let letter = fields.peek();
        if !matches!(letter, Some(b'e' | b'x' | b'w' | b'r' | b'h' | b'd' | b'l' | b'i' | b'M')) {
            return fields.expected("one of the letters e x w r h d l i M");
        }
        fields.eat(letter.unwrap_or_default());
        let twice = match letter {
            Some(b'e') => cost.before.replace(nanoseconds(fields)?).is_some(),
            Some(b'x') => cost.after.replace(nanoseconds(fields)?).is_some(),
            Some(b'w') => cost.write_wait.replace(nanoseconds(fields)?).is_some(),
            Some(b'r') => cost.read_wait.replace(nanoseconds(fields)?).is_some(),
            Some(b'h') => cost.held.replace(nanoseconds(fields)?).is_some(),
            Some(b'd') => cost.downgraded.replace(nanoseconds(fields)?).is_some(),
            Some(b'l') => std::mem::replace(&mut cost.more_locks, fields.decimal_u32("a number")?) != 0,
            Some(b'i') => std::mem::replace(&mut cost.interrupts, fields.decimal_u32("a number")?) != 0,
            _ => std::mem::replace(&mut cost.major, true),
        };
        if twice {
            return Err(Bad::Expected("each letter once", begin));
        }
    }
    Ok(())
}

fn nanoseconds(fields: &mut Fields) -> Result<u64, Bad> {
    fields.decimal("nanoseconds, decimal")
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
