//! Looks at the tree of VMAs by a task that holds nothing: it locks a VMA for reading, or learns what was
//! there at some instant during the call.
#![expect(unsafe_code, reason = "turns words of the tree back into references, within a read section")]

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
use freehold_sync::{ReadFail, ReaderPlace};

/// How often a lookup without locks looks again for a VMA that went while it looked.
const MAX_LOOKUPS: u32 = 8;

/// Why a lookup without locks could not be used: take the mmap lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeedMmapLock {
    /// Nothing is mapped there, as far as one can tell without a lock.
    Hole,
    /// A writer is at work, or the VMA was recycled, or has too many readers.
    Busy,
}

/// Why one look has locked nothing.
enum LookupMiss {
    /// The tree was being changed, or the VMA left it after it was found: whatever is there now is worth
    /// another look.
    Again,
    /// No look without a lock will do.
    Climb(NeedMmapLock),
}

/// One VMA locked for reading.
///
/// What it shows is gone with it (hazard C-7):
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
    /// Where the lock counts this reader.
    place: ReaderPlace<'s>,
    /// Not to be sent: the lock belongs to the task that took it.
    task: PhantomData<*const ()>,
}

impl<'s, P: Platform> VmaRead<'s, P> {
    /// A VMA that was locked for reading just now, at `place`.
    ///
    /// # Safety
    ///
    /// It is, by the task that calls this.
    pub(super) unsafe fn locked(vma: &Vma<P>, place: ReaderPlace<'s>) -> Self {
        // SAFETY: the lock keeps the VMA attached, and so its memory a `Vma`, as long as the value.
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

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// Something is mapped there.
    Mapped,
    /// Nothing is, and nothing above grows down to it.
    Nothing,
    /// Nothing is, and the next VMA above grows down.
    BelowStack {
        /// Where that VMA starts.
        start: u64,
    },
    /// There, or above it, something is being mapped or unmapped.
    Unclear,
}

impl<P: Platform> AddressSpace<P> {
    /// Locks the VMA at `addr` for reading without touching the mmap lock. Inlined: faults begin with it.
    #[inline(always)]
    pub(crate) fn lock_vma(&self, addr: u64) -> Result<VmaRead<'_, P>, NeedMmapLock> {
        let rcu = P::rcu_read();
        let seen = match self.tree.try_lookup(&rcu, addr) {
            // SAFETY: found within `rcu`.
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

    /// As [`lock_vma`](Self::lock_vma), when the first look met a writer: by the tree's own patience, and
    /// again for a VMA that goes meanwhile, but not for ever.
    #[cold]
    #[inline(never)]
    fn retry_lookup(&self, rcu: &P::RcuGuard, addr: u64) -> Result<VmaRead<'_, P>, NeedMmapLock> {
        for _ in 0..MAX_LOOKUPS {
            let seen = match self.tree.lookup(rcu, addr) {
                // SAFETY: found within `rcu`.
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

    /// Locks what an entry that contains `addr` stands for.
    ///
    /// # Safety
    ///
    /// The entry was found in the tree within a read section (RCU) that lasts.
    #[inline(always)]
    unsafe fn lock_found(&self, found: &Entry, addr: u64) -> Result<VmaRead<'_, P>, LookupMiss> {
        // SAFETY: the read section lasts until the VMA is locked, or let go of.
        let TreeEntry::Vma(vma) = (unsafe { decode::<P>(found) }) else {
            return Err(LookupMiss::Climb(NeedMmapLock::Hole));
        };
        match vma.lock().try_read::<P>(&self.mmap_lock, || vma.is_owned_by(&self.vm)) {
            Ok(place) => {
                // Only now are the bounds known to stand still; the entry may have been of an earlier life.
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

    /// The bounds of the VMA at `addr`.
    pub(crate) fn vma_bounds(&self, addr: u64) -> Option<(u64, u64)> {
        let rcu = P::rcu_read();
        loop {
            match self.tree.lookup(&rcu, addr) {
                Lookup::Hole => return None,
                Lookup::Contended => P::relax(),
                Lookup::Found(found) => {
                    // SAFETY: found within `rcu`.
                    let mapped = unsafe { decode::<P>(&found) }.vma().is_some();
                    return mapped.then_some((found.start, found.end));
                }
            }
        }
    }

    /// What lies at `addr`.
    pub(crate) fn address_state(&self, addr: u64) -> AddressState {
        let rcu = P::rcu_read();
        let mut seen: Option<(Entry, VmFlags)> = None;
        for _ in 0..MAX_LOOKUPS {
            let found = match self.tree.next(&rcu, addr) {
                Lookup::Found(found) => found,
                Lookup::Hole => return AddressState::Nothing,
                Lookup::Contended => return AddressState::Unclear,
            };
            // SAFETY: found within `rcu`.
            let TreeEntry::Vma(above) = (unsafe { decode::<P>(&found) }) else {
                return AddressState::Unclear;
            };
            if found.start <= addr {
                return AddressState::Mapped;
            }
            match seen {
                // The VMA is there still, so the flags are its own: one that has left the tree may have
                // become another. Whether it grows is the same all its life.
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
