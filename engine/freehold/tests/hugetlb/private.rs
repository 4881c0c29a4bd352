//! Private mappings of huge pages: copies, reservations, fork. The parent owns the reservations. If the pool
//! is empty, the owner of a mapping takes back the page that it shares with a child. The child then gets
//! SIGBUS at its next access. The tests compare words in parent and child, and the counts of the pool.

use super::*;
use freehold::remote::PinFlags;

#[test]
fn dontneed_frees_and_reserves_private_pages_again() {
    everywhere(2, |world, process, cpu| {
        let at = process.mmap(0, 2 * HUGE, RW, PRIVATE, None, 0).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + HUGE + 8 * PAGE), Ok(0));
        process.store(cpu, at + 511 * PAGE, 7u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + 511 * PAGE), Ok(7));
        process.madvise(at, 2 * HUGE, Advice::DontNeed).unwrap();
        // The pages are free and reserved again.
        assert_eq!((counts(world).free, counts(world).reserved), (2, 2));
        assert_eq!(process.load::<u64>(cpu, at + 511 * PAGE), Ok(0));
        assert_eq!(process.rss().anon, 0);
    });
}

/// The first access through a private mapping is a store. The store goes to a copy of the file's page.
#[test]
fn private_store_copies_the_page_of_the_file() {
    everywhere(2, |world, process, cpu| {
        let file = file(world, HUGE);
        let [shared, private] = [MapFlags::SHARED, MapFlags::PRIVATE]
            .map(|flags| process.mmap(0, HUGE, RW, flags, Some(&file), 0).unwrap());
        process.store(cpu, shared, 5u64).unwrap();
        process.store(cpu, private + 8, 6u64).unwrap();
        assert_eq!([0, 8].map(|at| process.load(cpu, private + at)), [Ok(5u64), Ok(6)]);
        assert_eq!(process.load(cpu, shared + 8), Ok(0u64));
    });
}

#[test]
fn store_of_a_child_copies_the_page() {
    everywhere(3, |world, process, cpu| {
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        child.store(cpu, at, 2u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, at), Ok(1));
        process.store(cpu, at, 3u64).unwrap();
        assert_eq!(child.load::<u64>(cpu, at), Ok(2));
        assert_eq!(counts(world).free, 1);
        child.check();
    });
}

#[test]
fn owner_takes_the_page_of_a_child_if_the_pool_is_empty() {
    everywhere(1, |_, process, cpu| {
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load::<u64>(cpu, at), Ok(1));
        assert_eq!(child.store(cpu, at, 2u64), Err(FaultError::Bus { addr: at }));
        process.store(cpu, at, 3u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, at), Ok(3));
        // The page that both processes shared now belongs to the owner only.
        assert_eq!(child.load::<u64>(cpu, at), Err(FaultError::Bus { addr: at }));
        child.check();
    });
}

/// C-56, C-57: a pinned page stays with the parent, because a device may store to it. The page is in use
/// until the pin is dropped.
#[test]
fn c56_c57_fork_copies_a_pinned_page_for_the_child() {
    everywhere(3, |world, process, cpu| {
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        for pinned in [
            process.pin_user_pages_fast(at + 3 * PAGE, 2, PinFlags::WRITE).unwrap(),
            process.pin_user_pages(at + 3 * PAGE, 2, PinFlags::WRITE | PinFlags::LONGTERM).unwrap(),
        ] {
            assert_eq!(pinned.len(), 2);
            process.store(cpu, at + 3 * PAGE, 4u64).unwrap();
            let child = Process::of(process.fork().unwrap());
            process.store(cpu, at + 3 * PAGE, 5u64).unwrap();
            let mut bytes = [0; 8];
            pinned.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, 5u64.to_le_bytes());
            assert_eq!(child.load::<u64>(cpu, at), Ok(1));
            assert_eq!(child.load::<u64>(cpu, at + 3 * PAGE), Ok(4));
            assert!(world.engine().migrate(process.frame_at(at).unwrap()).is_err());
            child.check();
        }
        let pinned = process.pin_user_pages_fast(at, 512, PinFlags::WRITE).unwrap();
        process.munmap(at, HUGE).unwrap();
        assert_eq!(counts(world).free, 2);
        drop(pinned);
        assert_eq!(counts(world), all_free(3));
    });
}
