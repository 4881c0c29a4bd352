//! Address spaces without an MMU, where an address is a frame: the flat platform.
//!
//! A mapping is a run of frames that follow each other, and its address is where they lie: byte `n` of frame
//! `f` has the address `f` × [`PAGE_SIZE`](crate::PAGE_SIZE) + `n`, for every process. So nobody chooses
//! addresses, nothing is ever faulted in, nothing is copied on write, and nothing but good manners keeps a
//! process out of another's memory: rights are recorded and not enforced.
//!
//! | mapped | frames | shared with |
//! | --- | --- | --- |
//! | anonymous memory, private or shared | fresh, zeroed | nobody: there is no fork |
//! | a file, private, not to be written | its own, if they follow each other; else a copy | all that map the same pages so |
//! | a file, private, to be written | a copy | nobody |
//! | a file, shared | its own, which must follow each other | all that map the same pages so |
//!
//! The frames of a mapping are its *region*. All regions are in one tree ([`Regions`]); those that a file
//! leads to are in a second one, the file's own, by its pages (`regions.rs`). A copy that several use stays
//! as it was made, whatever is written to the file later, until the last user has gone. A file's own pages
//! lie in frames that follow each other
//! - if it is shared memory whose pages are all brought in together, as the first mapping without an MMU does
//!   unless there are some already ([`Mapping::lay_out`](crate::file::Mapping::lay_out));
//! - or if its store is memory itself and says so ([`Pager::in_memory`](crate::file::Pager::in_memory)).
//!
//! What a shared mapping has the file cannot lose: truncation says
//! [`FillError::Busy`](crate::file::FillError::Busy), which is ETXTBSY, if only one byte of a mapped page
//! would be cut off. Other mappings keep their frames when the file loses them.
//!
//! # Locks
//!
//! Outermost first: the file's content and invalidate locks; the space's lock, which stands where the mmap
//! lock stands; the lock of all regions (nommu_region_sem); the file's i_mmap lock. The whole order is in
//! `docs/locking.md`, what each operation takes in `docs/operations.md`.
//!
//! 1. **A region ends under the regions' lock, held for writing**, when its last user has gone, and is found
//!    under that lock. So a text that is found in the file's tree is alive, and its count cannot reach zero
//!    meanwhile. The copy itself is made without that lock, since the file may have to be read; the second
//!    task to come takes what is there and drops its own copy.
//! 2. **Pages in place are looked for and linked in one hold of the invalidate lock for reading.** Truncation
//!    and punching ask for them with it held for writing, before anything is changed. So a mapping is in the
//!    tree when they ask, and they are refused, or it finds the pages gone. The walk changes nothing in the
//!    tree, so it holds the i_mmap lock for reading: walks of one file do not wait for each other.
//! 3. **A region exists before the space is locked**, and ends after that was unlocked: nothing is read,
//!    zeroed or copied with a lock of an address space held.
//!
//! # Why it is no crate of its own
//!
//! A file and its regions lead to each other. [`Mapping`](crate::file::Mapping) has the tree of its regions
//! (`Mapping.regions`) and asks it (`FileRegions::may_lose`) before a truncation, a punch or failed memory
//! takes a page; so what a file knows of a region is in `nommu/state`, below files. In the other direction a
//! region is linked into that tree, and a text is found in it. Besides, mapping a file uses what is not
//! public:
//!
//! | item | for |
//! | --- | --- |
//! | `Mapping::pages_stay`, `Mapping::lay_out_and_stay`, and `PagesStay`, which both return | finding or copying the file's pages while none goes (rule 2) |
//! | `Mapping::begin_writing` and `Writing` | seals |
//! | `Mapping::end`, `File::driver`, `Engine::owns` | what cannot be mapped |
//! | [`FillError`](crate::file::FillError) turned into [`MmapError`](crate::error::MmapError) | a conversion that only the crate of both can have |
//!
//! # Example
//!
//! ```
//! use freehold::engine::{Config, Engine};
//! use freehold::nommu::{NoMmuSpace, Regions};
//! use freehold::space::{MapFlags, Prot};
//! # use freehold_machine::{Machine, MachineConfig};
//!
//! # let platform: Machine = Machine::new(MachineConfig::backed(16 << 20))?;
//! let engine = Engine::new(platform, Config::default())?;
//! let regions = Regions::new(&engine)?;
//! let space = NoMmuSpace::new(&regions)?;
//! let at = space.mmap(0, 10_000, Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS, None, 0)?;
//! assert_eq!(space.pages(), 3);
//! space.munmap(at, 4096)?;
//! assert_eq!(space.find(at), None);
//! assert_eq!(space.find(at + 4096).unwrap().range, at + 4096..at + 3 * 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod area;
mod mmap;
mod munmap;
mod region;
mod regions;
pub(crate) mod state;

