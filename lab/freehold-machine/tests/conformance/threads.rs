//! The kernel around the machine for the suite: threads, each of which runs a CPU of the machine.

use freehold::platform::Platform;
use freehold_kit::conformance::{Kernel, NotRun};
use freehold_machine::{Cpu, DefaultFormat, Machine, Mmu, Task};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

thread_local! {
    /// True in the second task of `run_two`.
    static IS_SECOND: Cell<bool> = const { Cell::new(false) };
}

/// Held during a run of the suite. Its tasks spin, so concurrent runs would only wait for each other.
static TURN: Mutex<()> = Mutex::new(());

/// The kernel. The suite's own task runs CPU 0, and the second task runs CPU 1.
pub struct Threads {
    machine: Machine,
    cpus: [Mutex<Cpu<DefaultFormat>>; 2],
    second: Mutex<Option<(Task, ThreadId)>>,
    _turn: MutexGuard<'static, ()>,
}

impl Threads {
    pub fn new(machine: &Machine) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let cpus = [machine.cpu(0), machine.cpu(1)].map(Mutex::new);
        Threads { machine: machine.clone(), cpus, second: Mutex::new(None), _turn: turn }
    }

    /// Returns the thread of the second task, or `None` before it has begun.
    pub fn second(&self) -> Option<(Task, ThreadId)> {
        self.second.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with_cpu<R>(&self, f: impl FnOnce(&mut Cpu<DefaultFormat>) -> R) -> R {
        let cpu = &self.cpus[usize::from(IS_SECOND.get())];
        f(&mut cpu.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<P: Platform<Mmu = Mmu<DefaultFormat>>> Kernel<P> for Threads {
    fn begins(&self, check: &'static str) {
        // The test program shows the last name if the platform panics.
        eprintln!("{check} begins");
    }

    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        *self.second.lock().unwrap() = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                IS_SECOND.set(true);
                *self.second.lock().unwrap() = Some((Task::current(), thread::current().id()));
                let _entered = self.with_cpu(|cpu| cpu.enter());
                second();
            });
            let _entered = self.with_cpu(|cpu| cpu.enter());
            first();
        });
        Ok(())
    }

    fn load(&self, _: &P, mmu: &Mmu<DefaultFormat>, address: u64) -> Result<Option<u64>, NotRun> {
        Ok(self.with_cpu(|cpu| cpu.load::<u64, ()>(mmu, address, |_, _| Err(()))).ok())
    }

    fn leave_space(&self, _: &Mmu<DefaultFormat>) {
        self.with_cpu(Cpu::idle);
    }

    fn charged(&self, _: &P) -> Result<u64, NotRun> {
        Ok(self.machine.charged_in_all())
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }

    fn kill_second(&self) -> Result<(), NotRun> {
        let (task, _) = self.second().expect("the second task has begun");
        task.kill();
        Ok(())
    }
}
