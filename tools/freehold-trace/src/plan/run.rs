//! Plans a recording event by event: reads the next event, places it in the order in which events took
//! effect, and adds its steps to the segment.
//!
//! This file decides *when* an event is planned. The steps of an event are in `events.rs` (faults, forks,
//! execs, exits, snapshots) and `syscall.rs` (calls); the rules of the order are in `effect.rs` and
//! `removals.rs`. `freehold-replay` calls [`Planner::next_segment`] until it returns `None`.
//!
//! Three queues contain events that were read and not planned: `Planner::waiting` (the event takes effect
//! later), `Removals::held` (a refused call may belong to a later removal), and `Planner::held` (the event
//! belongs to the next segment). At the end of the recording, and wherever the program is frozen,
//! `next_segment` plans the events of the first two queues.

use super::aside;
use super::effect::{Waiting, event_span};
use super::files::key;
use super::planner::Planner;
use super::processes::{Fault, New, Task};
use super::removals::{PendingCall, Removal, SLACK, When, removed_by};
use super::space::Space;
use super::step::{Ends, Segment, StepKind};
use crate::{Call, CallName, Event, Format, Kind, ReadError, Returned, Snapshot, Why};

const SIGSEGV: u8 = 11;
const SI_KERNEL: i32 = 128;

impl Planner {
    /// Returns the next segment. Returns `None` at the end of the recording, or at a place from which the
    /// recording cannot be read any further.
    pub fn next_segment(&mut self) -> Option<Segment> {
        while !self.builder.is_full(self.removals.is_holding()) {
            let event = match self.held.take() {
                Some(event) => event,
                None if self.cut_off.is_some() => break,
                None => match self.recording.next_event() {
                    Ok(Some(event)) if event.time <= self.until => event,
                    Ok(_) => break,
                    Err(error) => {
                        self.cut_off = Some(error);
                        break;
                    }
                },
            };
            let frozen = matches!(event.kind, Kind::Snapshot { why: Why::Freeze, .. } | Kind::Frozen { .. });
            if !frozen && !self.builder.segment.frozen.is_empty() {
                self.held = Some(event);
                break;
            }
            if let Err(error) = self.in_turn(event) {
                self.cut_off = Some(error);
            }
        }
        if !self.builder.is_full(self.removals.is_holding()) {
            // The recording is at its end, or the program is frozen: no call is in progress.
            if let Err(error) = self.plan_waiting(u64::MAX) {
                self.cut_off.get_or_insert(error);
            }
            self.release_all();
        }
        let (mut segment, without_end) = self.builder.finish(&mut self.processes)?;
        segment.files = std::mem::take(&mut self.files.new);
        (0..without_end).for_each(|_| self.aside(aside::NO_END));
        self.files.lengths.forget_order();
        self.kins.forget_order();
        self.pool.forget_order();
        Some(segment)
    }

    /// Plans `event` now: adds its steps, or notes its effect on later events. Fails if the snapshot of the
    /// event cannot be read.
    pub(super) fn event(&mut self, event: Event) -> Result<(), ReadError> {
        let Event { line, task, time, .. } = event;
        self.builder.now = time;
        if let Kind::Lost { events } = event.kind {
            match task {
                0 => self.lose(events),
                task => self.lose_task(task, line),
            }
            return Ok(());
        }
        if let Kind::TornDown { process } = event.kind {
            self.processes.tasks.get_mut(&task).into_iter().for_each(|own| own.torn_down = true);
            self.kins.torn_down(process);
            return Ok(());
        }
        if let Kind::Frozen { .. } = event.kind {
            return Ok(());
        }
        if !matches!(event.kind, Kind::Snapshot { .. }) {
            self.meet(task, line);
            self.close_fault(task, &event.kind);
        }
        self.release(task, event.time);
        let when = When::of(event.time, &event.cost);
        let (from, to) = event_span(event.time, &event.cost);
        match event.kind {
            Kind::Fault { address, code, in_exec } => {
                let looked = event.cost.read_wait.or(event.cost.write_wait).is_some();
                let fault = Fault { line, address, code, resolved: event.cost.after.is_some(), looked, to };
                match self.processes.tasks.get_mut(&task).filter(|_| in_exec) {
                    Some(own) => own.in_exec.push(fault),
                    None => self.fault(task, fault),
                }
            }
            Kind::Call(call) => {
                if matches!(call.name, CallName::Execve | CallName::Execveat) {
                    self.failed_exec(task, call.returned);
                }
                self.call_in_turn(line, task, *call, when);
            }
            Kind::Limits(limits) => self.set_limits(task, (*limits).into()),
            Kind::Clone { child, process, flags } => {
                self.place_removals(task, None, when);
                let unsure = self.unsure_in_copy(task, event.time, &event.cost, flags);
                self.clone(line, task, New { child, process, flags, unsure });
                self.remember_fork(task, child, event.time, &event.cost);
            }
            Kind::Exec { snapshot } => {
                let snapshot = snapshot.map(|id| self.named(line, id)).transpose()?;
                self.forget_exec(task);
                self.place_removals(task, None, when);
                let leaves =
                    self.kins.leave_kin(&mut self.processes, &mut self.builder, (line, task), from, false);
                self.exec(line, task, snapshot);
                self.kins.left_kin(&mut self.processes, task, leaves);
            }
            Kind::Exit { .. } => {
                self.forget_exec(task);
                self.place_removals(task, None, when);
                let leaves =
                    self.kins.leave_kin(&mut self.processes, &mut self.builder, (line, task), from, true);
                self.exit(line, task);
                self.kins.left_kin(&mut self.processes, task, leaves);
            }
            // The line of the exec also names the snapshot, so the exec was planned with this snapshot.
            Kind::Snapshot { why: Why::Exec, .. } => {}
            Kind::Snapshot { id, why, process } => {
                let snapshot = self.named(line, id)?;
                self.snapshot(line, task, why, process, snapshot);
            }
            Kind::Signal { signal: SIGSEGV, code: SI_KERNEL } => {
                // If an execve fails after the kernel has torn down the old address space, the kernel ends
                // the task with this signal.
                let own = self.processes.tasks.get_mut(&task).filter(|own| own.torn_down);
                own.into_iter().for_each(|own| own.dies_in_exec = true);
            }
            Kind::Signal { .. } | Kind::Frozen { .. } | Kind::TornDown { .. } | Kind::Lost { .. } => {}
        }
        Ok(())
    }

