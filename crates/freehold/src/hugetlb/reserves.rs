//! Whose promises of pages they are: what Linux calls reserve maps.
//!
//! ```text
//! shared    the file has the promises. Promised offsets: those of its set that have no page yet.
//!           mmap puts its range into the set, a fault without promise its page; truncation and hole punch take theirs out.
//! private   the VMA that mmap made has them, for each of its pages; copies that fork makes have none.
//!           Used up: the offsets of the set. A fault puts its page in; DONTNEED takes it out, if that made the page free.
//! ```
//!
//! The parts into which such a VMA is cut share its set, by offsets in the file, and mremap hands it on.
//!
//! The pool knows numbers alone. In quiet moments they agree: reserved = promised offsets of all files without a page, and
//! of all owners not used up.

use super::{HugePageSize, index_set::IndexSet};
use crate::{
    PAGE_SHIFT,
    counted::{Counted, Shared},
    engine::Engine,
    error::NoMemory,
    platform::Platform,
    vma::Vma,
};
use core::ops::Range;

/// What of a private owner's promises is used up.
pub(crate) struct Reserves {
    used: IndexSet,
}

impl Shared for Reserves {}

impl Reserves {
    pub fn try_new() -> Result<Counted<Self>, NoMemory> {
        Ok(Counted::try_new(Reserves { used: IndexSet::new() })?)
    }

    /// Whether a page is promised for this offset. Under the page's fault mutex, or the VMA's lock for writing.
    pub fn promised<P: Platform>(&self, index: u64) -> bool {
        !self.used.contains::<P>(index)
    }

    /// The promise of a page is used up, or that of one without promise is not to be looked for any more.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn use_up<P: Platform>(&self, index: u64) -> Result<(), NoMemory> {
        self.used.insert::<P>(index..index + 1).map(drop)
    }

    /// The promise stands again.
    ///
    /// # Errors
    ///
    /// No memory; it does not.
    pub fn renew<P: Platform>(&self, index: u64) -> Result<(), NoMemory> {
        self.used.remove::<P>(index..index + 1).map(drop)
    }
}

/// Offsets of the file, in its pages, that `vma` maps, one of huge pages.
pub(super) fn indices<P: Platform>(vma: &Vma<P>, size: HugePageSize) -> Range<u64> {
    let shift = size.level().shift() - PAGE_SHIFT;
    vma.pgoff() >> shift..(vma.pgoff() + vma.pages()) >> shift
}

/// Promises of pages for a private mapping that is being made; they go back unless they are handed over.
#[must_use = "promises go back when this is dropped"]
pub(crate) struct Promised<P: Platform> {
    engine: Counted<Engine<P>>,
    size: HugePageSize,
    pages: u64,
    /// What the VMA will keep of them.
    pub reserves: Counted<Reserves>,
}

impl<P: Platform> Promised<P> {
    /// # Errors
    ///
    /// `None`: the pool has not so many; or no memory.
    pub fn new(
        engine: &Counted<Engine<P>>,
        size: HugePageSize,
        pages: u64,
    ) -> Result<Option<Self>, NoMemory> {
        let reserves = Reserves::try_new()?;
        let promised = engine.huge_pool(size).reserve(engine.platform(), pages).is_ok();
        Ok(promised.then(|| Promised { engine: engine.clone(), size, pages, reserves }))
    }

    /// The VMA has them from now on.
    pub fn hand_over(mut self) {
        self.pages = 0;
    }
}

impl<P: Platform> Drop for Promised<P> {
    fn drop(&mut self) {
        if self.pages > 0 {
            self.engine.huge_pool(self.size).unreserve(self.engine.platform(), self.pages);
        }
    }
}

impl<P: Platform> Vma<P> {
    /// The VMA is out of the tree and its pages are gone: gives back what it was promised and has not used up.
    pub(crate) fn end_promises(&self, engine: &Engine<P>) {
        let Some(own) = self.hugetlb() else { return };
        let Some((reserves, size)) = own.promises().zip(self.huge_page_size()) else { return };
        let range = indices(self, size);
        let left = range.end - range.start - reserves.used.count::<P>(range);
        engine.huge_pool(size).unreserve(engine.platform(), left);
    }
}

/// The promises of a file, for who maps it shared.
pub(crate) struct FileReserves {
    /// See the module.
    offsets: IndexSet,
}

impl FileReserves {
    pub fn new() -> Self {
        FileReserves { offsets: IndexSet::new() }
    }

    /// Whether a page is promised for this offset, which has none. With the fault mutex of the page.
    pub fn promised<P: Platform>(&self, index: u64) -> bool {
        self.offsets.contains::<P>(index)
    }

    /// A page without promise has come.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn add_page<P: Platform>(&self, index: u64) -> Result<(), NoMemory> {
        self.offsets.insert::<P>(index..index + 1).map(drop)
    }

    /// The offset has no page any more, and no promise.
    ///
    /// # Errors
    ///
    /// No memory; it counts as promised.
    pub fn forget<P: Platform>(&self, index: u64) -> Result<(), NoMemory> {
        self.offsets.remove::<P>(index..index + 1).map(drop)
    }

    /// Promises every page of `range` that is not, or has not come. Under the file's content lock for writing.
    ///
    /// # Errors
    ///
    /// `Ok(false)`: the pool has not so many; or no memory. Nothing was promised.
    pub fn promise<P: Platform>(
        &self,
        engine: &Engine<P>,
        size: HugePageSize,
        range: Range<u64>,
    ) -> Result<bool, NoMemory> {
        let (pool, platform) = (engine.huge_pool(size), engine.platform());
        let missing = range.end - range.start - self.offsets.count::<P>(range.clone());
        if pool.reserve(platform, missing).is_err() {
            return Ok(false);
        }
        let added = self.offsets.insert::<P>(range);
        // Faults without promise may have come in between.
        let surplus = missing - added.as_ref().map_or(0, |added| *added);
        if surplus > 0 {
            pool.unreserve(platform, surplus);
        }
        added.map(|_| true)
    }

    /// Makes sure that the next [`cut`](Self::cut) needs no memory. Like that, with the file's invalidate lock for writing.
    pub fn prepare_cut<P: Platform>(&self) -> Result<(), NoMemory> {
        self.offsets.prepare::<P>()
    }

    /// `range` is cut off; `pages` of it had come.
    pub fn cut<P: Platform>(&self, engine: &Engine<P>, size: HugePageSize, range: Range<u64>, pages: u64) {
        let Ok(gone) = self.offsets.remove::<P>(range) else {
            debug_assert!(false, "memory was asked for before");
            return;
        };
        debug_assert!(gone >= pages, "a page came without being noted");
        engine.huge_pool(size).unreserve(engine.platform(), gone - pages);
    }
}
