//! Threads of programs: the data of such a [`Thread`], and its work on the way back to the program.

use crate::arch::frame::{Frame, UserAddr, Vectors};
use crate::arch::{lock::SpinLock, preempt};
use crate::memory::tlb;
use crate::platform::Space;
use crate::process::signal::{self, deliver};
use crate::process::{Process, exit, fault, signal::frame::AlternateStack, trace};
use crate::sched::scheduler;
use crate::sched::thread::{Thread, current, work};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

/// A thread of a program. Fields in cells are the thread's own, as those of [`Thread`].
pub struct PosixThread {
    process: Arc<Process>,
    space: UnsafeCell<Option<Space>>,
    /// Where zero is stored, and a futex woken, when it ends (CLONE_CHILD_CLEARTID).
    pub clear_tid: Cell<u64>,
    /// Address and size that set_robust_list was given.
    pub robust_list: Cell<(u64, u64)>,
    /// Signals that are blocked: see [`blocked`](Self::blocked).
    pub(super) blocked: AtomicU64,
    /// Of those, the ones that it waits for by rt_sigtimedwait. As `blocked`.
    pub awaited: AtomicU64,
    /// Signals for this thread alone. Under the lock of the process's signals, too.
    pub pending: SpinLock<signal::Pending>,
    /// The mask to go back to, where a call has set another for its time.
    pub saved_mask: Cell<Option<signal::Set>>,
    pub alternate_stack: Cell<AlternateStack>,
    /// The last fault: vector, error code and address.
    pub last_fault: Cell<(u64, u64, u64)>,
    /// When the call ends that the thread is in, where that has a time.
    pub deadline: Cell<u64>,
    /// The call that a signal has interrupted, and its end, for restart_syscall.
    pub restart: Cell<Option<(u32, u64)>>,
    /// The old end of a call that begins again.
    pub resumed: Cell<Option<u64>>,
    /// Minor and major faults. Written by the thread alone.
    pub faults: [AtomicU64; 2],
    pub trace: trace::Trace,
    /// The thread's name, as `PR_SET_NAME` has it.
    pub comm: SpinLock<[u8; 16]>,
}

// SAFETY: cells are the thread's own, see the type; all else is atomic or does not change.
unsafe impl Send for PosixThread {}
// SAFETY: as above.
unsafe impl Sync for PosixThread {}

impl Deref for Thread {
    type Target = PosixThread;

    /// Panics for an idle thread, which is none of a program.
    #[inline]
    fn deref(&self) -> &PosixThread {
        self.data.downcast_ref().expect("a thread of a program")
    }
}

impl Thread {
    /// A thread of a process that will go on with `frame` and these vector registers in its program.
    ///
    /// # Errors
    ///
    /// No memory for a stack.
    pub fn of_program(
        tid: u32,
        process: &Arc<Process>,
        space: Space,
        frame: &Frame,
        vectors: &Vectors,
    ) -> Option<Self> {
        let mmu = core::ptr::from_ref(space.mmu());
        let data = PosixThread {
            process: process.clone(),
            space: UnsafeCell::new(Some(space)),
            clear_tid: Cell::new(0),
            robust_list: Cell::new((0, 0)),
            blocked: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            pending: SpinLock::new(signal::Pending::default()),
            saved_mask: Cell::new(None),
            alternate_stack: Cell::new(AlternateStack::NONE),
            last_fault: Cell::new((0, 0, 0)),
            deadline: Cell::new(0),
            restart: Cell::new(None),
            resumed: Cell::new(None),
            faults: [AtomicU64::new(0), AtomicU64::new(0)],
            trace: trace::Trace::default(),
            comm: SpinLock::new([0; 16]),
        };
        let thread = Thread::new(tid, frame, vectors, Box::new(data))?;
        thread.mmu.set(mmu);
        Some(thread)
    }

    /// The address space of the calling thread.
    #[inline]
    pub fn space(&self) -> &Space {
        debug_assert!(core::ptr::eq(self, current()));
        // SAFETY: the thread's own; replaced by `set_space`, whose caller has no reference from here.
        unsafe { (*self.space.get()).as_ref() }.expect("a thread with a program")
    }

    /// The calling thread goes on in this space, or in none; returns the one that it was in.
    pub fn set_space(&self, space: Option<Space>) -> Option<Space> {
        debug_assert!(core::ptr::eq(self, current()));
        match &space {
            Some(space) => tlb::enter(space.mmu()),
            None => tlb::leave(),
        }
        self.mmu.set(space.as_ref().map_or(core::ptr::null(), |space| core::ptr::from_ref(space.mmu())));
        // SAFETY: as in `space`.
        core::mem::replace(unsafe { &mut *self.space.get() }, space)
    }
}

impl PosixThread {
    /// Its process.
    #[inline]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

/// Does what the calling thread has to do before it goes back to its program, whose registers are in `frame`.
/// Returns the address of the program's next instruction.
#[inline]
pub fn before_user(frame: &mut Frame) -> UserAddr {
    let work = current().work.load(Relaxed);
    match UserAddr::new(frame.rip) {
        Some(next) if work == 0 => next,
        _ => do_work(frame, work),
    }
}

#[cold]
fn do_work(frame: &mut Frame, mut work: u32) -> UserAddr {
    loop {
        // What is done last may let others run that give it more.
        while work != 0 {
            do_once(frame, work);
            work = current().work.load(Relaxed) & (work::KILL | work::SIGNAL);
        }
        if let Some(next) = UserAddr::new(frame.rip) {
            return next;
        }
        // The handler of this signal may be at no such address either, until the stack has no room left.
        fault::beyond_end(frame);
        preempt::preempt_point();
        work = current().work.load(Relaxed);
    }
}

fn do_once(frame: &mut Frame, work: u32) {
    if work & work::KILL != 0 {
        exit::exit_thread();
    }
    let here = current();
    if work & work::YIELD != 0 {
        here.work.fetch_and(!work::YIELD, AcqRel);
        scheduler::give_way();
    }
    if work & work::MOVE != 0 {
        here.work.fetch_and(!work::MOVE, AcqRel);
        scheduler::move_away();
    }
    // What others gave it meanwhile counts, too.
    let work = here.work.load(Relaxed);
    if work & work::KILL != 0 {
        exit::exit_thread();
    }
    if work & (work::SIGNAL | work::MASK) != 0 {
        deliver::deliver(frame);
    }
}
