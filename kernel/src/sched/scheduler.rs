//! Which thread runs where: a queue for each processor, a turn of [`SLICE_NS`] for each thread, and idle
//! processors that take from the queues of others.
//!
//! The thread that has run least comes first, as in Linux's CFS (2007): [`Thread::virtual_ns`] counts how
//! long a thread has run, and queues are in its order. A thread that comes begins at the queue's floor at
//! least, which is where the thread stood that was picked last: so sleep is no credit. A thread that comes
//! interrupts one that is ahead of it by [`AHEAD_NS`].

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
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use linux_raw_sys::general::__NR_clone;
use x86_64::registers::model_specific::Msr;

/// How long a thread runs while others wait.
pub const SLICE_NS: u64 = 10_000_000;
/// How much more a thread must have had than one that comes to be interrupted for it.
const AHEAD_NS: u64 = 1_000_000;

const FS_BASE: u32 = 0xc000_0100;
/// The program's GS base, while the kernel runs.
const USER_GS_BASE: u32 = 0xc000_0102;

/// Threads that wait for each processor.
static QUEUES: [SpinLock<Queue>; MAX_CPUS] = [const { SpinLock::new(Queue::new()) }; MAX_CPUS];

/// # Invariants
///
/// In the order of `virtual_ns`, which does not change while a thread is here.
struct Queue {
    threads: VecDeque<Arc<Thread>>,
    /// `virtual_ns` of the thread that was picked last; never goes back.
    floor: u64,
}

impl Queue {
    const fn new() -> Self {
        Queue { threads: VecDeque::new(), floor: 0 }
    }

    /// Adds a thread; one that has `moved` here begins anew. Returns its virtual time.
    fn insert(&mut self, thread: Arc<Thread>, moved: bool) -> u64 {
        let before = thread.virtual_ns.load(Relaxed);
        let own = if moved { self.floor } else { before.max(self.floor) };
        thread.virtual_ns.store(own, Relaxed);
        let at = self.threads.partition_point(|other| other.virtual_ns.load(Relaxed) <= own);
        self.threads.insert(at, thread);
        own
    }

    /// The first, if it has run for less than `most`.
    fn pop_before(&mut self, most: u64) -> Option<Arc<Thread>> {
        let own = self.threads.front()?.virtual_ns.load(Relaxed);
        if own > most {
            return None;
        }
        self.floor = self.floor.max(own);
        self.threads.pop_front()
    }
}
/// Processors that idle, by bit. Set by the processor before it looks for threads once more; a waker pushes,
/// then looks here.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// What a thread that leaves a processor wants of the thread that comes.
struct Switching {
    /// The thread that left. Its processor's reference goes along.
    from: *const Thread,
    requeue: bool,
}

static SWITCHING: [PerCpu<Option<Switching>>; MAX_CPUS] = [const { PerCpu::new(None) }; MAX_CPUS];

unsafe extern "C" {
    fn switch_stacks(keep: *mut u64, to: u64);
}

/// The calling processor has a thread from now on: its idle one, which is what runs.
pub fn init_cpu() {
    let idle = Arc::into_raw(Arc::new(Thread::idle())).cast();
    let own = cpu();
    own.idle.set(idle);
    own.current.set(idle);
    RCU.online(own.number.get());
    preempt::init_cpu();
}

/// Runs what waits for a grace period. No other thread comes in between: it would be at the same.
fn advance_rcu() {
    preempt::hold();
    RCU.advance();
    preempt::release();
}

/// A thread that can run, and is in no queue, gets a place in one.
pub fn enqueue(thread: Arc<Thread>) {
    let target = place(&thread);
    jitter::stall();
    let moved = thread.last_cpu.load(Relaxed) != target;
    let own = QUEUES[target].lock().insert(thread, moved);
    // SeqCst: with the idle processor's store and its look at the queue, one of the two sees the other.
    let idles = IDLE.load(SeqCst) >> target & 1 != 0;
    if target == cpu::number() {
        if !idles && is_ahead(target, own) {
            current().work.fetch_or(work::YIELD, Relaxed);
        }
    } else if idles || is_ahead(target, own) {
        apic::interrupt(target, apic::WAKE);
    }
}

