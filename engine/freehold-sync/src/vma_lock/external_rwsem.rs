//! The lock of a VMA as Linux had it from 6.4 to 6.14, to be compared with: a reader/writer lock in an object
//! beside the VMA, where the mmap lock says so ([`FaultLock::VmaRwsem`](crate::FaultLock::VmaRwsem)).
//!
//! The object is made before the VMA is first attached, and stays with the VMA's memory from life to life. A
//! reader takes the lock if it is free, then looks whether the VMA is attached; the rest is as ever. The
//! writer marks the VMA, takes the lock and lets it go: a reader that came before the writer is waited for,
//! and one that comes after finds the mark. To detach the VMA, the writer stores 0 with the lock held: so a
//! reader that has the lock and finds the VMA attached has it in this life until it lets go. Letting go
//! happens in a read section (RCU), because the lock's memory goes with the VMA's.
#![expect(unsafe_code, reason = "a VMA's words do not name the host that its lock is used with")]

use super::{ATTACHED, DETACHED, EXTERNAL, ReadFail, ReaderPlace, VmaLock, VmaLocking};
use crate::atomic::{AtomicPtr, AtomicUsize, Ordering, announce_records, const_unless_loom};
use crate::host::{Host, Killed};
use crate::rwsem::raw::{RawRwSem, Wait};
use allocator_api2::alloc::AllocError;
use allocator_api2::boxed::Box;
use core::ptr::null_mut;
use crossbeam_utils::CachePadded;

/// Where the lock is.
///
/// # Invariants
/// Null, or a lock that this owns. Once made, it stays.
pub(super) struct ExternalRwSem(AtomicPtr<Lock<()>>);

/// On lines of its own: VMAs whose locks share one would pass it between their readers.
type Lock<H> = CachePadded<Owned<H>>;

/// The lock, and the word in which Linux's notes what has it.
#[repr(C)]
struct Owned<H> {
    sem: RawRwSem<H>,
    /// [`BY_READER`], once a reader has had the lock. Linux's writers look at the owner before they spin;
    /// nothing looks at this one. It is there because a reader that notes itself needs the line once more,
    /// which is part of what this lock takes.
    owner: AtomicUsize,
}

const BY_READER: usize = 1;

impl<H: Host> Owned<H> {
    fn try_read(&self) -> bool {
        let got = self.sem.try_read();
        if got {
            // Relaxed, twice: nothing depends on it. What else the word has stays, as in Linux.
            let owner = self.owner.load(Ordering::Relaxed);
            self.owner.store(owner | BY_READER, Ordering::Relaxed);
        }
        got
    }
}

impl ExternalRwSem {
    const_unless_loom! {
        /// None yet.
        pub fn none() -> Self {
            ExternalRwSem(AtomicPtr::new(null_mut()))
        }
    }

    /// Makes the lock, unless there is one. Its VMA is the caller's.
    pub fn make<H: Host>(&self) -> Result<(), AllocError> {
        // Relaxed: the owner's own.
        if self.0.load(Ordering::Relaxed).is_null() {
            let lock = Box::into_raw(Box::try_new(Lock::<H>::new(Owned {
                sem: RawRwSem::new(),
                owner: AtomicUsize::new(0),
            }))?);
            announce_records("VmaRwsem", lock, 1, &[]);
            // Release: pairs with the acquire in `get`.
            self.0.store(lock.cast(), Ordering::Release);
        }
        Ok(())
    }

    /// The lock, if the VMA has ever had one.
    fn get<H: Host>(&self) -> Option<&Owned<H>> {
        // Acquire: pairs with `make`, for a reader that reads this before it has seen the VMA attached.
        let lock = self.0.load(Ordering::Acquire).cast::<Lock<H>>();
        // SAFETY: null, or a lock that is there as long as this is. Its layout is the same for every host.
        unsafe { lock.as_ref() }.map(|lock| &**lock)
    }
}

impl Drop for ExternalRwSem {
    fn drop(&mut self) {
        // Relaxed: dropped by its only owner.
        let lock = self.0.load(Ordering::Relaxed);
        if !lock.is_null() {
            // SAFETY: made by `make` from such a box, and nobody else's. What it has lies in its words, which
            // need no drop, and its layout is the same for every host.
            drop(unsafe { Box::from_raw(lock) });
        }
    }
}

impl VmaLock<'_> {
    /// Becomes a reader by the external rwsem of the VMA, which was attached with one a moment ago.
    pub(super) fn enter_external<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        let external = self.count.external.get::<H>().ok_or(ReadFail::Detached)?;
        if !external.try_read() {
            return Err(ReadFail::Locked);
        }
        // Acquire: pairs with `attach`, as in `raise`. The lock keeps it attached from here on.
        if self.count.word.load(Ordering::Acquire) == ATTACHED | EXTERNAL {
            return Ok(ReaderPlace(Some(locking.external_slot())));
        }
        leave_external(&external.sem);
        Err(ReadFail::Detached)
    }

    /// As [`leave`](Self::leave), by the external rwsem of the VMA.
    #[inline(never)]
    pub(super) fn leave_external<H: Host>(self) {
        // A reader that came by it has seen it.
        if let Some(external) = self.count.external.get::<H>() {
            leave_external(&external.sem);
        }
    }

    /// As [`drain`](Self::drain), by the external rwsem of the VMA.
    pub(super) fn drain_external<H: Host>(self, rest: u32, wait: Wait) -> Result<(), Killed> {
        let Some(external) = self.count.external.get::<H>() else { return Ok(()) };
        external.sem.write_by(wait)?;
        if rest == DETACHED {
            // Relaxed: a reader that gets the lock after this sees it.
            self.count.word.store(DETACHED, Ordering::Relaxed);
        }
        external.sem.unlock_write(0);
        Ok(())
    }
}

/// Lets the external rwsem of a VMA go, which a reader has.
fn leave_external<H: Host>(external: &RawRwSem<H>) {
    // The lock's memory stays until the next writer is woken, though the VMA may not.
    let _memory_stays = H::rcu_read();
    external.unlock_read();
}
