//! Counts of a pool (`src/hugetlb/pools.rs`): total, free, reserved and surplus pages, after a change of the
//! pool's size and after each mmap, fault and munmap. A surplus page is allocated on demand beyond the size
//! of the pool. `failed_calls.rs` and `oom.rs` check the counts after failures.

use super::*;

#[test]
fn resizing_changes_the_size_of_a_pool() {
    let world = world(3);
    let engine = world.engine();
    assert_eq!(counts(&world), all_free(3));
    assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, None), 1);
    assert_eq!(counts(&world), all_free(1));
    // The requested size exceeds the memory of the machine.
    let most = engine.resize_huge_pool(HugePageSize::Mib2, 100, None);
    assert!((5..=7).contains(&most), "{most} pages of seven");
    assert_eq!(counts(&world), all_free(most));
    assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 0, Some(0)), 0);
    world.end();
}

#[test]
fn mmap_reserves_pages_and_munmap_releases_them() {
    everywhere(4, |world, process, cpu| {
        let at = process.mmap(0, 3 * HUGE, RW, PRIVATE, None, 0).unwrap();
        assert!(at.is_multiple_of(HUGE));
        assert_eq!((counts(world).free, counts(world).reserved), (4, 3));
        // One page is unreserved, so a reservation of two pages fails.
        assert_eq!(process.mmap(0, 2 * HUGE, RW, PRIVATE, None, 0).unwrap_err().errno(), Errno::ENOMEM);
        process.store(cpu, at, 1u64).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (3, 2));
        process.munmap(at, HUGE).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (4, 2));
        process.munmap(at + HUGE, 2 * HUGE).unwrap();
        assert_eq!(counts(world), all_free(4));
    });
}

#[test]
fn surplus_pages_are_allocated_on_demand_and_freed() {
    everywhere(1, |world, process, cpu| {
        let pool = world.engine().huge_pool(HugePageSize::Mib2);
        pool.set_overcommit(2);
        let at = process.mmap(0, 3 * HUGE, RW, PRIVATE, None, 0).unwrap();
        assert_eq!(counts(world), HugePoolCounts { total: 3, free: 3, reserved: 3, surplus: 2 });
        assert!(process.mmap(0, HUGE, RW, PRIVATE, None, 0).is_err());
        for n in 0..3 {
            process.store(cpu, at + n * HUGE, n).unwrap();
        }
        assert_eq!(counts(world), HugePoolCounts { total: 3, free: 0, reserved: 0, surplus: 2 });
        process.munmap(at, 3 * HUGE).unwrap();
        assert_eq!(counts(world), all_free(1));
        pool.set_overcommit(0);
    });
}

#[test]
fn fault_without_reservation_in_an_empty_pool_raises_sigbus() {
    everywhere(1, |_, process, cpu| {
        let at = process.mmap(0, 2 * HUGE, RW, PRIVATE | MapFlags::NORESERVE, None, 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        assert_eq!(process.store(cpu, at + HUGE, 1u64), Err(FaultError::Bus { addr: at + HUGE }));
        process.madvise(at, HUGE, Advice::DontNeed).unwrap();
        process.store(cpu, at + HUGE, 1u64).unwrap();
    });
}

/// A file reserves many ranges that do not touch, so its set of reservations grows. No memory is freed under
/// the lock of the set.
#[test]
fn set_of_reservations_grows() {
    everywhere(12, |world, process, _| {
        let file = file(world, 24 * HUGE);
        for at in (0..24 * HUGE).step_by(2 * HUGE as usize) {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            assert_eq!(process.mmap(BASE + at, HUGE, RW, flags, Some(&file), at), Ok(BASE + at));
        }
        assert_eq!(counts(world).reserved, 12);
    });
}
