//! Address spaces without an MMU, where an address identifies a frame: the flat platform.
//!
//! A mapping is a run of contiguous frames, and its address is the place of the frames. Byte `n` of frame `f`
//! has the address `f` × [`PAGE_SIZE`](crate::PAGE_SIZE) + `n` in every process. A caller therefore cannot
//! choose addresses. There are no page faults and no copy-on-write. Access rights are recorded but not
//! enforced: a process can access the memory of every other process.
//!
//! | mapping | frames | shared with |
//! | --- | --- | --- |
//! | anonymous memory, private or shared | new, zeroed | no other mapping, because there is no fork |
//! | a file, private, read-only | the file's own frames if they are contiguous; otherwise a copy | all read-only private mappings of the same pages |
//! | a file, private, writable | a copy | no other mapping |
//! | a file, shared | the file's own frames, which must be contiguous | all shared mappings of the same pages |
//!
//! The frames of a mapping are its *region* (`region.rs`). One tree ([`Regions`]) contains all regions. Each
//! file has a second tree, ordered by page, of the regions that are found through the file (`regions.rs`). A
//! copy that several mappings share keeps its contents until the last mapping is unmapped, even if the file
//! is written. The pages of a file lie in contiguous frames in two cases:
//! - The file is shared memory whose pages are all allocated together. If the file has no pages yet, the
//!   first mapping allocates them together ([`Mapping::lay_out`](crate::file::Mapping::lay_out)).
//! - The backing store of the file is itself memory and provides its frames
//!   ([`Pager::in_memory`](crate::file::Pager::in_memory)).
//!
//! A file cannot lose a page that is part of a shared mapping. Truncation fails with
//! [`FillError::Busy`](crate::file::FillError::Busy) (ETXTBSY) if it would cut off even one byte of a mapped
//! page. Other mappings keep their frames when the file loses its pages. `area.rs` has the mappings of a
//! space, and `mmap.rs` and `munmap.rs` have the calls that change the mappings. A new call gets its own
//! file; queries are in this file.
//!
//! # Locks
//!
//! From the outermost to the innermost: the file's content and invalidate locks; the space's lock, which has
//! the rank of the mmap lock; the lock of all regions (nommu_region_sem); the file's i_mmap lock.
//! `docs/guide/locking.md` has the complete order. `docs/reference/operations.md` lists the locks of each
//! operation. The tests are `nommu` in `engine/freehold/tests` and in `shuttle_engine`.
//!
//! 1. **The last user of a region removes the region under the regions' lock, held for writing. Lookups of
//!    regions take the same lock.** A text that is found in a file's tree is therefore live, and its user
//!    count cannot reach zero during the lookup. The copy itself is made without the regions' lock, because
//!    the file may have to be read. If two tasks make the same copy, the later task uses the existing region
//!    and drops its own copy.
//! 2. **Pages in place are looked up and linked in one hold of the invalidate lock for reading.** Truncation
//!    and hole punching hold the invalidate lock for writing. Both operations check the tree for pages in
//!    place before they change the file. Either the new mapping is already in the tree and the truncation is
//!    refused, or `mmap` finds that the pages are removed. The check does not change the tree, so it holds
//!    the i_mmap lock for reading, and checks of one file run concurrently.
//! 3. **A region is created before the space is locked and released after the space is unlocked.** No page is
//!    read, zeroed or copied while a lock of an address space is held.
//!
//! A call that finds no memory releases these locks, asks the platform, and is tried again
//! ([`Platform::memory_short`]).
//!
//! # Why this module is not a separate crate
//!
//! A file and its regions refer to each other. [`Mapping`](crate::file::Mapping) owns the tree of its regions
//! (`Mapping.regions`). A truncation, a hole punch or a memory failure queries this tree
//! (`FileRegions::may_lose`) before it removes a page. The part of a region that a file uses is therefore in
//! `nommu/state`, below files. In the other direction, this module links regions into the file's tree and
//! finds texts in that tree. In addition, mapping a file uses private items:
//!
//! | item | purpose |
//! | --- | --- |
//! | `Mapping::pages_stay`, `Mapping::lay_out_and_stay`, and their result `PagesStay` | finding the file's pages while none can be removed (rule 2) |
//! | `Mapping::copy_page` | copying the file's pages |
//! | `Mapping::begin_writing` and `Writing` | seals |
//! | `Mapping::end`, `File::driver`, `Engine::owns` | detecting files that cannot be mapped |
//! | conversion of [`FillError`](crate::file::FillError) to [`MmapError`](crate::error::MmapError) | an `impl` that only the crate of both types can contain |
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
//! let engine = Engine::new(platform, Config::default())?; let regions = Regions::new(&engine)?; let space =
//! NoMmuSpace::new(&regions)?; let at = space.mmap(0, 10_000, Prot::READ | Prot::WRITE, MapFlags::PRIVATE |
//! MapFlags::ANONYMOUS, None, 0)?; assert_eq!(space.pages(), 3); space.munmap(at, 4096)?;
//! assert_eq!(space.find(at), None); assert_eq!(space.find(at + 4096).unwrap().range, at + 4096..at + 3 *
//! 4096);
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
    counted::{Counted, Room, Shared},
    error::{LacksMemory, NoMemory},
    file::File,
    platform::{PageOwner, Platform},
    shortage::{ShortageRounds, create},
    space::Prot,
};
use area::{Area, Areas};
use core::ops::Range;
use freehold_sync::Rank;
use state::locked::Locked;

