//! Which thread runs where: a queue for each processor, a turn of [`SLICE_NS`] for each thread, and idle
//! processors that take from the queues of others.

use super::{Thread, timers};
use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::lock::{SpinLock, relax};
use crate::arch::{apic, descriptors};
use crate::memory::platform::RCU;
use crate::memory::tlb;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use x86_64::registers::model_specific::Msr;

/// How long a thread runs while others wait.
pub const SLICE_NS: u64 = 10_000_000;

const FS_BASE: u32 = 0xc000_0100;
/// The program's GS base, while the kernel runs.
const USER_GS_BASE: u32 = 0xc000_0102;

/// Threads that wait for each processor.
static QUEUES: [SpinLock<VecDeque<Arc<Thread>>>; MAX_CPUS] =
    [const { SpinLock::new(VecDeque::new()) }; MAX_CPUS];
/// Processors that idle, by bit. Set by the processor before it looks for threads once more; a waker pushes,
/// then looks here.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// What a thread that leaves a processor wants of the thread that comes.
pub struct Switching {
    /// The thread that left. Its processor's reference goes along.
    from: *const Thread,
    requeue: bool,
}

unsafe extern "C" {
    fn switch_stacks(keep: *mut u64, to: u64);
}

/// The calling processor has a thread from now on: its idle one, which is what runs.
pub fn init_cpu() {
    let idle = Arc::into_raw(Arc::new(Thread::idle()));
    let own = cpu();
    own.idle.set(idle);
    own.current.set(idle);
    RCU.online(own.number.get());
}

/// A thread that can run, and is in no queue, gets a place in one.
pub fn enqueue(thread: Arc<Thread>) {
    let target = place(&thread);
    QUEUES[target].lock().push_back(thread);
    // SeqCst: with the idle processor's store and its look at the queue, one of the two sees the other.
    if IDLE.load(SeqCst) >> target & 1 != 0 && target != cpu::number() {
        apic::interrupt(target, apic::WAKE);
    }
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
    let own = QUEUES[number].lock().pop_front();
    own.or_else(|| steal(number))
}

/// A thread that waits for another processor, and may run here.
fn steal(number: usize) -> Option<Arc<Thread>> {
    let count = cpu::count();
    (1..count).map(|n| (number + n) % count).find_map(|other| {
        let mut queue = QUEUES[other].lock();
        let at = queue.iter().position(|thread| thread.affinity.load(Relaxed) >> number & 1 != 0)?;
        queue.remove(at)
    })
}

/// The calling thread was parked: another runs, until it is unparked.
pub fn block() {
    let next = pick();
    switch(next, false);
}

/// The thread has had its time, or was asked to let others run.
pub fn preempt() {
    cpu().resched.set(false);
    give_way();
}

/// Lets others run that wait for this processor.
pub fn give_way() {
    let number = cpu::number();
    RCU.quiescent(number);
    // On the idle thread, as it is at the start, there is nobody to come back.
    if ptr::eq(cpu().current.get(), cpu().idle.get()) {
        RCU.advance();
        return relax();
    }
    let next = QUEUES[number].lock().pop_front();
    match next {
        Some(next) => switch(Some(next), true),
        None => {
            RCU.advance();
            relax();
        }
    }
}

/// Goes on with `next`, or idles. Returns when the calling thread is picked again.
fn switch(next: Option<Arc<Thread>>, requeue: bool) {
    let own = cpu();
    RCU.quiescent(own.number.get());
    let from = own.current.get();
    let next = match next {
        Some(next) => Arc::into_raw(next),
        None => own.idle.get(),
    };
    if next == from {
        if next != own.idle.get() {
            // SAFETY: a reference too many: the processor has one already.
            unsafe { Arc::decrement_strong_count(next) };
        }
        return;
    }
    // SAFETY: both are held by this processor.
    let (from, next) = unsafe { (&*from, &*next) };
    // Acquire pairs with the release of `finish`: the other processor has left its stack.
    while next.on_cpu.load(Acquire) && !ptr::eq(next, own.idle.get()) {
        relax();
    }
    next.on_cpu.store(true, Relaxed);
    next.last_cpu.store(own.number.get(), Relaxed);
    leave_program(from);
    enter_program(next);
    own.current.set(next);
    // SAFETY: the processor's own; the threads' stack pointers are theirs, and `next` does not run.
    unsafe {
        *own.switching.get() = Some(Switching { from, requeue });
        switch_stacks(from.stack_pointer.get(), *next.stack_pointer.get());
    }
    finish();
}

/// Keeps the registers of a thread's program.
fn leave_program(thread: &Thread) {
    if thread.process.is_some() {
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
    // SAFETY: the thread is about to run, so this is its own; the bases are canonical.
    unsafe {
        (*thread.vectors.get()).load();
        match &*thread.space.get() {
            Some(space) => tlb::enter(space.mmu()),
            None => tlb::idle(),
        }
        Msr::new(FS_BASE).write(thread.fs_base.get());
        Msr::new(USER_GS_BASE).write(thread.gs_base.get());
    }
}

/// What the thread that comes does for the one that left.
fn finish() {
    let own = cpu();
    // SAFETY: the processor's own.
    let Some(Switching { from, requeue }) = (unsafe { (*own.switching.get()).take() }) else { return };
    if ptr::eq(from, own.idle.get()) {
        return timers::begin_turn();
    }
    // SAFETY: the processor's reference, which came along.
    let from = unsafe { Arc::from_raw(from) };
    // Release pairs with the acquire of `switch`.
    from.on_cpu.store(false, Release);
    if requeue {
        enqueue(from);
    }
    timers::begin_turn();
}

/// What a new thread does first.
#[unsafe(no_mangle)]
extern "C" fn thread_first_run() {
    finish();
}

/// What a processor does for ever when there is nothing else.
pub fn idle() -> ! {
    let number = cpu::number();
    loop {
        RCU.quiescent(number);
        RCU.advance();
        // SeqCst pairs with the load of `enqueue`.
        IDLE.fetch_or(1 << number, SeqCst);
        let next = pick();
        if next.is_none() {
            timers::before_idle();
            RCU.offline(number);
            // SAFETY: an interrupt that comes before the halt ends it.
            unsafe { core::arch::asm!("sti", "hlt", "cli") };
            RCU.online(number);
        }
        IDLE.fetch_and(!(1 << number), SeqCst);
        if next.is_some() {
            switch(next, false);
        }
    }
}

/// The calling thread goes on at another processor: it may not run on this one any more.
pub fn move_away() {
    let next = pick();
    switch(next, true);
}

/// Programs of the calling thread find these bases from now on.
pub fn load_bases(thread: &Thread) {
    // SAFETY: canonical, as `arch_prctl` has checked.
    unsafe {
        Msr::new(FS_BASE).write(thread.fs_base.get());
        Msr::new(USER_GS_BASE).write(thread.gs_base.get());
    }
}
