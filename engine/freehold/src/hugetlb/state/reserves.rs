//! Owners of reserved pages: the counterpart of Linux's reserve maps.
//!
//! ```text
//! shared    The file owns the reservations. Its set holds the reserved offsets and those that have a page.
//!           mmap adds its range to the set; a fault without a reservation adds its page;
//!           truncation and hole punch remove their range.
//! private   The VMA that mmap made owns reservations for all its pages. Copies made by fork own none.
//!           The set holds the used offsets. A fault adds its page;
//!           DONTNEED removes a page if that frees the page.
//! ```
//!
//! The parts of a split VMA share one set, indexed by offsets in the file. mremap passes the set to the VMA
//! at the new address.
//!
//! The pool only counts reserved pages. While no operation is running, the numbers agree: the pool's reserved
//! count is the number of reserved offsets without a page in all files, plus the number of unused
//! reservations of all private owners.
//!
//! [`Reserves`] is the set of a private owner, and [`FileReserves`] is the set of a file.
//! `hugetlb/fault/place.rs` and `unmap_file.rs` use reservations of private owners, and `vma_reserves.rs`
//! releases the unused ones. `file/kinds/huge.rs` and `file/remove.rs` change the reservations of files. Each
//! change of a set must come with the matching change of the pool's count. The tests compare the counts of
//! the pool at the end: `tests/hugetlb/pools.rs` and `tests/hugetlb/failed_calls.rs`.

use super::{HugePageSize, index_set::IndexSet};
use crate::{
    counted::{Counted, Shared},
    error::NoMemory,
    features,
    platform::Platform,
};
use freehold_vmspace::{Memory, PageIndex, PageRange};

/// The reservations of a private owner: the set of offsets whose reservation is used.
pub(crate) struct Reserves {
    /// The offsets whose reservation is used.
    used: IndexSet,
}

impl Shared for Reserves {}

impl Reserves {
    /// Creates an owner that has used no reservation.
    pub fn try_new() -> Result<Counted<Self>, NoMemory> {
        Ok(Counted::try_new(Reserves { used: IndexSet::new() })?)
    }

    /// Returns the number of offsets of `range` whose reservation is used.
    pub fn used_in<P: Platform>(&self, range: PageRange) -> u64 {
        self.used.count::<P>(range)
    }

    /// Returns true if a page is reserved for this offset. The caller holds the page's fault mutex, or the
    /// VMA's lock for writing.
    pub fn is_reserved<P: Platform>(&self, index: PageIndex) -> bool {
        !self.used.contains::<P>(index)
    }

    /// Marks the reservation of a page as used. Also called for a page that used no reservation, so that
    /// [`is_reserved`](Self::is_reserved) does not return true for this page later.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn use_up<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.used.insert::<P>(PageRange::one(index)).map(drop)
    }

    /// Marks the reservation of a page as unused again.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; the reservation then stays used.
    pub fn renew<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.used.remove::<P>(PageRange::one(index)).map(drop)
    }
}

/// Reservations for a private mapping that is being made. Dropping this value releases them, unless they were
/// handed over.
#[must_use = "the reservations are released when this is dropped"]
pub(crate) struct PendingReservation<P: Platform> {
    /// The memory to which the pool belongs.
    memory: Counted<Memory<P>>,
    /// Size of a page, which selects the pool.
    size: HugePageSize,
    /// Number of reservations that the drop releases.
    pages: u64,
    /// The set that the VMA will own.
    pub reserves: Counted<Reserves>,
    _feature: features::Hugetlb,
}

impl<P: Platform> PendingReservation<P> {
    /// Reserves `pages` pages. Returns `None` if the pool has too few pages.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn new(
        memory: &Counted<Memory<P>>,
        size: HugePageSize,
        pages: u64,
    ) -> Result<Option<Self>, NoMemory> {
        let Some(feature) = features::Hugetlb::get() else { return Ok(None) };
        let reserves = Reserves::try_new()?;
        let reserved = memory.huge_pool(size).reserve(memory.platform(), pages).is_ok();
        let memory = memory.clone();
        Ok(reserved.then(|| PendingReservation { memory, size, pages, reserves, _feature: feature }))
    }

    /// Passes the reservations on to the VMA.
    pub fn hand_over(mut self) {
        self.pages = 0;
    }
}

impl<P: Platform> Drop for PendingReservation<P> {
    fn drop(&mut self) {
        if cfg!(feature = "hugetlb") && self.pages > 0 {
            self.memory.huge_pool(self.size).unreserve(self.memory.platform(), self.pages);
        }
    }
}

/// The reservations of a file, for its shared mappings.
pub(crate) struct FileReserves {
    /// The offsets that are reserved or have a page; see the module's documentation.
    offsets: IndexSet,
}

impl FileReserves {
    pub fn new() -> Self {
        FileReserves { offsets: IndexSet::new() }
    }

    /// Returns true if a page is reserved for this offset. The offset must have no page. The caller holds the
    /// page's fault mutex.
    pub fn is_reserved<P: Platform>(&self, index: PageIndex) -> bool {
        self.offsets.contains::<P>(index)
    }

    /// Records a page that was made without a reservation.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn add_page<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.offsets.insert::<P>(PageRange::one(index)).map(drop)
    }

    /// Records that the offset has neither a page nor a reservation any more.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; the offset then counts as reserved.
    pub fn forget<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.offsets.remove::<P>(PageRange::one(index)).map(drop)
    }

    /// Reserves every page of `range` that is neither reserved nor present. Returns false if the pool has too
    /// few pages. The caller holds the file's content lock for writing.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. After an error or `Ok(false)`, nothing is reserved.
    pub fn reserve<P: Platform>(
        &self,
        memory: &Memory<P>,
        size: HugePageSize,
        range: PageRange,
    ) -> Result<bool, NoMemory> {
        let (pool, platform) = (memory.huge_pool(size), memory.platform());
        let missing = range.len().get() - self.offsets.count::<P>(range);
        if pool.reserve(platform, missing).is_err() {
            return Ok(false);
        }
        let added = self.offsets.insert::<P>(range);
        // Concurrent faults without a reservation may have added pages since the count.
        let surplus = missing - added.as_ref().map_or(0, |added| *added);
        if surplus > 0 {
            pool.unreserve(platform, surplus);
        }
        added.map(|_| true)
    }

    /// Makes sure that the next [`cut`](Self::cut) needs no memory. The caller holds the file's invalidate
    /// lock for writing, here and in `cut`.
    pub fn prepare_cut<P: Platform>(&self) -> Result<(), NoMemory> {
        self.offsets.prepare::<P>()
    }

    /// Removes `range`, of which `pages` offsets had a page, and releases the reservations of the other
    /// offsets.
    pub fn cut<P: Platform>(&self, memory: &Memory<P>, size: HugePageSize, range: PageRange, pages: u64) {
        let Ok(gone) = self.offsets.remove::<P>(range) else {
            debug_assert!(false, "a cut without prepared memory");
            return;
        };
        debug_assert!(gone >= pages, "a page is not recorded in the reserve map");
        memory.huge_pool(size).unreserve(memory.platform(), gone - pages);
    }
}