    /// Plans the faults of a failed execve of `task`: the program continues, and its old address space has
    /// the pages that the kernel has read. If the call never returned, the task ends in the execve.
    fn failed_exec(&mut self, task: u32, returned: Returned) {
        if returned == Returned::Never {
            self.processes.tasks.get_mut(&task).into_iter().for_each(|own| own.dies_in_exec = true);
            return;
        }
        self.end_exec(task).into_iter().for_each(|fault| self.fault(task, fault));
    }

    /// Drops the faults of an execve that succeeded, or during which the task ended.
    fn forget_exec(&mut self, task: u32) {
        self.end_exec(task).iter().for_each(|_| self.aside(aside::IN_EXEC));
    }

    /// Returns the faults that the kernel took in the execve that has ended, and forgets them.
    fn end_exec(&mut self, task: u32) -> Vec<Fault> {
        self.processes.tasks.get_mut(&task).map(|own| std::mem::take(&mut own.in_exec)).unwrap_or_default()
    }

    /// Reads snapshot `id`, which `line` names. Fails if the snapshot is missing.
    fn named(&mut self, line: u32, id: u32) -> Result<Snapshot, ReadError> {
        let snapshot = self.recording.snapshot(id)?.ok_or_else(|| self.recording.no_snapshot(line, id))?;
        self.builder.lines += snapshot.areas.len() + snapshot.pages.len();
        Ok(snapshot)
    }

    /// Adds a task that no clone has created: the first task, or a task that ran before the recording began.
    fn meet(&mut self, task: u32, line: u32) {
        if self.processes.tasks.contains_key(&task) {
            return;
        }
        self.processes.tasks.insert(task, Task { process: task, ..Task::default() });
        self.processes.members.entry(task).or_default().push(task);
        if self.recording.format() == Format::Strace {
            self.exec(line, task, None);
        }
    }

    /// Ends an unresolved fault of the task at its next event. If that event is a signal, the fault raised
    /// the signal.
    fn close_fault(&mut self, number: u32, next: &Kind) {
        let Some(task) = self.processes.tasks.get_mut(&number) else { return };
        let Some(index) = task.open_fault.take() else { return };
        self.builder.open_faults -= 1;
        let step = index.checked_sub(task.first).and_then(|at| task.steps.get_mut(at as usize));
        match (next, step) {
            (Kind::Signal { signal, code }, Some(step)) => {
                if let StepKind::Fault { ends, .. } = &mut step.what {
                    *ends = Ends::Signal(*signal, *code);
                }
            }
            _ => self.aside(aside::NO_END),
        }
    }

    /// Handles a loss of this task's events: the contents of its address space are unknown from now on.
    fn lose_task(&mut self, task: u32, line: u32) {
        self.meet(task, line);
        self.aside(aside::LOSSES);
        self.forget_files();
        self.process_of(task).map(|process| self.processes.limits.remove(&process));
        let space = self.processes.tasks.get(&task).and_then(|task| task.space);
        let members =
            space.and_then(|space| self.processes.spaces.get(&space)).map(|space| space.members.clone());
        for member in members.unwrap_or_else(|| vec![task]) {
            if let Some(member) = self.processes.tasks.get_mut(&member) {
                member.lost = true;
            }
        }
    }

    /// Handles a loss of events of unknown tasks: the contents of all address spaces are unknown until an
    /// exec after the last such loss. A loss of 0 events is the end of an earlier loss.
    fn lose(&mut self, events: u64) {
        if events == 0 {
            self.losses.under_way = self.losses.under_way.saturating_sub(1);
        } else {
            self.aside(aside::LOSSES);
            // In strace output a loss is a single unreadable line, so the loss ends at once.
            let ends = self.recording.format() != Format::Strace;
            self.losses.under_way = self.losses.under_way.saturating_add(ends.into());
        }
        self.forget_files();
        self.processes.limits.clear();
        self.processes.tasks.values_mut().for_each(|task| task.lost = true);
    }

