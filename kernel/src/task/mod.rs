//! Threads and processes.
//!
//! | file | what |
//! | --- | --- |
//! | [`scheduler`] | queues of processors, switches, idling |
//! | [`wait`] | sleeping until somebody wakes, for a word of the kernel's or a program's |
//! | [`mutex`] | a lock that threads sleep for |
//! | [`timers`] | the tick, and sleepers with a deadline |
//! | [`process`] | what threads of a program share |
//! | [`exec`] | a program's image and its first stack |
//! | [`clone`] | new threads and processes |
//! | [`exit`] | their ends, and waiting for those |
//! | [`dump`] | core files |
//! | [`fault`] | page faults and exceptions of programs |
//! | [`futex`] | the system call's operations |
//! | [`signal`] | who gets signals, and what threads do about them |
//! | [`trace`] | threads that a tracer stops |
//! | [`reap`] | waiting for children |
//! | [`standstill`] | what a machine that goes on no more tells |
//! | [`itimers`] | timers that send signals |
//! | [`ids`], [`limits`] | users and groups of a process; what it may use |
//!
//! # Sleeping
//!
//! A thread that sleeps is *parked*; others wake it by *unparking* it, before or after, as often as they like:
//! a park that finds an unpark before it returns at once. So every wait is a loop that looks at its condition
//! again, and a signal needs no more than to set [`Thread::work`] and unpark.

pub mod clone;
pub mod dump;
pub mod exec;
pub mod exit;
pub mod fault;
pub mod futex;
pub mod ids;
pub mod itimers;
pub mod limits;
pub mod mutex;
pub mod process;
pub mod reap;
pub mod scheduler;
pub mod signal;
pub mod standstill;
pub mod timers;
pub mod trace;
pub mod wait;

use crate::arch::features::VectorState;
use crate::arch::lock::SpinLock;
use crate::arch::trap::{Frame, Vectors};
use crate::arch::user::UserAddr;
use crate::arch::{cpu, jitter, preempt};
use crate::memory::platform::Machine;
use crate::memory::stacks::{self, Stack};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use freehold::counted::Counted;
use freehold::space::AddressSpace;
use process::Process;
use signal::frame::AlternateStack;

/// An address space of this kernel.
pub type Space = Counted<AddressSpace<Machine>>;

/// `state`: runs, or waits for a processor.
const RUNNABLE: u32 = 0;
/// `state`: sleeps, and is in no processor's queue.
const PARKED: u32 = 1;
/// `state`: runs, and its next park returns at once.
const UNPARKED: u32 = 2;

/// A thread. Fields in cells are its own: it alone uses them, while it runs, or its maker before.
pub struct Thread {
    /// Changes once at most, where exec makes it the only thread of its process.
    tid: AtomicU32,
    process: Option<Arc<Process>>,
    /// `RUNNABLE`, `PARKED` or `UNPARKED`; changed by the thread and by those who wake it.
    state: AtomicU32,
    /// A processor is on its stack. Cleared by the thread that comes after it there.
    on_cpu: AtomicBool,
    /// The processor that it ran on last.
    last_cpu: AtomicUsize,
    /// Processors that it may run on, by bit.
    pub affinity: AtomicU64,
    /// What it has to do before it goes back to its program: bits of [`work`].
    pub work: AtomicU32,
    stack: Option<Stack>,
    stack_pointer: UnsafeCell<u64>,
    vectors: UnsafeCell<Box<VectorState>>,
    pub fs_base: Cell<UserAddr>,
    pub gs_base: Cell<UserAddr>,
    space: UnsafeCell<Option<Space>>,
    /// Where zero is stored, and a futex woken, when it ends (CLONE_CHILD_CLEARTID).
    pub clear_tid: Cell<u64>,
    /// Address and size that set_robust_list was given.
    pub robust_list: Cell<(u64, u64)>,
    /// Signals that are blocked: see [`blocked`](Self::blocked).
    blocked: AtomicU64,
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
    /// How long it has run, in nanoseconds. Written by its processor at switches.
    pub ran_ns: AtomicU64,
    /// Minor and major faults. Written by the thread alone.
    pub faults: [AtomicU64; 2],
    /// Its place among those that wait for a processor: how long it has run, as the scheduler counts.
    pub virtual_ns: AtomicU64,
    /// Where a requeued futex has moved its sleep: see `wait`.
    moved: wait::Moved,
    pub trace: trace::Trace,
    /// The thread's name, as `PR_SET_NAME` has it.
    pub comm: SpinLock<[u8; 16]>,
}

