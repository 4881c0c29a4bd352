//! How a thread asks to be scheduled (sched(7)). It is kept and told; threads have processors alike all the same.

use freehold::error::Errno;
use linux_raw_sys::general::*;

#[derive(Clone, Copy, Debug, Default)]
pub struct Class {
    pub policy: u32,
    /// Of real time: from 1 to 99.
    pub priority: u32,
    /// Children do not have its real time.
    pub resets_on_fork: bool,
    /// SCHED_DEADLINE: run time, deadline and period, in nanoseconds.
    pub times: [u64; 3],
}

impl Class {
    pub fn is_real_time(&self) -> bool {
        matches!(self.policy, SCHED_FIFO | SCHED_RR | SCHED_DEADLINE)
    }

    /// The nice value, plus 20, that the child of a process with this one has.
    pub fn nice_of_child(&self, nice: u32) -> u32 {
        const USUAL: u32 = 20;
        if self.resets_on_fork && (self.is_real_time() || nice < USUAL) { USUAL } else { nice }
    }

    pub fn for_child(self) -> Self {
        match self.resets_on_fork {
            true if self.is_real_time() => Class::default(),
            _ => Class { resets_on_fork: false, ..self },
        }
    }

    /// # Errors
    ///
    /// EINVAL: there is no such class.
    pub fn check(&self) -> Result<(), Errno> {
        let [run, deadline, period] = self.times;
        let fits = match self.policy {
            SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE => self.priority == 0,
            SCHED_FIFO | SCHED_RR => (1..=99).contains(&self.priority),
            SCHED_DEADLINE if self.priority != 0 => false,
            SCHED_DEADLINE => run >= 1024 && run <= deadline && (period == 0 || deadline <= period),
            _ => false,
        };
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
