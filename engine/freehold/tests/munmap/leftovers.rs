//! What a munmap leaves behind. A VMA of a file that was still in the file's tree when its range was handed
//! out again: a truncation came by and took the new owner's page. Upper page tables above a mapping that was
//! never touched: with the last VMA gone nobody remembered them. Sections, which went through every hole,
//! however large. And a move that met a page table which a fault on a neighbour had made after the move had
//! looked.

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
fn tables_go_with_the_last_mapping_below_them() {
    everywhere(|world, process, cpu| {
        // Both lie under one upper table; only the first ever has a table of its own.
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

/// While a truncation holds the file's tree, another process unmaps a page of that file, untouched, and a third
/// thread tries to take the address for something else. It may not have it while the truncation can still come
/// to the VMA that was there.
#[test]
fn a_truncation_leaves_the_next_owner_alone() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space =
            || AddressSpace::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
        let (big, small) = (space(), space());
        let mapping = Mapping::new(&engine, Zeroes, 2 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "f").unwrap();
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        // The tree has this one first, and with it something to flush.
        big.mmap(BASE, 2 * PAGE, RW, shared, Some(&file), 0).unwrap();
        let mut cpu = machine.cpu(0);
        let fault = |at: freehold::VirtAddr, access| big.handle_fault(at.get(), access).map(drop);
        cpu.touch(big.mmu(), BASE, Access::WRITE, fault).unwrap();
        small.mmap(BASE, PAGE, RW, shared, Some(&file), PAGE).unwrap();
        let (inside, (tell, told)) = (small.clone(), mpsc::channel());
        gated.flush.put(move || {
            let (unmapping, (begin, begun)) = (inside.clone(), mpsc::channel());
            let munmap = thread::spawn(move || {
                begin.send(Task::current()).unwrap();
                unmapping.munmap(BASE, PAGE).unwrap();
            });
            let task = begun.recv().unwrap();
            until(|| task.waits() > 0 || munmap.is_finished());
            tell.send((munmap, thread::spawn(move || take(&inside)).join().unwrap())).unwrap();
        });
        mapping.truncate(0).unwrap();
        let (munmap, is_taken) = told.recv().expect("a flush");
        munmap.join().unwrap();
        assert!(is_taken || take(&small));
        assert_eq!(small.rss().anon, 1, "{locking:?}: a page of the next owner is gone");
        small.check();
        drop((cpu, big, small, file, mapping, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// Maps a page at `BASE` and stores to it, if that is possible without a wait.
fn take(space: &AddressSpace<Gated>) -> bool {
    let flags = ANON | MapFlags::FIXED_NOREPLACE;
    Task::current().interrupt_wait(1);
    let is_mapped = space.mmap(BASE, PAGE, RW, flags, None, 0).is_ok();
    Task::current().revive();
    is_mapped && space.handle_fault(BASE, Access::WRITE).is_ok()
}

#[test]
fn sections_step_over_holes_and_are_whole_pages() {
    for bytes in [0, 1, 6000, PAGE, u64::MAX] {
        let world = World::new();
        let unmap = Unmap::Sectioned { bytes };
        let process = world.process(Locking { unmap, ..Locking::default() });
        for n in [0, 1, 1 << 20] {
            process.mmap(BASE + n * PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        // In sections of a page this is 2^35 of them, nearly all in holes.
        process.munmap(0, TASK_SIZE).unwrap();
        assert_eq!(process.counts().map_count, 0);
        process.check();
        drop(process);
        world.end();
    }
}

#[test]
fn a_neighbours_fault_may_make_the_table_of_a_source_that_moves() {
    let world = World::new();
    let process = world.process(Locking::default());
    let (neighbour, source, joined) = (BASE, BASE + 4 * PAGE, BASE + (1 << 30));
    process.mmap(neighbour, 4 * PAGE, RW | Prot::EXEC, ANON | MapFlags::FIXED, None, 0).unwrap();
    process.mmap(source, 4 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    process.mmap(joined, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let ((held, is_held), (go, goes)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        // A reader of the VMA that the target joins keeps the move waiting between looking and moving.
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
