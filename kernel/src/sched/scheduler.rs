//! The scheduler chooses which thread runs on which CPU. Each CPU has a queue, each thread gets a time slice
//! ([`slice_ns`]), and idle CPUs take threads from other queues.
//!
//! The thread that has run least is first in a queue, as in Linux's CFS (2007). [`Thread::virtual_ns`] counts
//! how long a thread has run, and queues are sorted by it. An entering thread preempts a running thread whose
//! virtual time is larger by [`AHEAD_NS`]. The queue's floor, the virtual time of the thread that was picked
//! last, limits the virtual time with which a thread enters ([`Entry`]): a thread that slept is at most
//! [`LEAD_NS`] below the floor, and a new thread is [`SLICE_NS`] above it. A process that makes threads without
//! end therefore delays no thread that mostly sleeps, and neither sleeping nor forking earns run time.
//!
//! Each queue has a spin lock, and no code holds two of these locks. A thread is in at most one queue, and
//! only while it is runnable and on no CPU. A thread leaves its CPU only in [`switch`], which no thread may
//! enter with a spin lock or in a read section. The next thread completes the switch ([`finish`]), because
//! the stack of the previous thread is in use until then. Tests with `--times N` delay CPUs at the calls of
//! `jitter::stall`.
//!
//! The program `jobs.c` of the tests checks affinities, and prints how late a sleeper wakes beside a busy
//! process.

use super::thread::{PARKED, RUNNABLE, Thread, UNPARKED, current, work};
use super::timers;
use crate::arch::cpu::{self, MAX_CPUS, PerCpu, cpu};
use crate::arch::frame::{Frame, UserAddr};
use crate::arch::lock::{SpinLock, relax};
use crate::arch::{apic, clock, descriptors, handlers::handlers, irq_off, jitter, preempt};
use crate::memory::{rcu::RCU, tlb};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use linux_raw_sys::general::__NR_clone;
use x86_64::registers::model_specific::Msr;

/// The longest time that a thread may run while other threads wait for its CPU.
const SLICE_NS: u64 = 10_000_000;
/// The shortest such time.
const SHORTEST_SLICE_NS: u64 = 100_000;
/// The time in which each thread of a queue is to run once, if the slices are not shorter than the shortest one.
const ROUND_NS: u64 = 50_000_000;
/// Lead of a thread that slept over the threads that ran. Many threads that wake at once delay others by this time
/// each.
const LEAD_NS: u64 = 100_000;
/// Difference of virtual times at which a thread that becomes runnable preempts the running thread.
const AHEAD_NS: u64 = 1_000_000;

/// Number of the model-specific register with the FS base.
const FS_BASE: u32 = 0xc000_0100;
/// Number of the register with the program's GS base, while the kernel runs.
const USER_GS_BASE: u32 = 0xc000_0102;

/// The threads that wait for each CPU.
static QUEUES: [SpinLock<Queue>; MAX_CPUS] = [const { SpinLock::new(Queue::new()) }; MAX_CPUS];

/// Number of threads in each queue. Written under the lock of the queue. Relaxed: the number is a hint.
static LENGTHS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// Returns the time that a thread may run on the calling CPU before a waiting thread gets its turn. The more
/// threads wait, the shorter it is, so that a thread that cannot go ahead of the others waits less.
pub fn slice_ns() -> u64 {
    let threads = LENGTHS[cpu::number()].load(Relaxed) as u64 + 1;
    (ROUND_NS / threads).clamp(SHORTEST_SLICE_NS, SLICE_NS)
}

/// The reason why a thread enters a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// The thread is new. It runs after the threads that are in the queue already.
    New,
    /// The thread has slept. It keeps a small lead, so that threads that run for long do not delay it.
    Woken,
    /// The thread has left its CPU to another thread.
    Preempted,
}

/// The queue of a CPU.
///
/// # Invariants
///
/// The threads are in the order of `virtual_ns`, which does not change while a thread is in a queue.
struct Queue {
    threads: VecDeque<Arc<Thread>>,
    /// `virtual_ns` of the thread that was picked last. Never decreases.
    floor: u64,
}

