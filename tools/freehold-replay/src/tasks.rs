//! The tasks of a recording, with their lifetimes and names. The list comes from the recording alone, without
//! a replay.
//!
//! [`Tasks::of`] reads all events once and keeps one entry for each task. `freehold-cli` prints the list
//! (`--tasks`). If `--maps-at` names a task or a time without an address space, the error [`NoTask`] uses the
//! list to name the tasks that have an address space. Times are nanoseconds since the first event. The tests
//! are in `tasks_tests.rs`.

use crate::source::Source;
use crate::table::{Layout, row};
use crate::units;
use freehold_trace::{Event, Format, Kind, ReadError, Recording, Snapshot};
use std::collections::BTreeMap;
use std::fmt;

/// Largest number of tasks that a message names. If there are more tasks, the message gives the number of the
/// other tasks.
const MAX_NAMED: usize = 12;

/// All tasks of a recording.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Name of the recording.
    name: String,
    /// The recording is strace output, which has no faults.
    calls_only: bool,
    /// Time of the last event, in nanoseconds since the first.
    length: u64,
    /// The tasks by serial number.
    tasks: BTreeMap<u32, Task>,
    /// Name of the command of each process, taken from snapshots.
    commands: BTreeMap<u32, String>,
}

/// One task. Times are in nanoseconds since the first event.
#[derive(Debug)]
struct Task {
    /// The process: the serial number of its first thread.
    process: u32,
    /// Start of the task.
    from: u64,
    /// End of the task. `None` if the task was alive at the end of the recording.
    to: Option<u64>,
    /// Time at which its address space becomes known.
    known: Option<u64>,
    /// Number of its system calls.
    calls: u64,
    /// Number of its page faults.
    faults: u64,
}

impl Task {
    fn new(process: u32, from: u64, known: bool) -> Task {
        Task { process, from, to: None, known: known.then_some(from), calls: 0, faults: 0 }
    }

    fn is_alive(&self, time: u64) -> bool {
        self.from <= time && self.to.is_none_or(|to| time < to)
    }

    /// Returns true if the task's address space is known at `time`.
    fn is_known(&self, time: u64) -> bool {
        self.is_alive(time) && self.known.is_some_and(|known| known <= time)
    }
}

impl Tasks {
    /// Reads the tasks of a recording. Takes the names of commands from snapshots, if there are any.
    ///
    /// # Errors
    ///
    /// Fails if the recording or its snapshots cannot be read.
    pub fn of(source: impl Into<Source>) -> Result<Tasks, ReadError> {
        let mut recording = source.into().open()?;
        let calls_only = recording.format() == Format::Strace;
        let mut tasks = Tasks { name: recording.name().to_owned(), calls_only, ..Tasks::default() };
        while let Some(event) = recording.next_event()? {
            let snapshot = snapshot_of(&mut recording, &event)?;
            tasks.event(&event, snapshot);
        }
        Ok(tasks)
    }

    fn event(&mut self, event: &Event, snapshot: Option<Snapshot>) {
        let Event { time, task, ref kind, .. } = *event;
        self.length = time;
        if matches!(kind, Kind::Frozen { .. }) {
            // A freeze belongs to no task.
            return;
        }
        let own = self.tasks.entry(task).or_insert_with(|| Task::new(task, time, false));
        let (process, known) = (own.process, own.known.is_some());
        match *kind {
            Kind::Call(_) => own.calls += 1,
            Kind::Fault { in_exec: false, .. } => own.faults += 1,
            Kind::Exit { .. } => own.to = Some(time),
            Kind::Clone { child, process: new, .. } => {
                self.tasks.insert(child, Task::new(new, time, known));
                if let Some(command) = self.commands.get(&process).cloned() {
                    self.commands.entry(new).or_insert(command);
                }
            }
            Kind::Exec { .. } => {
                own.known.get_or_insert(time);
                self.commands.remove(&process);
                self.name(process, snapshot);
                self.end_others(task, process, time);
            }
            Kind::Snapshot { process, .. } => self.name(process, snapshot),
            _ => {}
        }
    }

    /// Ends the other threads of a process, as an execve does.
    fn end_others(&mut self, task: u32, process: u32, time: u64) {
        let others =
            self.tasks.iter_mut().filter(|(other, found)| **other != task && found.process == process);
        others.for_each(|(_, other)| _ = other.to.get_or_insert(time));
    }

