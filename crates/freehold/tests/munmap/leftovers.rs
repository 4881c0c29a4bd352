//! What a munmap leaves behind. A VMA of a file that was still in the file's tree when its range was handed
//! out again: a truncation came by and took the new owner's page. Upper page tables above a mapping that was
//! never touched: with the last VMA gone nobody remembered them. Sections, which went through every hole,
//! however large. And a move that met a page table which a fault on a neighbour had made after the move had
//! looked.

use super::*;
use freehold::fault::Access;
use freehold::object::Zeroes;
use freehold::space::{RemapFlags, Unmap};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

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

/// A truncation of many pages holds the file's tree while another process unmaps one of them, untouched, and
/// a third thread takes the address for something else as soon as it is free.
#[test]
fn a_truncation_leaves_the_next_owner_alone() {
    const PAGES: u64 = 20_000;
    for locking in Locking::ALL {
        for round in 0..Effort::of(1, 4, 4) {
            let machine: Machine = Machine::new(MachineConfig::phantom(1 << 30).cpus(4)).unwrap();
            let engine = Engine::new(machine.clone(), Config::default()).unwrap();
            let process =
                || Process::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
            let (big, small) = (process(), process());
            let mapping = Mapping::new(&engine, Zeroes, PAGES * PAGE, true).unwrap();
            let file: Counted<File<Machine>> = File::new(&mapping, FileAccess::READ_WRITE, "f").unwrap();
            let shared = MapFlags::SHARED | MapFlags::FIXED;
            big.mmap(BASE, PAGES * PAGE, RW, shared | MapFlags::POPULATE, Some(&file), 0).unwrap();
            small.mmap(BASE, PAGE, RW, shared, Some(&file), (PAGES - 1) * PAGE).unwrap();
            thread::scope(|scope| {
                let truncation = scope.spawn(|| machine.cpu(1).call(|| mapping.truncate(0).unwrap()));
                thread::sleep(Duration::from_micros(200 << round));
                scope.spawn(|| machine.cpu(2).call(|| small.munmap(BASE, PAGE).unwrap()));
                let free = ANON | MapFlags::FIXED_NOREPLACE;
                while small.mmap(BASE, PAGE, RW, free, None, 0).is_err() {
                    thread::yield_now();
                }
                small.handle_fault(BASE, Access::WRITE).unwrap();
                truncation.join().unwrap();
            });
            assert_eq!(small.rss().anon, 1, "{locking:?}: a page of the next owner is gone");
            small.check();
        }
    }
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
        let moved = scope.spawn(move || process.mremap(source, 4 * PAGE, 4 * PAGE, how, joined + PAGE));
        thread::sleep(Duration::from_millis(100));
        process.handle_fault(neighbour, Access::READ).unwrap();
        go.send(()).unwrap();
        assert_eq!(moved.join().unwrap(), Ok(joined + PAGE));
    });
    process.check();
    drop(process);
    world.end();
}
