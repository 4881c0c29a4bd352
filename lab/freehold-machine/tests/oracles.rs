//! Each oracle detects the mistake that it exists for, in a kernel that is otherwise correct.
//!
//! An oracle of the machine (`src/oracle.rs`) panics when a kernel makes a mistake with frames, tables or
//! flushes. Each test makes one mistake with the minimal kernel of `common`, and expects the panic with its
//! message; the first test makes no mistake. If an oracle were broken, every other test could still pass, so
//! each new oracle needs a test here. Machines without `scan_on_free` ([`without_scan`]) let a mistake
//! survive until a CPU uses the translation.

use crate::common::*;
use freehold::engine::{Config, Engine};
use freehold::platform::{FramePurpose, FrameRequest, PageOwner, Platform};
use freehold::space::{MapFlags, Prot, SpaceConfig};
use freehold_machine::{MachineConfig, Process, Shadow};
use freehold_pagetable::{Access, Format, Level, TableMemory, X86_4};
use freehold_sync::atomic::Ordering::SeqCst;

const AT: u64 = 0x40_0000;

/// Returns a machine that does not search the TLBs when a frame or table is freed.
fn without_scan() -> freehold_machine::Machine {
    let config = MachineConfig::backed(16 << 20).tables(1 << 20).cpus(4);
    freehold_machine::Machine::new(MachineConfig { scan_on_free: false, ..config }).unwrap()
}

#[test]
fn correct_kernel_passes() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        for round in 0..3 {
            let frame = toy.map(AT, RW);
            put(&mut cpu, &toy, AT, round);
            toy.clear(AT, Level::Pte);
            toy.flush(AT, AT + PAGE, false);
            toy.free(frame);
            assert!(faults(&mut cpu, &toy, AT, Access::READ));
        }
        toy.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
#[should_panic(expected = "while the TLB of CPU 1 translates 0x400000 to it")]
fn freeing_a_frame_in_a_tlb_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let frame = toy.map(AT, RW);
        get(&mut machine.cpu(1), &toy, AT);
        toy.clear(AT, Level::Pte);
        toy.free(frame);
    });
}

#[test]
#[should_panic(expected = "while the TLB of CPU 0 translates 0x400000 to it")]
fn freeing_a_frame_of_a_large_leaf_in_a_tlb_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut frames = vec![toy.frame(); 512];
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames[1..]), 511);
        assert!(frames[0].is_aligned(Level::Pmd));
        toy.set_leaf(AT, Level::Pmd, frames[0], RW);
        get(&mut machine.cpu(0), &toy, AT + 7 * PAGE);
        toy.clear(AT, Level::Pmd);
        toy.free(frames[300]);
    });
}

#[test]
#[should_panic(expected = "stale translation: CPU 0 used 0x400008 -> pfn 0x40000, but that frame is free")]
fn using_a_translation_of_a_freed_frame_is_detected() {
    run(|| {
        let machine = without_scan();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        put(&mut cpu, &toy, AT, 1);
        toy.clear(AT, Level::Pte);
        toy.free(frame);
        get(&mut cpu, &toy, AT + 8);
    });
}

#[test]
#[should_panic(expected = "was freed and handed out again")]
fn using_a_translation_of_a_reused_frame_is_detected() {
    run(|| {
        let machine = without_scan();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        put(&mut cpu, &toy, AT, 1);
        toy.clear(AT, Level::Pte);
        toy.free(frame);
        assert_eq!(toy.frame(), frame, "the lowest free frame is allocated first");
        get(&mut cpu, &toy, AT);
    });
}

#[test]
#[should_panic(expected = "but that frame is free")]
fn entry_of_a_freed_frame_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let frame = toy.map(AT, RW);
        toy.free(frame);
        get(&mut machine.cpu(0), &toy, AT);
    });
}

#[test]
#[should_panic(expected = "while the walk cache of CPU 2 leads")]
fn freeing_a_table_after_a_flush_of_leaves_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let frame = toy.map(AT, RW);
        get(&mut machine.cpu(2), &toy, AT);
        let table = toy.table(AT, Level::Pte);
        toy.clear(AT, Level::Pte);
        toy.clear(AT, Level::Pmd);
        toy.flush(AT, AT + PAGE, false);
        toy.free(frame);
        toy.free_table(table);
    });
}