/// Bits of [`Thread::work`].
pub mod work {
    /// It has to end.
    pub const KILL: u32 = 1;
    /// A signal that is not blocked is pending.
    pub const SIGNAL: u32 = 2;
    /// Its mask is one for a call: see `signal::set_blocked_for_call`.
    pub const MASK: u32 = 4;
    /// Others should run.
    pub const YIELD: u32 = 8;
    /// It may not run on every processor any more.
    pub const MOVE: u32 = 16;
}

// SAFETY: cells are the thread's own, see the type; all else is atomic or does not change.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

unsafe extern "C" {
    fn thread_begin();
}

impl Thread {
    /// A thread that will go on with `frame` and these vector registers in its program.
    ///
    /// # Errors
    ///
    /// No memory for a stack.
    pub fn new(
        tid: u32,
        process: &Arc<Process>,
        space: Space,
        frame: &Frame,
        vectors: &Vectors,
    ) -> Option<Self> {
        let stack = stacks::alloc()?;
        let at = stack.top() - (size_of::<Frame>() + size_of::<Vectors>()) as u64;
        let begin = at - 7 * 8;
        // SAFETY: a stack of ours that nobody runs on; `switch_stacks` pops six registers and returns.
        unsafe {
            (at as *mut Vectors).write(*vectors);
            ((at + size_of::<Vectors>() as u64) as *mut Frame).write(*frame);
            (begin as *mut [u64; 7]).write([0, 0, 0, 0, 0, 0, thread_begin as *const () as u64]);
        }
        Some(Thread {
            process: Some(process.clone()),
            stack: Some(stack),
            stack_pointer: UnsafeCell::new(begin),
            space: UnsafeCell::new(Some(space)),
            ..Thread::blank(tid)
        })
    }

    /// What a processor runs when there is nothing to run.
    pub fn idle() -> Self {
        Thread { on_cpu: AtomicBool::new(true), ..Thread::blank(0) }
    }

    fn blank(tid: u32) -> Self {
        Thread {
            tid: AtomicU32::new(tid),
            process: None,
            state: AtomicU32::new(RUNNABLE),
            on_cpu: AtomicBool::new(false),
            last_cpu: AtomicUsize::new(cpu::number()),
            affinity: AtomicU64::new(u64::MAX),
            work: AtomicU32::new(0),
            stack: None,
            stack_pointer: UnsafeCell::new(0),
            vectors: UnsafeCell::new(VectorState::boxed()),
            fs_base: Cell::new(UserAddr::ZERO),
            gs_base: Cell::new(UserAddr::ZERO),
            space: UnsafeCell::new(None),
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
            ran_ns: AtomicU64::new(0),
            faults: [AtomicU64::new(0), AtomicU64::new(0)],
            virtual_ns: AtomicU64::new(0),
            moved: wait::Moved::new(),
            trace: trace::Trace::default(),
            comm: SpinLock::new([0; 16]),
        }
    }

