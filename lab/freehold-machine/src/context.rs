//! Checks at every call that the calling thread is in a context where the table of [`freehold::platform`]
//! permits the call.
//!
//! The machine calls [`check`] at the start of each hook (`machine.rs`). Hooks that begin a section, and the
//! guards that they return, count the sections that a thread is in (`inside.rs`). The engine reports the
//! start and the end of its sections through these hooks. If the engine does not report an end, a later call
//! that the section forbids panics. A forbidden call panics with the name of the call and of the context.
//! Without debug assertions nothing is counted, and every check is empty. A new hook passes one of the lists
//! below to [`check`]. The lists must agree with the table; `every_call/contexts.rs` among the tests of
//! `freehold` and the mutations `contexts-machine-*` check them.

use crate::host;
use crate::inside::{Banned, Context, Inside};
use freehold_sync::Rank;

/// True if the checks are compiled in.
const ON: bool = cfg!(debug_assertions);

use Inside::{Cpu, Deferred, Read, SpinLock, TableLock, Walk};

/// Contexts in which a call that only reads is forbidden: none.
pub(crate) const NOWHERE: Banned = &[];
/// Contexts in which a call that takes time or wakes a task is forbidden: sections in which a task keeps its
/// processor.
pub(crate) const SHORT: Banned = &[TableLock, SpinLock, Cpu, Walk, Deferred];
/// Contexts in which a call that may sleep is forbidden. Such calls wait, allocate or free memory. A walk
/// begins only in a context in which all of these calls are permitted.
pub(crate) const SLEEPS: Banned = &[TableLock, SpinLock, Cpu, Walk, Deferred, Read];
/// Contexts in which `cond_resched` is forbidden.
pub(crate) const RESCHEDULES: Banned = &[TableLock, Cpu, Walk, Deferred];
/// Contexts in which read sections and flushes are forbidden. A flush may be called under a page table's lock
/// and under no other lock of the engine. A flush waits for other processors, and these answer flushes while
/// they spin for a page table's lock.
pub(crate) const FLUSHES: Banned = &[SpinLock, Cpu, Walk, Deferred];
/// Contexts in which access to the contents of frames is forbidden. The access is permitted under the lock of
/// a page table, because the engine compares a page with its probes, and writes breakpoints to a copy, under
/// that lock.
pub(crate) const READS: Banned = &[SpinLock, Cpu, Walk, Deferred];
/// Contexts in which `with_cpu` is forbidden. Sections of `with_cpu` do not nest.
pub(crate) const ALONE: Banned = &[Cpu, Walk, Deferred];
/// Contexts in which taking a spin lock is forbidden.
pub(crate) const SPINS: Banned = &[Cpu, Deferred];
/// Contexts in which deferring a function is forbidden.
pub(crate) const DEFERS: Banned = &[TableLock, SpinLock, Cpu, Walk];

/// Runs `f` on the counts of the calling thread.
fn context<R>(f: impl FnOnce(&Context) -> R) -> R {
    host::local(|local| f(local.context()))
}

/// Checks that `call` is permitted in the current context.
#[inline(always)]
pub(crate) fn check(call: &'static str, banned: Banned) {
    if ON {
        context(|context| context.check(call, banned));
    }
}

/// Runs `f` with the calling thread counted as inside `what`.
#[inline(always)]
pub(crate) fn inside<R>(what: Inside, f: impl FnOnce() -> R) -> R {
    let _section = Section::new(what);
    f()
}

/// A section that a thread is in. The section also ends if the thread panics.
struct Section(Inside);

impl Section {
    #[inline(always)]
    fn new(what: Inside) -> Self {
        if ON {
            context(|context| context.enter(what));
        }
        Section(what)
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        if ON {
            context(|context| context.leave(self.0));
        }
    }
}

/// Returns the kind of section that a spin lock of this rank opens.
fn lock_of(rank: Rank) -> Inside {
    match rank {
        Rank::PageTableUpper | Rank::PageTable | Rank::PageTableNested => TableLock,
        _ => SpinLock,
    }
}

/// Counts that the thread has acquired a spin lock. Panics if that is forbidden.
#[inline(always)]
pub(crate) fn spin_enter(rank: Rank) {
    if ON {
        assert!(rank.spins(), "{rank:?} is no rank of spin locks");
        check("spin_enter", SPINS);
        context(|context| context.enter(lock_of(rank)));
    }
}

/// Counts that the thread has released a spin lock.
#[inline(always)]
pub(crate) fn spin_exit(rank: Rank) {
    if ON {
        context(|context| context.leave(lock_of(rank)));
    }
}

/// A read section of RCU. Objects that are reachable in the section stay valid until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    // The order of the fields matters: the section ends before the host's guard runs the host's own work.
    _inside: ReadSection,
    _guard: host::RcuGuard,
}

/// The count of one open read section, which ends when the value is dropped.
#[derive(Debug)]
struct ReadSection;

impl Drop for ReadSection {
    #[inline(always)]
    fn drop(&mut self) {
        check("the end of a read section", FLUSHES);
        if ON {
            context(|context| context.leave(Read));
        }
    }
}

/// Opens a read section. Panics if that is forbidden.
#[inline(always)]
pub(crate) fn rcu_read() -> RcuGuard {
    check("rcu_read", FLUSHES);
    if !ON {
        return RcuGuard { _inside: ReadSection, _guard: host::rcu_read() };
    }
    // The host's own work, deferred functions included, may use the heap without limits.
    let guard = crate::exempt::exempt(host::rcu_read);
    context(|context| context.enter(Read));
    RcuGuard { _inside: ReadSection, _guard: guard }
}

/// Counts a use of the heap in a section that forbids it. The machine panics at the end of that section,
/// because an allocator must not panic.
pub(crate) fn heap_used() {
    if ON {
        context(|context| {
            if context.bars_heap() && !context.off.get() && !std::thread::panicking() {
                context.heap.set(context.heap.get() + 1);
            }
        });
    }
}

/// Runs `f` without the checks, for a test that holds a section of the engine open and does its own work
/// inside.
pub fn unchecked<R>(f: impl FnOnce() -> R) -> R {
    let before = context(|context| context.off.replace(true));
    let result = f();
    context(|context| context.off.set(before));
    result
}

/// Runs `f`. Returns the largest stack depth at which `f` called the machine, in bytes from the frame of this
/// function, and the name of the call that was made there. Returns `(0, "")` without debug assertions.
pub fn deepest_call(f: impl FnOnce()) -> (usize, &'static str) {
    let here = 0u8;
    let top = std::ptr::from_ref(&here).addr();
    let before = context(|context| context.deepest.replace((top, "")));
    f();
    let (lowest, call) = context(|context| context.deepest.replace(before));
    (top - lowest, call)
}