pub use regions::{RegionCounts, Regions};

use crate::{
    counted::{Counted, Shared},
    error::NoMemory,
    file::File,
    platform::Platform,
    space::Prot,
};
use area::{Area, Areas};
use core::ops::Range;
use freehold_sync::Rank;
use state::locked::Locked;

/// The mappings of one process on a machine without an MMU. They go with its last reference.
pub struct NoMmuSpace<P: Platform> {
    areas: Locked<P, Areas<P>>,
    regions: Counted<Regions<P>>,
}

impl<P: Platform> Shared for NoMmuSpace<P> {}

/// One mapping as reports show it.
pub struct NoMmuMapping<P: Platform> {
    /// Addresses.
    pub range: Range<u64>,
    /// The rights that were asked for; nothing enforces them.
    pub prot: Prot,
    /// Whether what is stored there reaches the file, and other mappings of it.
    pub shared: bool,
    /// What is mapped; `None` for anonymous memory.
    pub file: Option<Counted<File<P>>>,
    /// Where in the file it starts, in bytes; zero for anonymous memory.
    pub offset: u64,
}

impl<P: Platform> NoMmuMapping<P> {
    fn of(area: &Area<P>) -> Self {
        NoMmuMapping {
            range: area.range.clone(),
            prot: area.prot,
            shared: area.shared,
            file: area.file.clone(),
            offset: area.offset,
        }
    }
}

impl<P: Platform> core::fmt::Debug for NoMmuMapping<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NoMmuMapping")
            .field("range", &self.range)
            .field("prot", &self.prot)
            .field("shared", &self.shared)
            .field("file", &self.file.as_ref().map(|file| file.name()))
            .field("offset", &self.offset)
            .finish()
    }
}

impl<P: Platform> PartialEq for NoMmuMapping<P> {
    /// The same addresses, rights and place in the same open file.
    fn eq(&self, other: &Self) -> bool {
        let same_file = match (&self.file, &other.file) {
            (None, None) => true,
            (Some(a), Some(b)) => Counted::ptr_eq(a, b),
            _ => false,
        };
        let what = |mapping: &Self| (mapping.range.clone(), mapping.prot, mapping.shared, mapping.offset);
        same_file && what(self) == what(other)
    }
}

impl<P: Platform> NoMmuSpace<P> {
    /// A space without mappings.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(regions: &Counted<Regions<P>>) -> Result<Counted<Self>, NoMemory> {
        let areas = Locked::new(Rank::Mmap, Areas::new());
        Ok(Counted::try_new(NoMmuSpace { areas, regions: regions.clone() })?)
    }

    /// The regions that it has in common with others.
    pub fn regions(&self) -> &Counted<Regions<P>> {
        &self.regions
    }

    /// How many mappings there are.
    ///
    /// # Locks
    ///
    /// The space's lock for reading, as for all reports.
    pub fn map_count(&self) -> u64 {
        self.areas.read().count()
    }

    /// Pages in all mappings; those mapped twice count twice.
    pub fn pages(&self) -> u64 {
        self.areas.read().pages()
    }

    /// The mapping with this address, the first if a file is mapped there more than once.
    pub fn find(&self, addr: u64) -> Option<NoMmuMapping<P>> {
        let areas = self.areas.read();
        let byte = addr..addr.checked_add(1)?;
        areas.each(&byte).next().map(NoMmuMapping::of)
    }

    /// Calls `f` with each mapping, by ascending addresses. `f` must not call this space.
    pub fn for_each(&self, mut f: impl FnMut(NoMmuMapping<P>)) {
        self.areas.read().each(&(0..u64::MAX)).for_each(|area| f(NoMmuMapping::of(area)));
    }

    /// Unmaps everything: what exec does to the old program and a killed process to its own.
    ///
    /// # Locks
    ///
    /// The space's lock for writing; after it, for each mapping, those by which [`munmap`](Self::munmap)
    /// gives it back.
    pub fn clear(&self) {
        let old = core::mem::replace(&mut *self.areas.write(), Areas::new());
        drop(old);
    }

    /// Verifies the space.
    ///
    /// # Panics
    ///
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        self.areas.read().check();
    }
}