#[test]
#[should_panic(expected = "stale walk cache: CPU 0 walked 0x401000 through table")]
fn walk_through_a_freed_table_is_detected() {
    run(|| {
        let machine = without_scan();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        toy.map(AT, RW);
        get(&mut cpu, &toy, AT);
        let table = toy.table(AT, Level::Pte);
        toy.clear(AT, Level::Pte);
        toy.clear(AT, Level::Pmd);
        toy.flush(AT, AT + PAGE, false);
        toy.free_table(table);
        faults(&mut cpu, &toy, AT + PAGE, Access::READ);
    });
}

/// Hazard C-59: the flush for a freed table covers another address.
#[test]
#[should_panic(expected = "while the walk cache of CPU 0 leads")]
fn c59_flush_of_another_address_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        toy.map(AT, RW);
        get(&mut machine.cpu(0), &toy, AT);
        let table = toy.table(AT, Level::Pte);
        toy.clear(AT, Level::Pte);
        toy.clear(AT, Level::Pmd);
        toy.flush(AT + HUGE, AT + 2 * HUGE, true);
        toy.free_table(table);
    });
}

/// Hazard C-17: a span of entries is cleared, and only a part of it is flushed.
#[test]
#[should_panic(expected = "translates 0x403000 to it")]
fn c17_flush_of_too_small_a_range_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frames: Vec<_> = (0..4).map(|n| toy.map(AT + n * PAGE, RW)).collect();
        (0..4).for_each(|n| assert_eq!(get(&mut cpu, &toy, AT + n * PAGE), 0));
        (0..4).for_each(|n| assert_ne!(toy.clear(AT + n * PAGE, Level::Pte), 0));
        toy.flush(AT, AT + 3 * PAGE, false);
        frames.into_iter().for_each(|frame| toy.free(frame));
    });
}

#[test]
#[should_panic(expected = "is a free frame and was freed again")]
fn double_free_of_a_frame_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let frame = toy.frame();
        toy.free(frame);
        toy.free(frame);
    });
}

#[test]
#[should_panic(expected = "is a free frame and was freed again")]
fn double_free_of_a_frame_is_detected_without_oracles() {
    run(|| {
        let machine = freehold_machine::Machine::new(MachineConfig::phantom(1 << 20).fast()).unwrap();
        let toy = Toy::new(&machine);
        let frame = toy.frame();
        toy.free(frame);
        toy.free(frame);
        // On threads, the list of the CPU has the frame twice until the lists are emptied.
        machine.accounting();
    });
}

#[test]
#[should_panic(expected = "is a free page table and was freed again")]
fn double_free_of_a_table_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let table = machine.alloc_table(None).unwrap();
        toy.free_table(table);
        toy.free_table(table);
    });
}

#[test]
#[should_panic(expected = "was written while it was free: 0x63 at offset 0x18")]
fn write_to_a_freed_frame_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let frame = toy.frame();
        toy.free(frame);
        machine.write_frame(frame, 0x18, &99u64.to_le_bytes());
        toy.frame();
    });
}

#[test]
#[should_panic(expected = "was written while it was free: 0x0 at entry 5")]
fn write_to_a_freed_table_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let table = machine.alloc_table(None).unwrap();
        toy.free_table(table);
        machine.table(table).entry(5).store(0, SeqCst);
        machine.alloc_table(None).unwrap();
    });
}

#[test]
#[should_panic(expected = "was freed with an entry in it")]
fn freeing_a_table_with_entries_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        toy.map(AT, RW);
        let table = toy.table(AT, Level::Pte);
        toy.clear(AT, Level::Pmd);
        toy.flush_all(true);
        toy.free_table(table);
    });
}

/// Hazard C-13: a walk without a lock may still read a freed table, but cannot mistake its entries for valid
/// entries.
#[test]
#[should_panic(expected = "is no page table of this machine")]
fn c13_following_an_entry_of_a_freed_table_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let table = machine.alloc_table(None).unwrap();
        toy.free_table(table);
        let raw = machine.table(table).entry(9).load(SeqCst);
        machine.table(X86_4::pfn(raw));
    });
}

