//! A thread: its stack, the registers that the kernel does not use itself, whether it sleeps.

use crate::arch::frame::{Frame, UserAddr, Vectors};
use crate::arch::{cpu, features::VectorState};
use crate::memory::stacks::{self, Stack};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold_kit::SpaceCpus;

/// `state`: runs, or waits for a processor.
pub const RUNNABLE: u32 = 0;
/// `state`: sleeps, and is in no processor's queue.
pub const PARKED: u32 = 1;
/// `state`: runs, and its next park returns at once.
pub(super) const UNPARKED: u32 = 2;

/// A thread. Fields in cells are its own: it alone uses them, while it runs, or its maker before.
pub struct Thread {
    /// Changes once at most, where exec makes it the only thread of its process.
    tid: AtomicU32,
    /// `RUNNABLE`, `PARKED` or `UNPARKED`; changed by the thread and by those who wake it.
    pub state: AtomicU32,
    /// A processor is on its stack. Cleared by the thread that comes after it there.
    pub on_cpu: AtomicBool,
    /// The processor that it ran on last.
    pub last_cpu: AtomicUsize,
    /// Processors that it may run on, by bit.
    pub affinity: AtomicU64,
    /// What it has to do before it goes back to its program: bits of [`work`].
    pub work: AtomicU32,
    /// None: an idle thread, which has no program.
    pub stack: Option<Stack>,
    pub stack_pointer: UnsafeCell<u64>,
    pub(super) vectors: UnsafeCell<Box<VectorState>>,
    pub fs_base: Cell<UserAddr>,
    pub gs_base: Cell<UserAddr>,
    /// The processors' half of its program's space; null: it has none. The task that sets it keeps the space until it
    /// sets another.
    pub mmu: Cell<*const SpaceCpus>,
    /// How long it has run, in nanoseconds. Written by its processor at switches.
    pub ran_ns: AtomicU64,
    /// Its place among those that wait for a processor: how long it has run, as the scheduler counts.
    pub virtual_ns: AtomicU64,
    /// Where a requeued futex has moved its sleep: see `wait`.
    pub(super) moved: Moved,
    /// Data of a program's thread: a `process::thread::PosixThread`.
    pub data: Box<dyn Any + Send + Sync>,
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

/// The thread that runs: the caller's own. It lives as long as it runs.
#[inline(always)]
pub fn current() -> &'static Thread {
    // SAFETY: set before the first thread runs; the processor holds a reference.
    unsafe { &*cpu::current().cast() }
}

impl Thread {
    /// A thread that will go on with `frame` and these vector registers in its program.
    ///
    /// # Errors
    ///
    /// No memory for a stack.
    pub fn new(tid: u32, frame: &Frame, vectors: &Vectors, data: Box<dyn Any + Send + Sync>) -> Option<Self> {
        let stack = stacks::alloc()?;
        let at = stack.top() - (size_of::<Frame>() + size_of::<Vectors>()) as u64;
        let begin = at - 7 * 8;
        // SAFETY: a stack of ours that nobody runs on; `switch_stacks` pops six registers and returns.
        unsafe {
            (at as *mut Vectors).write(*vectors);
            ((at + size_of::<Vectors>() as u64) as *mut Frame).write(*frame);
            (begin as *mut [u64; 7]).write([0, 0, 0, 0, 0, 0, thread_begin as *const () as u64]);
        }
        Some(Thread { stack: Some(stack), stack_pointer: UnsafeCell::new(begin), data, ..Thread::blank(tid) })
    }

    /// What a processor runs when there is nothing to run.
    pub fn idle() -> Self {
        Thread { on_cpu: AtomicBool::new(true), ..Thread::blank(0) }
    }

    fn blank(tid: u32) -> Self {
        Thread {
            tid: AtomicU32::new(tid),
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
            mmu: Cell::new(ptr::null()),
            ran_ns: AtomicU64::new(0),
            virtual_ns: AtomicU64::new(0),
            moved: Moved::new(),
            data: Box::new(()),
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
        let thread = core::ptr::from_ref(current());
        // SAFETY: the processor has a reference, from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(thread);
            Arc::from_raw(thread)
        }
    }
}

/// Where [`requeue`] has moved a thread's sleep: its number, and the list. Written under the locks of the
/// list that it leaves and the list that it comes to; a thread that does not find itself in a list, and finds
/// the same here afterwards as before, is in none.
pub struct Moved {
    id: AtomicU64,
    bucket: AtomicUsize,
}

impl Moved {
    pub const fn new() -> Self {
        Moved { id: AtomicU64::new(u64::MAX), bucket: AtomicUsize::new(0) }
    }

    /// Acquire pairs with the releases of `set`: a thread that sees the list sees the number, too.
    pub(super) fn of(&self, id: u64) -> Option<usize> {
        let bucket = self.bucket.load(Acquire);
        (self.id.load(Acquire) == id).then_some(bucket)
    }

    pub(super) fn set(&self, id: u64, bucket: usize) {
        self.id.store(id, Release);
        self.bucket.store(bucket, Release);
    }
}
