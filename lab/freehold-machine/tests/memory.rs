//! Frames, tables and contents, in both kinds of memory.
//!
//! The tests use the allocators and the contents of a machine as the engine does, through the traits
//! [`Platform`] and [`TableMemory`], and inject failures of allocations (`src/pool.rs`, `src/contents.rs`,
//! `src/inject.rs`). Backed memory has contents; phantom memory reads as zero and may be larger than the
//! host's memory. Tests with accesses map pages with the minimal kernel of `common`. Mistakes with frames and
//! tables, such as a double free, are tested in `oracles.rs`.

use crate::common::*;
use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Machine, MachineConfig, fail_memory_from, fail_memory_once, stop_failing_memory};
use freehold_pagetable::{Access, Level, Pfn, TableMemory, VirtAddr};

const AT: u64 = 0x10_0000;

/// Allocates frames, at most `want`. Returns their numbers.
fn take(machine: &Machine, want: usize) -> Vec<u64> {
    let mut out = vec![Pfn::new(0); want];
    let got = machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut out);
    out.truncate(got);
    out.into_iter().map(Pfn::get).collect()
}

/// Frees frames.
fn give(machine: &Machine, frames: &[u64]) {
    let frames: Vec<_> = frames.iter().copied().map(Pfn::new).collect();
    // SAFETY: nothing in these tests refers to the frames any more.
    unsafe { machine.free_frames(&frames) }
}

#[test]
fn frames_are_allocated_in_ascending_runs() {
    run(|| {
        let machine = backed();
        let first = take(&machine, 64);
        assert!(first.is_sorted_by(|a, b| a + 1 == *b));
        let second = take(&machine, 64);
        assert_eq!(second[0], first[63] + 1);
        let backwards: Vec<_> = first.iter().rev().copied().collect();
        give(&machine, &backwards);
        assert_eq!(take(&machine, 64), first);
        let stats = machine.stats();
        assert_eq!((stats.frames.allocated, stats.frames.freed, stats.frames.refused), (192, 64, 0));
        assert_eq!(machine.accounting().frames, 128);
    });
}

#[test]
fn peak_is_the_largest_number_of_frames_in_use_at_a_time() {
    run(|| {
        let machine = backed();
        let first = take(&machine, 48);
        give(&machine, &first[..32]);
        let second = take(&machine, 16);
        assert_eq!(machine.stats().frames.peak, 48);
        take(&machine, 32);
        give(&machine, &second);
        assert_eq!(machine.stats().frames.peak, 64);
    });
}

#[test]
fn phantom_memory_reads_as_its_fill() {
    run(|| {
        let machine = Machine::new(MachineConfig::phantom(1 << 20).fill(7)).unwrap();
        let frame = Pfn::new(take(&machine, 1)[0]);
        machine.write_frame(frame, 8, &[1; 8]);
        let mut found = [0; 24];
        machine.read_frame(frame, 0, &mut found);
        assert_eq!(found, [7; 24]);
    });
}

#[test]
fn exhausted_memory_refuses_frames_and_tables() {
    run(|| {
        let machine = Machine::new(MachineConfig::backed(10 * PAGE).tables(3 * PAGE)).unwrap();
        assert_eq!(take(&machine, 64).len(), 10);
        assert_eq!(take(&machine, 1), []);
        let tables: Vec<_> = std::iter::from_fn(|| machine.alloc_table(None).ok()).collect();
        assert_eq!(tables.len(), 3);
        assert_eq!(machine.accounting().tables, 3);
        let stats = machine.stats();
        assert_eq!((stats.frames.refused, stats.tables.refused), (2, 1));
    });
}

#[test]
fn freed_table_is_empty_when_allocated_again() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let table = machine.alloc_table(None).unwrap();
        toy.free_table(table);
        assert_eq!(machine.alloc_table(None).unwrap(), table);
        for index in [0, 1, 511] {
            let entry = machine.table(table).entry(index);
            assert_eq!(entry.load(freehold_sync::atomic::Ordering::SeqCst), 0);
        }
    });
}

#[test]
fn nth_request_fails_and_later_ones_succeed() {
    run(|| {
        let machine = backed();
        let mut frame = [Pfn::new(0)];
        fail_memory_once(3);
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        let table = machine.alloc_table(None).unwrap();
        assert!(machine.space_created(table).is_none());
        assert!(machine.space_created(table).is_some());
        assert_eq!(stop_failing_memory(), 1);

        fail_memory_from(2);
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 0);
        assert!(machine.alloc_table(None).is_err());
        let other = thread::spawn({
            let machine = machine.clone();
            move || machine.alloc_table(None).is_ok()
        });
        assert!(other.join().unwrap(), "the failure applied to another thread");
        assert_eq!(stop_failing_memory(), 2);
        assert!(machine.alloc_table(None).is_ok());
    });
}

