//! Threads of programs: the data that a [`Thread`] has for its program, and its work on the way back to the
//! program.
//!
//! `sched/thread.rs` knows nothing about programs and keeps this data as an opaque value; `Thread`
//! dereferences to [`PosixThread`]. `clone.rs` and `start.rs` make threads. Cells belong to the thread
//! itself: other threads read and write only atomics and locked fields, or set a bit of `Thread::work` and
//! let the thread act. [`before_user`] does the pending work on every way back to the program: it ends, moves
//! or stops the thread and delivers signals. It returns a [`UserAddr`], because the processor would fault in
//! the kernel on any other address. No spin lock is held during this work.
//!
//! A new field gets its first value in [`Thread::of_program`]. A field that a new thread inherits is also set
//! in `clone.rs`, and a field that an exec resets is also set in `become_program` (`calls/processes.rs`). New
//! pending work is a step of [`do_once`] and a bit of `work` (`sched/thread.rs`).

use crate::arch::frame::{Frame, UserAddr, Vectors};
use crate::arch::{lock::SpinLock, preempt};
use crate::files::table::{Descriptors, FileTable};
use crate::memory::tlb;
use crate::options;
use crate::platform::Space;
use crate::process::signal::{self, deliver};
use crate::process::{Process, exit, fault, place::Place, signal::frame::AlternateStack, trace};
use crate::sched::scheduler;
use crate::sched::thread::{ProgramData, Thread, current, work};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

/// The data of a program's thread. Only the thread itself uses the fields of type `Cell` and `UnsafeCell`, as
/// in [`Thread`].
pub struct PosixThread {
    /// The process, which never changes.
    process: Arc<Process>,
    /// The descriptors.
    pub files: FileTable,
    /// The working directory and the mask. The spin lock guards only the reference.
    place: SpinLock<Arc<Place>>,
    /// The address space; `None` while the thread ends.
    space: UnsafeCell<Option<Space>>,
    /// Address of a futex word. At the end of the thread the word becomes 0 and the futex is woken
    /// (CLONE_CHILD_CLEARTID).
    pub clear_tid: Cell<u64>,
    /// Address from set_robust_list. Relaxed: it publishes no memory of the kernel.
    pub robust_list: AtomicU64,
    /// Blocked signals: see [`blocked`](Self::blocked).
    pub(super) blocked: AtomicU64,
    /// The blocked signals for which the thread waits in rt_sigtimedwait. Changed under the same lock as
    /// `blocked`.
    pub awaited: AtomicU64,
    /// Signals for this thread only. Guarded also by the lock of the process's signals.
    pub pending: SpinLock<signal::Pending>,
    /// The mask to restore after a call that set another mask for its duration.
    pub saved_mask: Cell<Option<signal::Set>>,
    /// The stack of signal handlers, set by sigaltstack.
    pub alternate_stack: Cell<AlternateStack>,
    /// The last fault: vector, error code and address.
    pub last_fault: Cell<(u64, u64, u64)>,
    /// End of the timeout of the current call, if it has one.
    pub deadline: Cell<u64>,
    /// The call that a signal has interrupted, and the end of its timeout, for restart_syscall.
    pub restart: Cell<Option<(u32, u64)>>,
    /// The original end of the timeout of a restarted call.
    pub resumed: Cell<Option<u64>>,
    /// Minor and major faults. Only the thread itself writes them.
    pub faults: [AtomicU64; 2],
    /// The state of tracing.
    pub trace: trace::Trace,
    /// The thread's name, set by exec and by `PR_SET_NAME`; unused bytes are 0.
    pub comm: SpinLock<[u8; 16]>,
}

// SAFETY: no other type implements the trait.
unsafe impl ProgramData for PosixThread {}

// SAFETY: only the thread itself uses the cells, as the comment of the type says. All other fields are
// atomic, locked or constant.
unsafe impl Send for PosixThread {}
// SAFETY: as above.
unsafe impl Sync for PosixThread {}

