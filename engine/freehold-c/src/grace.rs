//! Grace periods: those of the kernel, or those of `freehold-kit`.
//!
//! By default, a CPU is online for [`Qsbr`] only inside of read sections. A section keeps its CPU, because
//! preemption is off between `cpu_enter` and `cpu_exit`. So a CPU that idles, sleeps or runs a program never
//! delays a grace period, and a kernel has nothing to report. The kernel only calls [`fh_tick`], which runs
//! the functions whose grace period is over. `tests/calls/threads.rs` tests this file.
#![expect(unsafe_code, reason = "passes deferred functions on, by the contract of `rcu_defer`")]

use crate::{
    ops::DeferredHead,
    setup::{call, call_if_present, ops},
};
use core::{marker::PhantomData, ptr::NonNull};
use freehold::platform::RcuHead;
use freehold::platform::atomic::{AtomicU32, Ordering::Relaxed};
use freehold_kit::{MAX_CPUS, Qsbr, QsbrCpu};

static RCU: Qsbr<MAX_CPUS> = Qsbr::new([const { QsbrCpu::new() }; MAX_CPUS]);

/// The number of open read sections of a CPU. Only that CPU accesses the number, with preemption off.
#[repr(align(128))]
struct Sections(AtomicU32);

static SECTIONS: [Sections; MAX_CPUS] = [const { Sections(AtomicU32::new(0)) }; MAX_CPUS];

/// Stands for the CPU of a section of the kernel's own RCU.
const OF_KERNEL: u32 = u32::MAX;

/// The guard of a read section.
pub struct Reading {
    cpu: u32,
    /// A section ends on the CPU on which it began, so the guard stays with its task.
    not_send: PhantomData<*const ()>,
}

/// Begins a read section.
#[inline]
pub fn read() -> Reading {
    let of = |cpu| Reading { cpu, not_send: PhantomData };
    if call_if_present!(rcu_read_enter()).is_some() {
        return of(OF_KERNEL);
    }
    let cpu = call!(cpu_enter());
    // Relaxed, here and in `drop`: the kernel orders the accesses of the tasks of one CPU.
    let open = &SECTIONS[cpu as usize].0;
    if open.load(Relaxed) == 0 {
        RCU.online(cpu as usize);
    }
    open.store(open.load(Relaxed) + 1, Relaxed);
    of(cpu)
}

impl Drop for Reading {
    #[inline]
    fn drop(&mut self) {
        if self.cpu == OF_KERNEL {
            call_if_present!(rcu_read_exit());
            return;
        }
        let open = &SECTIONS[self.cpu as usize].0;
        open.store(open.load(Relaxed) - 1, Relaxed);
        if open.load(Relaxed) == 0 {
            RCU.offline(self.cpu as usize);
        }
        call!(cpu_exit());
    }
}

const _: () = {
    assert!(size_of::<DeferredHead>() <= size_of::<RcuHead>());
    assert!(align_of::<DeferredHead>() <= align_of::<RcuHead>());
};

/// Runs `f(head)` after a grace period.
///
/// # Safety
///
/// The contract of `Host::rcu_defer`.
pub unsafe fn defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    if ops().rcu_defer.is_some() {
        let head = head.as_ptr().cast::<DeferredHead>();
        // SAFETY: the host owns the head until `f` runs, and the head has room for a `DeferredHead`.
        unsafe { head.write(DeferredHead { next: core::ptr::null_mut(), function: f as *const _ }) };
        call_if_present!(rcu_defer(head));
        return;
    }
    let cpu = call!(cpu_enter());
    // SAFETY: the caller keeps the contract of `rcu_defer`.
    unsafe { RCU.defer(cpu as usize, head, f) };
    call!(cpu_exit());
}

/// Waits until every function that was deferred before this call has run.
pub fn barrier() {
    if call_if_present!(rcu_barrier()).is_none() {
        RCU.barrier(<crate::Kernel as freehold::platform::Host>::relax);
    }
}

/// Runs the functions whose grace period is over, and begins another grace period. The functions only free
/// memory of alloc.
///
/// A kernel without an RCU of its own calls this from time to time, for example at the end of each fault or
/// in a tick: otherwise memory is freed only by fh_rcu_barrier. With an RCU of its own, the call does
/// nothing. Must not be called between cpu_enter and cpu_exit of the library. Does not sleep.
#[unsafe(no_mangle)]
pub extern "C" fn fh_tick() {
    if ops().rcu_defer.is_none() {
        RCU.advance();
    }
}

/// Returns when all memory that calls have freed until now was passed to free. Sleeps, or calls relax. The
/// caller holds nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fh_rcu_barrier() {
    barrier();
}

/// Runs a deferred function, for a kernel with an RCU of its own; see rcu_defer. The head does not exist any
/// more when the call returns. Does not sleep.
#[unsafe(no_mangle)]
#[expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]
pub unsafe extern "C" fn fh_rcu_run(head: *mut DeferredHead) {
    // SAFETY: by the rules of the header, `rcu_defer` received the head, and its grace period is over.
    let function = unsafe { (*head).function };
    // SAFETY: `defer` stored this function.
    let function = unsafe { core::mem::transmute::<*const _, unsafe fn(NonNull<RcuHead>)>(function) };
    let head = NonNull::new(head.cast()).expect("a head is not null");
    // SAFETY: the grace period is over, and the function runs once.
    unsafe { function(head) };
}
