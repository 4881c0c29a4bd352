//! What each processor has for itself. Its GS base, while the kernel runs, is the address of its [`Cpu`].
//!
//! Interrupts are off in the kernel, and threads move between processors only where they sleep or let others
//! in (`preempt`). So a `Cpu` is its own as long as neither happens, and nobody keeps a reference from [`cpu`]
//! over that, nor over a call of the engine.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire};
use freehold_kit::SpaceCpus;

/// Most processors that there may be.
pub const MAX_CPUS: usize = 64;

/// One processor's own.
#[repr(C, align(128))]
pub struct Cpu {
    /// Its own address: offset 0, read by [`cpu`].
    this: Cell<*const Cpu>,
    /// Where system calls begin to push: offset 8, read by `entry.s`.
    pub kernel_stack: Cell<u64>,
    /// The program's stack pointer for a moment: offset 16, used by `entry.s`.
    user_stack: Cell<u64>,
    pub number: Cell<usize>,
    /// The thread that runs, of which the processor holds a reference (the scheduler knows the type): offset 32,
    /// read by `current`.
    pub current: Cell<*const ()>,
    /// The thread that runs where no other does.
    pub idle: Cell<*const ()>,
    /// Whose root is loaded; null: the kernel's own.
    pub loaded: Cell<*const SpaceCpus>,
    /// The thread has run for its time.
    pub resched: Cell<bool>,
    /// When the timer goes off, in nanoseconds; `u64::MAX`: never.
    pub timer: Cell<u64>,
    /// Why the thread keeps the processor, counted; and the counter when interrupts were let in last, and
    /// how long after that they are again. See `preempt`.
    pub held: Cell<u32>,
    pub let_in: Cell<u32>,
    pub let_in_after: Cell<u32>,
    /// Since when interrupts are off: see `irq_off`.
    pub off_since: Cell<u64>,
    /// The last random number of `jitter`.
    pub jitter: Cell<u64>,
    /// Since when the thread's time was not counted, and what `Thread::virtual_ns` was then. Written by the
    /// processor, read by others that wake threads (Relaxed: a hint).
    pub turn_began: AtomicU64,
    pub turn_virtual: AtomicU64,
}

// SAFETY: only the processor itself uses its own, see the module; `Cpu`s are in a static for their addresses.
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

static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];
/// How many processors run.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// The processor that this runs on.
#[inline(always)]
pub fn cpu() -> &'static Cpu {
    let this: *const Cpu;
    // SAFETY: `init` was the first thing that this processor did.
    unsafe {
        asm!("mov {}, gs:0", out(reg) this, options(nostack, preserves_flags, readonly));
        &*this
    }
}

/// Another processor: its atomics are for all.
#[inline]
pub fn other(number: usize) -> &'static Cpu {
    &CPUS[number]
}

/// The number of the processor that this runs on.
#[inline(always)]
pub fn number() -> usize {
    cpu().number.get()
}

/// The thread that runs, as `Cpu::current` has it.
#[inline(always)]
pub fn current() -> *const () {
    let thread: *const ();
    // SAFETY: the processor's own.
    unsafe { asm!("mov {}, gs:32", out(reg) thread, options(nostack, preserves_flags, readonly)) };
    thread
}

/// A value of one processor, in an array that [`number`] indexes.
#[repr(align(128))]
pub struct PerCpu<T>(UnsafeCell<T>);

// SAFETY: only the processor itself uses its own, as those of a `Cpu`.
unsafe impl<T> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    pub const fn new(value: T) -> Self {
        PerCpu(UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// How many processors run.
#[inline]
pub fn count() -> usize {
    // Acquire pairs with the release of `set_count`.
    COUNT.load(Acquire)
}

pub fn set_count(count: usize) {
    COUNT.store(count, core::sync::atomic::Ordering::Release);
}

/// Makes the calling processor this one.
pub fn init(number: usize) {
    const { assert!(core::mem::offset_of!(Cpu, kernel_stack) == 8) };
    const { assert!(core::mem::offset_of!(Cpu, user_stack) == 16) };
    const { assert!(core::mem::offset_of!(Cpu, current) == 32) };
    let own = &CPUS[number];
    own.this.set(own);
    own.number.set(number);
    // SAFETY: the GS base is ours; programs get theirs by `swapgs`.
    unsafe {
        x86_64::registers::model_specific::Msr::new(0xc000_0101).write(ptr::from_ref(own) as u64);
        x86_64::registers::model_specific::Msr::new(0xc000_0102).write(0);
    }
}
