//! A thread: its stack, the registers that the kernel does not use itself, and whether it sleeps.
//!
//! The scheduler (`scheduler.rs`) runs threads, and `wait.rs` puts them to sleep. This file knows nothing
//! about programs: `process/thread.rs` adds the data of a program's thread. No lock guards a thread. Its
//! fields are constant, atomic, or cells that only the thread itself uses while it runs.
//!
//! A new kind of pending work is a bit of [`work`] and a step of `do_once` (`process/thread.rs`). If the work
//! must also end a sleep, the bit belongs in `Sleep::ends_by` (`wait.rs`).

use crate::arch::frame::{Frame, UserAddr, Vectors};
use crate::arch::{cpu, features::VectorState, lock::SpinLock};
use crate::memory::account::Account;
use crate::memory::stacks::{self, Stack};
use crate::sched::key::Place;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use freehold_kit::SpaceCpus;

/// Value of `state`: the thread runs or waits for a CPU.
pub const RUNNABLE: u32 = 0;
/// Value of `state`: the thread sleeps and is in no CPU's queue.
pub const PARKED: u32 = 1;
/// Value of `state`: the thread runs, and its next park returns at once.
pub(super) const UNPARKED: u32 = 2;

/// A thread. Fields in cells are used only by the thread itself while it runs, and by its creator before the
/// thread first runs.
pub struct Thread {
    /// The number. Changes at most once: when an exec makes this thread the only one of its process.
    tid: AtomicU32,
    /// `RUNNABLE`, `PARKED` or `UNPARKED`. Changed by the thread and by the threads that wake it.
    pub state: AtomicU32,
    /// True while a CPU uses the thread's stack. Cleared by the next thread on that CPU.
    pub on_cpu: AtomicBool,
    /// The CPU on which the thread ran last.
    pub last_cpu: AtomicUsize,
    /// The CPUs on which the thread may run, one bit each.
    pub affinity: AtomicU64,
    /// Pending work before the thread returns to its program: bits of [`work`].
    pub work: AtomicU32,
    /// The bits of `work` that end the thread's present sleep.
    pub ends_by: AtomicU32,
    /// The kernel stack; `None` for an idle thread, which has no program.
    pub stack: Option<Stack>,
    /// The stack pointer of a thread that is not on a CPU.
    pub stack_pointer: UnsafeCell<u64>,
    /// The x87 and AVX registers and PKRU of a thread that is not on a CPU.
    pub(super) vectors: UnsafeCell<Box<VectorState>>,
    /// The base of fs in the program, loaded at switches.
    pub fs_base: Cell<UserAddr>,
    /// The base of gs in the program, loaded at switches.
    pub gs_base: Cell<UserAddr>,
    /// The part of the program's space that a CPU needs to load the space and to flush its translations; null
    /// if there is no space. The task that sets the pointer keeps the space alive until it sets another
    /// pointer.
    pub mmu: Cell<*const SpaceCpus>,
    /// The run time in nanoseconds. Written by the thread's CPU at switches.
    pub ran_ns: AtomicU64,
    /// The thread's virtual time, which determines its place in a queue.
    pub virtual_ns: AtomicU64,
    /// The place to which a requeue has moved the thread's sleep: see `wait`.
    pub(super) moved: Moved,
    /// The account of the thread's process.
    pub account: Arc<Account>,
    /// True if the thread was refused memory and nothing has reacted yet.
    pub wants_memory: Cell<bool>,
    /// The memory policy, encoded by `platform/policy.rs`; 0 is the default policy.
    pub policy: Cell<u64>,
    /// The node that a policy of the thread used last, if it distributes pages over nodes.
    pub last_node: Cell<usize>,
    /// True if the thread was refused memory because of a policy although other nodes have memory, and
    /// nothing has reacted yet.
    pub lacks_node: Cell<bool>,
    /// Data of a program's thread; `None` for an idle thread.
    pub data: Option<Box<dyn ProgramData>>,
}

/// The data of a program's thread, which this layer does not know.
///
/// # Safety
///
/// Only one type implements the trait. `process/thread.rs` relies on it to read the data without a check of
/// its type.
pub unsafe trait ProgramData: Send + Sync {}

/// Bits of [`Thread::work`].
pub mod work {
    /// The thread has to end.
    pub const KILL: u32 = 1;
    /// A signal that is not blocked is pending.
    pub const SIGNAL: u32 = 2;
    /// The thread's mask was set for a call: see `signal::set_blocked_for_call`.
    pub const MASK: u32 = 4;
    /// The thread should let other threads run.
    pub const YIELD: u32 = 8;
    /// The set of CPUs on which the thread may run has changed, so it may have to move.
    pub const MOVE: u32 = 16;
}

// SAFETY: only the thread itself uses the cells, as the comment of the type says. All other fields are atomic
// or constant.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

unsafe extern "C" {
    fn thread_begin();
}

/// Returns the calling thread. The reference is valid only while the thread runs, so it is never stored or
/// passed to another thread.
#[inline(always)]
pub fn current() -> &'static Thread {
    // SAFETY: the pointer is set before the first thread runs. The CPU holds a reference to the thread.
    unsafe { &*cpu::current().cast() }
}

