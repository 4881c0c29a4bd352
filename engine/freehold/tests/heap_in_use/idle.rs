//! An engine that becomes idle after much work returns memory to the machine, both frames and heap, without
//! being dropped (`src/engine/trim.rs`, `src/file/change/drop_clean.rs`, the slab of VMAs). The test maps
//! 65,000 VMAs and reads a file of 1 GiB, unmaps and drops everything, and compares the memory in use before
//! and after. A cache of the engine that `trim` does not empty makes the test fail.

use super::{bytes_in_use, one_at_a_time};
use freehold::{
    PAGE_SIZE, PageIndex,
    counted::Counted,
    engine::{Config, Engine},
    file::{File, FileAccess, IoError, Mapping, Pager},
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_pagetable::Pfn;

/// Bytes that the test program itself and the host may allocate during the measurement, for example for lists
/// of deferred functions.
const NOISE: isize = 32 << 10;
/// Bytes that stay allocated without an explicit trim: memory for a few hundred VMAs, and spare tree nodes.
/// For comparison, 65,000 VMAs take 16 MiB.
const KEPT: isize = 256 << 10;

/// A disk of a machine whose memory has no contents.
struct Nothing;

impl Pager<Machine> for Nothing {
    fn read_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        Ok(())
    }
}

const FILE_PAGES: u64 = (1 << 30) / PAGE_SIZE;
const MAPPINGS: u64 = 65_000;
const BASE: u64 = 1 << 40;

/// Maps single pages that cannot merge, uses some, and unmaps all.
fn many_mappings(machine: &Machine, process: &Process, mappings: u64) {
    let mut cpu = machine.cpu(0);
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
    for n in 0..mappings {
        let prot = if n % 2 == 0 { Prot::READ } else { Prot::READ | Prot::WRITE };
        process.mmap(BASE + n * PAGE_SIZE, PAGE_SIZE, prot, flags, None, 0).unwrap();
        if n % 16 == 1 {
            process.touch(&mut cpu, BASE + n * PAGE_SIZE, freehold::fault::Access::WRITE).unwrap();
        }
    }
    assert_eq!(process.counts().map_count, mappings);
    process.munmap(BASE, mappings * PAGE_SIZE).unwrap();
    assert_eq!(process.counts().map_count, 0);
}

fn read_file(file: &Counted<File<Machine>>, pages: u64) {
    (0..pages).for_each(|page| file.mapping().fill(PageIndex::new(page)).unwrap());
}

/// Returns the bytes in use on the heap, and the frames and page tables in use on the machine.
fn in_use(machine: &Machine) -> (isize, usize, usize) {
    let bytes = bytes_in_use();
    let accounts = machine.accounting();
    (bytes, accounts.frames, accounts.tables)
}

#[test]
fn idle_engine_returns_to_its_initial_memory_use() {
    let _alone = one_at_a_time();
    let machine = Machine::new(MachineConfig::phantom(2 << 30)).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    let process = Process::new(&engine, &SpaceConfig::default()).unwrap();
    let mapping = Mapping::new(&engine, Nothing, FILE_PAGES * PAGE_SIZE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ, "/a/file").unwrap();
    // A trial run, so that one-time allocations are made before the measurement, for instance the lists of
    // the host.
    many_mappings(&machine, &process, 100);
    read_file(&file, 100);
    let idle = || {
        engine.drop_clean(u64::MAX);
        process.space().trim();
        engine.trim();
        in_use(&machine)
    };
    let start = idle();

    many_mappings(&machine, &process, MAPPINGS);
    let (by_itself, ..) = in_use(&machine);
    read_file(&file, FILE_PAGES);
    assert!(machine.accounting().frames >= FILE_PAGES as usize);
    assert_eq!(engine.drop_clean(FILE_PAGES), FILE_PAGES);
    let end = idle();

    assert!(
        by_itself - start.0 < KEPT,
        "{} bytes stay allocated after 65,000 VMAs were freed",
        by_itself - start.0
    );
    assert_eq!((end.1, end.2), (start.1, start.2), "frames or page tables stay allocated");
    assert!(end.0 - start.0 < NOISE, "{} bytes of the heap stay allocated", end.0 - start.0);
}
