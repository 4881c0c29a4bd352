//! Walks of page tables that age many pages at a time: around an accessed page (`rmap/entries.rs`,
//! `freehold-vmspace/src/young.rs`).

use super::*;

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

    fn tested(&self, _: PageKind, age: Age, _: Accessed) -> Verdict {
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

#[test]
fn walk_of_a_space_finds_the_accessed_pages() {
    let walks: &'static Walks = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(walks));
    for locking in Locking::ALL {
        let (file, process) = (world.file(8), world.process(locking));
        process.mmap(BASE, 8 * PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let (private, locked) = (BASE + 16 * PAGE, BASE + 32 * PAGE);
        let mut cpu = world.machine.cpu(0);
        for at in [private, locked] {
            anon(&process, at, 4);
            fill(&process, &mut cpu, at, 4, 1);
        }
        process.mlock(locked, 4 * PAGE).unwrap();
        process.load::<u64>(&mut cpu, BASE).unwrap();
        let first = process.age_pages(0, u64::MAX);
        assert_eq!((first.next, first.accessed, walks.take()), (None, 5, [4, 0, 1]));
        // No thread ran since then, as far as the embedder has said.
        let flushed = |process: &Process, cpu: &mut Vcpu| {
            [Prot::empty(), RW]
                .into_iter()
                .for_each(|prot| process.mprotect(private, 4 * PAGE, prot).unwrap());
            process.load::<u64>(cpu, private).unwrap();
        };
        flushed(&process, &mut cpu);
        assert_eq!(process.age_pages(0, u64::MAX).accessed, 0);
        process.note_ran();
        assert_eq!((process.age_pages(0, u64::MAX).accessed, walks.take()), (1, [1, 0, 0]));
        drop((file, process, cpu));
    }
    world.end();
}

#[test]
fn walk_of_a_space_is_bounded_and_waits_for_no_lock() {
    let walks: &'static Walks = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(walks));
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 8);
    fill(&process, &mut cpu, BASE, 8, 1);
    let part = process.age_pages(0, 3);
    assert_eq!((part.next, part.accessed), (Some(BASE + 3 * PAGE), 3));
    let writer = process.space().write();
    let stopped = process.age_pages(BASE + 3 * PAGE, 3);
    drop(writer);
    assert_eq!((stopped.next, stopped.accessed), (None, 0));
    assert_eq!(process.age_pages(BASE + 3 * PAGE, u64::MAX).accessed, 5);
    drop((process, cpu));
    world.end();
}

/// A VMA of locked memory counts as one page, and is passed in one step.
#[test]
fn walk_passes_locked_memory() {
    let walks: &'static Walks = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(walks));
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    // Next to each other, with different flags, so that they stay separate VMAs.
    anon(&process, BASE, 4);
    process.mlock2(BASE, 2 * PAGE, LockFlags::ONFAULT).unwrap();
    fill(&process, &mut cpu, BASE, 4, 1);
    let passed = process.age_pages(0, 1);
    assert_eq!((passed.next, passed.accessed), (Some(BASE + 2 * PAGE), 0));
    let rest = process.age_pages(BASE + 2 * PAGE, u64::MAX);
    assert_eq!((rest.next, rest.accessed), (None, 2));
    drop((process, cpu));
    world.end();
}

#[test]
fn walk_does_nothing_for_a_policy_without_walks() {
    let world = with(ReclaimPolicy::Clock);
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 2);
    fill(&process, &mut cpu, BASE, 2, 1);
    assert_eq!(process.age_pages(0, u64::MAX).accessed, 0);
    drop((process, cpu));
    world.end();
}
