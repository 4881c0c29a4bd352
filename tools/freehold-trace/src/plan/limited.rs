//! Resource limits: those of each process, and those that the replay sets on an address space before a step.
//!
//! Limits belong to a process on Linux, and to an address space in the engine. An address space therefore
//! gets the limits of the process that is about to use it, unless the address space already has these limits.
//! The limits of an address space change after a call that changed limits, after an exec, and before and
//! after a vfork child runs in the address space.
//!
//! strace output does not show the contents of an address space at its start, so the sizes that limits count
//! are unknown. For strace output, limits are therefore set only for calls that Linux refused, perhaps
//! because of a limit.
//!
//! `events.rs` and `syscall.rs` call these functions before each fault and call. The test
//! `limits_are_set_before_the_first_step_that_needs_them` (`tests.rs`) shows the added steps.

use super::order::Stamp;
use super::planner::Planner;
use super::space::{Space, changes_layout};
use super::step::StepKind;
use crate::limits::KnownLimits;
use crate::{Call, CallName, Returned};

const EPERM: u16 = 1;
const EAGAIN: u16 = 11;
const ENOMEM: u16 = 12;
const CLONE_NEWUSER: u64 = 0x1000_0000;

impl Planner {
    /// Sets the limits of the task's process.
    pub(super) fn set_limits(&mut self, task: u32, limits: KnownLimits) {
        if let Some(process) = self.process_of(task) {
            self.processes.limits.insert(process, limits);
        }
    }

    /// Copies the limits of the task's process to a new process, which a clone with these flags created.
    pub(super) fn inherit_limits(&mut self, task: u32, process: u32, flags: u64) {
        let parent = self.process_of(task).filter(|parent| *parent != process);
        let mut limits = parent.and_then(|parent| self.processes.limits.get(&parent).copied());
        if let Some(limits) = limits.as_mut().filter(|_| flags & CLONE_NEWUSER != 0) {
            // A capability in a new user namespace does not lift the limits.
            limits.may_lock = Some(false);
        }
        limits.map(|limits| self.processes.limits.insert(process, limits));
    }

    /// Notes a call that changed the limits of the caller's process or of another known process.
    pub(super) fn note_limits(&mut self, task: u32, call: &Call) {
        let process = match call.name {
            CallName::Prlimit64 if call.args[0] != 0 => Some(call.args[0] as u32),
            _ => self.process_of(task),
        };
        if let Some(process) = process.filter(|process| self.processes.members.contains_key(process)) {
            self.processes.limits.entry(process).or_default().note(call);
        }
    }

    /// Sets the limits before a fault of `task`.
    pub(super) fn limit_fault(&mut self, line: u32, task: u32, number: u32) {
        if !self.processes.limits.is_empty()
            && self.processes.spaces.get(&number).is_some_and(|space| space.known_ranges.is_none())
        {
            self.limit(line, task, number);
        }
    }

    /// Sets the limits before a call of `task`.
    pub(super) fn limit_call(&mut self, line: u32, task: u32, number: u32, call: &Call) {
        let Some(space) = self.processes.spaces.get(&number).filter(|_| !self.processes.limits.is_empty())
        else {
            return;
        };
        let refused = matches!(call.returned, Returned::Error(EPERM | EAGAIN | ENOMEM));
        match space.known_ranges.is_none() || refused {
            true => self.limit(line, task, number),
            false => self.give_limits(line, task, number, KnownLimits::default()),
        }
    }

    /// Sets the limits of the task's process on the address space.
    fn limit(&mut self, line: u32, task: u32, number: u32) {
        let process = self.process_of(task);
        let limits =
            process.and_then(|process| self.processes.limits.get(&process).copied()).unwrap_or_default();
        self.give_limits(line, task, number, limits);
    }

    /// Adds a step that sets these limits on the address space, unless the address space already has them.
    fn give_limits(&mut self, line: u32, task: u32, number: u32, mut limits: KnownLimits) {
        if self.processes.spaces.get(&number).is_some_and(|space| space.doubts_locked) {
            (limits.memlock, limits.may_lock) = (None, None);
        }
        let Some(space) = self.processes.spaces.get_mut(&number).filter(|space| space.limits != limits)
        else {
            return;
        };
        space.limits = limits;
        self.gather_whole(number, task);
        let stamp = self.stamp(task);
        if let Some(space) = self.processes.spaces.get_mut(&number) {
            space.order.note_whole(stamp);
        }
        self.push(task, line, StepKind::Limits(limits));
    }
}

impl Space {
    /// Keeps the order of calls that change an amount that a limit counts, because an earlier call may decide
    /// whether a later call is refused. `keeps_layout` is true if calls that change the set of free addresses
    /// also keep their order. Returns the step for which `call`, whose step is `stamp`, waits.
    pub(super) fn keep_order(&mut self, call: &Call, stamp: Stamp, keeps_layout: bool) -> Option<Stamp> {
        let Space { limits, .. } = self;
        let counts = match call.name {
            CallName::Mlock | CallName::Mlock2 | CallName::Munlock => limits.forbid_locks(),
            CallName::Mprotect | CallName::PkeyMprotect => {
                limits.data.is_some_and(|(soft, _)| soft != u64::MAX)
            }
            name => keeps_layout && changes_layout(name),
        };
        counts.then(|| std::mem::replace(&mut self.layout, stamp))
    }
}