/// Whether the thread that runs there should make way for one of this virtual time.
fn is_ahead(target: usize, own: u64) -> bool {
    let there = cpu::other(target);
    let ran = clock::now_ns().saturating_sub(there.turn_began.load(Relaxed));
    there.turn_virtual.load(Relaxed) + ran > own + AHEAD_NS
}

/// Counts what the calling thread has run since that was last counted.
pub fn count_turn() {
    let (own, here) = (cpu(), current());
    let now = clock::now_ns();
    let ran = now.saturating_sub(own.turn_began.swap(now, Relaxed));
    here.ran_ns.fetch_add(ran, Relaxed);
    let total = here.virtual_ns.fetch_add(ran, Relaxed) + ran;
    own.turn_virtual.store(total, Relaxed);
}

/// Where a thread should run: where it ran last, unless that is busy and another processor idles.
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

/// Has the processor that runs the thread come into the kernel, so that it looks at its work.
pub fn kick(thread: &Thread) {
    let number = thread.last_cpu.load(Relaxed);
    if thread.on_cpu.load(Acquire) && number != cpu::number() {
        apic::interrupt(number, apic::WAKE);
    }
}

/// The next thread for the calling processor.
fn pick() -> Option<Arc<Thread>> {
    let number = cpu::number();
    let own = QUEUES[number].lock().pop_before(u64::MAX);
    own.or_else(|| steal(number))
}

/// A thread that waits for another processor, and may run here.
fn steal(number: usize) -> Option<Arc<Thread>> {
    let count = cpu::count();
    let taken = (1..count).map(|n| (number + n) % count).find_map(|other| {
        let queue = &mut QUEUES[other].lock().threads;
        let at = queue.iter().position(|thread| thread.affinity.load(Relaxed) >> number & 1 != 0)?;
        queue.remove(at)
    });
    if let Some(thread) = &taken {
        thread.virtual_ns.store(QUEUES[number].lock().floor, Relaxed);
    }
    taken
}

/// The calling thread was parked: another runs, until it is unparked.
pub fn block() {
    let next = match pick() {
        // The caller may have been picked elsewhere by now, and the processor that did waits until it is off
        // this one. So this one may not wait first: the idle thread does, for which nobody waits.
        Some(next) if next.on_cpu.load(Acquire) && !ptr::eq(&raw const *next, current()) => {
            enqueue(next);
            None
        }
        next => next,
    };
    switch(next, false);
}

/// The thread has had its time, or another has come: one runs that has had less.
pub fn preempt() {
    cpu().resched.set(false);
    make_way(false);
}

/// Lets others run that wait for this processor.
pub fn give_way() {
    make_way(true);
}