/// The mappings of one process on a machine without an MMU. Dropping the last reference unmaps all mappings.
pub struct NoMmuSpace<P: Platform> {
    areas: Locked<P, Areas<P>>,
    regions: Counted<Regions<P>>,
}

impl<P: Platform> Shared for NoMmuSpace<P> {}

/// Description of one mapping in reports.
pub struct NoMmuMapping<P: Platform> {
    /// Addresses of the mapping.
    pub range: Range<u64>,
    /// Requested access rights, which are not enforced.
    pub prot: Prot,
    /// True if stores reach the file and other mappings of the file.
    pub shared: bool,
    /// Mapped file; `None` for anonymous memory.
    pub file: Option<Counted<File<P>>>,
    /// Offset of the mapping in the file, in bytes; zero for anonymous memory.
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
    /// Returns true if both mappings have the same addresses, rights and offset in the same open file.
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
    /// Creates a space without mappings.
    ///
    /// # Errors
    ///
    /// Fails if no memory is left.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let regions = Regions::new(&engine).unwrap();
    /// let [parent, child] = [(); 2].map(|()| NoMmuSpace::new(&regions).unwrap());
    /// let at = parent.mmap(0, PAGE_SIZE, Prot::READ, private, None, 0).unwrap();
    /// assert!(parent.find(at).is_some() && child.find(at).is_none());
    /// ```
    pub fn new(regions: &Counted<Regions<P>>) -> Result<Counted<Self>, NoMemory> {
        let areas = Locked::new(Rank::Mmap, Areas::new());
        let engine = regions.engine();
        let room: Room<Self> = create(engine.platform(), || engine.trim_own(), || Ok(Room::try_new()?))?;
        Ok(room.fill(NoMmuSpace { areas, regions: regions.clone() }))
    }

    /// Makes `attempt`, and repeats it while memory is short and the platform can make some free. A failed
    /// attempt leaves no lock held and nothing changed. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with the error of the last attempt, or with `Killed` if a fatal signal is pending.
    fn retry_when_short<T, E: LacksMemory>(
        &self,
        mut rounds: ShortageRounds,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let engine = self.regions.engine();
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => {
                    rounds.ask(engine.platform(), PageOwner::Caller, || engine.trim_own(), error)?
                }
            }
        }
    }

    /// Returns the regions that this space shares with other spaces.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{counted::Counted, nommu::{NoMmuSpace, Regions}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let regions = Regions::new(&engine).unwrap();
    /// let space = NoMmuSpace::new(&regions).unwrap();
    /// assert!(Counted::ptr_eq(space.regions(), &regions));
    /// ```
    pub fn regions(&self) -> &Counted<Regions<P>> {
        &self.regions
    }

    /// Returns the number of mappings.
    ///
    /// # Locks
    ///
    /// The space's lock for reading, as in all reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// assert_eq!(space.map_count(), 2, "the mappings before and behind the hole");
    /// ```
    pub fn map_count(&self) -> u64 {
        self.areas.read().count()
    }

    /// Returns the number of pages in all mappings. A page that is mapped twice counts twice.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// assert_eq!(space.pages(), 3);
    /// ```
    pub fn pages(&self) -> u64 {
        self.areas.read().pages()
    }

    /// Returns the mapping that contains `addr`. If several mappings of a file contain the address, returns
    /// the first of them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 2 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let found = space.find(at + PAGE_SIZE).unwrap();
    /// assert_eq!((found.range, found.prot), (at..at + 2 * PAGE_SIZE, rw));
    /// assert!(space.find(at + 2 * PAGE_SIZE).is_none());
    /// ```
    pub fn find(&self, addr: u64) -> Option<NoMmuMapping<P>> {
        let areas = self.areas.read();
        let byte = addr..addr.checked_add(1)?;
        areas.each(&byte).next().map(NoMmuMapping::of)
    }

    /// Calls `f` with each mapping in ascending order of addresses. `f` must not call this space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// space.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mmap(0, 2 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let mut bytes = 0;
    /// space.for_each(|mapping| bytes += mapping.range.end - mapping.range.start);
    /// assert_eq!(bytes, 3 * PAGE_SIZE);
    /// ```
    pub fn for_each(&self, mut f: impl FnMut(NoMmuMapping<P>)) {
        self.areas.read().each(&(0..u64::MAX)).for_each(|area| f(NoMmuMapping::of(area)));
    }

    /// Unmaps all mappings, for example on exec or after a process was killed.
    ///
    /// # Locks
    ///
    /// The space's lock for writing. After the space's lock is released, for each mapping, the locks that
    /// [`munmap`](Self::munmap) takes to release a whole mapping.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// space.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.clear();
    /// assert_eq!(space.map_count(), 0);
    /// ```
    pub fn clear(&self) {
        let old = core::mem::replace(&mut *self.areas.write(), Areas::new());
        drop(old);
    }

    /// Verifies the space.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is violated. The message names the violation.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = NoMmuSpace::new(&Regions::new(&engine).unwrap()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// // A test calls this function after each step.
    /// space.check();
    /// ```
    pub fn check(&self) {
        self.areas.read().check();
    }
}
