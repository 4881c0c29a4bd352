//! Lookups in the VMA tree by a task that holds no lock. `lock_vma` locks the VMA that it finds for reading;
//! most faults and most accesses to another process's memory begin with it. `vma_bounds` and `address_state`
//! tell what was at an address at some instant during the call.
//!
//! A lookup runs in an RCU read section, so the memory of a VMA that it finds stays a `Vma`. That memory may
//! have been reused. Therefore a VMA counts as found only after its lock is taken and after its owner,
//! sequence number and bounds are checked, in this order (`vma/mod.rs`). A lookup never sleeps and never
//! takes the mmap lock. If it meets writers too often, it fails, and the caller climbs. The shuttle tests in
//! `reuse.rs`, `readers.rs` and `speculative_lookup.rs` (`lab/freehold-machine/tests/shuttle_engine`) test
//! these races.
#![expect(unsafe_code, reason = "turns words of the tree into references, within a read section")]

use super::{
    AddressSpace,
    tree_entry::{TreeEntry, decode},
};
use crate::{
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use core::{marker::PhantomData, ops::Deref};
use freehold_range::{Entry, Lookup};
use freehold_sync::{Killed, ReadFail, ReaderPlace};

/// Maximum number of repeated lookups, if each of them finds an entry that changes during the lookup.
const MAX_LOOKUPS: u32 = 8;

/// The reason why a lookup without locks failed and the caller must take the mmap lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeedMmapLock {
    /// Nothing is mapped at the address, as far as a lookup without locks can tell.
    Hole,
    /// A writer has locked the VMA, or the VMA was recycled, or the VMA has the maximum number of readers.
    Busy,
}

/// The reason why one lookup has locked no VMA.
enum LookupMiss {
    /// The tree was being changed, or the VMA left the tree after the lookup found it. A second lookup may
    /// succeed.
    Again,
    /// Another lookup without locks would also fail.
    Climb(NeedMmapLock),
}

/// One VMA locked for reading.
///
/// A reference to the VMA cannot outlive the lock (hazard C-7):
///
/// ```compile_fail,E0505
/// use freehold::{platform::Platform, space::AddressSpace};
///
/// fn start<P: Platform>(space: &AddressSpace<P>) -> Option<u64> {
///     let lock = space.find_vma(0)?;
///     let vma = &*lock;
///     drop(lock);
///     Some(vma.start())
/// }
/// ```
pub struct VmaRead<'s, P: Platform> {
    vma: &'s Vma<P>,
    /// The place where the lock counts this reader.
    place: ReaderPlace<'s>,
    /// Makes the type neither `Send` nor `Sync`: the lock belongs to the task that took it.
    task: PhantomData<*const ()>,
}

impl<'s, P: Platform> VmaRead<'s, P> {
    /// Wraps a VMA that was just locked for reading, at `place`.
    ///
    /// # Safety
    ///
    /// The calling task has locked the VMA for reading, at `place`. Only the returned value unlocks the VMA.
    pub(super) unsafe fn locked(vma: &Vma<P>, place: ReaderPlace<'s>) -> Self {
        // SAFETY: the lock keeps the VMA attached as long as this value lives, so its memory stays a `Vma`.
        VmaRead { vma: unsafe { &*core::ptr::from_ref(vma) }, place, task: PhantomData }
    }
}

impl<P: Platform> Deref for VmaRead<'_, P> {
    type Target = Vma<P>;
    fn deref(&self) -> &Vma<P> {
        self.vma
    }
}

impl<P: Platform> Drop for VmaRead<'_, P> {
    fn drop(&mut self) {
        self.vma.lock().unlock_read::<P>(self.place);
    }
}

/// The use of an address at which a fault has locked no VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// The address is mapped.
    Mapped,
    /// The address is not mapped, and the next VMA above does not grow downwards.
    Nothing,
    /// The address is not mapped, and the next VMA above grows downwards.
    BelowStack {
        /// Start of that VMA.
        start: u64,
    },
    /// The address, or a range above it, is being mapped or unmapped.
    Unclear,
}