impl Queue {
    const fn new() -> Self {
        Queue { threads: VecDeque::new(), floor: 0 }
    }

    /// Adds a thread. A thread that `moved` from another CPU starts at the floor. Returns the thread's
    /// virtual time.
    fn insert(&mut self, thread: Arc<Thread>, entry: Entry, moved: bool) -> u64 {
        let before = thread.virtual_ns.load(Relaxed);
        let own = match entry {
            Entry::New => self.floor + SLICE_NS,
            Entry::Woken | Entry::Preempted if moved => self.floor,
            Entry::Woken => before.max(self.floor.saturating_sub(LEAD_NS)),
            Entry::Preempted => before.max(self.floor),
        };
        thread.virtual_ns.store(own, Relaxed);
        // Of the threads that woke with the same lead, the last one is first. Many threads that wake at once and
        // do not sleep again delay no thread that wakes later.
        let first = own + u64::from(entry != Entry::Woken);
        let at = self.threads.partition_point(|other| other.virtual_ns.load(Relaxed) < first);
        self.threads.insert(at, thread);
        own
    }

    /// Removes and returns the first thread, if its virtual time is at most `most`.
    fn pop_before(&mut self, most: u64) -> Option<Arc<Thread>> {
        let own = self.threads.front()?.virtual_ns.load(Relaxed);
        if own > most {
            return None;
        }
        self.floor = self.floor.max(own);
        self.threads.pop_front()
    }
}

/// Removes and returns the first thread of the calling CPU's queue, if its virtual time is at most `most`.
fn pop_own(number: usize, most: u64) -> Option<Arc<Thread>> {
    let mut queue = QUEUES[number].lock();
    let first = queue.pop_before(most);
    LENGTHS[number].store(queue.threads.len(), Relaxed);
    first
}

/// Idle CPUs, one bit each. A CPU sets its bit and then looks for threads again. A waker queues a thread and
/// then reads this word.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// The work that a thread leaves to the next thread on its CPU.
struct Switching {
    /// The thread that left. The CPU's reference to the thread is passed on with this pointer.
    from: *const Thread,
    /// True if the thread that left is put into a queue again.
    requeue: bool,
}

/// The switch in progress on each CPU, from `switch` to `finish`.
static SWITCHING: [PerCpu<Option<Switching>>; MAX_CPUS] = [const { PerCpu::new(None) }; MAX_CPUS];

unsafe extern "C" {
    fn switch_stacks(keep: *mut u64, to: u64);
}

/// Creates the calling CPU's idle thread. The current code continues as that thread.
pub fn init_cpu() {
    let idle = Arc::into_raw(Arc::new(Thread::idle())).cast();
    let own = cpu();
    own.idle.set(idle);
    own.current.set(idle);
    RCU.online(own.number.get());
    preempt::init_cpu();
}

/// Runs the functions whose grace period is over. Preemption is forbidden while they run, because another
/// thread would run the same functions.
fn advance_rcu() {
    preempt::hold();
    RCU.advance();
    preempt::release();
}

/// Puts a new thread into a queue.
pub fn enqueue_new(thread: Arc<Thread>) {
    enqueue(thread, Entry::New);
}

/// Puts a runnable thread that is in no queue into a queue.
fn enqueue(thread: Arc<Thread>, entry: Entry) {
    let target = place(&thread);
    jitter::stall();
    let moved = thread.last_cpu.load(Relaxed) != target;
    let mut queue = QUEUES[target].lock();
    let own = queue.insert(thread, entry, moved);
    LENGTHS[target].store(queue.threads.len(), Relaxed);
    drop(queue);
    // SeqCst: pairs with `idle`, where a CPU stores its bit and then looks at its queue. Either this CPU sees
    // the bit, or the idle CPU sees the thread.
    let idles = IDLE.load(SeqCst) >> target & 1 != 0;
    if target == cpu::number() {
        if !idles && is_ahead(target, own) {
            current().work.fetch_or(work::YIELD, Relaxed);
        }
    } else if idles || is_ahead(target, own) {
        apic::interrupt(target, apic::WAKE);
    }
}

