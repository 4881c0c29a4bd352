//! Address spaces without an MMU (`src/nommu/`), on a machine whose CPUs use frame numbers directly, without
//! page tables. An address identifies a frame, so all spaces see the same memory at an address, and rights
//! are only recorded.
//!
//! A test creates the machine ([`Flat`]) and one or more spaces. [`Flat::load`] reads memory as any program
//! does. The tests check contents, and the numbers of frames and regions in use. A *region* is the run of
//! frames of one mapping, or of several mappings of the same text. The machine fills freed frames with a
//! pattern and checks the pattern at the next allocation, so it detects a store to freed memory.
//! `lab/freehold-machine/tests/shuttle_engine/nommu.rs` explores concurrent calls.
//!
//! The subjects of the files: anonymous memory (`anonymous.rs`), files (`files.rs`), truncation
//! (`truncate.rs`), several threads (`threads.rs`), and failed allocations (`oom.rs`).

mod anonymous;
mod files;
mod oom;
mod threads;
mod truncate;

use crate::support::{self, *};
use freehold::{
    counted::Counted,
    error::MmapError,
    file::Zeroes,
    nommu::{NoMmuMapping, NoMmuSpace, RegionCounts, Regions},
};

/// An address space without an MMU.
type Space = Counted<NoMmuSpace<Machine>>;
/// An open file.
type Opened = Counted<File<Machine>>;

const X: Prot = Prot::READ.union(Prot::EXEC);
const PRIVATE: MapFlags = MapFlags::PRIVATE;
const SHARED: MapFlags = MapFlags::SHARED;

/// A machine without an MMU. All its memory must be free when it ends.
struct Flat {
    world: World,
    regions: Option<Counted<Regions<Machine>>>,
    /// Number of frames that the engine uses itself.
    idle: usize,
}

impl Flat {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let world = World::with(16 << 20, config);
        let regions = Regions::new(world.engine()).unwrap();
        // The engine allocates frames in advance. An mmap that fails for want of a run makes the engine free
        // these frames, so this call leaves only the permanent frames in use.
        let too_much = NoMmuSpace::new(&regions).unwrap().mmap(0, 1 << 40, RW, ANON, None, 0);
        assert_eq!(too_much, Err(MmapError::OutOfMemory));
        let idle = world.machine.accounting().frames;
        Flat { world, regions: Some(regions), idle }
    }

    fn regions(&self) -> &Counted<Regions<Machine>> {
        self.regions.as_ref().unwrap()
    }

    fn space(&self) -> Space {
        NoMmuSpace::new(self.regions()).unwrap()
    }

    /// Returns an ordinary file with a number in every page.
    fn file(&self, pages: u64) -> Opened {
        self.world.file(pages)
    }

    /// Returns shared memory.
    fn shm(&self, bytes: u64) -> Opened {
        let mapping = Mapping::new(self.world.engine(), Zeroes, bytes, true).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap()
    }

    /// Returns the number of frames in use, except those of the engine itself.
    fn frames(&self) -> usize {
        self.world.machine.accounting().frames - self.idle
    }

    #[track_caller]
    fn assert_regions(&self, regions: u64, pages: u64) {
        self.regions().check();
        assert_eq!(self.regions().counts(), RegionCounts { regions, pages });
    }

    /// Returns 8 bytes of memory, as any program sees them.
    fn load(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.world.machine.read_frame(Pfn::new(addr / PAGE), (addr % PAGE) as usize, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&self, addr: u64, value: u64) {
        self.world.machine.write_frame(Pfn::new(addr / PAGE), (addr % PAGE) as usize, &value.to_le_bytes());
    }

    #[track_caller]
    fn end(mut self) {
        self.assert_regions(0, 0);
        self.regions = None;
        self.world.end();
    }
}

fn map(space: &Space, pages: u64, prot: Prot, flags: MapFlags) -> u64 {
    space.mmap(0, pages * PAGE, prot, flags | MapFlags::ANONYMOUS, None, 0).unwrap()
}

fn try_map_file(
    space: &Space,
    file: &Opened,
    pages: core::ops::Range<u64>,
    prot: Prot,
    flags: MapFlags,
) -> Result<u64, MmapError> {
    space.mmap(0, (pages.end - pages.start) * PAGE, prot, flags, Some(file), pages.start * PAGE)
}

#[track_caller]
fn map_file(space: &Space, file: &Opened, pages: core::ops::Range<u64>, prot: Prot, flags: MapFlags) -> u64 {
    try_map_file(space, file, pages, prot, flags).unwrap()
}

fn mappings(space: &Space) -> Vec<NoMmuMapping<Machine>> {
    let mut all = Vec::new();
    space.for_each(|mapping| all.push(mapping));
    all
}

/// Returns the mappings as (address, pages).
fn layout(space: &Space) -> Vec<(u64, u64)> {
    space.check();
    mappings(space).iter().map(|one| (one.range.start, (one.range.end - one.range.start) / PAGE)).collect()
}

fn read_number(file: &Opened, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.mapping().read_at(offset, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

fn write_number(file: &Opened, offset: u64, value: u64) {
    assert_eq!(file.mapping().write_at(offset, &value.to_le_bytes()), Ok(8));
}