#[test]
#[should_panic(expected = "endless faults at 0x400000 on CPU 0")]
fn endless_faults_are_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let _ = machine.cpu(0).touch(&toy.mmu, AT, Access::READ, |_, _| Ok::<(), ()>(()));
    });
}

#[test]
#[should_panic(expected = "something was leaked: 1 frames [pfn 0x40000], 1 page tables")]
fn leaked_frame_is_detected() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        toy.frame();
        drop(toy.mmu);
        machine.accounting().assert_clean();
    });
}

#[test]
#[should_panic(expected = "is freed while it is charged")]
fn freeing_a_charged_frame_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        let frame = toy.frame();
        assert!(toy.machine.charge(PageOwner::Caller, frame, 1));
        toy.free(frame);
    });
}

#[test]
#[should_panic(expected = "although it is charged already")]
fn charging_a_frame_twice_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        let frame = toy.frame();
        (0..2).for_each(|_| assert!(toy.machine.charge(PageOwner::Caller, frame, 1)));
    });
}

#[test]
#[should_panic(expected = "but it is not charged")]
fn ending_a_charge_twice_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        let frame = toy.frame();
        assert!(toy.machine.charge(PageOwner::Caller, frame, 1));
        (0..2).for_each(|_| toy.machine.uncharge(&[frame]));
    });
}

#[test]
#[should_panic(expected = "which has none")]
fn naming_the_owner_of_a_frame_that_is_not_charged_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        toy.machine.charge(PageOwner::SameAs(toy.frame()), toy.frame(), 1);
    });
}

#[test]
#[should_panic(expected = "which is not a root")]
fn allocating_a_table_for_a_space_that_does_not_exist_is_detected() {
    run(|| {
        let machine = backed();
        let no_root = machine.alloc_table(None).unwrap();
        let _ = machine.alloc_table(Some(no_root));
    });
}

#[test]
#[should_panic(expected = "is freed while its huge page is charged")]
fn freeing_a_frame_of_a_charged_huge_page_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        let frame = toy.frame();
        assert!(toy.machine.charge_huge_page(PageOwner::Space(&toy.mmu), frame, 512));
        toy.free(frame);
    });
}

#[test]
#[should_panic(expected = "although it is charged already")]
fn charging_a_huge_page_twice_is_detected() {
    run(|| {
        let toy = Toy::new(&backed());
        let frame = toy.frame();
        let owner = PageOwner::Space(&toy.mmu);
        (0..2).for_each(|_| assert!(toy.machine.charge_huge_page(owner, frame, 512)));
    });
}

/// Returns a process with one page, and a device that has a translation of the page and hears of no change.
fn deaf_device() -> (Process, std::sync::Arc<Shadow>) {
    let engine = Engine::new(backed(), Config::default()).unwrap();
    let process = Process::new(&engine, &SpaceConfig::new()).unwrap();
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
    process.mmap(AT, PAGE, Prot::READ | Prot::WRITE, flags, None, 0).unwrap();
    let (device, id) = Shadow::attach(process.space()).unwrap();
    device.store(&process, AT, 7).unwrap();
    process.unregister_listener(id);
    (process, device)
}

#[test]
#[should_panic(expected = "was freed while a device translates 0x400000 to it")]
fn freeing_a_frame_that_a_device_uses_is_detected() {
    run(|| {
        let (process, device) = deaf_device();
        process.munmap(AT, PAGE).unwrap();
        process.engine().trim();
        device.forget();
    });
}

#[test]
#[should_panic(expected = "a device may write to 0x400000, and the program may not")]
fn device_with_a_right_that_its_entry_lacks_is_detected() {
    run(|| {
        let (process, device) = deaf_device();
        process.mprotect(AT, PAGE, Prot::READ).unwrap();
        device.check(&process);
    });
}

#[test]
#[should_panic(expected = "a device has another page at 0x400000")]
fn device_with_another_page_than_its_entry_is_detected() {
    run(|| {
        let (process, device) = deaf_device();
        let frame = process.frame_at(AT).unwrap();
        process.engine().migrate(frame).unwrap();
        device.check(&process);
    });
}