/// Returns true if a thread with the virtual time `own` should preempt the thread that runs on CPU `target`.
fn is_ahead(target: usize, own: u64) -> bool {
    let there = cpu::other(target);
    let ran = clock::now_ns().saturating_sub(there.turn_began.load(Relaxed));
    there.turn_virtual.load(Relaxed) + ran > own + AHEAD_NS
}

/// Adds the time since the last count to the calling thread's run time.
pub fn count_turn() {
    let (own, here) = (cpu(), current());
    let now = clock::now_ns();
    let ran = now.saturating_sub(own.turn_began.swap(now, Relaxed));
    here.ran_ns.fetch_add(ran, Relaxed);
    let total = here.virtual_ns.fetch_add(ran, Relaxed) + ran;
    own.turn_virtual.store(total, Relaxed);
}

/// Returns the CPU for a thread: the one on which it ran last, unless that CPU is busy and another allowed
/// CPU is idle.
fn place(thread: &Thread) -> usize {
    let (last, allowed) = (thread.last_cpu.load(Relaxed), thread.affinity.load(Relaxed));
    let idle = IDLE.load(Relaxed) & allowed;
    if idle >> last & 1 == 0 && idle != 0 {
        return idle.trailing_zeros() as usize;
    }
    match allowed >> last & 1 {
        0 => (allowed.trailing_zeros() as usize).min(cpu::count() - 1),
        _ => last,
    }
}

/// Interrupts the CPU that runs the thread, so that the thread enters the kernel and looks at its work.
pub fn kick(thread: &Thread) {
    let number = thread.last_cpu.load(Relaxed);
    if thread.on_cpu.load(Acquire) && number != cpu::number() {
        apic::interrupt(number, apic::WAKE);
    }
}

/// Removes and returns the next thread for the calling CPU, from its own queue or else from another queue.
fn pick() -> Option<Arc<Thread>> {
    let number = cpu::number();
    let own = pop_own(number, u64::MAX);
    own.or_else(|| steal(number))
}

/// Takes a thread that waits for another CPU and may run on this one.
fn steal(number: usize) -> Option<Arc<Thread>> {
    let count = cpu::count();
    let taken = (1..count).map(|n| (number + n) % count).find_map(|other| {
        let queue = &mut QUEUES[other].lock().threads;
        let at = queue.iter().position(|thread| thread.affinity.load(Relaxed) >> number & 1 != 0)?;
        LENGTHS[other].store(queue.len() - 1, Relaxed);
        queue.remove(at)
    });
    if let Some(thread) = &taken {
        thread.virtual_ns.store(QUEUES[number].lock().floor, Relaxed);
    }
    taken
}

/// Runs another thread. The calling thread is parked, and continues when it is unparked.
pub fn block() {
    let next = match pick() {
        // Another CPU may have picked the calling thread already, and then waits until this CPU has left the
        // thread's stack. If this CPU also waited, for the CPU that still uses the stack of `next`, the CPUs
        // could wait for each other in a cycle. This CPU therefore switches to the idle thread, for which no
        // CPU waits.
        Some(next) if next.on_cpu.load(Acquire) && !ptr::eq(&raw const *next, current()) => {
            enqueue(next, Entry::Preempted);
            None
        }
        next => next,
    };
    switch(next, false);
}

/// Handles the end of a time slice, or the wake-up of another thread: runs a thread with less virtual time
/// than the calling thread, if there is one.
pub fn preempt() {
    cpu().resched.set(false);
    make_way(false);
}

/// Runs another thread that waits for this CPU, even if that thread has run more than the calling thread.
pub fn give_way() {
    make_way(true);
}

/// Passes a quiescent state and runs another thread of this CPU's queue, if there is one. With `for_all`, the
/// next thread in the queue runs in any case. Without `for_all`, it runs only if it has less virtual time
/// than the calling thread.
fn make_way(for_all: bool) {
    let number = cpu::number();
    RCU.quiescent(number);
    // The idle thread, which also runs at boot, is never queued.
    if ptr::eq(cpu().current.get(), cpu().idle.get()) {
        advance_rcu();
        return relax();
    }
    count_turn();
    let own = &current().virtual_ns;
    let next = pop_own(number, if for_all { u64::MAX } else { own.load(Relaxed) });
    match next {
        Some(next) => {
            if for_all {
                // A thread that yields is queued behind the other threads, even if its virtual time is
                // smaller.
                own.fetch_max(next.virtual_ns.load(Relaxed), Relaxed);
            }
            switch(Some(next), true);
        }
        None => {
            advance_rcu();
            relax();
        }
    }
}