    /// Plans the events that took effect before `event`, and then `event` itself. If `event` takes effect
    /// later than its recorded time, adds it to the waiting events instead.
    pub(super) fn in_turn(&mut self, event: Event) -> Result<(), ReadError> {
        if !self.waiting.is_empty() {
            let until = if self.is_behind_all(&event) { u64::MAX } else { event.time };
            self.plan_waiting(until)?;
        }
        match self.takes_effect(&event) {
            Some((space, at, reads)) => self.waiting.push(Waiting { at, reads, space, event }),
            None => self.plan(event)?,
        }
        Ok(())
    }

    /// Plans the waiting events that have taken effect by the time `until`.
    pub(super) fn plan_waiting(&mut self, until: u64) -> Result<(), ReadError> {
        let place = |waiting: &Waiting| (waiting.at, waiting.reads, waiting.event.line);
        loop {
            let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.at <= until);
            let Some((first, _)) = due.min_by_key(|(_, waiting)| place(waiting)) else { return Ok(()) };
            let event = self.waiting.swap_remove(first).event;
            self.plan(event)?;
        }
    }

    /// Plans `event` now, and notes its times and its effect on forks beside it.
    fn plan(&mut self, event: Event) -> Result<(), ReadError> {
        self.builder.segment.events += 1;
        self.recorded.note(&event);
        self.note_beside(&event);
        self.event(event)
    }

    /// Returns true if all waiting events must be planned before `event`, whatever their times. The reason is
    /// one of these: a waiting event belongs to the task of `event`, a waiting event may create that task, or
    /// all tasks are stopped.
    fn is_behind_all(&self, event: &Event) -> bool {
        let still = matches!(event.kind, Kind::Snapshot { .. } | Kind::Frozen { .. } | Kind::Lost { .. });
        let waits = || self.waiting.iter().any(|waiting| waiting.event.task == event.task);
        still || !self.processes.tasks.contains_key(&event.task) || waits()
    }

    /// Plans a call. If Linux may have refused the call because of a removal later in the recording, holds
    /// the call instead. Also places removals that took effect before the call.
    pub(super) fn call_in_turn(&mut self, line: u32, task: u32, call: Call, when: When) {
        if let Some(segment) = self.waits_for_removal(task, &call) {
            self.removals.held.push(PendingCall { line, task, call, segment, until: when.to });
            return;
        }
        let removed = removed_by(&call);
        self.note_new_segment(task, &call, when);
        self.place_removals(task, Some(&call), when);
        self.call(line, task, call);
        if let Some(segment) = removed {
            self.note_removal(line, task, segment, when);
        }
    }

    /// Plans the held calls for which no removal was read in time: those of `task`, and those that returned
    /// before `time`.
    pub(super) fn release(&mut self, task: u32, time: u64) {
        if self.removals.held.is_empty() {
            return;
        }
        let over = |held: &mut PendingCall| held.until < time || held.task == task;
        let held: Vec<PendingCall> = self.removals.held.extract_if(.., over).collect();
        held.into_iter().for_each(|held| self.call(held.line, held.task, held.call));
    }

    /// Plans all held calls.
    pub(super) fn release_all(&mut self) {
        self.release(0, u64::MAX);
    }

    /// Notes a removal of a segment that took effect in the period `when`. Places older removals that are not
    /// placed yet, and plans the held calls that this removal explains.
    fn note_removal(&mut self, line: u32, task: u32, segment: u64, when: When) {
        let followed =
            self.files.segments.contains_key(&segment) && !self.removals.outside.contains(&segment);
        if self.removals.doubted || !followed || self.removals.known.contains_key(&segment) {
            return;
        }
        let old = |id: &u64| self.removals.known.get(id).is_some_and(|own| own.until + SLACK < when.from);
        let old: Vec<u64> = self.removals.open.iter().copied().filter(old).collect();
        old.into_iter().for_each(|id| self.place(id, task));
        let file = self.files.names.get(&key(segment)).copied();
        let has = |space: &Space| space.areas.iter().any(|(_, area)| area.file == file);
        let spaces = self.processes.spaces.iter().filter(|(_, space)| file.is_some() && has(space));
        let spaces = spaces.map(|(number, _)| *number).collect();
        self.removals.known.insert(segment, Removal { line, until: when.to, spaces, placed: false });
        if file.is_some() {
            self.removals.open.push(segment);
        }
        let is_for = |held: &mut PendingCall| held.segment == segment;
        let held: Vec<PendingCall> = self.removals.held.extract_if(.., is_for).collect();
        for held in held {
            // The call was refused while this removal was in progress.
            if self.removals.known.get(&segment).is_some_and(|removal| !removal.placed) {
                self.place(segment, held.task);
            }
            self.call(held.line, held.task, held.call);
        }
    }
}
