//! Access rights that personality(2) adds to the rights that calls request.
//!
//! With `READ_IMPLIES_EXEC` the kernel makes readable mappings executable. The flag belongs to a thread; a
//! new thread or process inherits the flag, and an execve of a 64-bit program clears it. The engine does not
//! know personalities: the planner adds the rights to the arguments of each call. `syscall.rs` calls these
//! functions. The state of a task is `Task::read_implies_exec`. `aside::EXECUTED` covers older recordings,
//! which do not contain the call. `personality_gives_execute_rights_until_it_is_reset`
//! (`freehold-replay/tests/untold.rs`) checks the rights.

use super::planner::Planner;
use super::space::Reach;
use super::step::StepKind;
use crate::operation::personality::{QUERY, READ_IMPLIES_EXEC};
use crate::{Call, CallName};
use std::ops::Range;

const PROT_READ: u64 = 1;
const PROT_EXEC: u64 = 4;
const SHM_EXEC: u64 = 0o10_0000;

impl Planner {
    /// Notes a task's change of its personality.
    pub(super) fn note_personality(&mut self, task: u32, call: &Call) {
        if call.args[0] as u32 == QUERY || call.returned.value().is_none() {
            return;
        }
        if let Some(own) = self.processes.tasks.get_mut(&task) {
            own.read_implies_exec = call.args[0] & READ_IMPLIES_EXEC != 0;
        }
    }

    /// Returns true if the kernel makes readable mappings of the task executable.
    fn read_implies_exec(&self, task: u32) -> bool {
        self.processes.tasks.get(&task).is_some_and(|own| own.read_implies_exec)
    }

    /// Returns the call with the access rights that the kernel applies to it.
    pub(super) fn as_personality_has_it(&self, task: u32, call: Call) -> Call {
        let mut call = call;
        if !self.read_implies_exec(task) {
            return call;
        }
        match call.name {
            CallName::Mmap | CallName::Mprotect | CallName::PkeyMprotect if call.args[2] & PROT_READ != 0 => {
                call.args[2] |= PROT_EXEC;
            }
            CallName::Shmat => call.args[2] |= SHM_EXEC,
            _ => {}
        }
        call
    }

    /// Returns a step for the part that a brk has added to the heap. The step makes this part executable.
    /// Returns `None` if the heap did not grow or is not executable. brk has no argument for rights, so the
    /// added part needs a separate step.
    pub(super) fn executable_heap(&self, task: u32, call: &Call, reach: &Reach) -> Option<StepKind> {
        let grown = match (call.name, reach) {
            (CallName::Brk, Reach::Vmas([grown, _])) => grown.clone(),
            _ => return None,
        };
        let grows = call.returned.value().is_some_and(|end| end >= grown.end);
        let grows: Option<Range<u64>> = Some(grown).filter(|grown| grows && !grown.is_empty());
        grows.filter(|_| self.read_implies_exec(task)).map(StepKind::Execute)
    }
}
