//! Write protection without a pager (`Features::WP_ASYNC`): a store to a protected page ends the protection of
//! this page, and `protect_entries` protects the pages that a report has shown. `written` lists the pages that
//! are not protected, which is the report that a program uses to find its written pages.

use super::{
    pools::{START, huge, world_of},
    *,
};
use freehold::{
    UserRange,
    call::Advice,
    engine::HugePages,
    error::UffdRegisterError,
    remote::AccessMode,
    report::pagemap::{EntryRun, PageEntry, PageKind},
    uffd::ProtectMode,
};
use std::ops::ControlFlow;

const ON: ProtectMode = ProtectMode::WP;
const SHARED: MapFlags = MapFlags::SHARED;

/// Returns the runs of the pages that are not protected. Pages without a page table are empty runs.
fn unprotected(process: &Process, at: u64, len: u64) -> Vec<EntryRun> {
    let mut runs = Vec::new();
    let mut next = at;
    let gap = |start, end| EntryRun {
        range: UserRange::new(start, end),
        entry: PageEntry::Empty,
        write_protected: false,
        soft_dirty: false,
        huge: false,
    };
    process.page_entries(at..at + len, |run| {
        runs.extend((next < run.range.start()).then(|| gap(next, run.range.start())));
        next = run.range.end();
        runs.extend((!run.write_protected).then_some(run));
        ControlFlow::Continue(())
    });
    runs.extend((next < at + len).then(|| gap(next, at + len)));
    runs
}

/// Returns the numbers of the pages that are not protected.
fn written(process: &Process, at: u64, len: u64) -> Vec<u64> {
    let runs = unprotected(process, at, len);
    runs.iter().flat_map(|run| run.range.iter()).map(|page| (page - at) / PAGE).collect()
}

/// Protects all pages that are not protected.
fn protect(process: &Process, at: u64, len: u64) {
    process.protect_entries(&unprotected(process, at, len)).unwrap();
}

/// Checks that stores make pages written, that loads do not, and that no store waits.
fn stores_are_found(process: &Process, cpu: &mut Vcpu, at: u64) {
    protect(process, at, 8 * PAGE);
    assert_eq!(written(process, at, 8 * PAGE), []);
    for n in [0, 1, 6] {
        process.load::<u64>(cpu, at + n * PAGE).unwrap();
    }
    assert_eq!(written(process, at, 8 * PAGE), []);
    for n in [1, 2, 5, 6] {
        process.store(cpu, at + n * PAGE, 10 + n).unwrap();
        assert_eq!(process.load(cpu, at + n * PAGE), Ok(10 + n));
    }
    assert_eq!(written(process, at, 8 * PAGE), [1, 2, 5, 6]);
    // The CPU has cached translations with the right to write.
    protect(process, at, 8 * PAGE);
    assert_eq!(written(process, at, 8 * PAGE), []);
    process.store(cpu, at + 5 * PAGE, 20u64).unwrap();
    process.write_memory(at + 7 * PAGE, &[1], AccessMode::Forced).unwrap();
    assert_eq!(written(process, at, 8 * PAGE), [5, 7]);
    process.check();
}

