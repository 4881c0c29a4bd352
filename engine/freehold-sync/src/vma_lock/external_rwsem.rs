//! The VMA lock of Linux 6.4 to 6.14, for comparison: a reader/writer lock in an object outside the VMA. Used
//! if the mmap lock selects it ([`FaultLock::VmaRwsem`](crate::FaultLock::VmaRwsem)).
//!
//! The object is created before the VMA is first attached, and stays with the VMA's memory from life to life.
//! `read.rs` and `write.rs` call this file if bit 29 of the count is set. `tests/loom_vma/external_rwsem.rs`
//! tests it.
//!
//! - A reader takes the rwsem if it is free, and then checks that the VMA is attached. The other steps of the
//!   reader are unchanged.
//! - A writer marks the VMA, then takes and releases the rwsem. So the writer waits for the readers that came
//!   before it, and the readers that come after it find the mark.
//! - To detach the VMA, the writer stores 0 with the rwsem held. So if a reader has the rwsem and finds the
//!   VMA attached, this life of the VMA does not end before the reader releases the rwsem.
//! - A release happens in an RCU read section, because the memory of the rwsem is freed with the memory of
//!   the VMA.
#![expect(unsafe_code, reason = "the type of a VMA's words does not name the host of its lock")]

use super::{ATTACHED, DETACHED, EXTERNAL, ReadFail, ReaderPlace, VmaLock, VmaLocking};
use crate::atomic::{AtomicPtr, AtomicUsize, Ordering, announce_records, const_unless_loom};
use crate::host::{Host, Killed};
use crate::rwsem::raw::{RawRwSem, Wait};
use allocator_api2::alloc::AllocError;
use allocator_api2::boxed::Box;
use core::ptr::null_mut;
use crossbeam_utils::CachePadded;

/// Pointer to the external rwsem of a VMA.
///
/// # Invariants
/// Null, or points to a lock that this object owns. Once set, the pointer never changes.
pub(super) struct ExternalRwSem(AtomicPtr<Lock<()>>);

/// On its own cache lines: VMAs whose locks share a line would transfer it between their readers.
type Lock<H> = CachePadded<Owned<H>>;

/// The lock, and the owner word that Linux's rwsem has.
#[repr(C)]
struct Owned<H> {
    sem: RawRwSem<H>,
    /// [`BY_READER`] after the first reader. In Linux, writers read the owner before they spin; in this crate
    /// no code reads the word. The word exists for comparable costs: a reader of Linux's lock also accesses
    /// the cache line a second time, to record itself.
    owner: AtomicUsize,
}

const BY_READER: usize = 1;

impl<H: Host> Owned<H> {
    /// Takes the rwsem for reading if no writer holds it, and records the reader as Linux does.
    fn try_read(&self) -> bool {
        let got = self.sem.try_read();
        if got {
            // Relaxed, both: nothing depends on the value. Other bits of the word remain set, as in Linux.
            let owner = self.owner.load(Ordering::Relaxed);
            self.owner.store(owner | BY_READER, Ordering::Relaxed);
        }
        got
    }
}

impl ExternalRwSem {
    const_unless_loom! {
        /// Creates a null pointer.
        pub fn none() -> Self {
            ExternalRwSem(AtomicPtr::new(null_mut()))
        }
    }

    /// Creates the lock, unless it exists. The caller owns the VMA.
    pub fn make<H: Host>(&self) -> Result<(), AllocError> {
        // Relaxed: only the owner of the VMA writes the pointer.
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

    /// Returns the lock, if one was created for the VMA.
    fn get<H: Host>(&self) -> Option<&Owned<H>> {
        // Acquire: pairs with `make`, for a reader that loads the pointer before it sees the VMA attached.
        let lock = self.0.load(Ordering::Acquire).cast::<Lock<H>>();
        // SAFETY: by the invariant, the pointer is null or leads to a lock that lives as long as `self`. Its
        // layout does not depend on `H`.
        unsafe { lock.as_ref() }.map(|lock| &**lock)
    }
}

impl Drop for ExternalRwSem {
    fn drop(&mut self) {
        // Relaxed: the only owner drops the lock.
        let lock = self.0.load(Ordering::Relaxed);
        if !lock.is_null() {
            // SAFETY: by the invariant, the pointer comes from a box made in `make`, and only this object
            // owns it. Its fields need no drop, and its layout does not depend on the host.
            drop(unsafe { Box::from_raw(lock) });
        }
    }
}

impl VmaLock<'_> {
    /// Becomes a reader through the external rwsem of the VMA. When the caller read the count, the VMA was
    /// attached with an external rwsem.
    pub(super) fn enter_external<'l, H: Host>(
        self,
        locking: &'l VmaLocking<H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        let external = self.count.external.get::<H>().ok_or(ReadFail::Detached)?;
        if !external.try_read() {
            return Err(ReadFail::Locked);
        }
        // Acquire: pairs with `attach`, as in `raise`. The rwsem keeps the VMA attached from here on.
        if self.count.word.load(Ordering::Acquire) == ATTACHED | EXTERNAL {
            return Ok(ReaderPlace(Some(locking.external_slot())));
        }
        leave_external(&external.sem);
        Err(ReadFail::Detached)
    }

    /// Like [`leave`](Self::leave), for a reader that entered through the external rwsem of the VMA.
    #[inline(never)]
    pub(super) fn leave_external<H: Host>(self) {
        // Always `Some`: a reader that entered through the rwsem has loaded the pointer.
        if let Some(external) = self.count.external.get::<H>() {
            leave_external(&external.sem);
        }
    }

    /// Like [`drain`](Self::drain), for a VMA with an external rwsem.
    pub(super) fn drain_external<H: Host>(self, rest: u32, wait: Wait) -> Result<(), Killed> {
        let Some(external) = self.count.external.get::<H>() else { return Ok(()) };
        external.sem.write_by(wait)?;
        if rest == DETACHED {
            // Relaxed: the release of the rwsem orders the store before later readers.
            self.count.word.store(DETACHED, Ordering::Relaxed);
        }
        external.sem.unlock_write(0);
        Ok(())
    }
}

/// Releases the external rwsem of a VMA, which a reader holds.
fn leave_external<H: Host>(external: &RawRwSem<H>) {
    // The read section keeps the memory of the lock until the next writer is woken. The life of the VMA may
    // end before that wake-up.
    let _memory_stays = H::rcu_read();
    external.unlock_read();
}