    /// Its number.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    /// The calling thread gets another number: its process's, as exec wants.
    pub fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Relaxed);
    }

    /// Whether it is a program's. Idle threads are not.
    pub fn has_process(&self) -> bool {
        self.process.is_some()
    }

    /// Its process. Idle threads have none, and never ask.
    pub fn process(&self) -> &Arc<Process> {
        self.process.as_ref().expect("a thread of a process")
    }

    /// The address space of the calling thread.
    #[inline]
    pub fn space(&self) -> &Space {
        debug_assert!(core::ptr::eq(self, cpu::current()));
        // SAFETY: the thread's own; replaced by `set_space`, whose caller has no reference from here.
        unsafe { (*self.space.get()).as_ref() }.expect("a thread with a program")
    }

    /// The calling thread goes on in this space, or in none; returns the one that it was in.
    pub fn set_space(&self, space: Option<Space>) -> Option<Space> {
        debug_assert!(core::ptr::eq(self, cpu::current()));
        match &space {
            Some(space) => crate::memory::tlb::enter(space.mmu()),
            None => crate::memory::tlb::leave(),
        }
        // SAFETY: as in `space`.
        core::mem::replace(unsafe { &mut *self.space.get() }, space)
    }

    /// The frame of the calling thread's program, and its vector registers.
    pub fn user_vectors(frame: &Frame) -> &Vectors {
        // SAFETY: `entry.s` pushes them below the frame.
        unsafe { &*core::ptr::from_ref(frame).cast::<Vectors>().sub(1) }
    }

    /// The registers of a thread's program.
    ///
    /// # Safety
    ///
    /// The thread is in the kernel, and stays there.
    pub unsafe fn frame(&self) -> Frame {
        let top = self.stack.as_ref().expect("a thread with a program").top();
        // SAFETY: `entry.s` pushes them at the top, and the caller's.
        unsafe { *((top - size_of::<Frame>() as u64) as *const Frame) }
    }

    /// Keeps the calling thread's x87 and AVX registers up to date for a copy of it.
    pub fn copy_vector_state_to(&self, other: &Thread) {
        // SAFETY: the caller's own, and a thread that is not running yet.
        unsafe { (*other.vectors.get()).save() };
    }

    /// Sleeps until somebody unparks, or has since the last time. May return for nothing.
    pub fn park(&self) {
        debug_assert!(core::ptr::eq(self, cpu::current()));
        // Acquire pairs with the release of `unpark`, here and in the exchange of the scheduler.
        if self.state.compare_exchange(RUNNABLE, PARKED, AcqRel, Acquire).is_err() {
            self.state.swap(RUNNABLE, Acquire);
            return;
        }
        jitter::stall();
        scheduler::block();
    }

    /// Ends its park, or the one that comes.
    pub fn unpark(self: &Arc<Self>) {
        let step = |state| Some(if state == PARKED { RUNNABLE } else { UNPARKED });
        // Release pairs with the acquires of `park`: the thread sees why it was woken.
        if self.state.fetch_update(AcqRel, Relaxed, step) == Ok(PARKED) {
            jitter::stall();
            scheduler::enqueue(self.clone());
        }
    }

    /// Adds work to do before its program goes on, and ends what it waits for.
    pub fn give_work(self: &Arc<Self>, bits: u32) {
        self.work.fetch_or(bits, AcqRel);
        self.unpark();
        scheduler::kick(self);
    }

    /// Whether it sleeps.
    pub fn is_parked(&self) -> bool {
        self.state.load(Relaxed) == PARKED
    }

    /// Whether it has to end.
    pub fn is_killed(&self) -> bool {
        self.work.load(Relaxed) & work::KILL != 0
    }

    /// A reference to the calling thread that can be kept.
    pub fn hold_current() -> Arc<Thread> {
        let thread = core::ptr::from_ref(cpu::current());
        // SAFETY: the processor has a reference, from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(thread);
            Arc::from_raw(thread)
        }
    }
}

/// Does what the calling thread has to do before it goes back to its program, whose registers are in `frame`.
/// Returns the address of the program's next instruction.
#[inline]
pub fn before_user(frame: &mut Frame) -> UserAddr {
    let work = cpu::current().work.load(Relaxed);
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
            work = cpu::current().work.load(Relaxed) & (work::KILL | work::SIGNAL);
        }
        if let Some(next) = UserAddr::new(frame.rip) {
            return next;
        }
        // The handler of this signal may be at no such address either, until the stack has no room left.
        fault::beyond_end(frame);
        preempt::look();
        work = cpu::current().work.load(Relaxed);
    }
}

fn do_once(frame: &mut Frame, work: u32) {
    if work & work::KILL != 0 {
        exit::exit_thread();
    }
    let here = cpu::current();
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
        signal::deliver::deliver(frame);
    }
}