impl<P: Platform> AddressSpace<P> {
    /// Locks the VMA at `addr` for reading without touching the mmap lock. Inlined, because faults begin with
    /// this call.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn lock_vma(&self, addr: u64) -> Result<VmaRead<'_, P>, NeedMmapLock> {
        let rcu = P::rcu_read();
        let seen = match self.tree.try_lookup(&rcu, addr) {
            // SAFETY: the entry was found in the read section of `rcu`, which is still open.
            Lookup::Found(found) => unsafe { self.lock_found(&found, addr) },
            Lookup::Hole => return Err(NeedMmapLock::Hole),
            Lookup::Contended => Err(LookupMiss::Again),
        };
        match seen {
            Ok(read) => Ok(read),
            Err(LookupMiss::Again) => self.retry_lookup(&rcu, addr),
            Err(LookupMiss::Climb(why)) => Err(why),
        }
    }

    /// Performs [`lock_vma`](Self::lock_vma) after the first lookup met a writer. Uses `RangeMap::lookup`,
    /// which retries while writers change the tree. Repeats that lookup at most [`MAX_LOOKUPS`] times if the
    /// VMA leaves the tree.
    #[cold]
    #[inline(never)]
    fn retry_lookup(&self, rcu: &P::RcuGuard, addr: u64) -> Result<VmaRead<'_, P>, NeedMmapLock> {
        for _ in 0..MAX_LOOKUPS {
            let seen = match self.tree.lookup(rcu, addr) {
                // SAFETY: the entry was found in the read section of `rcu`, which is still open.
                Lookup::Found(found) => unsafe { self.lock_found(&found, addr) },
                Lookup::Hole => return Err(NeedMmapLock::Hole),
                Lookup::Contended => return Err(NeedMmapLock::Busy),
            };
            match seen {
                Ok(read) => return Ok(read),
                Err(LookupMiss::Again) => {}
                Err(LookupMiss::Climb(why)) => return Err(why),
            }
        }
        Err(NeedMmapLock::Busy)
    }

    /// Locks the VMA of an entry that contains `addr`.
    ///
    /// # Safety
    ///
    /// The entry was found in the tree within an RCU read section, and the section lasts until this call
    /// returns.
    #[cfg_attr(feature = "inline", inline(always))]
    unsafe fn lock_found(&self, found: &Entry, addr: u64) -> Result<VmaRead<'_, P>, LookupMiss> {
        // SAFETY: the read section lasts until the VMA is locked or no longer used.
        let TreeEntry::Vma(vma) = (unsafe { decode::<P>(found) }) else {
            return Err(LookupMiss::Climb(NeedMmapLock::Hole));
        };
        match vma.lock().try_read::<P>(&self.mmap_lock, || vma.is_owned_by(&self.vm)) {
            Ok(place) => {
                // The bounds are stable only now. The entry may refer to an earlier life of the VMA's memory.
                let read = VmaRead { vma, place, task: PhantomData };
                match read.range().contains(addr) {
                    true => Ok(read),
                    false => Err(LookupMiss::Climb(NeedMmapLock::Busy)),
                }
            }
            Err(ReadFail::Detached) => Err(LookupMiss::Again),
            Err(_) => Err(LookupMiss::Climb(NeedMmapLock::Busy)),
        }
    }

    /// Calls `f` with the VMA at `page`, if there is one, and a lock that keeps it and its tables. The caller
    /// holds no lock.
    pub(crate) fn in_vma<R>(&self, page: u64, f: impl FnOnce(&Vma<P>) -> R) -> Result<Option<R>, Killed> {
        if self.tries_vma_lock()
            && let Ok(vma) = self.lock_vma(page)
        {
            return Ok(Some(f(&vma)));
        }
        let guard = self.read_killable()?;
        Ok(guard.find(page).map(f))
    }

    /// Returns the bounds that the VMA at `addr` had at some instant, or `None` if nothing was mapped there.
    pub(crate) fn vma_bounds(&self, addr: u64) -> Option<(u64, u64)> {
        let rcu = P::rcu_read();
        loop {
            match self.tree.lookup(&rcu, addr) {
                Lookup::Hole => return None,
                Lookup::Contended => P::relax(),
                Lookup::Found(found) => {
                    // SAFETY: the entry was found in the read section of `rcu`, which is still open.
                    let mapped = unsafe { decode::<P>(&found) }.vma().is_some();
                    return mapped.then_some((found.start, found.end));
                }
            }
        }
    }

    /// Returns false if a mapping at `start` needs a claim: because a mapping is there, or because it may
    /// have to merge with a VMA before it that has an anon_vma. The result is a hint.
    pub(crate) fn may_map_unclaimed(&self, start: u64) -> bool {
        let rcu = P::rcu_read();
        let Lookup::Found(found) = self.tree.next(&rcu, start.saturating_sub(1)) else { return true };
        // SAFETY: the entry was found in the read section of `rcu`, which is still open.
        let before = unsafe { decode::<P>(&found) }.vma().filter(|_| found.end == start);
        found.start > start || found.end == start && !before.is_some_and(|vma| vma.anon().is_some())
    }

    /// Returns the state in which the address `addr` was at some instant during the call.
    pub(crate) fn address_state(&self, addr: u64) -> AddressState {
        let rcu = P::rcu_read();
        let mut seen: Option<(Entry, VmFlags)> = None;
        for _ in 0..MAX_LOOKUPS {
            let found = match self.tree.next(&rcu, addr) {
                Lookup::Found(found) => found,
                Lookup::Hole => return AddressState::Nothing,
                Lookup::Contended => return AddressState::Unclear,
            };
            // SAFETY: the entry was found in the read section of `rcu`, which is still open.
            let TreeEntry::Vma(above) = (unsafe { decode::<P>(&found) }) else {
                return AddressState::Unclear;
            };
            if found.start <= addr {
                return AddressState::Mapped;
            }
            match seen {
                // The second lookup found the same entry, so the VMA stayed in the tree and the flags belong
                // to it. If the entries differ, the memory of the VMA could already hold another VMA.
                // `GROWSDOWN` never changes in a VMA.
                Some((before, flags)) if before == found => {
                    return match flags.contains(VmFlags::GROWSDOWN) {
                        true => AddressState::BelowStack { start: found.start },
                        false => AddressState::Nothing,
                    };
                }
                _ => seen = Some((found, above.flags())),
            }
        }
        AddressState::Unclear
    }
}