#[test]
fn accesses_of_every_size_and_alignment() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let (low, high) = (toy.map(AT, RW), toy.map(AT + PAGE, RW));
        let data: Vec<u8> = (0..=255).collect();
        for offset in [0, 1, 7, 8, 100, PAGE - 129, PAGE - 8, PAGE - 3] {
            cpu.write(&toy.mmu, AT + offset, &data, no_fault).unwrap();
            let mut back = vec![0; data.len()];
            cpu.read(&toy.mmu, AT + offset, &mut back, no_fault).unwrap();
            assert_eq!(back, data, "offset {offset}");
        }
        cpu.store(&toy.mmu, AT + PAGE - 3, 0x1122_3344_5566_7788u64, no_fault).unwrap();
        assert_eq!(cpu.load::<u16, _>(&toy.mmu, AT + PAGE - 3, no_fault).unwrap(), 0x7788);
        assert_eq!(cpu.load::<u8, _>(&toy.mmu, AT + PAGE + 4, no_fault).unwrap(), 0x11);
        assert_eq!(cpu.load::<u32, _>(&toy.mmu, AT + PAGE - 1, no_fault).unwrap(), 0x3344_5566);
        let mut tail = [0; 3];
        machine.read_frame(low, PAGE as usize - 3, &mut tail);
        assert_eq!(tail, [0x88, 0x77, 0x66]);
        assert_eq!(cpu.fetch_add(&toy.mmu, AT + 16, 5, no_fault).unwrap(), get(&mut cpu, &toy, AT + 16) - 5);

        machine.copy_frame(high, low);
        let mut copy = [0; 3];
        machine.read_frame(high, PAGE as usize - 3, &mut copy);
        assert_eq!(copy, tail);
        toy.finish();
    });
}

#[test]
fn failed_write_keeps_the_first_part() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        toy.map(AT, RW);
        let failed = cpu.write(&toy.mmu, AT + PAGE - 2, &[1, 2, 3], |address, access| Err((address, access)));
        assert_eq!(failed, Err((VirtAddr::new(AT + PAGE), Access::WRITE)));
        assert_eq!(cpu.load::<u16, _>(&toy.mmu, AT + PAGE - 2, no_fault).unwrap(), 0x0201);
        toy.finish();
    });
}

#[test]
fn phantom_memory_is_large_and_reads_as_zero() {
    // The memory is smaller under the checker, where a machine needs host memory for each frame number.
    let bytes = if cfg!(shuttle) { 1 << 20 } else { 512 << 30 };
    run(move || {
        let machine = Machine::new(MachineConfig::phantom(bytes).tables(1 << 20)).unwrap();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        put(&mut cpu, &toy, AT, 1);
        assert_eq!(get(&mut cpu, &toy, AT), 0);
        machine.write_frame(frame, 8, &[1]);
        let mut out = [9; 4];
        machine.read_frame(frame, 6, &mut out);
        assert_eq!(out, [0; 4]);
        machine.copy_frame(frame, frame);
        toy.clear(AT, Level::Pte);
        toy.flush(AT, AT + PAGE, false);
        toy.free(frame);
        toy.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
fn invalid_machine_sizes_are_errors() {
    assert!(Machine::<freehold_pagetable::X86_4>::new(MachineConfig::backed(100)).is_err());
    assert!(Machine::<freehold_pagetable::X86_4>::new(MachineConfig::phantom(1 << 20).tables(0)).is_err());
    assert!(Machine::<freehold_pagetable::X86_4>::new(MachineConfig::phantom(1 << 52)).is_err());
}

#[test]
#[should_panic(expected = "CPU 1 is claimed already")]
fn cpu_can_be_claimed_only_once() {
    run(|| {
        let machine = backed();
        let one = machine.cpu(1);
        drop(machine.cpu(2));
        drop(machine.cpu(2));
        drop((machine.cpu(1), one));
    });
}

/// Without oracles, each CPU has a list of free numbers. Numbers in the list of another CPU are still found,
/// and counted as free.
#[test]
fn machine_without_oracles_finds_the_numbers_in_all_lists() {
    run(|| {
        const FRAMES: u64 = 1024;
        let machine = Machine::new(MachineConfig::backed(FRAMES * PAGE).tables(300 * PAGE).fast()).unwrap();
        let request = FrameRequest::blocks(FramePurpose::Anonymous, Level::Pmd);
        for _ in 0..3 {
            let mut frames = take(&machine, FRAMES as usize);
            assert_eq!((frames.len() as u64, take(&machine, 1)), (FRAMES, vec![]));
            frames.sort_unstable();
            assert!(frames.windows(2).all(|two| two[0] < two[1]), "a frame was taken twice");
            let mut tables: Vec<_> = std::iter::from_fn(|| machine.alloc_table(None).ok()).collect();
            assert_eq!(tables.len(), 300);
            let (late, early) = (frames.split_off(100), frames);
            let late_tables = tables.split_off(50);
            on_another_cpu(|| {
                // The frames are freed in small portions, because a list takes at most 64 numbers at once.
                late.chunks(32).for_each(|some| give(&machine, some));
                // SAFETY: nothing refers to the tables any more.
                late_tables.iter().for_each(|table| unsafe { machine.free_table(*table) });
            });
            // Nothing has emptied the lists, so some of the frames come from the list of the other CPU.
            let late = take(&machine, late.len());
            assert_eq!((late.len() as u64, take(&machine, 1)), (FRAMES - 100, vec![]));
            late.chunks(32).for_each(|some| give(&machine, some));
            assert_eq!((machine.accounting().frames, machine.accounting().tables), (100, 50));
            early.chunks(32).for_each(|some| give(&machine, some));
            // SAFETY: nothing refers to the tables any more.
            tables.iter().for_each(|table| unsafe { machine.free_table(*table) });

            // The blocks have all frames of the machine, also those in the list of this CPU.
            let blocks = [(); (FRAMES / 512) as usize].map(|()| {
                let mut block = [Pfn::new(0)];
                assert_eq!(machine.alloc_frames(&request, &mut block), 1);
                block[0].get()
            });
            for first in blocks {
                give(&machine, &(first..first + 512).collect::<Vec<_>>());
            }
        }
        machine.accounting().assert_clean();
    });
}

/// Runs `f` on another thread, if the host has threads.
fn on_another_cpu(f: impl FnOnce() + Send) {
    #[cfg(any(sim, shuttle))]
    f();
    #[cfg(not(any(sim, shuttle)))]
    std::thread::scope(|scope| drop(scope.spawn(f)));
}
