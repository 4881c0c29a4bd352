//! Memory that is kept for later, given back when somebody asks for it.
//!
//! | kept | goes back by |
//! | --- | --- |
//! | free VMAs | itself, chunk by chunk, but for a few chunks; [`Engine::trim`] |
//! | free frames, per CPU | itself, but for 1 MiB; [`Engine::trim`] |
//! | clean pages of files that nobody uses | [`Mapping::drop_clean`], [`Engine::drop_clean`] |
//! | spare nodes of a tree of VMAs | its space's end; [`AddressSpace::trim`](crate::space::AddressSpace::trim) |
//! | page tables that MADV_DONTNEED has emptied | munmap of all that they span, as in Linux |
//! | the frames of zeroes; what is there once per CPU (counters, slots of readers, ends of these lists) | the engine's end |
//! | free pages of a pool of huge ones | [`Engine::resize_huge_pool`] |
#![expect(unsafe_code, reason = "a list of files that it does not own")]

use super::Mapping;
use crate::{counted::Counted, engine::Engine, platform::Platform};
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    Rank, SpinLock,
    atomic::{AtomicPtr, Ordering::Relaxed},
};
use freehold_vmspace::PageRange;

/// The files of an engine that have a store behind them: a ring, which begins where the next search for
/// memory goes on.
///
/// # Invariants
///
/// A file is in the ring from its making until its [`end`](crate::counted::Shared::end), where it takes
/// itself out.
pub(crate) struct Files<P: Platform>(SpinLock<Ring<P>>);

struct Ring<P: Platform> {
    /// Null: there is none.
    at: *mut Mapping<P>,
    len: usize,
}

// SAFETY: the pointers lead to files, which any thread may use.
unsafe impl<P: Platform> Send for Ring<P> {}

/// A file's neighbours in the ring, or null; under the ring's lock.
pub(crate) struct InRing<P: Platform> {
    prev: AtomicPtr<Mapping<P>>,
    next: AtomicPtr<Mapping<P>>,
}

impl<P: Platform> InRing<P> {
    pub fn new() -> Self {
        InRing { prev: AtomicPtr::new(null_mut()), next: AtomicPtr::new(null_mut()) }
    }
}

impl<P: Platform> Files<P> {
    pub fn new() -> Self {
        Files(SpinLock::new(Ring { at: null_mut(), len: 0 }, Rank::Leaf))
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
        let next = file.in_ring.next.load(Relaxed);
        let prev = file.in_ring.prev.load(Relaxed);
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
    fn len(&self) -> usize {
        self.0.lock::<P>().len
    }

    /// The next one in turn. Nothing: there is none, or it is just about to end.
    fn next(&self) -> Option<Counted<Mapping<P>>> {
        let mut ring = self.0.lock::<P>();
        let file = NonNull::new(ring.at)?;
        ring.at = ring.neighbours(ring.at).next.load(Relaxed);
        // SAFETY: from `as_ptr`; it is in the ring, so it has not ended, and cannot before we let go of the
        // lock.
        unsafe { Counted::try_hold(file) }
    }
}

impl<P: Platform> Ring<P> {
    fn neighbours(&self, file: *mut Mapping<P>) -> &InRing<P> {
        // SAFETY: a file that is in the ring, or being added: it has not ended.
        unsafe { &(*file).in_ring }
    }
}

impl<P: Platform> Engine<P> {
    /// Gives back what is kept to be used again soon: the calling CPU's free VMAs and free frames, and memory
    /// for VMAs that nobody uses. Another CPU's are for that CPU alone to take: it gives them back as soon as
    /// it makes a VMA or a frame free, so an embedder that wants all at once calls this on every CPU.
    ///
    /// The memory of VMAs goes after a grace period, which is not waited for.
    ///
    /// # Locks
    ///
    /// The slab's, for a short time. May be called with any lock of an outer rank held.
    pub fn trim(&self) {
        self.slab.trim();
        self.memory().trim();
    }

    /// Takes pages of files out of their caches that need not be there, until `frames` of them have gone or
    /// each file was asked once; the files in turn, one call going on where the last one stopped. Returns how
    /// many went. See [`Mapping::drop_clean`].
    ///
    /// Their frames are free, on the lists of the calling CPU some of them: see [`trim`](Self::trim).
    ///
    /// # Locks
    ///
    /// As [`Mapping::drop_clean`]; to find the files a spin lock. A file whose last user lets go of it
    /// meanwhile ends here.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, file::{Mapping, Zeroes}};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// let files = [(); 2].map(|()| Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap());
    /// for file in &files {
    ///     file.read_at(0, &mut [0; 3 * PAGE_SIZE as usize]).unwrap();
    /// }
    /// assert_eq!(engine.drop_clean(4), 4);
    /// assert_eq!(engine.drop_clean(4), 2);
    /// ```
    pub fn drop_clean(&self, frames: u64) -> u64 {
        let mut dropped = 0;
        for _ in 0..self.files.len() {
            if dropped >= frames {
                break;
            }
            if let Some(file) = self.files.next() {
                dropped += file.drop_clean_up_to(frames - dropped, PageRange::ALL);
            }
        }
        dropped
    }
}
