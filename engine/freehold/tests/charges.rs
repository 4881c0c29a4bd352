//! Every page is charged to its owner from the moment at which it is allocated until its frame is free
//! (`Platform::charge`), and a refused charge has the effect of a lack of memory. Page tables are charged to
//! their space (`TableMemory::alloc_table`), and huge pages of pools separately (`charge_huge_page`).
//!
//! The machine's oracle of charges checks every test of this program: no frame is freed while it is charged,
//! none is charged or uncharged twice, and every table is charged. The tests here check the owners and the
//! numbers. A new way to allocate a page of an owner needs a test here.

use crate::support::*;
use freehold::{
    PageIndex,
    engine::HugePages,
    fault::{Access, FaultError},
    file::{File, FileAccess, Mapping},
    hugetlb::HugePageSize,
    platform::ShortageAnswer,
    rmap::Damage,
    space::AddressSpace,
};
use freehold_machine::Owner;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Number of tables that a process needs for its first page.
const TABLES: u64 = LEVELS as u64;

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

#[test]
fn page_tables_are_charged_to_the_space_that_allocates_them() {
    everywhere(|world, process, cpu| {
        let tables = |process: &Process| world.machine.charged(Owner::Tables(process.mmu().root()));
        assert_eq!(tables(process), 1, "the root");
        anon(process, BASE, 1024);
        fill(process, cpu, BASE, 2, 1);
        assert_eq!(tables(process), TABLES);
        let child = Process::of(process.fork().unwrap());
        assert_eq!((tables(process), tables(&child)), (TABLES, TABLES));
        fill(&child, cpu, BASE + HUGE, 1, 1);
        assert_eq!((tables(process), tables(&child)), (TABLES, TABLES + 1));
        child.munmap(BASE, 1024 * PAGE).unwrap();
        process.munmap(BASE, 1024 * PAGE).unwrap();
        assert_eq!((tables(process), tables(&child)), (1, 1));
        let root = child.mmu().root();
        drop(child);
        assert_eq!(world.machine.charged(Owner::Tables(root)), 0);
        assert_eq!(world.machine.charged_in_all(), 0, "tables are not counted among pages");
    });
}

#[test]
fn table_for_the_split_of_a_huge_page_is_charged_to_the_space_of_the_page() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(24 << 20, &config, |world, process, cpu| {
        let tables = |process: &Process| world.machine.charged(Owner::Tables(process.mmu().root()));
        anon(process, BASE, 512);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(tables(process), TABLES, "the last one is deposited");
        let child = Process::of(process.fork().unwrap());
        assert_eq!((tables(process), tables(&child)), (TABLES, TABLES));
        child.munmap(BASE, PAGE).unwrap();
        assert_eq!((tables(process), tables(&child)), (TABLES, TABLES));
    });
}

#[test]
fn refused_page_table_asks_the_platform_and_is_tried_again() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 1024);
        process.store(cpu, BASE, 1u64).unwrap();
        let tables = Owner::Tables(process.mmu().root());
        limit(&world.machine, tables, TABLES);
        assert_eq!(process.handle_fault(BASE + HUGE, Access::WRITE), Err(FaultError::OutOfMemory));
        let machine = world.machine.clone();
        world.machine.set_memory_short(Some(Arc::new(move |_| {
            limit(&machine, tables, TABLES + 1);
            ShortageAnswer::Retry
        })));
        assert!(process.handle_fault(BASE + HUGE, Access::WRITE).is_ok());
        assert_eq!(world.machine.charged(tables), TABLES + 1);
        world.machine.set_memory_short(None);
        world.machine.set_charge_limit(None);
    });
}

/// Runs `scenario` with a pool of eight huge pages.
fn with_pool(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    everywhere_with(32 << 20, &Config::new(), |world, process, cpu| {
        assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, 8, None), 8);
        scenario(world, process, cpu);
    });
}

