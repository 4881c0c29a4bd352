//! Counts of the sections that a thread is in, for the checks of [`context`](crate::context).
//!
//! A [`Context`] is thread-local (`local.rs`): only its thread reads and writes it, so plain cells suffice.
//! `context.rs` calls [`Context::enter`] at the start of a section, [`Context::leave`] at its end, and
//! [`Context::check`] at each hook, with the sections in which the hook is forbidden. Without debug
//! assertions nothing calls these functions. A new kind of section needs a variant of [`Inside`]. If the
//! section forbids uses of the heap, [`Context::bars_heap`] must list the variant.

use std::cell::Cell;

use Inside::{Cpu, Deferred, Read, SpinLock, TableLock, Walk};

/// A section that a thread can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// The lock of a page table.
    TableLock,
    /// Another spin lock.
    SpinLock,
    /// A function passed to `with_cpu`.
    Cpu,
    /// A function passed to `walk_tables`.
    Walk,
    /// A read section of RCU.
    Read,
    /// A function that runs after a grace period.
    Deferred,
}

/// The sections in which a call is forbidden.
pub(crate) type Banned = &'static [Inside];

const KINDS: usize = Deferred as usize + 1;

/// The counts of one thread.
#[derive(Debug)]
pub(crate) struct Context {
    inside: [Cell<u32>; KINDS],
    /// Number of forbidden uses of the heap since the last check.
    pub(crate) heap: Cell<u32>,
    /// The lowest stack address of a call since the last reset, and the name of that call.
    pub(crate) deepest: Cell<(usize, &'static str)>,
    /// True while checks are off; see [`unchecked`](crate::unchecked).
    pub(crate) off: Cell<bool>,
}

impl Context {
    pub(crate) const fn new() -> Self {
        Context {
            inside: [const { Cell::new(0) }; KINDS],
            heap: Cell::new(0),
            deepest: Cell::new((0, "")),
            off: Cell::new(false),
        }
    }

    /// Returns true if the thread is in a section of this kind.
    pub(crate) fn is_inside(&self, what: Inside) -> bool {
        self.inside[what as usize].get() > 0
    }

    /// Counts that the thread enters a section.
    pub(crate) fn enter(&self, what: Inside) {
        let count = &self.inside[what as usize];
        count.set(count.get() + 1);
    }

    /// Counts that the thread leaves a section. Panics if the heap was used where it is forbidden.
    pub(crate) fn leave(&self, what: Inside) {
        let count = &self.inside[what as usize];
        count.set(count.get().checked_sub(1).unwrap_or_else(|| panic!("{what:?} ends but never began")));
        if count.get() == 0 && !std::thread::panicking() {
            let uses = self.heap.replace(0);
            assert!(uses == 0, "the heap was used {uses} times inside of {what:?}, which ends here");
        }
    }

    /// Returns true if the heap must not be used.
    pub(crate) fn bars_heap(&self) -> bool {
        [TableLock, SpinLock, Cpu, Walk, Read].iter().any(|what| self.is_inside(*what))
    }

    /// Panics if the thread is in one of the sections `banned`.
    #[inline(never)]
    pub(crate) fn check(&self, call: &'static str, banned: Banned) {
        let here = std::ptr::from_ref(&call).addr();
        if here < self.deepest.get().0 {
            self.deepest.set((here, call));
        }
        if let Some(what) = banned.iter().find(|what| self.is_inside(**what))
            && !self.off.get()
            && !std::thread::panicking()
        {
            panic!("{call} inside of {what:?}: see the table in `freehold::platform`");
        }
    }
}