impl Thread {
    /// Makes a thread whose program continues with `frame` and these vector registers. `account` is the
    /// account of its process. Returns `None` if there is no memory for a stack.
    pub fn new(
        tid: u32,
        account: Arc<Account>,
        frame: &Frame,
        vectors: &Vectors,
        data: Box<dyn ProgramData>,
    ) -> Option<Self> {
        let stack = stacks::alloc()?;
        let at = stack.top() - (size_of::<Frame>() + size_of::<Vectors>()) as u64;
        let begin = at - 7 * 8;
        // SAFETY: the stack is new, so no thread runs on it. `switch_stacks` pops six registers and returns
        // to `thread_begin`.
        unsafe {
            (at as *mut Vectors).write(*vectors);
            ((at + size_of::<Vectors>() as u64) as *mut Frame).write(*frame);
            (begin as *mut [u64; 7]).write([0, 0, 0, 0, 0, 0, thread_begin as *const () as u64]);
        }
        let stack_pointer = UnsafeCell::new(begin);
        Some(Thread { stack: Some(stack), stack_pointer, account, data: Some(data), ..Thread::blank(tid) })
    }

    /// Makes the thread that a CPU runs when no other thread is runnable.
    pub fn idle() -> Self {
        Thread { on_cpu: AtomicBool::new(true), ..Thread::blank(0) }
    }

    /// Makes a thread without a stack.
    fn blank(tid: u32) -> Self {
        Thread {
            tid: AtomicU32::new(tid),
            state: AtomicU32::new(RUNNABLE),
            on_cpu: AtomicBool::new(false),
            last_cpu: AtomicUsize::new(cpu::number()),
            affinity: AtomicU64::new(u64::MAX),
            work: AtomicU32::new(0),
            ends_by: AtomicU32::new(0),
            stack: None,
            stack_pointer: UnsafeCell::new(0),
            vectors: UnsafeCell::new(VectorState::boxed()),
            fs_base: Cell::new(UserAddr::ZERO),
            gs_base: Cell::new(UserAddr::ZERO),
            mmu: Cell::new(ptr::null()),
            ran_ns: AtomicU64::new(0),
            virtual_ns: AtomicU64::new(0),
            moved: Moved::new(),
            account: Arc::default(),
            wants_memory: Cell::new(false),
            policy: Cell::new(0),
            last_node: Cell::new(usize::MAX),
            lacks_node: Cell::new(false),
            data: None,
        }
    }

    /// Returns the thread's number.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    /// Changes the calling thread's number to its process's, for exec.
    pub fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Relaxed);
    }

    /// Returns the vector registers of the calling thread's program, which lie below its frame.
    pub fn user_vectors(frame: &Frame) -> &Vectors {
        // SAFETY: `entry.s` pushes the registers below the frame.
        unsafe { &*core::ptr::from_ref(frame).cast::<Vectors>().sub(1) }
    }

    /// Returns the vector registers of the calling thread's program, to change them.
    pub fn user_vectors_mut(frame: &mut Frame) -> &mut Vectors {
        // SAFETY: as in `user_vectors`, and no other reference to the registers exists.
        unsafe { &mut *core::ptr::from_mut(frame).cast::<Vectors>().sub(1) }
    }

    /// Returns the registers of a thread's program, as they were when it entered the kernel.
    ///
    /// # Safety
    ///
    /// The thread has entered the kernel from its program and stays in the kernel.
    pub unsafe fn frame(&self) -> Frame {
        let top = self.stack.as_ref().expect("the thread has a program").top();
        // SAFETY: `entry.s` pushes the frame at the top of the stack, and by the caller's promise it does not
        // change.
        unsafe { *((top - size_of::<Frame>() as u64) as *const Frame) }
    }

    /// Saves the calling thread's x87 and AVX registers and PKRU in a new thread that is a copy of the
    /// calling thread.
    pub fn copy_vector_state_to(&self, other: &Thread) {
        // SAFETY: the other thread does not run yet, so its cells belong to the caller.
        unsafe { (*other.vectors.get()).save() };
    }

    /// Returns the registers of the calling thread's program, as they were when it entered the kernel.
    pub fn own_frame(&self) -> Frame {
        assert!(ptr::eq(self, current()));
        // SAFETY: the calling thread runs in the kernel.
        unsafe { self.frame() }
    }

    /// Returns true if the thread sleeps.
    pub fn is_parked(&self) -> bool {
        self.state.load(Relaxed) == PARKED
    }

    /// Returns true if the thread has to end.
    pub fn is_killed(&self) -> bool {
        self.work.load(Relaxed) & work::KILL != 0
    }

    /// Returns a reference to the calling thread that can be stored.
    pub fn hold_current() -> Arc<Thread> {
        let thread = core::ptr::from_ref(current());
        // SAFETY: the CPU has a reference to the thread, from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(thread);
            Arc::from_raw(thread)
        }
    }
}

/// The place to which [`requeue`](super::wait::requeue) has moved a thread's sleep, and the number of the
/// sleep. Written under the locks of both the old and the new list. If a thread does not find itself at its
/// place, and this value was the same before and after the search, the thread is in no list.
pub struct Moved(SpinLock<Option<(u64, Place)>>);

impl Moved {
    pub const fn new() -> Self {
        Moved(SpinLock::new(None))
    }

    /// Returns the place of the sleep `id`, if the sleep was moved.
    pub(super) fn of(&self, id: u64) -> Option<Place> {
        self.0.lock().filter(|(moved, _)| *moved == id).map(|(_, place)| place)
    }

    /// Records that the sleep `id` was moved. The caller holds the locks of both lists.
    pub(super) fn set(&self, id: u64, place: Place) {
        *self.0.lock() = Some((id, place));
    }
}
