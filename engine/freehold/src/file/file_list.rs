//! Lists of an engine's files: those whose caches may hold clean pages, and those of which pages were swapped
//! out.
//!
//! The search for reclaimable pages walks the first list in a ring, so that every file gets its share of the
//! search. A list does not own its files: a file that is destroyed removes itself. One spin lock, a leaf of
//! the lock order, guards the ring and the links in the files. No reference to a file may be dropped under
//! this lock, because dropping the last reference removes the file from the list.
//!
//! `mapping.rs` adds each file with a backing store to the first list, and removes files from both lists when
//! they are destroyed. `swapped.rs` adds shared memory to the second list when a page is first swapped out. A
//! file is in at most one list, so one link is enough. `engine/trim.rs` walks the first list, and swapoff the
//! second one. `tests/files/drop_clean.rs` tests the order of the walk, and files that
//! open and close during it.
#![expect(unsafe_code, reason = "the list holds pointers to files that it does not own")]

use super::Mapping;
use crate::{counted::Counted, platform::Platform};
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    Rank, SpinLock,
    atomic::{AtomicPtr, Ordering::Relaxed},
};

/// A ring of files. The ring starts at the file where the next search continues.
///
/// # Invariants
///
/// A file is in the ring from the call that adds it until its [`end`](crate::counted::Shared::end), which
/// removes the file from the ring.
pub(crate) struct FileList<P: Platform>(SpinLock<Ring<P>>);

/// The state of the list, under its lock.
struct Ring<P: Platform> {
    /// The file that [`next`](FileList::next) returns next. Null if the ring is empty.
    at: *mut Mapping<P>,
    /// Number of files in the ring.
    len: usize,
}

// SAFETY: the pointers refer to files, which are `Sync`, so any thread may use them.
unsafe impl<P: Platform> Send for Ring<P> {}

/// A file's neighbours in the ring, or null if the file was never added. Guarded by the lock of the ring.
pub(crate) struct FileListLink<P: Platform> {
    prev: AtomicPtr<Mapping<P>>,
    next: AtomicPtr<Mapping<P>>,
}

impl<P: Platform> FileListLink<P> {
    pub fn new() -> Self {
        FileListLink { prev: AtomicPtr::new(null_mut()), next: AtomicPtr::new(null_mut()) }
    }

    /// Returns true if the file was added to a list. A hint without the lock of the list, unless the caller
    /// has the last reference to the file.
    pub fn is_linked(&self) -> bool {
        // Relaxed: see above.
        !self.next.load(Relaxed).is_null()
    }
}

impl<P: Platform> FileList<P> {
    pub fn new() -> Self {
        FileList(SpinLock::new(Ring { at: null_mut(), len: 0 }, Rank::Leaf))
    }

    /// Adds a file at the end of the ring, unless the file is there already.
    pub fn add(&self, file: &Counted<Mapping<P>>) {
        let new = Counted::as_ptr(file).cast_mut();
        let mut ring = self.0.lock::<P>();
        if file.list_link.is_linked() {
            return;
        }
        let next = if ring.at.is_null() { new } else { ring.at };
        // Relaxed, here and below: the ring's lock orders the accesses.
        let prev = if ring.at.is_null() { new } else { ring.neighbours(next).prev.load(Relaxed) };
        ring.neighbours(new).next.store(next, Relaxed);
        ring.neighbours(new).prev.store(prev, Relaxed);
        ring.neighbours(prev).next.store(new, Relaxed);
        ring.neighbours(next).prev.store(new, Relaxed);
        ring.at = next;
        ring.len += 1;
    }

    /// Removes a file that is being destroyed. Does nothing if the file was never added.
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

    /// Returns the number of files in the ring.
    pub fn len(&self) -> usize {
        self.0.lock::<P>().len
    }

    /// Returns the next file in ring order. Returns `None` if the ring is empty or the file's last reference
    /// is being dropped.
    pub fn next(&self) -> Option<Counted<Mapping<P>>> {
        let mut ring = self.0.lock::<P>();
        let file = NonNull::new(ring.at)?;
        ring.at = ring.neighbours(ring.at).next.load(Relaxed);
        // SAFETY: the pointer came from `Counted::as_ptr`. The file is in the ring, so it is not destroyed
        // yet, and it cannot be destroyed before this function releases the lock.
        unsafe { Counted::get_unless_zero(file) }
    }
}

impl<P: Platform> Ring<P> {
    /// Returns the links of a file that is in the ring or is being added.
    fn neighbours(&self, file: *mut Mapping<P>) -> &FileListLink<P> {
        // SAFETY: the file is in the ring or is being added, so it is not destroyed yet.
        unsafe { &(*file).list_link }
    }
}