/// Switches to `next`, or to the idle thread. With `requeue`, the calling thread goes into a queue again.
/// Returns when the calling thread is picked again.
fn switch(next: Option<Arc<Thread>>, requeue: bool) {
    let own = cpu();
    assert!(own.held.get() == 0, "a thread leaves its CPU with a spin lock or in a read section");
    preempt::hold();
    RCU.quiescent(own.number.get());
    let from: *const Thread = own.current.get().cast();
    let idle: *const Thread = own.idle.get().cast();
    let next = match next {
        Some(next) => Arc::into_raw(next),
        None => idle,
    };
    if next == from {
        if next != idle {
            // SAFETY: this drops the surplus reference; the CPU already has one to the thread.
            unsafe { Arc::decrement_strong_count(next) };
        }
        return preempt::release();
    }
    jitter::stall();
    // SAFETY: this CPU holds a reference to both threads.
    let (from, next) = unsafe { (&*from, &*next) };
    // Acquire pairs with the release of `finish`: the other CPU has left the stack of `next`. CPUs cannot
    // wait here for each other in a cycle. Another CPU waits for this CPU only if it has picked the calling
    // thread. In `block` another CPU may have picked the calling thread, so `block` never makes this CPU
    // wait. In the other callers of this function, the calling thread is in no queue yet, so no CPU can have
    // picked it.
    while next.on_cpu.load(Acquire) && !ptr::eq(next, idle) {
        relax();
    }
    if !ptr::eq(from, idle) {
        count_turn();
    }
    next.on_cpu.store(true, Relaxed);
    next.last_cpu.store(own.number.get(), Relaxed);
    leave_program(from);
    enter_program(next);
    own.current.set(ptr::from_ref(next).cast());
    own.turn_virtual.store(next.virtual_ns.load(Relaxed), Relaxed);
    // SAFETY: `SWITCHING` belongs to this CPU. The stack pointers belong to the threads, and `next` does not
    // run.
    unsafe {
        *SWITCHING[own.number.get()].get() = Some(Switching { from, requeue });
        switch_stacks(from.stack_pointer.get(), *next.stack_pointer.get());
    }
    finish();
}

/// Saves those registers of the calling thread's program that the kernel does not use: x87, AVX and PKRU.
fn leave_program(thread: &Thread) {
    if thread.stack.is_some() {
        // SAFETY: the thread is the running one.
        unsafe { (*thread.vectors.get()).save() };
    }
}

/// Loads the space of a thread's program, and those of its registers that the kernel does not use.
fn enter_program(thread: &Thread) {
    let Some(stack) = &thread.stack else { return tlb::idle() };
    let top = stack.top();
    cpu().kernel_stack.set(top);
    descriptors::set_trap_stack(top);
    // SAFETY: the thread is about to run on this CPU, so its cells belong to this code.
    unsafe {
        (*thread.vectors.get()).load();
        match thread.mmu.get().as_ref() {
            Some(mmu) => tlb::enter(mmu),
            None => tlb::idle(),
        }
    }
    load_bases(thread);
}

/// Completes [`switch`] for the thread that left, on the stack of the thread that follows.
fn finish() {
    let own = cpu();
    // SAFETY: the element belongs to this CPU.
    if let Some(Switching { from, requeue }) = unsafe { (*SWITCHING[own.number.get()].get()).take() } {
        timers::begin_turn();
        if !ptr::eq(from, own.idle.get().cast()) {
            // SAFETY: the pointer is the CPU's reference to the thread, and `switch` gave it up.
            let from = unsafe { Arc::from_raw(from) };
            jitter::stall();
            // Release pairs with the acquire of `switch`.
            from.on_cpu.store(false, Release);
            if requeue {
                enqueue(from, Entry::Preempted);
            }
        }
    }
    preempt::release();
}

