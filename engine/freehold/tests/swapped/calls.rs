//! Calls on memory whose pages are swapped out: the entries keep what the call says about the page.

use super::{shown::entries, swapped_pages, with_swapped};
use crate::support::*;
use freehold::{
    call::{Advice, LockFlags},
    fault::{Access, FaultError},
    uffd::{Features, FillMode, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};

#[test]
fn munmap_and_exit_free_the_slots() {
    with_swapped(6, |swapped, process, cpu| {
        process.munmap(BASE + PAGE, 2 * PAGE).unwrap();
        assert_eq!((swapped_pages(process), swapped.used()), (4, 4));
        process.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!((swapped_pages(process), swapped.used()), (3, 3));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        process.clear();
        assert_eq!((swapped_pages(process), swapped.used()), (0, 0));
    });
}

#[test]
fn forked_processes_have_the_contents() {
    with_swapped(4, |swapped, process, cpu| {
        let first = Process::of(process.fork().unwrap());
        let second = Process::of(first.fork().unwrap());
        assert_eq!(swapped.used(), 4, "fork copies entries, not pages");
        process.store(cpu, BASE, 10u64).unwrap();
        first.store(cpu, BASE, 11u64).unwrap();
        second.store(cpu, BASE, 12u64).unwrap();
        let words = [process, &first, &second].map(|space| space.load::<u64>(cpu, BASE).unwrap());
        assert_eq!(words, [10, 11, 12]);
        process.munmap(BASE + PAGE, PAGE).unwrap();
        anon(process, BASE + PAGE, 1);
        drop(first);
        assert_filled(&second, cpu, BASE + PAGE, 3, 2);
        second.check();
    });
}

#[test]
fn pages_that_two_processes_map_go_together_and_come_back_to_both() {
    with_swapped(3, |swapped, process, cpu| {
        assert_filled(process, cpu, BASE, 3, 1);
        let child = Process::of(process.fork().unwrap());
        while swapped.reclaim().freed > 0 {}
        assert_eq!((swapped_pages(process), swapped_pages(&child), swapped.used()), (3, 3, 3));
        assert_filled(&child, cpu, BASE, 3, 1);
        assert_filled(process, cpu, BASE, 3, 1);
        child.check();
    });
}

#[test]
fn mprotect_applies_when_the_page_returns() {
    with_swapped(2, |_, process, cpu| {
        process.mprotect(BASE, 2 * PAGE, R).unwrap();
        assert!(matches!(process.store(cpu, BASE, 1u64), Err(FaultError::Segv { .. })));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
        assert!(matches!(process.store(cpu, BASE, 1u64), Err(FaultError::Segv { .. })));
        process.mprotect(BASE, 2 * PAGE, Prot::empty()).unwrap();
        assert!(matches!(process.load::<u64>(cpu, BASE + PAGE), Err(FaultError::Segv { .. })));
        process.mprotect(BASE, 2 * PAGE, RW).unwrap();
        process.store(cpu, BASE + PAGE, 9u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(9));
    });
}

#[test]
fn mremap_takes_the_pages_along() {
    with_swapped(4, |swapped, process, cpu| {
        let to = BASE + 64 * PAGE;
        let flags = freehold::call::RemapFlags::MAYMOVE | freehold::call::RemapFlags::FIXED;
        process.mremap(BASE, 4 * PAGE, 4 * PAGE, flags, to).unwrap();
        assert_eq!((swapped_pages(process), swapped.used()), (4, 4));
        assert_filled(process, cpu, to, 2, 1);
        process.check();
        // The reverse map finds the pages at the new place.
        while swapped.reclaim().freed > 0 {}
        assert_filled(process, cpu, to, 4, 1);
    });
}

#[test]
fn guards_replace_swapped_pages() {
    with_swapped(3, |swapped, process, cpu| {
        process.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap();
        assert_eq!((swapped_pages(process), swapped.used()), (2, 2));
        assert!(process.load::<u64>(cpu, BASE + PAGE).is_err());
        process.madvise(BASE + PAGE, PAGE, Advice::GuardRemove).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(0));
    });
}

#[test]
fn locked_memory_is_brought_back() {
    with_swapped(3, |swapped, process, cpu| {
        process.mlock2(BASE, 3 * PAGE, LockFlags::empty()).unwrap();
        assert_eq!((process.rss().anon, swapped.used()), (3, 0));
        swapped.reclaim();
        assert_eq!(process.rss().anon, 3);
        assert_filled(process, cpu, BASE, 3, 1);
    });
}

