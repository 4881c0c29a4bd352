//! The sentences of the page: what each section has found, and names of tasks, mappings and operations.
//!
//! The template calls the functions of [`Page`]. A sentence says a figure that the section shows, and says so
//! if the recording does not contain the facts. `mod_tests.rs` checks the sentences of a small recording.

use super::Page;
use crate::analysis::mappings::{Kind, Mapping};
use crate::analysis::resident::PeakMapping;
use crate::analysis::waits::{Convoy, Group, Wait};
use crate::outcome::Outcome;
use crate::{report, units};

/// Returns `files, private /usr/bin/git`.
pub(super) fn mapping(kind: Kind, name: &str) -> String {
    match name {
        "" => kind.name().to_owned(),
        name => format!("{} {name}", kind.name()),
    }
}

/// Returns the addresses and the size of a mapping.
pub(super) fn place(mapping: &Mapping) -> String {
    let end = mapping.start.saturating_add(mapping.bytes);
    format!("{:x}-{end:x}, {}", mapping.start, units::bytes(mapping.bytes))
}

/// Returns the operation that made a mapping.
pub(super) fn made(operation: &str, task: u32, line: u32) -> String {
    match operation {
        "snapshot" => "first seen in a snapshot".to_owned(),
        operation => format!("{operation} of task {task}, line {line}"),
    }
}

/// Returns `task 7`, `3 tasks`.
fn tasks(tasks: &[u32]) -> String {
    match tasks {
        [task] => format!("task {task}"),
        many => units::counted(many.len() as u64, "task"),
    }
}

/// Returns the name and number of a process.
fn process(command: &str, process: u32) -> String {
    match command {
        "" => format!("process {process}"),
        command => format!("{command} ({process})"),
    }
}