#[test]
fn store_ends_the_protection_of_its_page() {
    everywhere(|world, process, cpu| {
        let context = registered(process, 8, WP, Features::WP_ASYNC);
        assert!(context.config().features.contains(Features::WP_UNPOPULATED));
        fill(process, cpu, BASE, 4, 1);
        stores_are_found(process, cpu, BASE);
        context.write_protect(BASE, 8 * PAGE, ON).unwrap();
        assert_eq!(written(process, BASE, 8 * PAGE), []);
        process.madvise(page(1), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(written(process, BASE, 8 * PAGE), [1]);
        // The other kinds of memory: shared memory, and files.
        let memory = shmem(world, 8);
        map_shmem(process, page(100), 8, SHARED, &memory);
        let file = world.file(8);
        process.mmap(page(200), 8 * PAGE, RW, SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        process.mmap(page(300), 8 * PAGE, RW, private, Some(&file), 0).unwrap();
        for at in [page(100), page(200), page(300)] {
            fill(process, cpu, at, 3, 1);
            context.register(at, 8 * PAGE, WP).unwrap();
            stores_are_found(process, cpu, at);
        }
        // A process that is forked has no userfaultfd. Its stores do not make pages of the parent written.
        protect(process, BASE, 8 * PAGE);
        let child = Process::of(process.fork().unwrap());
        child.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(written(process, BASE, 8 * PAGE), []);
        process.store(cpu, page(3), 1u64).unwrap();
        assert_eq!(written(process, BASE, 8 * PAGE), [3]);
        assert!(context.try_read().is_none(), "a message");
        context.unregister(page(300), 8 * PAGE).unwrap();
        assert_eq!(written(process, page(300), 8 * PAGE).len(), 8);
    });
}

#[test]
fn files_are_registered_only_for_asynchronous_protection() {
    everywhere(|world, process, _| {
        let file = world.file(4);
        process.mmap(BASE, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        let (plain, context) = (uffd(process, Features::empty()), uffd(process, Features::WP_ASYNC));
        let refused = Err(UffdRegisterError::Invalid);
        assert_eq!(plain.register(BASE, 4 * PAGE, WP), refused);
        assert_eq!(context.register(BASE, 4 * PAGE, WP | MISSING), refused);
        assert_eq!(context.register(BASE, 4 * PAGE, WP | MINOR), refused);
        assert_eq!(context.unregister(BASE, 4 * PAGE).map(|()| WP), Err(UffdRegisterError::Invalid));
        context.register(BASE, 4 * PAGE, WP).unwrap();
        assert_eq!(context.copy(BASE, &bytes(1), WAKE), Err(UffdError::Invalid));
        assert_eq!(context.poison(BASE, PAGE, WAKE), Err(UffdError::Invalid));
        context.unregister(BASE, 4 * PAGE).unwrap();
    });
}

/// A page that has changed since the report stays unprotected, so that the next report shows it.
#[test]
fn only_pages_as_reported_are_protected() {
    everywhere(|_, process, cpu| {
        let context = registered(process, 4, WP, Features::WP_ASYNC);
        process.load::<u64>(cpu, page(0)).unwrap();
        fill(process, cpu, page(1), 1, 1);
        let before = unprotected(process, BASE, 4 * PAGE);
        let zero = PageEntry::Page { kind: PageKind::Zero, exclusive: false };
        assert_eq!((before[0].entry, before[2].entry), (zero, PageEntry::Empty));
        for n in 0..3 {
            process.store(cpu, page(n), 2u64).unwrap();
        }
        process.protect_entries(&before).unwrap();
        assert_eq!(written(process, BASE, 4 * PAGE), [0, 2], "page 1 still is a page of the same kind");
        // A protected page is no longer as reported after a store, whatever its entry maps.
        let mut runs = Vec::new();
        process.page_entries(page(1)..page(2), |run| {
            runs.push(run);
            ControlFlow::Continue(())
        });
        process.store(cpu, page(1), 3u64).unwrap();
        process.protect_entries(&runs).unwrap();
        assert_eq!(written(process, BASE, 4 * PAGE), [0, 1, 2]);
        // Memory without asynchronous protection is left out.
        context.unregister(BASE, 4 * PAGE).unwrap();
        protect(process, BASE, 4 * PAGE);
        assert_eq!(written(process, BASE, 4 * PAGE), [0, 1, 2, 3]);
    });
}

#[test]
fn huge_page_is_split_to_protect_it() {
    let config = Config::new().huge_pages(HugePages::Always);
    for locking in Locking::ALL {
        World::with(16 << 20, config.clone()).live(locking, |_, process, cpu| {
            anon(process, BASE, 1024);
            process.store(cpu, BASE, 5u64).unwrap();
            let context = uffd(process, Features::WP_ASYNC);
            context.register(BASE, 2 * HUGE, WP).unwrap();
            protect(process, BASE, 2 * HUGE);
            assert_eq!(written(process, BASE, 2 * HUGE), []);
            process.store(cpu, page(7), 6u64).unwrap();
            process.store(cpu, page(700), 6u64).unwrap();
            assert_eq!(written(process, BASE, 2 * HUGE), [7, 700]);
            assert_eq!(process.load(cpu, BASE), Ok(5u64));
        });
    }
}

#[test]
fn huge_pages_of_pools_are_protected_as_a_whole() {
    for kind in [MapFlags::PRIVATE, MapFlags::SHARED] {
        for locking in Locking::ALL {
            world_of(4).live(locking, |_, process, cpu| {
                let flags = kind | MapFlags::ANONYMOUS | MapFlags::HUGETLB | MapFlags::FIXED;
                process.mmap(START, 3 * HUGE, RW, flags, None, 0).unwrap();
                process.store(cpu, huge(0), 1u64).unwrap();
                let context = uffd(process, Features::WP_ASYNC);
                context.register(START, 3 * HUGE, WP).unwrap();
                let part = unprotected(process, huge(0), 3 * PAGE);
                process.protect_entries(&part).unwrap();
                assert_eq!(written(process, START, 3 * HUGE).len(), 3 * 512);
                protect(process, START, 3 * HUGE);
                assert_eq!(written(process, START, 3 * HUGE), []);
                process.store(cpu, huge(0) + PAGE, 2u64).unwrap();
                process.store(cpu, huge(2), 3u64).unwrap();
                let whole = |n: u64| n * 512..(n + 1) * 512;
                let expected: Vec<u64> = whole(0).chain(whole(2)).collect();
                assert_eq!(written(process, START, 3 * HUGE), expected);
                assert_eq!([huge(0), huge(2)].map(|at| process.load(cpu, at)), [Ok(1u64), Ok(3)]);
            });
        }
    }
}
