//! Address spaces without an MMU: files that are mapped in place, concurrent with truncation, and text that
//! one task maps while its last user unmaps it.
//!
//! The code under test is `nommu/` and `file/in_place.rs`. A truncation is refused if a task maps the pages
//! that the truncation would remove. No frame has two owners. [`Flat`] takes the place of `Scene`: an address
//! is the number of a byte of the machine's memory, so a program's loads and stores access frames directly.
//! Lock designs of address spaces have no effect here, so the runs on the designs are repetitions.

use crate::{
    explore::{explore, thread},
    scene::{PAGE, R, RW},
};
use freehold::{
    PageIndex,
    counted::Counted,
    engine::{Config, Engine},
    error::MmapError,
    file::{File, FileAccess, FillError, IoError, Mapping, Pager, Zeroes},
    nommu::{NoMmuSpace, RegionCounts, Regions},
    platform::Platform,
    space::{MapFlags, Prot},
};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::Pfn;

type Space = Counted<NoMmuSpace<Machine>>;
type Opened = Counted<File<Machine>>;

/// A small machine whose address spaces have no MMU, and the regions that these spaces share.
struct Flat {
    machine: Machine,
    engine: Counted<Engine<Machine>>,
    regions: Counted<Regions<Machine>>,
}

impl Flat {
    fn new() -> Self {
        let machine = Machine::new(MachineConfig::backed(1 << 20).tables(1 << 16).cpus(1)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        let regions = Regions::new(&engine).unwrap();
        Flat { machine, engine, regions }
    }

    fn space(&self) -> Space {
        NoMmuSpace::new(&self.regions).unwrap()
    }

    fn file(&self, pager: impl Pager<Machine>, pages: u64, shmem: bool) -> Opened {
        let mapping = Mapping::new(&self.engine, pager, pages * PAGE, shmem).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "file").unwrap()
    }

    /// Loads a word, as a program in any space.
    fn load(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.machine.read_frame(Pfn::new(addr / PAGE), (addr % PAGE) as usize, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Stores a word, as a program in any space.
    fn store(&self, addr: u64, value: u64) {
        self.machine.write_frame(Pfn::new(addr / PAGE), (addr % PAGE) as usize, &value.to_le_bytes());
    }

    /// Checks that all memory is free.
    fn end(self) {
        self.regions.check();
        assert_eq!(self.regions.counts(), RegionCounts::default());
        drop((self.regions, self.engine));
        self.machine.accounting().assert_clean();
    }
}

/// Maps the first `pages` pages of a file. The engine chooses the address.
fn map(space: &Space, file: &Opened, pages: u64, prot: Prot, flags: MapFlags) -> Result<u64, MmapError> {
    space.mmap(0, pages * PAGE, prot, flags, Some(file), 0)
}

/// Reads a word of the file.
fn contents(file: &Opened, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.mapping().read_at(offset, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

#[test]
fn shared_mapping_concurrent_with_truncation_and_munmap() {
    explore("without an MMU: truncation concurrent with mmap and munmap of its pages", 60, |_| {
        let flat = Flat::new();
        let file = flat.file(Zeroes, 2, true);
        let old = flat.space();
        let had = map(&old, &file, 2, RW, MapFlags::SHARED).unwrap();
        flat.store(had + PAGE, 3);
        let truncated = thread::scope(|scope| {
            let cut = scope.spawn(|| file.mapping().truncate(PAGE));
            scope.spawn(|| old.munmap(had, 2 * PAGE).unwrap());
            scope.spawn(|| {
                let space = flat.space();
                match map(&space, &file, 2, RW, MapFlags::SHARED) {
                    Ok(at) => {
                        // A page mapped in place cannot be truncated, so the file keeps this store.
                        flat.store(at + PAGE + 8, 5);
                        assert_eq!((at, contents(&file, PAGE + 8)), (had, 5));
                        space.munmap(at, 2 * PAGE).unwrap();
                    }
                    Err(error) => {
                        assert_eq!(error, MmapError::NotMappable);
                        assert_eq!(
                            file.mapping().size(),
                            PAGE,
                            "the mapping was refused although the file has the page"
                        );
                    }
                }
            });
            cut.join().unwrap()
        });
        match truncated {
            Ok(()) => assert_eq!(file.mapping().size(), PAGE),
            Err(error) => {
                assert_eq!(error, FillError::Busy);
                assert_eq!(contents(&file, PAGE), 3);
                file.mapping().truncate(PAGE).unwrap();
            }
        }
        drop((old, file));
        flat.end();
    });
}

#[test]
fn truncation_and_growth_concurrent_with_first_mappings() {
    explore("without an MMU: first mappings of a file concurrent with its truncation and growth", 40, |_| {
        let flat = Flat::new();
        let file = flat.file(Zeroes, 3, true);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The first mapping lays out the file in consecutive frames. A page that is added again has
                // another frame.
                file.mapping().truncate(2 * PAGE).unwrap();
                file.mapping().truncate(3 * PAGE).unwrap();
            });
            for number in 1..3u64 {
                let (flat, file) = (&flat, &file);
                scope.spawn(move || {
                    let space = flat.space();
                    let at = map(&space, file, number, RW, MapFlags::SHARED).unwrap();
                    flat.store(at + 8 * number, number);
                    assert_eq!(contents(file, 8 * number), number);
                    space.clear();
                });
            }
        });
        assert_eq!((contents(&file, 8), contents(&file, 16)), (1, 2));
        drop(file);
        flat.end();
    });
}

/// A disk whose page `n` begins with the number `n` + 9.
struct Numbers;

impl Pager<Machine> for Numbers {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &(index.get() + 9).to_le_bytes());
        Ok(())
    }
}

#[test]
fn text_is_mapped_while_its_last_user_unmaps_it() {
    explore("without an MMU: the last munmap of a text concurrent with new mappings", 60, |_| {
        let flat = Flat::new();
        let file = flat.file(Numbers, 2, false);
        thread::scope(|scope| {
            for pages in [2, 2, 1] {
                let (flat, file) = (&flat, &file);
                scope.spawn(move || {
                    let space = flat.space();
                    let at = match map(&space, file, pages, R, MapFlags::PRIVATE) {
                        Ok(at) => at,
                        // The mapping is larger than the copy that another task already maps.
                        Err(error) => return assert_eq!((error, pages), (MmapError::Invalid, 2)),
                    };
                    assert_eq!(flat.load(at), 9);
                    assert_eq!(flat.load(at + (pages - 1) * PAGE), 8 + pages);
                    space.munmap(at, pages * PAGE).unwrap();
                });
            }
        });
        drop(file);
        flat.end();
    });
}