impl Page<'_> {
    /// Returns the verdict of the comparison with Linux.
    fn verdict(&self) -> String {
        let outcome = self.outcome();
        format!("{}: {}.", report::checked(outcome), report::verdict(outcome))
    }

    /// Returns the sentence of the summary.
    pub(super) fn found_summary(&self) -> String {
        let outcome = self.outcome();
        let slowest = outcome.kinds.iter().filter_map(|kind| Some((kind.linux?.all, &kind.name))).max();
        let linux = match slowest {
            Some((time, name)) => format!(
                " On Linux the program ran for {}, and {name} took the most time of all memory operations: {}.",
                units::duration(outcome.recorded),
                units::duration(time)
            ),
            None => format!(" The recorded program ran for {}.", units::duration(outcome.recorded)),
        };
        self.verdict() + &linux
    }

    /// Returns the sentence about waits.
    pub(super) fn found_waits(&self) -> String {
        let Some(waits) = &self.analysis().waits else {
            return "The recording has no times of locks, so it is unknown which tasks waited.".to_owned();
        };
        let Some(group) = waits.groups.first() else {
            return format!(
                "No task waited for a lock that another recorded task held. {} took {} in all.",
                units::counted(waits.all.count, "acquisition"),
                units::nanoseconds(waits.all.total_ns)
            );
        };
        let totals = waits.groups.iter().map(|group| group.sum.total_ns);
        let known = totals.fold(0, u64::saturating_add);
        format!("{}. All waits for another task took {}.", self.group_words(group), units::nanoseconds(known))
    }

    /// Returns a group of waits as a sentence without its full stop.
    pub(super) fn group_words(&self, group: &Group) -> String {
        let Group { command, waiter, waiter_tasks, holder, holder_tasks, sum, .. } = group;
        format!(
            "In {}, {waiter} of {} waited {} for {holder} of {}: {}, longest {}",
            process(command, group.process),
            tasks(waiter_tasks),
            units::nanoseconds(sum.total_ns),
            tasks(holder_tasks),
            if sum.count == 1 { "once".to_owned() } else { format!("{} times", units::count(sum.count)) },
            units::nanoseconds(sum.longest_ns)
        )
    }

    pub(super) fn group_process(&self, group: &Group) -> String {
        process(&group.command, group.process)
    }

    pub(super) fn group_waiter(&self, group: &Group) -> String {
        format!("{} of {}", group.waiter, tasks(&group.waiter_tasks))
    }

    pub(super) fn group_holder(&self, group: &Group) -> String {
        format!("{} of {}", group.holder, tasks(&group.holder_tasks))
    }

    /// Returns a single wait as a sentence.
    pub(super) fn wait_words(&self, wait: &Wait) -> String {
        let holder = match &wait.holder {
            Some(holder) => format!(
                "for {} of task {} (line {}), which held the lock for {}",
                holder.operation,
                holder.task,
                holder.line,
                units::nanoseconds(holder.ns)
            ),
            None => "for a holder that is not recorded".to_owned(),
        };
        format!("{} of task {} (line {}) waited {holder}", wait.waiter, wait.task, wait.line)
    }

    /// Returns a convoy as a sentence without its full stop.
    pub(super) fn convoy_words(&self, convoy: &Convoy) -> String {
        let waiters: Vec<String> =
            convoy.waiters.iter().map(|(name, count)| format!("{} {name}", units::count(*count))).collect();
        format!(
            "In {}, {} of task {} (line {}) held the lock for {}; {} waited behind it, {} in all",
            process(&convoy.command, convoy.process),
            convoy.holder.operation,
            convoy.holder.task,
            convoy.holder.line,
            units::nanoseconds(convoy.holder.ns),
            waiters.join(", "),
            units::nanoseconds(convoy.sum.total_ns)
        )
    }

    /// Returns the sentence about the waits of the replay.
    pub(super) fn found_replay_waits(&self) -> String {
        let Outcome { waits, cpus, .. } = self.outcome();
        let design = self.design(self.outcome());
        let cpus = units::counted(*cpus as u64, "CPU");
        match waits.groups.first() {
            Some(group) => format!("On {cpus} with {design}: {}.", self.group_words(group)),
            None if waits.all.count > 0 => format!(
                "On {cpus} with {design} there were {}, longest {}, for which no other task's hold is known.",
                units::counted(waits.all.count, "wait"),
                units::nanoseconds(waits.all.longest_ns)
            ),
            None => format!("On {cpus} with {design} no task waited for an mmap lock."),
        }
    }

    /// Names the operations with most of the waits on a design.
    pub(super) fn most_waits(&self, outcome: &Outcome) -> String {
        outcome.waits.groups.first().map_or_else(
            || "-".to_owned(),
            |group| {
                format!("{} for {}: {}", group.waiter, group.holder, units::nanoseconds(group.sum.total_ns))
            },
        )
    }

    /// Returns the sentence about the picture.
    pub(super) fn found_life(&self) -> String {
        let life = &self.study.life;
        let processes = life.processes.len() as u64;
        let noun = if processes == 1 { "process" } else { "processes" };
        format!(
            "{} {noun} lived in {} and had {}.",
            units::count(processes),
            units::counted(life.spaces.len() as u64, "address space"),
            units::counted(self.study.mappings.len() as u64, "mapping")
        )
    }

    /// Returns the sentence about resident memory.
    pub(super) fn found_resident(&self) -> String {
        let Some(resident) = &self.analysis().resident else {
            return "strace output has no page faults, so resident memory is unknown.".to_owned();
        };
        let peak = &resident.peak;
        let mut said = format!(
            "Resident memory was largest after {}: {}",
            units::nanoseconds(peak.at_ns),
            units::bytes(peak.bytes)
        );
        if let Some((kind, bytes)) = peak.by_kind.iter().max_by_key(|(_, bytes)| **bytes) {
            said += &format!(", of which {} {}", kind.name(), units::bytes(*bytes));
        }
        if let Some(largest) = peak.mappings.first() {
            let by = process(&largest.command, largest.process);
            said += &format!(
                ". The largest mapping was {} of {by}: {}",
                self.peak_name(largest),
                units::bytes(largest.bytes)
            );
        }
        said + "."
    }

    pub(super) fn peak_name(&self, peak: &PeakMapping) -> String {
        mapping(peak.kind, &peak.name)
    }

    pub(super) fn peak_made(&self, peak: &PeakMapping) -> String {
        match peak.made_by.as_str() {
            "snapshot" => "first seen in a snapshot".to_owned(),
            operation => format!("{operation}, line {}", peak.line),
        }
    }

    pub(super) fn process_name(&self, command: &str, number: &u32) -> String {
        process(command, *number)
    }

    pub(super) fn mapping_name(&self, found: &Mapping) -> String {
        mapping(found.kind, &found.name)
    }

    pub(super) fn mapping_place(&self, mapping: &Mapping) -> String {
        place(mapping)
    }

    pub(super) fn mapping_made(&self, mapping: &Mapping) -> String {
        made(&mapping.made_by, mapping.task, mapping.line)
    }

    pub(super) fn last_fault(&self, mapping: &Mapping) -> String {
        mapping.last_fault_ns.map_or_else(|| "-".to_owned(), units::nanoseconds)
    }

    /// Returns the sentence about faults.
    pub(super) fn found_faults(&self) -> String {
        let Some(faults) = &self.analysis().faults else {
            return "strace output has no page faults.".to_owned();
        };
        let all = faults.counts.sum();
        if all == 0 {
            return "The recording has no page faults.".to_owned();
        }
        let kinds = self.fault_kinds();
        let most = kinds.iter().max_by_key(|(_, count)| *count);
        let (name, count) = most.map_or(("", 0), |(name, count)| (*name, *count));
        let interrupts: u64 = faults.interrupts.iter().map(|sent| sent.count).sum();
        format!(
            "There were {}; the most frequent kind was {name} ({}). Linux sent {} for TLB flushes.",
            units::counted(all, "page fault"),
            units::percent(count, all),
            units::counted(interrupts, "interrupt")
        )
    }

    /// Returns the names of the kinds of fault, with their numbers.
    pub(super) fn fault_kinds(&self) -> Vec<(&'static str, u64)> {
        let counts = self.analysis().faults.as_ref().map(|faults| faults.counts.by_kind());
        let names = crate::analysis::faults::FaultKind::ALL.map(|kind| kind.name());
        names.into_iter().zip(counts.unwrap_or_default()).collect()
    }
}