impl Deref for Thread {
    type Target = PosixThread;

    /// Panics for an idle thread, which belongs to no program.
    #[inline]
    fn deref(&self) -> &PosixThread {
        let data = self.data.as_deref().expect("the thread belongs to a program");
        // SAFETY: `PosixThread` is the only type that implements `ProgramData`.
        unsafe { &*core::ptr::from_ref(data).cast() }
    }
}

impl Thread {
    /// Makes a thread of a process, with these descriptors and this place. Its program continues with `frame`
    /// and these vector registers. Returns `None` if there is no memory for a stack.
    pub fn of_program(
        tid: u32,
        process: &Arc<Process>,
        descriptors: Descriptors,
        place: Arc<Place>,
        space: Space,
        frame: &Frame,
        vectors: &Vectors,
    ) -> Option<Self> {
        let mmu = core::ptr::from_ref(space.mmu());
        let data = PosixThread {
            process: process.clone(),
            files: FileTable::new(descriptors, &process.descriptor_limit),
            place: SpinLock::new(place),
            space: UnsafeCell::new(Some(space)),
            clear_tid: Cell::new(0),
            robust_list: AtomicU64::new(0),
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
        let thread = Thread::new(tid, process.account.clone(), frame, vectors, Box::new(data))?;
        thread.mmu.set(mmu);
        Some(thread)
    }

    /// Returns the address space of the calling thread.
    #[inline]
    pub fn space(&self) -> &Space {
        debug_assert!(core::ptr::eq(self, current()));
        // SAFETY: only the thread itself uses the cell. `set_space` replaces the value, and its caller has no
        // reference from here.
        unsafe { (*self.space.get()).as_ref() }.expect("the thread has a space")
    }

    /// Moves the calling thread to another space, or to none. Returns the space that the thread has left;
    /// dropping the last reference frees the memory.
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
    /// Returns the thread's process.
    #[inline]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Returns the working directory and the mask, which other threads may share.
    pub fn place(&self) -> Arc<Place> {
        self.place.lock().clone()
    }

    /// Gives the thread a working directory and a mask of its own.
    pub fn unshare_place(&self) {
        let own = self.place().copy();
        self.set_place(own);
    }

    /// Drops the reference to the working directory, at the end of the thread.
    pub fn leave_place(&self) {
        self.set_place(Place::of_ended());
    }

    fn set_place(&self, place: Arc<Place>) {
        let before = core::mem::replace(&mut *self.place.lock(), place);
        drop(before);
    }
}

/// Does the pending work of the calling thread before it returns to its program, whose registers are in
/// `frame`. Returns the address of the program's next instruction.
#[inline]
pub fn before_user(frame: &mut Frame) -> UserAddr {
    if options::has_generations() {
        current().space().note_ran();
    }
    let work = current().work.load(Relaxed);
    match UserAddr::new(frame.rip) {
        Some(next) if work == 0 => next,
        _ => do_work(frame, work),
    }
}

/// Does the work until none is left and the next instruction is at a [`UserAddr`].
#[cold]
fn do_work(frame: &mut Frame, mut work: u32) -> UserAddr {
    loop {
        // The work may let other threads run, which may add more work.
        while work != 0 {
            do_once(frame, work);
            work = current().work.load(Relaxed) & (work::KILL | work::SIGNAL);
        }
        if let Some(next) = UserAddr::new(frame.rip) {
            return next;
        }
        // The signal's handler may also be at an invalid address. The loop ends at the latest when the stack
        // is full.
        fault::beyond_end(frame);
        preempt::preempt_point();
        work = current().work.load(Relaxed);
    }
}

/// Does the work of these bits once.
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
    // Other threads may have added work since the word was read.
    let work = here.work.load(Relaxed);
    if work & work::KILL != 0 {
        exit::exit_thread();
    }
    if work & (work::SIGNAL | work::MASK) != 0 {
        deliver::deliver(frame);
    }
}