    fn name(&mut self, process: u32, snapshot: Option<Snapshot>) {
        if let Some(snapshot) = snapshot {
            self.commands.entry(process).or_insert(snapshot.comm);
        }
    }

    /// Returns one line for each task, in order.
    pub fn text(&self) -> String {
        let processes = self.tasks.iter().filter(|(number, task)| **number == task.process).count();
        let mut text = format!(
            "{}: {} of {}, {}\n\n",
            self.name,
            units::counted(self.tasks.len() as u64, "task"),
            if processes == 1 {
                "1 process".to_owned()
            } else {
                format!("{} processes", units::count(processes as u64))
            },
            self.at(self.length, false)
        );
        let mut rows = vec![row(["task", "process", "command", "from", "to", "calls", "faults"])];
        for (number, task) in &self.tasks {
            let command = self.commands.get(&task.process);
            rows.push(row([
                &number.to_string(),
                &task.process.to_string(),
                command.map_or("-", String::as_str),
                &self.at(task.from, true),
                &task.to.map_or_else(|| "-".to_owned(), |to| self.at(to, false)),
                &units::count(task.calls),
                &if self.calls_only { "-".to_owned() } else { units::count(task.faults) },
            ]));
        }
        text.push_str(&Layout { indent: 2, gap: 2, left: 0 }.text(rows));
        text
    }

    /// Formats a time in the form of `--maps-at`, in a unit that suits the recording. Rounds up or down, so
    /// that the result lies within the lifetime of a task.
    fn at(&self, time: u64, up: bool) -> String {
        let (unit, size, digits) = match self.length.max(time) {
            ..10_000 => return format!("{time}ns"),
            10_000..10_000_000 => ("us", 1_000, 3),
            10_000_000..10_000_000_000 => ("ms", 1_000_000, 3),
            _ => ("s", 1_000_000_000, 6),
        };
        let least = size / 10_u64.pow(digits);
        let parts = if up { time.div_ceil(least) } else { time / least };
        let per_unit = size / least;
        format!("{}.{:0width$}{unit}", parts / per_unit, parts % per_unit, width = digits as usize)
    }
}

/// Returns the snapshot that a line names, if any.
fn snapshot_of(recording: &mut Recording, event: &Event) -> Result<Option<Snapshot>, ReadError> {
    match event.kind {
        Kind::Exec { snapshot: Some(id) } | Kind::Snapshot { id, .. } => recording.snapshot(id),
        _ => Ok(None),
    }
}

/// The error for a time at which no task has a known address space, or the requested task has none.
#[derive(Debug)]
pub struct NoTask {
    /// The requested task.
    pub task: Option<u32>,
    /// The requested time, in nanoseconds since the first event.
    pub time: u64,
    /// The tasks of the recording.
    pub tasks: Tasks,
}

impl NoTask {
    /// Explains why the requested task has no known address space.
    fn fate(&self, number: u32) -> String {
        let at = |time| self.tasks.at(time, false);
        let Some(task) = self.tasks.tasks.get(&number) else {
            return format!("the recording has no task {number}");
        };
        match (task.to, task.known) {
            (_, Some(known)) if self.time < known => {
                format!("its address space is known from {} on", at(known))
            }
            (_, None) => "it has not called execve, so its address space is not known".to_owned(),
            (Some(to), _) => format!("it lived from {} to {}", at(task.from), at(to)),
            (None, _) => format!("it lived from {} on", at(task.from)),
        }
    }
}

impl fmt::Display for NoTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.task.map_or_else(String::new, |task| format!(" {task}"));
        let time = self.tasks.at(self.time, false);
        write!(f, "no task{number} with a known address space at {time}")?;
        if let Some(task) = self.task {
            write!(f, "; {}", self.fate(task))?;
        }
        let then: Vec<String> = self
            .tasks
            .tasks
            .iter()
            .filter(|(_, task)| task.is_known(self.time))
            .map(|(number, _)| number.to_string())
            .collect();
        match then.as_slice() {
            [] => write!(f, "; no task has a known address space at that time")?,
            [one] => write!(f, "; task {one} has a known address space at that time")?,
            some if some.len() <= MAX_NAMED => {
                write!(f, "; tasks {} have known address spaces at that time", some.join(", "))?
            }
            many => write!(
                f,
                "; tasks {} and {} more have known address spaces at that time",
                many[..MAX_NAMED].join(", "),
                many.len() - MAX_NAMED
            )?,
        }
        write!(f, "; the recording lasts {}", self.tasks.at(self.tasks.length, false))
    }
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