#[test]
fn huge_pages_of_pools_are_charged_to_the_space_or_the_file() {
    let flags = MapFlags::FIXED | MapFlags::HUGETLB;
    with_pool(|world, process, cpu| {
        let of = |process: &Process| world.machine.charged(Owner::SpaceHugePages(process.mmu().root()));
        let file = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 * HUGE, false).unwrap();
        let open = File::new(&file, FileAccess::READ_WRITE, "/huge").unwrap();
        let in_file = || world.machine.charged(Owner::FileHugePages(file.file_id()));
        process.mmap(BASE, 2 * HUGE, RW, ANON | flags, None, 0).unwrap();
        process.mmap(BASE + 2 * HUGE, 2 * HUGE, RW, MapFlags::SHARED | flags, Some(&open), 0).unwrap();
        assert_eq!((of(process), in_file()), (0, 0), "reservations have no pages");
        process.store(cpu, BASE, 1u64).unwrap();
        process.store(cpu, BASE + 2 * HUGE, 2u64).unwrap();
        assert_eq!((of(process), in_file()), (512, 512));
        assert_eq!(world.machine.charged_in_all(), 0, "the pool's pages are counted separately");
        // The page of the parent stays charged to the parent; the copy belongs to the space that stores.
        let child = Process::of(process.fork().unwrap());
        process.store(cpu, BASE, 3u64).unwrap();
        assert_eq!((of(process), of(&child)), (1024, 0), "the child uses the old page of the parent");
        drop(child);
        assert_eq!(of(process), 512);
        let new = world.engine().migrate(process.frame_at(BASE).unwrap()).unwrap();
        assert_eq!((process.frame_at(BASE), of(process)), (Some(new), 512));
        process.munmap(BASE, 4 * HUGE).unwrap();
        assert_eq!((of(process), in_file()), (0, 512));
        file.truncate(0).unwrap();
        assert_eq!(in_file(), 0);
    });
}

#[test]
fn refused_huge_page_of_a_pool_keeps_its_reservation() {
    let flags = MapFlags::FIXED | MapFlags::HUGETLB;
    with_pool(|world, process, cpu| {
        let file = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 * HUGE, false).unwrap();
        let open = File::new(&file, FileAccess::READ_WRITE, "/huge").unwrap();
        process.mmap(BASE, 2 * HUGE, RW, ANON | flags, None, 0).unwrap();
        process.mmap(BASE + 2 * HUGE, 2 * HUGE, RW, MapFlags::SHARED | flags, Some(&open), 0).unwrap();
        let counts = || world.engine().huge_pool(HugePageSize::Mib2).counts(None);
        assert_eq!((counts().free, counts().reserved), (8, 4));
        let owners = [Owner::SpaceHugePages(process.mmu().root()), Owner::FileHugePages(file.file_id())];
        for (n, owner) in owners.into_iter().enumerate() {
            let at = BASE + 2 * n as u64 * HUGE;
            let before = counts();
            limit(&world.machine, owner, 511);
            assert_eq!(process.handle_fault(at, Access::WRITE), Err(FaultError::OutOfMemory));
            assert_eq!(counts(), before);
            let machine = world.machine.clone();
            world.machine.set_memory_short(Some(Arc::new(move |_| {
                machine.set_charge_limit(None);
                ShortageAnswer::Retry
            })));
            process.store(cpu, at, 7u64).unwrap();
            world.machine.set_memory_short(None);
            assert_eq!((counts().free, counts().reserved), (before.free - 1, before.reserved - 1));
        }
    });
}

#[test]
fn huge_page_of_a_pool_loses_its_owner_when_its_memory_fails() {
    for locking in Locking::ALL {
        let world = World::with(16 << 20, Config::new().vma_nodes(nodes_for(locking)));
        let (process, mut cpu) = (&world.process(locking), world.machine.cpu(0));
        assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None), 2);
        process.mmap(BASE, HUGE, RW, ANON | MapFlags::FIXED | MapFlags::HUGETLB, None, 0).unwrap();
        process.store(&mut cpu, BASE, 1u64).unwrap();
        let charged = || world.machine.charged(Owner::SpaceHugePages(process.mmu().root()));
        assert_eq!(charged(), 512);
        let lost = process.frame_at(BASE).unwrap();
        assert_eq!(world.engine().memory_failure(lost), Ok(Damage::Lost));
        process.munmap(BASE, HUGE).unwrap();
        assert_eq!(charged(), 0);
    }
}
