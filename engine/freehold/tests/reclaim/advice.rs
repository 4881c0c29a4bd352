//! The ages that MADV_COLD and MADV_FREE give to pages, and MADV_PAGEOUT as a part of reclaim.
//! `tests/pageout.rs` tests which pages MADV_PAGEOUT takes away.

use super::*;
use freehold::report::clear_refs::ClearRefs;

#[test]
fn cold_pages_go_first() {
    with_each(|world| {
        let (file, process) = (world.file(32), world.process(Locking::default()));
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 32 * PAGE, R, MapFlags::SHARED, Some(&file), 0).unwrap();
        let one_visit = |target| world.engine().reclaim(&ReclaimRequest::pages(target).visits(256));
        // Used again and again, also by calls, so that each policy keeps the pages.
        for _ in 0..3 {
            [Prot::empty(), R].into_iter().for_each(|prot| process.mprotect(at, 32 * PAGE, prot).unwrap());
            for page in 0..32 {
                assert_eq!(process.load::<u64>(&mut cpu, at + page * PAGE), Ok(Disk::number(page)));
                read_again(&file, page);
            }
            assert_eq!(one_visit(u64::MAX).freed, 0);
        }
        (0..32).for_each(|page| read_again(&file, page));
        process.madvise(at + 8 * PAGE, 16 * PAGE, Advice::Cold).unwrap();
        assert_eq!(one_visit(16).freed, 16);
        assert_eq!(cached(&file), (0..8).chain(24..32).collect::<Vec<_>>());
    });
}

#[test]
fn lazily_freed_pages_go_first() {
    with_each(|world| {
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        let flags = MapFlags::DROPPABLE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE + HUGE, 4 * PAGE, RW, flags, None, 0).unwrap();
        anon(&process, BASE, 8);
        let touch = |cpu: &mut Vcpu| {
            for (at, pages) in [(BASE, 8), (BASE + HUGE, 4)] {
                [Prot::empty(), RW]
                    .into_iter()
                    .for_each(|prot| process.mprotect(at, pages * PAGE, prot).unwrap());
                fill(&process, cpu, at, pages, 1);
            }
        };
        let one_visit = || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256)).freed;
        for _ in 0..3 {
            touch(&mut cpu);
            assert_eq!(one_visit(), 0);
        }
        touch(&mut cpu);
        process.madvise(BASE, 4 * PAGE, Advice::Free).unwrap();
        assert_eq!(one_visit(), 4, "droppable memory in use stays");
        assert_filled(&process, &mut cpu, BASE + HUGE, 4, 1);
    });
}

#[test]
fn cold_pages_of_other_processes_stay_in_use() {
    let world = with(ReclaimPolicy::Clock);
    let file = world.file(4);
    let processes = [(); 2].map(|()| world.process(Locking::default()));
    let at = processes.each_ref().map(|process| {
        let at = process.mmap(0, 4 * PAGE, R, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.madvise(at, 4 * PAGE, Advice::PopulateRead).unwrap();
        at
    });
    processes[0].munmap(at[0], PAGE).unwrap();
    processes[1].munmap(at[1] + 3 * PAGE, PAGE).unwrap();
    // Page 0 is not mapped by process 0, and pages 1 and 2 are mapped by both. Only process 0 used them.
    processes[1].clear_refs(ClearRefs::All);
    processes[0].madvise(at[0] + PAGE, 3 * PAGE, Advice::Cold).unwrap();
    let reclaimed = world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    assert_eq!((reclaimed.freed, cached(&file)), (2, vec![1, 2]));
    drop((file, processes));
    world.end();
}

#[test]
fn pageout_counts_as_an_eviction_and_writes_dirty_pages() {
    let refaults: &'static Refaults = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(refaults));
    let (file, process) = (world.file(4), world.process(Locking::default()));
    let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
    let mut cpu = world.machine.cpu(0);
    process.madvise(at, 4 * PAGE, Advice::PopulateRead).unwrap();
    process.store(&mut cpu, at + 3 * PAGE, 5u64).unwrap();
    process.madvise(at, 4 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(cached(&file), [3], "a dirty page stays until its write has ended");
    process.madvise(at + 3 * PAGE, PAGE, Advice::PopulateRead).unwrap();
    process.madvise(at, 4 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(cached(&file), [0u64; 0], "written by the first call");
    file.mapping().fill(PageIndex::new(2)).unwrap();
    assert_eq!(*refaults.refaults.lock().unwrap(), [(0, 4)], "no age, and evictions since that of the page");
    drop((file, process, cpu));
    world.end();
}