fn make_way(for_all: bool) {
    let number = cpu::number();
    RCU.quiescent(number);
    // On the idle thread, as it is at the start, there is nobody to come back.
    if ptr::eq(cpu().current.get(), cpu().idle.get()) {
        advance_rcu();
        return relax();
    }
    count_turn();
    let own = &current().virtual_ns;
    let next = QUEUES[number].lock().pop_before(if for_all { u64::MAX } else { own.load(Relaxed) });
    match next {
        Some(next) => {
            if for_all {
                // One that gives way comes after the others, whatever it has had.
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

/// Goes on with `next`, or idles. Returns when the calling thread is picked again.
fn switch(next: Option<Arc<Thread>>, requeue: bool) {
    let own = cpu();
    assert!(own.held.get() == 0, "a thread that holds a spin lock, or reads, gives its processor up");
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
            // SAFETY: a reference too many: the processor has one already.
            unsafe { Arc::decrement_strong_count(next) };
        }
        return preempt::release();
    }
    jitter::stall();
    // SAFETY: both are held by this processor.
    let (from, next) = unsafe { (&*from, &*next) };
    // Acquire pairs with the release of `finish`: the other processor has left its stack. Processors do not
    // wait here for each other in a ring: one is waited for only if its thread could be picked already, and
    // then `block` goes to the idle thread first. The thread of any other caller is in no queue yet.
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
    // SAFETY: the processor's own; the threads' stack pointers are theirs, and `next` does not run.
    unsafe {
        *SWITCHING[own.number.get()].get() = Some(Switching { from, requeue });
        switch_stacks(from.stack_pointer.get(), *next.stack_pointer.get());
    }
    finish();
}

/// Keeps the registers of a thread's program.
fn leave_program(thread: &Thread) {
    if thread.stack.is_some() {
        // SAFETY: the thread that runs.
        unsafe { (*thread.vectors.get()).save() };
    }
}

/// Loads space and registers of a thread's program, as far as the kernel does not use them itself.
fn enter_program(thread: &Thread) {
    let Some(stack) = &thread.stack else { return tlb::idle() };
    let top = stack.top();
    cpu().kernel_stack.set(top);
    descriptors::set_trap_stack(top);
    // SAFETY: the thread is about to run, so this is its own.
    unsafe {
        (*thread.vectors.get()).load();
        match thread.mmu.get().as_ref() {
            Some(mmu) => tlb::enter(mmu),
            None => tlb::idle(),
        }
    }
    load_bases(thread);
}

/// What the thread that comes does for the one that left: the end of [`switch`].
fn finish() {
    let own = cpu();
    // SAFETY: the processor's own.
    if let Some(Switching { from, requeue }) = unsafe { (*SWITCHING[own.number.get()].get()).take() } {
        timers::begin_turn();
        if !ptr::eq(from, own.idle.get().cast()) {
            // SAFETY: the processor's reference, which came along.
            let from = unsafe { Arc::from_raw(from) };
            jitter::stall();
            // Release pairs with the acquire of `switch`.
            from.on_cpu.store(false, Release);
            if requeue {
                enqueue(from);
            }
        }
    }
    preempt::release();
}

/// Begins a new thread, whose program's registers are in `frame`. Returns the address of the program's next
/// instruction.
#[unsafe(no_mangle)]
extern "C" fn thread_first_run(frame: &mut Frame) -> UserAddr {
    finish();
    let begin = (handlers().before_user)(frame);
    irq_off::end(__NR_clone.into());
    begin
}

/// What a processor does for ever when there is nothing else.
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
            // SAFETY: an interrupt that comes before the halt ends it.
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

/// The thread may run on other processors than before: it leaves one that is not among them.
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
    drop(queue);
    match waiting {
        Some(waiting) => enqueue(waiting),
        // It runs, or sleeps: it comes by.
        None => thread.give_work(work::MOVE),
    }
}

/// The calling thread goes on at another processor, if it may not run on this one any more.
pub fn move_away() {
    if current().affinity.load(Relaxed) >> cpu::number() & 1 == 0 {
        switch(pick(), true);
    }
}

/// Loads the bases of a thread that runs, or is about to.
#[inline]
pub fn load_bases(thread: &Thread) {
    // SAFETY: the bases are canonical, by the invariant of `UserAddr`.
    unsafe {
        Msr::new(FS_BASE).write(thread.fs_base.get().get());
        Msr::new(USER_GS_BASE).write(thread.gs_base.get().get());
    }
}

impl Thread {
    /// Sleeps until somebody unparks, or has since the last time. May return for nothing.
    pub fn park(&self) {
        debug_assert!(ptr::eq(self, current()));
        // Acquire pairs with the release of `unpark`, here and in the exchange of the scheduler.
        if self.state.compare_exchange(RUNNABLE, PARKED, AcqRel, Acquire).is_err() {
            self.state.swap(RUNNABLE, Acquire);
            return;
        }
        jitter::stall();
        block();
    }

    /// Ends its park, or the one that comes.
    pub fn unpark(self: &Arc<Self>) {
        let step = |state| Some(if state == PARKED { RUNNABLE } else { UNPARKED });
        // Release pairs with the acquires of `park`: the thread sees why it was woken.
        if self.state.fetch_update(AcqRel, Relaxed, step) == Ok(PARKED) {
            jitter::stall();
            enqueue(self.clone());
        }
    }

    /// Adds work to do before its program goes on, and ends what it waits for.
    pub fn give_work(self: &Arc<Self>, bits: u32) {
        self.work.fetch_or(bits, AcqRel);
        self.unpark();
        kick(self);
    }
}
