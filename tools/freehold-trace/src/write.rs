//! Writes `NAME.trace` and `NAME.snap`, the counterpart of the readers in `trace.rs` and `snap.rs`.
//!
//! `freehold-record` uses the writers. Every line that they produce must be readable by those readers
//! (`trace_tests.rs`, `snap_tests.rs` and `tests/mutations.rs` read lines again);
//! `docs/reference/trace-format.md` describes the format. The caller must keep the order of events, which the
//! writers do not check.

use crate::trace::{SNAP_VERSION, VERSION};
use crate::{Area, Call, CallName, Cost, Event, FileInfo, Kind, Returned, Snapshot, Why};
use std::io::{self, Write};

/// Writes the events of a recording as `NAME.trace`, version 3.
///
/// The caller must keep the rules between events: files are defined and tasks are created before their use,
/// and times ascend. [`Recording`](crate::Recording) cannot read a line that breaks these rules.
pub struct TraceWriter<W: Write> {
    out: W,
}

/// Writes the snapshots of a recording as `NAME.snap`, version 1.
pub struct SnapWriter<W: Write> {
    out: W,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a recording called `name`.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails, or if the name is empty or has more than one line.
    pub fn new(mut out: W, name: &str) -> io::Result<Self> {
        writeln!(out, "# fhtrace {VERSION} {}", name_of(name)?)?;
        Ok(TraceWriter { out })
    }

    /// Writes a setting of the machine: a name without blanks, and its value.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn machine(&mut self, name: &str, value: &str) -> io::Result<()> {
        writeln!(self.out, "# machine {name} {}", one_line(value))
    }

    /// Defines a file.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn file(&mut self, file: &FileInfo) -> io::Result<()> {
        write!(self.out, "# file {} ", file.id)?;
        match file.size {
            Some(size) => write!(self.out, "{size} ")?,
            None => write!(self.out, "- ")?,
        }
        writeln!(self.out, "{}", one_line(&file.path))?;
        if let Some(bytes) = file.huge {
            writeln!(self.out, "# huge {} {bytes}", file.id)?;
        }
        file.tmpfs.map_or(Ok(()), |huge| writeln!(self.out, "# tmpfs {} {}", file.id, huge.name()))
    }

    /// Writes an event.
    ///
    /// The format has no place for the line number, for calls beside a call ([`Call::beside`]), or for the
    /// bytes that a call moved ([`Call::transfer`], except the ranges of a process_madvise). The writer omits
    /// these parts.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let out = &mut self.out;
        write!(out, "{} ", event.time)?;
        match event.cpu {
            Some(cpu) => write!(out, "{cpu} ")?,
            None => write!(out, "- ")?,
        }
        match event.task {
            0 => write!(out, "- ")?,
            task => write!(out, "{task} ")?,
        }
        kind(out, &event.kind)?;
        cost(out, &event.cost)?;
        writeln!(out)
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> SnapWriter<W> {
    /// Begins the snapshots of the recording called `name`.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails, or if the name is empty or has more than one line.
    pub fn new(mut out: W, name: &str) -> io::Result<Self> {
        writeln!(out, "# fhsnap {SNAP_VERSION} {}", name_of(name)?)?;
        Ok(SnapWriter { out })
    }

    /// Writes a snapshot.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails, or if the pages are not in ascending order.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.first_line(snapshot)?;
        for area in &snapshot.areas {
            self.area(area)?;
        }
        let mut end = 0;
        for run in &snapshot.pages {
            let behind = run.first.checked_add(run.count);
            let (Some(gap), Some(behind)) = (run.first.checked_sub(end), behind) else {
                return Err(invalid("the pages of the snapshot are not in ascending order"));
            };
            writeln!(self.out, "P {gap:x} {:x} {:x}", run.count, run.categories)?;
            end = behind;
        }
        Ok(())
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn first_line(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let Snapshot { id, process, taken: (from, to), threads, .. } = snapshot;
        let (why, comm, exe) = (why(snapshot.why), one_line(&snapshot.comm), one_line(&snapshot.exe));
        write!(self.out, "@ {id} {why} {process} {from} {to} {threads} {comm} | {exe} | ")?;
        for (index, (name, kilobytes)) in snapshot.status.iter().enumerate() {
            let between = if index == 0 { "" } else { ";" };
            write!(self.out, "{between}{name}:{kilobytes}")?;
        }
        writeln!(self.out)
    }

    fn area(&mut self, area: &Area) -> io::Result<()> {
        let letter = |bit: u8, letter: char| if area.prot & bit != 0 { letter } else { '-' };
        let (read, write, exec) = (letter(1, 'r'), letter(2, 'w'), letter(4, 'x'));
        let shared = if area.shared { 's' } else { 'p' };
        let name = if area.name.is_empty() { "-".to_owned() } else { one_line(&area.name) };
        let out = &mut self.out;
        write!(
            out,
            "{:08x}-{:08x} {read}{write}{exec}{shared} {:x} {name}",
            area.start, area.end, area.offset
        )?;
        if let (Some(sizes), Some(flags)) = (&area.sizes, &area.flags) {
            write!(out, " | {} | ", kilobytes(sizes))?;
            for code in flags {
                out.write_all(code)?;
            }
            if area.thp_eligible {
                write!(out, "!")?;
            }
        }
        writeln!(out)
    }
}

