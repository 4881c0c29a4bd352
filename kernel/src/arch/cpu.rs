//! Per-CPU data: [`Cpu`] has the fields that several files use, and [`PerCpu`] is an element of an array that
//! another file owns. While the kernel runs, the GS base of a CPU is the address of its [`Cpu`].
//!
//! Interrupts are off in the kernel. A thread moves to another CPU only where it sleeps or where it can be
//! preempted (`preempt.rs`). A reference from [`cpu`] is therefore valid until the next such point. No code
//! keeps the reference over a sleep, a preemption point or a call of the engine. The offsets of some fields
//! are written as numbers in `entry.s` and in the assembly of this file; [`init`] checks them.
//!
//! A new field belongs behind `current`, so that the offsets in the assembly stay the same. Other CPUs may
//! use only the atomics of a [`Cpu`] ([`other`]). Data that a single file uses is a [`PerCpu`] in that file
//! instead.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire};
use freehold_kit::SpaceCpus;

/// The maximum number of CPUs.
pub const MAX_CPUS: usize = 64;

/// Data of one CPU.
#[repr(C, align(128))]
pub struct Cpu {
    /// The address of this `Cpu`: offset 0, read by [`cpu`].
    this: Cell<*const Cpu>,
    /// Top of the stack on which a system call pushes its frame: offset 8, read by `entry.s`.
    pub kernel_stack: Cell<u64>,
    /// Holds the program's stack pointer while a system call switches stacks: offset 16, used by `entry.s`.
    user_stack: Cell<u64>,
    pub number: Cell<usize>,
    /// The running thread: offset 32, read by `current`. The CPU holds a reference to the thread; only the
    /// scheduler knows its type.
    pub current: Cell<*const ()>,
    /// The thread that runs when no other thread is runnable.
    pub idle: Cell<*const ()>,
    /// The space whose page-table root is loaded; null for the kernel's own root.
    pub loaded: Cell<*const SpaceCpus>,
    /// Set when the running thread has used up its time slice.
    pub resched: Cell<bool>,
    /// Time at which the timer fires, in nanoseconds; `u64::MAX` if it is disarmed.
    pub timer: Cell<u64>,
    /// Number of holds that forbid preemption: see `preempt.rs`.
    pub held: Cell<u32>,
    /// Lower half of the time-stamp counter at the time when interrupts were last let in.
    pub let_in: Cell<u32>,
    /// Number of ticks after which a preemption point lets interrupts in again.
    pub let_in_after: Cell<u32>,
    /// Time at which interrupts were turned off, if `irq_off` measures; otherwise 0.
    pub off_since: Cell<u64>,
    /// The last random number of `jitter`.
    pub jitter: Cell<u64>,
    /// Start of the part of the thread's run time that is not counted yet, and `Thread::virtual_ns` at that
    /// start. Written by this CPU, read by CPUs that wake threads. Relaxed: the values are hints.
    pub turn_began: AtomicU64,
    pub turn_virtual: AtomicU64,
}

// SAFETY: only its own CPU uses the cells of a `Cpu`: see the head of this file. The trait is needed because
// each `Cpu` is in a static.
unsafe impl Sync for Cpu {}

impl Cpu {
    const fn new() -> Self {
        Cpu {
            this: Cell::new(ptr::null()),
            kernel_stack: Cell::new(0),
            user_stack: Cell::new(0),
            number: Cell::new(0),
            current: Cell::new(ptr::null()),
            idle: Cell::new(ptr::null()),
            loaded: Cell::new(ptr::null()),
            resched: Cell::new(false),
            timer: Cell::new(u64::MAX),
            held: Cell::new(0),
            let_in: Cell::new(0),
            let_in_after: Cell::new(u32::MAX),
            off_since: Cell::new(0),
            jitter: Cell::new(0),
            turn_began: AtomicU64::new(0),
            turn_virtual: AtomicU64::new(0),
        }
    }
}

/// The data of all CPUs, by number.
static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];
/// Number of running CPUs.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// Returns the data of the calling CPU.
#[inline(always)]
pub fn cpu() -> &'static Cpu {
    let this: *const Cpu;
    // SAFETY: each CPU calls `init` before anything else, so its GS base is the address of a `Cpu`.
    unsafe {
        asm!("mov {}, gs:0", out(reg) this, options(nostack, preserves_flags, readonly));
        &*this
    }
}

/// Returns the data of another CPU, whose atomics any CPU may use.
#[inline]
pub fn other(number: usize) -> &'static Cpu {
    &CPUS[number]
}

/// Returns the number of the calling CPU.
#[inline(always)]
pub fn number() -> usize {
    cpu().number.get()
}

/// Returns the running thread, from `Cpu::current`.
#[inline(always)]
pub fn current() -> *const () {
    let thread: *const ();
    // SAFETY: reads a field of the calling CPU's `Cpu`.
    unsafe { asm!("mov {}, gs:32", out(reg) thread, options(nostack, preserves_flags, readonly)) };
    thread
}

/// An element of an array that [`number`] indexes: a value that only one CPU uses.
#[repr(align(128))]
pub struct PerCpu<T>(UnsafeCell<T>);

// SAFETY: only its own CPU uses the value, as with the cells of a `Cpu`.
unsafe impl<T> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    pub const fn new(value: T) -> Self {
        PerCpu(UnsafeCell::new(value))
    }

    /// Returns a pointer to the value. Only the CPU whose number indexes the element may use the pointer.
    /// That CPU does not keep the pointer over a sleep or a preemption point.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// Returns the number of running CPUs.
#[inline]
pub fn count() -> usize {
    // Acquire pairs with the release of `set_count`.
    COUNT.load(Acquire)
}

/// Sets the number of running CPUs. Called once, after all CPUs have started.
pub fn set_count(count: usize) {
    COUNT.store(count, core::sync::atomic::Ordering::Release);
}

/// Makes the calling CPU the CPU `number`.
pub fn init(number: usize) {
    const { assert!(core::mem::offset_of!(Cpu, kernel_stack) == 8) };
    const { assert!(core::mem::offset_of!(Cpu, user_stack) == 16) };
    const { assert!(core::mem::offset_of!(Cpu, current) == 32) };
    let own = &CPUS[number];
    own.this.set(own);
    own.number.set(number);
    // SAFETY: the kernel owns the GS base; programs get theirs by `swapgs`.
    unsafe {
        x86_64::registers::model_specific::Msr::new(0xc000_0101).write(ptr::from_ref(own) as u64);
        x86_64::registers::model_specific::Msr::new(0xc000_0102).write(0);
    }
}
