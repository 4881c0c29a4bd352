//! The list of an engine's files that may have memory to spare.
#![expect(unsafe_code, reason = "a list of files that it does not own")]

use super::Mapping;
use crate::{counted::Counted, platform::Platform};
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    Rank, SpinLock,
    atomic::{AtomicPtr, Ordering::Relaxed},
};

/// The files of an engine that have a store behind them: a ring, which begins where the next search for
/// memory goes on.
///
/// # Invariants
///
/// A file is in the ring from its making until its [`end`](crate::counted::Shared::end), where it takes
/// itself out.
pub(crate) struct FileList<P: Platform>(SpinLock<Ring<P>>);

struct Ring<P: Platform> {
    /// Null: there is none.
    at: *mut Mapping<P>,
    len: usize,
}

// SAFETY: the pointers lead to files, which any thread may use.
unsafe impl<P: Platform> Send for Ring<P> {}

/// A file's neighbours in the ring, or null; under the ring's lock.
pub(crate) struct FileListLink<P: Platform> {
    prev: AtomicPtr<Mapping<P>>,
    next: AtomicPtr<Mapping<P>>,
}

impl<P: Platform> FileListLink<P> {
    pub fn new() -> Self {
        FileListLink { prev: AtomicPtr::new(null_mut()), next: AtomicPtr::new(null_mut()) }
    }
}

impl<P: Platform> FileList<P> {
    pub fn new() -> Self {
        FileList(SpinLock::new(Ring { at: null_mut(), len: 0 }, Rank::Leaf))
    }

    /// A new file: the last that is asked for memory.
    pub fn add(&self, file: &Counted<Mapping<P>>) {
        let new = Counted::as_ptr(file).cast_mut();
        let mut ring = self.0.lock::<P>();
        let next = if ring.at.is_null() { new } else { ring.at };
        // Relaxed, here and below: under the lock.
        let prev = if ring.at.is_null() { new } else { ring.neighbours(next).prev.load(Relaxed) };
        ring.neighbours(new).next.store(next, Relaxed);
        ring.neighbours(new).prev.store(prev, Relaxed);
        ring.neighbours(prev).next.store(new, Relaxed);
        ring.neighbours(next).prev.store(new, Relaxed);
        ring.at = next;
        ring.len += 1;
    }

    /// The file ends; nothing happens if it was never added.
    pub fn remove(&self, file: &Mapping<P>) {
        let old = core::ptr::from_ref(file).cast_mut();
        let mut ring = self.0.lock::<P>();
        let next = file.list_link.next.load(Relaxed);
        let prev = file.list_link.prev.load(Relaxed);
        if next.is_null() {
            return;
        }
        ring.neighbours(prev).next.store(next, Relaxed);
        ring.neighbours(next).prev.store(prev, Relaxed);
        if ring.at == old {
            ring.at = if next == old { null_mut() } else { next };
        }
        ring.len -= 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock::<P>().len
    }

    /// The next one in turn. Nothing: there is none, or it is just about to end.
    pub fn next(&self) -> Option<Counted<Mapping<P>>> {
        let mut ring = self.0.lock::<P>();
        let file = NonNull::new(ring.at)?;
        ring.at = ring.neighbours(ring.at).next.load(Relaxed);
        // SAFETY: from `as_ptr`; it is in the ring, so it has not ended, and cannot before we let go of the
        // lock.
        unsafe { Counted::get_unless_zero(file) }
    }
}

impl<P: Platform> Ring<P> {
    fn neighbours(&self, file: *mut Mapping<P>) -> &FileListLink<P> {
        // SAFETY: a file that is in the ring, or being added: it has not ended.
        unsafe { &(*file).list_link }
    }
}
