//! Walks of page tables that age many pages at a time: around an accessed page (`rmap/entries.rs`,
//! `freehold-vmspace/src/young.rs`).

use super::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn neighbours_of_an_accessed_page_join_it() {
    let world = with(ReclaimPolicy::Generations);
    let (file, process) = (world.file(64), world.process(Locking::default()));
    let mut cpu = world.machine.cpu(0);
    process.mmap(BASE, 64 * PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    let one_visit = || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    process.madvise(BASE, 64 * PAGE, Advice::PopulateRead).unwrap();
    // New pages of files become the oldest generation.
    assert_eq!((one_visit().freed, one_visit().freed), (0, 0));
    [Prot::empty(), R].into_iter().for_each(|prot| process.mprotect(BASE, 64 * PAGE, prot).unwrap());
    process.madvise(BASE, 64 * PAGE, Advice::Cold).unwrap();
    for page in (0..64).step_by(2) {
        assert_eq!(process.load::<u64>(&mut cpu, BASE + page * PAGE), Ok(Disk::number(page)));
    }
    let reclaimed = one_visit();
    assert_eq!(cached(&file), (0..64).step_by(2).collect::<Vec<_>>());
    assert_eq!(reclaimed.tested, 32 + 1, "one test for all accessed pages of a table: {reclaimed:?}");
    drop((file, process, cpu));
    world.end();
}

/// A policy that may test each page, and counts the pages of each kind that a walk finds accessed.
#[derive(Debug, Default)]
struct Walks {
    walked: [AtomicU64; PageKind::COUNT],
    tests: bool,
}

impl Walks {
    /// Returns the counts since the last call: anonymous pages, shared pages, pages of files.
    fn take(&self) -> [u64; PageKind::COUNT] {
        self.walked.each_ref().map(|count| count.swap(0, Relaxed))
    }
}

impl Policy for Walks {
    fn step(&self, _: PageKind, _: Age, _: &Tested) -> Step {
        if self.tests { Step::Test } else { Step::Skip }
    }

    fn tested(&self, _: PageKind, age: Age, _: bool) -> Verdict {
        Verdict::Keep(age)
    }

    fn walks(&self) -> bool {
        true
    }

    fn walked(&self, kind: PageKind, age: Age) -> Age {
        // Called with locks of page tables held, so the policy must not wait or allocate.
        self.walked[kind as usize].fetch_add(1, Relaxed);
        age
    }
}

#[test]
fn walk_around_a_page_stays_in_its_vma() {
    let walks: &'static Walks = Box::leak(Box::new(Walks { tests: true, ..Walks::default() }));
    let world = with(ReclaimPolicy::Custom(walks));
    let (file, process) = (world.file(8), world.process(Locking::default()));
    process.mmap(BASE + 4 * PAGE, 8 * PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    let mut cpu = world.machine.cpu(0);
    for at in [BASE, BASE + 12 * PAGE] {
        anon(&process, at, 4);
        fill(&process, &mut cpu, at, 4, 1);
    }
    process.madvise(BASE + 4 * PAGE, 8 * PAGE, Advice::PopulateRead).unwrap();
    world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    assert_eq!(walks.take(), [0, 0, 7]);
    drop((file, process, cpu));
    world.end();
}