/// Starts a new thread, whose program's registers are in `frame`. Returns the address of the program's next
/// instruction.
#[unsafe(no_mangle)]
extern "C" fn thread_first_run(frame: &mut Frame) -> UserAddr {
    finish();
    let begin = (handlers().before_user)(frame);
    irq_off::end(__NR_clone.into());
    begin
}

/// The loop of the idle thread: runs threads as they become runnable, and halts the CPU in between.
pub fn idle() -> ! {
    let number = cpu::number();
    loop {
        RCU.quiescent(number);
        advance_rcu();
        // SeqCst pairs with the load of `enqueue`.
        IDLE.fetch_or(1 << number, SeqCst);
        let next = pick();
        if next.is_none() {
            timers::before_idle();
            RCU.offline(number);
            irq_off::end(irq_off::IDLE);
            // SAFETY: `sti` takes effect after the next instruction, so every interrupt from then on ends the
            // halt.
            unsafe { core::arch::asm!("sti", "hlt", "cli") };
            irq_off::begin();
            RCU.online(number);
        }
        IDLE.fetch_and(!(1 << number), SeqCst);
        if next.is_some() {
            switch(next, false);
        }
    }
}

/// Applies a change of the thread's allowed CPUs: moves the thread if its CPU is not among them.
pub fn renew_place(thread: &Arc<Thread>) {
    let allowed = |number: usize| thread.affinity.load(Relaxed) >> number & 1 != 0;
    if ptr::eq(&raw const **thread, current()) {
        return move_away();
    }
    let number = thread.last_cpu.load(Relaxed);
    if allowed(number) {
        return;
    }
    let mut queue = QUEUES[number].lock();
    let at = queue.threads.iter().position(|other| Arc::ptr_eq(other, thread));
    let waiting = at.and_then(|at| queue.threads.remove(at));
    LENGTHS[number].store(queue.threads.len(), Relaxed);
    drop(queue);
    match waiting {
        Some(waiting) => enqueue(waiting, Entry::Preempted),
        // The thread runs or sleeps. It moves when it looks at its work.
        None => thread.give_work(work::MOVE),
    }
}

/// Moves the calling thread to another CPU, if it may no longer run on this one.
pub fn move_away() {
    if current().affinity.load(Relaxed) >> cpu::number() & 1 == 0 {
        switch(pick(), true);
    }
}

/// Loads the fs and gs bases of a thread that runs or is about to run.
#[inline]
pub fn load_bases(thread: &Thread) {
    // SAFETY: the bases are canonical, by the invariant of `UserAddr`.
    unsafe {
        Msr::new(FS_BASE).write(thread.fs_base.get().get());
        Msr::new(USER_GS_BASE).write(thread.gs_base.get().get());
    }
}

impl Thread {
    /// Sleeps until another thread unparks this thread. Returns at once after an earlier unpark, and may
    /// return spuriously.
    pub fn park(&self) {
        debug_assert!(ptr::eq(self, current()));
        // Acquire pairs with the release of `unpark`, in this exchange and in the swap below.
        if self.state.compare_exchange(RUNNABLE, PARKED, AcqRel, Acquire).is_err() {
            self.state.swap(RUNNABLE, Acquire);
            return;
        }
        jitter::stall();
        block();
    }

    /// Ends the thread's current park, or its next one.
    pub fn unpark(self: &Arc<Self>) {
        let step = |state| Some(if state == PARKED { RUNNABLE } else { UNPARKED });
        // Release pairs with the acquires of `park`: the thread sees why it was woken.
        if self.state.fetch_update(AcqRel, Relaxed, step) == Ok(PARKED) {
            jitter::stall();
            enqueue(self.clone(), Entry::Woken);
        }
    }

    /// Adds work that the thread must do before its program continues, and ends the thread's wait.
    pub fn give_work(self: &Arc<Self>, bits: u32) {
        self.work.fetch_or(bits, AcqRel);
        self.unpark();
        kick(self);
    }
}
