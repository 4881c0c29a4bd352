//! Resource limits: which each process has, and which the replay is to give an address space before a step.
//!
//! On Linux limits are a process's, in the engine an address space's. So an address space gets those of the
//! process that is about to use it, where they are others than it has: after a call that changed them, after
//! an exec, before and after a vfork's child that runs in it.
//!
//! Where it is not known what an address space was like when that began, as in texts by strace, its sizes are
//! not known either. There limits are in force only for calls that Linux refused, perhaps for them.

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
    /// The process of `task` has these limits.
    pub(super) fn set_limits(&mut self, task: u32, limits: KnownLimits) {
        if let Some(process) = self.process_of(task) {
            self.processes.limits.insert(process, limits);
        }
    }

    /// A task of another process was made, by a clone with these flags.
    pub(super) fn inherit_limits(&mut self, task: u32, process: u32, flags: u64) {
        let parent = self.process_of(task).filter(|parent| *parent != process);
        let mut limits = parent.and_then(|parent| self.processes.limits.get(&parent).copied());
        if let Some(limits) = limits.as_mut().filter(|_| flags & CLONE_NEWUSER != 0) {
            // The capabilities that it has there do not count here.
            limits.may_lock = Some(false);
        }
        limits.map(|limits| self.processes.limits.insert(process, limits));
    }

    /// A call has changed limits: of the caller's process, or of another that is known.
    pub(super) fn note_limits(&mut self, task: u32, call: &Call) {
        let process = match call.name {
            CallName::Prlimit64 if call.args[0] != 0 => Some(call.args[0] as u32),
            _ => self.process_of(task),
        };
        if let Some(process) = process.filter(|process| self.processes.members.contains_key(process)) {
            self.processes.limits.entry(process).or_default().note(call);
        }
    }

    /// Before a fault of `task`.
    pub(super) fn limit_fault(&mut self, line: u32, task: u32, number: u32) {
        if !self.processes.limits.is_empty()
            && self.processes.spaces.get(&number).is_some_and(|space| space.told.is_none())
        {
            self.limit(line, task, number);
        }
    }

    /// Before a call of `task`.
    pub(super) fn limit_call(&mut self, line: u32, task: u32, number: u32, call: &Call) {
        let Some(space) = self.processes.spaces.get(&number).filter(|_| !self.processes.limits.is_empty())
        else {
            return;
        };
        let refused = matches!(call.returned, Returned::Error(EPERM | EAGAIN | ENOMEM));
        match space.told.is_none() || refused {
            true => self.limit(line, task, number),
            false => self.give_limits(line, task, number, KnownLimits::default()),
        }
    }

    /// The address space gets the limits of the task's process.
    fn limit(&mut self, line: u32, task: u32, number: u32) {
        let process = self.process_of(task);
        let limits =
            process.and_then(|process| self.processes.limits.get(&process).copied()).unwrap_or_default();
        self.give_limits(line, task, number, limits);
    }

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
    /// Calls that change what limits count keep their order: whether one is refused depends on those before
    /// it. What `call` waits for, if it is such a call, whose step is `stamp`.
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
