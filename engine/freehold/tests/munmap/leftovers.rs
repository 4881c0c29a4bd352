//! State that a munmap may leave behind. Earlier versions of the engine had these bugs, and each test here
//! covers one of them:
//!
//! - A VMA was still in the tree of its file when its range was handed out again. A truncation then unmapped
//!   a page of the new owner.
//!
//! - Upper page tables above a mapping that was never touched were not freed with the last VMA.
//!
//! - Sections visited every hole, however large.
//!
//! - A move searched for page tables before a fault on a neighbour created a table, and missed that table.
//!
//! A bug of this kind that is found later becomes one more item and a test.

use super::{gate::Gated, *};
use freehold::fault::Access;
use freehold::file::Zeroes;
use freehold::{
    call::RemapFlags,
    space::{AddressSpace, Unmap},
};
use std::sync::mpsc;
use std::thread;

#[test]
fn tables_are_freed_with_the_last_mapping_below_them() {
    everywhere(|world, process, cpu| {
        // Both mappings lie under one upper table. Only the first mapping ever has a table of its own.
        let (touched, untouched) = (BASE, BASE + (8 << 20));
        for at in [touched, untouched] {
            process.mmap(at, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        process.store(cpu, touched, 1u64).unwrap();
        process.munmap(touched, PAGE).unwrap();
        process.munmap(untouched, PAGE).unwrap();
        assert_eq!(world.machine.accounting().tables, 1, "only the root is left");
    });
}

/// While a truncation holds the tree of a file, another process unmaps an untouched page of the file, and a
/// third thread tries to map other memory at that address. The address must stay unavailable as long as the
/// truncation can reach the old VMA.
#[test]
fn truncation_keeps_pages_of_the_next_owner_of_a_range() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = || AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let (big, small) = (space(), space());
        let mapping = Mapping::new(&engine, Zeroes, 2 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "f").unwrap();
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        // The tree yields this mapping first, and the mapping has a page to flush.
        big.mmap(BASE, 2 * PAGE, RW, shared, Some(&file), 0).unwrap();
        let mut cpu = machine.cpu(0);
        let fault = |at: freehold::VirtAddr, access| big.handle_fault(at.get(), access).map(drop);
        cpu.touch(big.mmu(), BASE, Access::WRITE, fault).unwrap();
        small.mmap(BASE, PAGE, RW, shared, Some(&file), PAGE).unwrap();
        let (inside, (sender, receiver)) = (small.clone(), mpsc::channel());
        gated.flush.put(move || {
            let (unmapping, (begin, begun)) = (inside.clone(), mpsc::channel());
            let munmap = thread::spawn(move || {
                begin.send(Task::current()).unwrap();
                unmapping.munmap(BASE, PAGE).unwrap();
            });
            let task = begun.recv().unwrap();
            until(|| task.waits() > 0 || munmap.is_finished());
            sender.send((munmap, thread::spawn(move || take(&inside)).join().unwrap())).unwrap();
        });
        mapping.truncate(0).unwrap();
        let (munmap, is_taken) = receiver.recv().expect("no flush");
        munmap.join().unwrap();
        assert!(is_taken || take(&small));
        assert_eq!(small.rss().anon, 1, "{locking:?}: the next owner lost a page");
        small.check();
        drop((cpu, big, small, file, mapping, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// Maps a page at `BASE` and stores to it, if both are possible without a wait.
fn take(space: &AddressSpace<Gated>) -> bool {
    let flags = ANON | MapFlags::FIXED_NOREPLACE;
    Task::current().interrupt_wait(1);
    let is_mapped = space.mmap(BASE, PAGE, RW, flags, None, 0).is_ok();
    Task::current().revive();
    is_mapped && space.handle_fault(BASE, Access::WRITE).is_ok()
}

#[test]
fn sectioned_munmap_skips_holes_and_rounds_sections_to_pages() {
    for bytes in [0, 1, 6000, PAGE, u64::MAX] {
        let world = World::new();
        let unmap = Unmap::Sectioned { bytes };
        let process = world.process(Locking::default().unmap(unmap));
        for n in [0, 1, 1 << 20] {
            process.mmap(BASE + n * PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        // With sections of one page, the range has 2^35 sections, nearly all of them in holes.
        process.munmap(0, TASK_SIZE).unwrap();
        assert_eq!(process.counts().map_count, 0);
        process.check();
        drop(process);
        world.end();
    }
}

#[test]
fn move_sees_a_table_that_a_neighbours_fault_creates() {
    let world = World::new();
    let process = world.process(Locking::default());
    let (neighbour, source, joined) = (BASE, BASE + 4 * PAGE, BASE + (1 << 30));
    process.mmap(neighbour, 4 * PAGE, RW | Prot::EXEC, ANON | MapFlags::FIXED, None, 0).unwrap();
    process.mmap(source, 4 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    process.mmap(joined, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let ((held, is_held), (go, goes)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        // Another task reads the VMA that the target merges with. That task delays the move after the move's
        // search for page tables, and before the tables move.
        let process = &process;
        scope.spawn(move || {
            let vma = process.find_vma(joined).unwrap();
            held.send(()).unwrap();
            goes.recv().unwrap();
            drop(vma);
        });
        is_held.recv().unwrap();
        let how = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let moved = spawn_until_waiting(scope, move || {
            process.mremap(source, 4 * PAGE, 4 * PAGE, how, joined + PAGE)
        });
        assert!(!moved.is_finished());
        process.handle_fault(neighbour, Access::READ).unwrap();
        go.send(()).unwrap();
        assert_eq!(moved.join().unwrap(), Ok(joined + PAGE));
    });
    process.check();
    drop(process);
    world.end();
}
