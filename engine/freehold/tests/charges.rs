//! Every page is charged to its owner from the moment at which it is allocated until its frame is free
//! (`Platform::charge`), and a refused charge has the effect of a lack of memory.
//!
//! The machine's oracle of charges checks every test of this program: no frame is freed while it is charged,
//! and none is charged or uncharged twice. The tests here check the owners and the numbers. A new way to
//! allocate a page of an owner needs a test here.

use crate::support::*;
use freehold::{
    PageIndex,
    engine::HugePages,
    fault::{Access, FaultError},
    file::Mapping,
    platform::ShortageAnswer,
    rmap::Damage,
    space::AddressSpace,
};
use freehold_machine::Owner;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Returns the owner of a space's private memory.
fn owner(space: &AddressSpace<Machine>) -> Owner {
    Owner::Space(space.mmu().root())
}

/// Limits one owner to `most` frames. Other owners have no limit.
fn limit(machine: &Machine, owner: Owner, most: u64) {
    machine
        .set_charge_limit(Some(Arc::new(move |asked, count, more| asked != owner || count + more <= most)));
}

#[test]
fn private_pages_are_charged_to_the_space_that_allocates_them() {
    everywhere(|world, process, cpu| {
        let charged = |process: &Process| world.machine.charged(owner(process));
        anon(process, BASE, 8);
        assert_eq!(charged(process), 0, "a mapping alone has no pages");
        fill(process, cpu, BASE, 8, 1);
        assert_eq!(charged(process), 8);
        process.handle_fault(anon(process, BASE + 8 * PAGE, 1), Access::READ).unwrap();
        assert_eq!(charged(process), 8, "the page of zeroes has no owner");
        // Shared pages stay charged to the parent; a copy is charged to the space that stores.
        let child = Process::of(process.fork().unwrap());
        assert_eq!((charged(process), charged(&child)), (8, 0));
        fill(&child, cpu, BASE, 3, 10);
        assert_eq!((charged(process), charged(&child)), (8, 3));
        fill(process, cpu, BASE, 4, 20);
        assert_eq!((charged(process), charged(&child)), (9, 3), "page 3 was shared, and is copied");
        // The child's last reference ends the charge of the parent's page.
        process.munmap(BASE, 4 * PAGE).unwrap();
        assert_eq!((charged(process), charged(&child)), (5, 3));
        child.munmap(BASE + 3 * PAGE, PAGE).unwrap();
        assert_eq!((charged(process), charged(&child)), (4, 3));
        let root = owner(&child);
        drop(child);
        assert_eq!((charged(process), world.machine.charged(root)), (4, 0));
    });
}

#[test]
fn pages_of_files_are_charged_to_their_file() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        let shared = Mapping::memfd(world.engine(), 8 * PAGE).unwrap();
        let in_file = |mapping: &Mapping<Machine>| world.machine.charged(Owner::File(mapping.file_id()));
        process.mmap(BASE, 8 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        process.load::<u64>(cpu, BASE).unwrap();
        let read = file.mapping().present_pages();
        assert_eq!((in_file(file.mapping()), world.machine.charged(owner(process))), (read, 0));
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!((in_file(file.mapping()), world.machine.charged(owner(process))), (read, 1));
        shared.fill(PageIndex::new(2)).unwrap();
        assert_eq!(in_file(&shared), 1);
        shared.truncate(PAGE).unwrap();
        assert_eq!(in_file(&shared), 0);
        let id = file.mapping().file_id();
        process.munmap(BASE, 8 * PAGE).unwrap();
        drop(file);
        assert_eq!((world.machine.charged(Owner::File(id)), world.machine.charged_in_all()), (0, 0));
    });
}

#[test]
fn page_keeps_its_owner_when_it_moves_and_loses_it_when_its_memory_fails() {
    for locking in Locking::ALL {
        // The frame that fails is never free again, so the world does not end.
        let world = World::with(16 << 20, Config::new().vma_nodes(nodes_for(locking)));
        let (process, mut cpu) = (&world.process(locking), world.machine.cpu(0));
        anon(process, BASE, 2);
        fill(process, &mut cpu, BASE, 2, 1);
        let charged = || world.machine.charged(owner(process));
        let (old, lost) = (process.frame_at(BASE).unwrap(), process.frame_at(BASE + PAGE).unwrap());
        let new = world.engine().migrate(old).unwrap();
        assert_ne!(old, new);
        assert_eq!(charged(), 2);
        assert_eq!(world.engine().memory_failure(lost), Ok(Damage::Lost));
        assert_eq!(charged(), 1);
        process.munmap(BASE, 2 * PAGE).unwrap();
        assert_eq!(charged(), 0);
    }
}

#[test]
fn huge_page_is_charged_whole_and_small_pages_replace_a_refused_one() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(24 << 20, &config, |world, process, cpu| {
        let charged = || world.machine.charged(owner(process));
        anon(process, BASE, 1024);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(charged(), 512);
        limit(&world.machine, owner(process), 515);
        fill(process, cpu, BASE + HUGE, 3, 1);
        assert_eq!(charged(), 515);
        let full = process.handle_fault(BASE + HUGE + 3 * PAGE, Access::WRITE);
        assert_eq!(full, Err(FaultError::OutOfMemory));
        // A part of the huge page is discarded, and its frames end their charges one by one.
        process.munmap(BASE, PAGE).unwrap();
        assert_eq!(charged(), 514);
        process.store(cpu, BASE + HUGE + 3 * PAGE, 1u64).unwrap();
        world.machine.set_charge_limit(None);
    });
}

#[test]
fn refused_charge_asks_the_platform_and_is_tried_again() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 2, 1);
        limit(&world.machine, owner(process), 2);
        let rounds = Arc::new(AtomicU64::new(0));
        let (asked, machine, root) = (rounds.clone(), world.machine.clone(), owner(process));
        world.machine.set_memory_short(Some(Arc::new(move |_| match asked.fetch_add(1, SeqCst) {
            0 => ShortageAnswer::Retry,
            1 => {
                limit(&machine, root, 3);
                ShortageAnswer::Retry
            }
            _ => ShortageAnswer::Fail,
        })));
        assert!(process.handle_fault(BASE + 2 * PAGE, Access::WRITE).is_ok());
        assert_eq!(rounds.load(SeqCst), 2);
        assert_eq!(process.handle_fault(BASE + 3 * PAGE, Access::WRITE), Err(FaultError::OutOfMemory));
        assert_eq!((rounds.load(SeqCst), world.machine.charged(root)), (3, 3));
        world.machine.set_memory_short(None);
        world.machine.set_charge_limit(None);
        fill(process, cpu, BASE, 4, 7);
    });
}
