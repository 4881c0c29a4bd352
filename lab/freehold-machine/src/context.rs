//! What a thread is inside of, and what it must not ask for there: the table of [`freehold::platform`],
//! checked at every call.
//!
//! What a thread is inside of is counted by the hooks of the traits and by what they hand out, so it is
//! checked as well that the engine says where its sections begin and end. A call in a wrong place is a panic
//! that names both. Without debug assertions nothing is counted, and every check is empty.

use crate::host;
use crate::inside::{Banned, Context, Inside};
use freehold_sync::Rank;

/// Whether anything is checked.
const ON: bool = cfg!(debug_assertions);

use Inside::{Cpu, Deferred, Read, SpinLock, TableLock, Walk};

/// For looks, which are made everywhere.
pub(crate) const NOWHERE: Banned = &[];
/// For what takes time or wakes somebody: not while a processor is kept.
pub(crate) const SHORT: Banned = &[TableLock, SpinLock, Cpu, Walk, Deferred];
/// For what sleeps or may: to wait, to take memory and to give it back, to wait for readers. Walks begin
/// where all this may be done.
pub(crate) const SLEEPS: Banned = &[TableLock, SpinLock, Cpu, Walk, Deferred, Read];
/// For read sections; and for flushes, which wait for other processors: these may want a page table, and
/// nothing else of ours.
pub(crate) const FLUSHES: Banned = &[SpinLock, Cpu, Walk, Deferred];
/// For what frames hold: a probe is compared with its page, and put into a copy, under the lock of the page's
/// table.
pub(crate) const READS: Banned = &[SpinLock, Cpu, Walk, Deferred];
/// For taking a CPU's number, which does not nest.
pub(crate) const ALONE: Banned = &[SpinLock, Cpu, Walk, Deferred];
/// For spin locks.
pub(crate) const SPINS: Banned = &[Cpu, Deferred];
/// For deferring.
pub(crate) const DEFERS: Banned = &[TableLock, SpinLock, Cpu, Walk];

fn context<R>(f: impl FnOnce(&Context) -> R) -> R {
    host::local(|local| f(local.context()))
}

/// Checks the place of a call.
#[inline(always)]
pub(crate) fn check(call: &'static str, banned: Banned) {
    if ON {
        context(|context| context.check(call, banned));
    }
}

/// Runs `f` as what it is.
#[inline(always)]
pub(crate) fn inside<R>(what: Inside, f: impl FnOnce() -> R) -> R {
    let _section = Section::new(what);
    f()
}

/// Being inside of something, also when that panics.
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

fn lock_of(rank: Rank) -> Inside {
    match rank {
        Rank::PageTableUpper | Rank::PageTable | Rank::PageTableNested => TableLock,
        _ => SpinLock,
    }
}

#[inline(always)]
pub(crate) fn spin_enter(rank: Rank) {
    if ON {
        assert!(rank.spins(), "{rank:?} is no rank of spin locks");
        check("spin_enter", SPINS);
        context(|context| context.enter(lock_of(rank)));
    }
}

#[inline(always)]
pub(crate) fn spin_exit(rank: Rank) {
    if ON {
        context(|context| context.leave(lock_of(rank)));
    }
}

/// A read section: objects reachable in it stay until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    // In this order: what the host does for itself is done outside.
    _inside: ReadSection,
    _guard: host::RcuGuard,
}

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

#[inline(always)]
pub(crate) fn rcu_read() -> RcuGuard {
    check("rcu_read", FLUSHES);
    if !ON {
        return RcuGuard { _inside: ReadSection, _guard: host::rcu_read() };
    }
    // What the host does for itself, deferred functions among it, uses the heap as it likes.
    let guard = crate::exempt::exempt(host::rcu_read);
    context(|context| context.enter(Read));
    RcuGuard { _inside: ReadSection, _guard: guard }
}

/// The heap is used, by a part of the program that is none of the host's.
pub(crate) fn heap_used() {
    if ON {
        context(|context| {
            if context.bars_heap() && !context.off.get() && !std::thread::panicking() {
                context.heap.set(context.heap.get() + 1);
            }
        });
    }
}

/// Runs `f` without the checks: what a test does in the middle of a section of the engine's, to hold it
/// there, is not the engine's doing.
pub fn unchecked<R>(f: impl FnOnce() -> R) -> R {
    let before = context(|context| context.off.replace(true));
    let result = f();
    context(|context| context.off.set(before));
    result
}

/// Runs `f`, and tells how deep the stack was at the deepest of its calls to the machine, in bytes from here,
/// and which call that was. Only with debug assertions; without them nothing is seen.
pub fn deepest_call(f: impl FnOnce()) -> (usize, &'static str) {
    let here = 0u8;
    let top = std::ptr::from_ref(&here).addr();
    let before = context(|context| context.deepest.replace((top, "")));
    f();
    let (lowest, call) = context(|context| context.deepest.replace(before));
    (top - lowest, call)
}
