//! Which uses of a mapped page of a file count as accesses: those of tasks, also of tasks that have ended, and
//! not the work of the fault handler for its neighbours.

use super::*;
use freehold::platform::{Format, Platform};
use freehold_pagetable::PteFlags;

#[test]
fn neighbours_of_a_faulted_page_count_as_accessed_after_their_first_use() {
    let world = with(ReclaimPolicy::Clock);
    let (file, process) = (world.file(16), world.process(Locking::default()));
    fill_cache(&file);
    process.mmap(BASE, 16 * PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    let mut cpu = world.machine.cpu(0);
    let referenced = || -> Vec<u64> {
        let frame = |page| process.frame_at(BASE + page * PAGE).unwrap();
        (0..16).filter(|&page| world.engine().referenced(frame(page)) == Ok(1)).collect()
    };
    assert_eq!(process.load::<u64>(&mut cpu, BASE + 3 * PAGE), Ok(Disk::number(3)));
    assert_eq!(process.rss().file, 16, "the fault has mapped the neighbours");
    // Otherwise the first use of each neighbour would fault.
    match <Machine as Platform>::Format::HARDWARE_FLAGS.contains(PteFlags::ACCESSED) {
        true => assert_eq!(referenced(), [3]),
        false => assert_eq!(referenced(), (0..16).collect::<Vec<_>>()),
    }
    assert_eq!(process.load::<u64>(&mut cpu, BASE + 5 * PAGE), Ok(Disk::number(5)));
    assert_eq!(referenced(), [5]);
    drop((file, process, cpu));
    world.end();
}

/// The second process counts, as the second read by a call does.
#[test]
fn uses_by_processes_that_have_ended_count() {
    let world = with(ReclaimPolicy::Clock);
    let file = world.file(8);
    fill_cache(&file);
    for _ in 0..2 {
        let (process, mut cpu) = (world.process(Locking::default()), world.machine.cpu(0));
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(BASE, PAGE, R, flags, Some(&file), 2 * PAGE).unwrap();
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(Disk::number(2)));
    }
    // One visit of all frames takes the pages that no task has used.
    world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    assert_eq!(cached(&file), [2]);
    assert_eq!(reclaim_all(&world).freed, 1);
    drop(file);
    world.end();
}