#[test]
fn populate_brings_pages_back() {
    with_swapped(3, |swapped, process, cpu| {
        process.madvise(BASE, 3 * PAGE, Advice::PopulateWrite).unwrap();
        assert_eq!((process.rss().anon, swapped.used()), (3, 0));
        assert_filled(process, cpu, BASE, 3, 1);
        while swapped.reclaim().freed > 0 {}
        swapped.device.fail_reads(swapped.device.stored());
        assert!(process.madvise(BASE, 3 * PAGE, Advice::PopulateRead).is_err());
        swapped.device.fail_reads([]);
    });
}

#[test]
fn collapse_does_not_lose_swapped_pages() {
    with_swapped(3, |_, process, cpu| {
        anon(process, BASE + 3 * PAGE, 509);
        let _ = process.madvise(BASE, HUGE, Advice::Collapse);
        assert_filled(process, cpu, BASE, 3, 1);
    });
}

/// The page of the forked process is in the swap cache, where an entry of the other process names it. The
/// contents that one process does not need any more are not lost for the other.
#[test]
fn page_in_the_swap_cache_is_not_freed_lazily() {
    with_swapped(1, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
        process.madvise(BASE, PAGE, Advice::Free).unwrap();
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
        process.munmap(BASE, PAGE).unwrap();
        child.madvise(BASE, PAGE, Advice::PageOut).unwrap();
        (0..3).for_each(|_| _ = swapped.reclaim());
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
    });
}

#[test]
fn reap_frees_the_slots() {
    with_swapped(3, |swapped, process, _| {
        process.reap().unwrap();
        assert_eq!((swapped_pages(process), swapped.used()), (0, 0));
    });
}

#[test]
fn write_protection_by_a_userfaultfd_is_kept() {
    with_swapped(4, |swapped, process, cpu| {
        let config = UffdConfig::new().features(Features::empty()).user_mode_only(true);
        let uffd = Userfaultfd::<Machine>::new(process.space(), config).unwrap();
        uffd.register(BASE, 4 * PAGE, RegisterMode::WP).unwrap();
        // One page is protected while it is swapped out, the other one before.
        uffd.write_protect(BASE, PAGE, ProtectMode::WP).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(2));
        uffd.write_protect(BASE + PAGE, PAGE, ProtectMode::WP).unwrap();
        while swapped.reclaim().freed > 0 {}
        assert_eq!(swapped_pages(process), 4);
        let protected: Vec<bool> = entries(process, 4).into_iter().map(|(_, _, wp)| wp).collect();
        assert_eq!(protected, [true, true, false, false]);
        let kernel = Access { user: false, ..Access::WRITE };
        for page in [BASE, BASE + PAGE] {
            assert_eq!(process.load::<u64>(cpu, page), Ok((page - BASE) / PAGE + 1));
            assert_eq!(process.handle_fault(page, kernel), Err(FaultError::Bus { addr: page }));
        }
        process.store(cpu, BASE + 2 * PAGE, 7u64).unwrap();
        while swapped.reclaim().freed > 0 {}
        uffd.write_protect(BASE, 4 * PAGE, ProtectMode::empty()).unwrap();
        process.store(cpu, BASE, 8u64).unwrap();
        process.store(cpu, BASE + PAGE, 9u64).unwrap();
        let words = [0, 1, 2, 3].map(|page| process.load::<u64>(cpu, BASE + page * PAGE).unwrap());
        assert_eq!(words, [8, 9, 7, 4]);
    });
}

#[test]
fn userfaultfd_moves_and_fills_see_swapped_pages() {
    with_swapped(3, |swapped, process, cpu| {
        anon(process, BASE + 8 * PAGE, 4);
        let uffd = Userfaultfd::<Machine>::new(process.space(), UffdConfig::new()).unwrap();
        uffd.register(BASE + 8 * PAGE, 4 * PAGE, RegisterMode::MISSING).unwrap();
        // A page that is swapped out is not missing.
        uffd.register(BASE, 3 * PAGE, RegisterMode::MISSING).unwrap();
        let page = vec![5; PAGE as usize];
        assert!(uffd.copy(BASE, &page, FillMode::empty()).is_err(), "the page exists");
        let moved = uffd.move_pages(BASE + 8 * PAGE, BASE, 2 * PAGE, MoveMode::empty());
        assert_eq!(moved, Ok(2 * PAGE));
        assert_filled(process, cpu, BASE + 8 * PAGE, 2, 1);
        process.check();
        while swapped.reclaim().freed > 0 {}
        assert_filled(process, cpu, BASE + 8 * PAGE, 2, 1);
        assert_eq!(process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(3));
    });
}
