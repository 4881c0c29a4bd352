//! Whose reservations of pages they are: what Linux calls reserve maps.
//!
//! ```text
//! shared    the file has the reservations. Reserved offsets: those of its set that have no page yet.
//!           mmap puts its range into the set, a fault without reservation its page; truncation and hole punch take theirs out.
//! private   the VMA that mmap made has them, for each of its pages; copies that fork makes have none.
//!           Used up: the offsets of the set. A fault puts its page in; DONTNEED takes it out, if that made the page free.
//! ```
//!
//! The parts into which such a VMA is cut share its set, by offsets in the file, and mremap hands it on.
//!
//! The pool knows numbers alone. In quiet moments they agree: reserved = reserved offsets of all files
//! without a page, and of all owners not used up.

use super::{HugePageSize, index_set::IndexSet};
use crate::{
    counted::{Counted, Shared},
    error::NoMemory,
    platform::Platform,
};
use freehold_vmspace::{Memory, PageIndex, PageRange};

/// What of a private owner's reservations is used up.
pub(crate) struct Reserves {
    used: IndexSet,
}

impl Shared for Reserves {}

impl Reserves {
    pub fn try_new() -> Result<Counted<Self>, NoMemory> {
        Ok(Counted::try_new(Reserves { used: IndexSet::new() })?)
    }

    /// How many of these offsets are used up.
    pub fn used_in<P: Platform>(&self, range: PageRange) -> u64 {
        self.used.count::<P>(range)
    }

    /// Whether a page is reserved for this offset. Under the page's fault mutex, or the VMA's lock for
    /// writing.
    pub fn is_reserved<P: Platform>(&self, index: PageIndex) -> bool {
        !self.used.contains::<P>(index)
    }

    /// The reservation of a page is used up, or that of one without reservation is not to be looked for any
    /// more.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn use_up<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.used.insert::<P>(PageRange::one(index)).map(drop)
    }

    /// The reservation stands again.
    ///
    /// # Errors
    ///
    /// No memory; it does not.
    pub fn renew<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.used.remove::<P>(PageRange::one(index)).map(drop)
    }
}

/// Reservations of pages for a private mapping that is being made; they go back unless they are handed over.
#[must_use = "reservations go back when this is dropped"]
pub(crate) struct PendingReservation<P: Platform> {
    memory: Counted<Memory<P>>,
    size: HugePageSize,
    pages: u64,
    /// What the VMA will keep of them.
    pub reserves: Counted<Reserves>,
}

impl<P: Platform> PendingReservation<P> {
    /// # Errors
    ///
    /// `None`: the pool has not so many; or no memory.
    pub fn new(
        memory: &Counted<Memory<P>>,
        size: HugePageSize,
        pages: u64,
    ) -> Result<Option<Self>, NoMemory> {
        let reserves = Reserves::try_new()?;
        let reserved = memory.huge_pool(size).reserve(memory.platform(), pages).is_ok();
        Ok(reserved.then(|| PendingReservation { memory: memory.clone(), size, pages, reserves }))
    }

    /// The VMA has them from now on.
    pub fn hand_over(mut self) {
        self.pages = 0;
    }
}

impl<P: Platform> Drop for PendingReservation<P> {
    fn drop(&mut self) {
        if self.pages > 0 {
            self.memory.huge_pool(self.size).unreserve(self.memory.platform(), self.pages);
        }
    }
}

/// The reservations of a file, for its shared mappings.
pub(crate) struct FileReserves {
    /// See the module.
    offsets: IndexSet,
}

impl FileReserves {
    pub fn new() -> Self {
        FileReserves { offsets: IndexSet::new() }
    }

    /// Whether a page is reserved for this offset, which has none. With the fault mutex of the page.
    pub fn is_reserved<P: Platform>(&self, index: PageIndex) -> bool {
        self.offsets.contains::<P>(index)
    }

    /// A page without reservation has come.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn add_page<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.offsets.insert::<P>(PageRange::one(index)).map(drop)
    }

    /// The offset has no page any more, and no reservation.
    ///
    /// # Errors
    ///
    /// No memory; it counts as reserved.
    pub fn forget<P: Platform>(&self, index: PageIndex) -> Result<(), NoMemory> {
        self.offsets.remove::<P>(PageRange::one(index)).map(drop)
    }

    /// Reserves every page of `range` that is not, or has not come. Under the file's content lock for
    /// writing.
    ///
    /// # Errors
    ///
    /// `Ok(false)`: the pool has not so many; or no memory. Nothing was reserved.
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
        // Faults without reservation may have come in between.
        let surplus = missing - added.as_ref().map_or(0, |added| *added);
        if surplus > 0 {
            pool.unreserve(platform, surplus);
        }
        added.map(|_| true)
    }

    /// Makes sure that the next [`cut`](Self::cut) needs no memory. Like that, with the file's invalidate
    /// lock for writing.
    pub fn prepare_cut<P: Platform>(&self) -> Result<(), NoMemory> {
        self.offsets.prepare::<P>()
    }

    /// `range` is cut off; `pages` of it had come.
    pub fn cut<P: Platform>(&self, memory: &Memory<P>, size: HugePageSize, range: PageRange, pages: u64) {
        let Ok(gone) = self.offsets.remove::<P>(range) else {
            debug_assert!(false, "memory was asked for before");
            return;
        };
        debug_assert!(gone >= pages, "a page came without being noted");
        memory.huge_pool(size).unreserve(memory.platform(), gone - pages);
    }
}