fn kind(out: &mut impl Write, kind: &Kind) -> io::Result<()> {
    match kind {
        Kind::Fault { address, code, in_exec } => {
            let letter = if *in_exec { 'f' } else { 'F' };
            write!(out, "{letter} {address:x} {:x}", code.0)
        }
        Kind::Call(made) => call(out, made),
        Kind::Clone { child, process, flags } => write!(out, "N {child} {process} {flags:x}"),
        Kind::Limits(limits) => write!(out, "R{limits}"),
        Kind::Exec { snapshot: Some(id) } => write!(out, "E {id}"),
        Kind::Exec { snapshot: None } => write!(out, "E -"),
        Kind::Exit { last: true } => write!(out, "X g"),
        Kind::Exit { last: false } => write!(out, "X"),
        Kind::TornDown { process } => write!(out, "D {process}"),
        Kind::Signal { signal, code } => write!(out, "G {signal} {code}"),
        Kind::Snapshot { id, why: led, process } => write!(out, "S {id} {} {process}", why(*led)),
        Kind::Frozen { ns } => write!(out, "Z {ns}"),
        Kind::Lost { events } => write!(out, "L {events}"),
    }
}

fn call(out: &mut impl Write, call: &Call) -> io::Result<()> {
    write!(out, "{} ", call.name.as_str())?;
    for (index, arg) in call.args.iter().take(call.name.arity()).enumerate() {
        let between = if index == 0 { "" } else { " " };
        if call.name == CallName::Mmap && index == 4 {
            write!(out, "{between}{}", *arg as i32)?;
        } else {
            write!(out, "{between}{arg:x}")?;
        }
    }
    match call.returned {
        Returned::Value(value) => write!(out, " = {value:x}")?,
        Returned::Error(errno) => write!(out, " = -{errno}")?,
        Returned::Never => write!(out, " = ?")?,
    }
    call.file.map_or(Ok(()), |file| write!(out, " f{file}"))?;
    match &call.transfer {
        Some(about) if call.name == CallName::ProcessMadvise => ranges(out, &about.remote),
        _ => Ok(()),
    }
}

fn ranges(out: &mut impl Write, ranges: &[(u64, u64)]) -> io::Result<()> {
    write!(out, " v")?;
    for (index, (start, length)) in ranges.iter().enumerate() {
        let between = if index == 0 { "" } else { "," };
        write!(out, "{between}{start:x}+{length:x}")?;
    }
    Ok(())
}

fn cost(out: &mut impl Write, cost: &Cost) -> io::Result<()> {
    times(out, &[('e', cost.before), ('x', cost.after)])?;
    if cost.major {
        write!(out, " M")?;
    }
    times(out, &[('w', cost.write_wait), ('r', cost.read_wait), ('h', cost.held), ('d', cost.downgraded)])?;
    for (letter, count) in [('l', cost.more_locks), ('i', cost.interrupts)] {
        if count != 0 {
            write!(out, " {letter}{count}")?;
        }
    }
    Ok(())
}

fn times(out: &mut impl Write, fields: &[(char, Option<u64>)]) -> io::Result<()> {
    for (letter, time) in fields {
        if let Some(time) = time {
            write!(out, " {letter}{time}")?;
        }
    }
    Ok(())
}

fn why(why: Why) -> &'static str {
    match why {
        Why::Exec => "exec",
        Why::Freeze => "freeze",
        Why::Exit => "exit",
        Why::MidExec => "midexec",
    }
}

/// Formats sizes as nine comma-separated numbers, in which an empty field means 0. Nine zeros are written as
/// a single `0`.
fn kilobytes(sizes: &[u32; 9]) -> String {
    if *sizes == [0; 9] {
        return "0".to_owned();
    }
    let words = sizes.map(|size| if size == 0 { String::new() } else { size.to_string() });
    words.join(",")
}

/// Replaces line ends in a path or name by `\012`, as `/proc/PID/maps` does.
fn one_line(text: &str) -> String {
    text.replace('\n', "\\012")
}

fn name_of(name: &str) -> io::Result<&str> {
    if name.is_empty() || name.contains('\n') {
        return Err(invalid("the name of a recording is empty or has more than one line"));
    }
    Ok(name)
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
