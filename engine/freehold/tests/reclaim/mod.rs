//! Memory reclaim (`src/reclaim/`): which pages go, which stay, and what the policies decide. A world has
//! little memory, and each test states which pages are left. `accessed.rs` tests which uses count,
//! `advice.rs` the advice of programs, `batches.rs` pages that go together, `walks.rs` the aging of many pages
//! at a time, and `quality.rs` compares the policies.
//! `shuttle_engine/evict.rs` explores reclaim concurrent with the use of pages.

mod accessed;
mod advice;
mod batches;
mod quality;
mod walks;

use crate::support::*;
use freehold::{
    PageIndex, PageRange, UserRange,
    call::{Advice, LockFlags},
    fault::Access,
    file::Zeroes,
    reclaim::{
        Accessed, Age, PageKind, Policy, Population, ReclaimPolicy, ReclaimRequest, Reclaimed, Step, Tested,
        Verdict,
    },
    remote::PinFlags,
    space::{Listener, Refused},
};
use freehold_machine::MemorySwap;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

const POLICIES: [ReclaimPolicy; 3] =
    [ReclaimPolicy::Clock, ReclaimPolicy::TwoLists, ReclaimPolicy::Generations];

fn with(policy: ReclaimPolicy) -> World {
    World::with(1 << 20, Config::new().reclaim(policy))
}

/// Runs a scenario with each policy.
fn with_each(scenario: impl Fn(&World)) {
    for policy in POLICIES {
        let world = with(policy);
        scenario(&world);
        world.end();
    }
}

/// Reclaims as many pages as possible.
fn reclaim_all(world: &World) -> Reclaimed {
    world.engine().reclaim(&ReclaimRequest::pages(u64::MAX))
}

/// Returns the pages of a file that are in its cache.
fn cached(file: &File<Machine>) -> Vec<u64> {
    let mapping = file.mapping();
    (0..mapping.pages()).filter(|&page| mapping.has_page(PageIndex::new(page))).collect()
}

fn fill_cache(file: &File<Machine>) {
    (0..file.mapping().pages()).for_each(|page| file.mapping().fill(PageIndex::new(page)).unwrap());
}

/// No kind of pages waits for tests of a kind that has no pages, or has had them all.
#[test]
fn one_call_takes_all_pages_of_files() {
    with_each(|world| {
        let file = world.file(200);
        let process = world.process(Locking::default());
        let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).unwrap();
        for lazy in [0, 4] {
            fill_cache(&file);
            for page in 0..lazy {
                process.space().handle_fault(at + page * PAGE, Access::WRITE).unwrap();
            }
            process.madvise(at, 4 * PAGE, Advice::Free).unwrap();
            assert_eq!(world.engine().reclaim(&ReclaimRequest::pages(200 + lazy)).freed, 200 + lazy);
        }
    });
}

/// Reads a page of a file twice by calls, so that it counts as accessed.
fn read_again(file: &File<Machine>, page: u64) {
    for _ in 0..2 {
        file.mapping().read_at(page * PAGE, &mut [0]).unwrap();
    }
}

/// A pager whose dirty pages go nowhere.
struct Sink;

impl Pager<Machine> for Sink {
    fn read_page(&self, platform: &Machine, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        Ok(())
    }

    fn write_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        Ok(())
    }
}

#[test]
fn clean_pages_of_files_go_and_are_read_again() {
    with_each(|world| {
        let file = world.file(40);
        fill_cache(&file);
        let reclaimed = reclaim_all(world);
        assert_eq!((reclaimed.freed, cached(&file)), (40, vec![]));
        let mut bytes = [0; 8];
        file.mapping().read_at(7 * PAGE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), Disk::number(7));
    });
}

#[test]
fn pages_of_one_kind_get_all_tests() {
    with_each(|world| {
        let file = world.file(150);
        (0..2).for_each(|_| {
            fill_cache(&file);
            (0..150).for_each(|page| read_again(&file, page));
            assert_eq!(world.engine().reclaim(&ReclaimRequest::pages(150)).freed, 150);
        });
    });
}

#[test]
fn reclaim_stops_at_its_target() {
    with_each(|world| {
        let file = world.file(40);
        fill_cache(&file);
        for target in [1, 2, 3, 10] {
            let freed = world.engine().reclaim(&ReclaimRequest::pages(target)).freed;
            assert_eq!(freed, target);
        }
        assert_eq!(cached(&file).len(), 40 - 16);
    });
}

#[test]
fn reclaim_visits_at_most_the_requested_frames() {
    let world = with(ReclaimPolicy::Clock);
    let file = world.file(100);
    fill_cache(&file);
    let mut visited = 0;
    let mut freed = 0;
    for _ in 0..256 / 16 {
        let reclaimed = world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(16));
        assert!(reclaimed.visited <= 16, "{reclaimed:?}");
        visited += reclaimed.visited;
        freed += reclaimed.freed;
    }
    assert_eq!((visited, freed), (256, 100), "each frame was visited once");
    drop(file);
    world.end();
}

#[test]
fn mapped_pages_go_from_every_process() {
    with_each(|world| {
        let file = world.file(8);
        let processes = [(); 3].map(|()| world.process(Locking::default()));
        let at: Vec<u64> = processes
            .iter()
            .map(|process| process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap())
            .collect();
        // The CPUs keep their translations until a flush.
        let mut cpus = [0, 1, 2].map(|number| world.machine.cpu(number));
        for ((process, at), cpu) in processes.iter().zip(&at).zip(&mut cpus) {
            for page in 0..8 {
                assert_eq!(process.load::<u64>(cpu, at + page * PAGE), Ok(Disk::number(page)));
            }
        }
        let freed = reclaim_all(world).freed;
        assert_eq!((freed, cached(&file)), (8, vec![]));
        // The frames get other contents. A CPU that still had a translation would read them.
        let (other, mut cpu) = (world.process(Locking::default()), world.machine.cpu(3));
        anon(&other, BASE, 16);
        fill(&other, &mut cpu, BASE, 16, 1000);
        for ((process, at), cpu) in processes.iter().zip(&at).zip(&mut cpus) {
            assert_eq!(process.rss().file, 0);
            assert_eq!(process.load::<u64>(cpu, at + 3 * PAGE), Ok(Disk::number(3)));
            process.check();
        }
    });
}

#[test]
fn dirty_pages_are_written_and_go_in_a_later_visit() {
    with_each(|world| {
        let disk = Arc::new(Mutex::new(Vec::new()));
        struct Log(Arc<Mutex<Vec<u64>>>);
        impl Pager<Machine> for Log {
            fn read_page(&self, platform: &Machine, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
                platform.zero_frame(frame);
                Ok(())
            }
            fn write_page(&self, _: &Machine, index: PageIndex, _: Pfn) -> Result<(), IoError> {
                self.0.lock().unwrap().push(index.get());
                Ok(())
            }
        }
        let mapping = Mapping::new(world.engine(), Log(disk.clone()), 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let process = world.process(Locking::default());
        let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let mut cpu = world.machine.cpu(0);
        process.store(&mut cpu, at + PAGE, 5u64).unwrap();
        mapping.write_at(2 * PAGE, b"new").unwrap();
        let reclaimed = reclaim_all(world);
        let mut written = disk.lock().unwrap().clone();
        written.sort_unstable();
        assert_eq!((reclaimed.writing, written), (2, vec![1, 2]));
        assert_eq!(reclaimed.freed, 2, "after their writes");
        assert_eq!(cached(&file), [0u64; 0]);
    });
}

#[test]
fn call_without_writes_takes_only_clean_pages() {
    with_each(|world| {
        let device = MemorySwap::new(64);
        let id = world.engine().swap_on(device.clone(), 0).unwrap();
        let (file, process) = (world.file(4), world.process(Locking::default()));
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.madvise(at, 4 * PAGE, Advice::PopulateRead).unwrap();
        process.store(&mut cpu, at + PAGE, 5u64).unwrap();
        anon(&process, BASE, 4);
        fill(&process, &mut cpu, BASE, 4, 1);
        let memory = Mapping::memfd(world.engine(), 2 * PAGE).unwrap();
        memory.write_at(0, b"kept").unwrap();
        let reclaimed = world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).without_writes());
        assert_eq!((reclaimed.freed, reclaimed.writing, cached(&file)), (3, 0, vec![1]));
        assert_eq!((process.rss().anon, process.rss().swap, device.stats().write_requests), (4, 0, 0));
        assert_eq!(memory.present_pages(), 1);
        assert_eq!(process.load::<u64>(&mut cpu, at + PAGE), Ok(5));
        drop((process, cpu, file, memory));
        world.engine().swap_off(id, || None).unwrap();
    });
}

#[test]
fn anonymous_and_shared_memory_stays_without_swap() {
    with_each(|world| {
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        anon(&process, BASE, 4);
        fill(&process, &mut cpu, BASE, 4, 1);
        let memfd = Mapping::memfd(world.engine(), 4 * PAGE).unwrap();
        memfd.write_at(0, &[7; 4 * PAGE as usize]).unwrap();
        assert_eq!(reclaim_all(world).freed, 0);
        assert_eq!((process.rss().anon, memfd.present_pages()), (4, 4));
        assert_filled(&process, &mut cpu, BASE, 4, 1);
    });
}

#[test]
fn lazily_freed_pages_go_unless_they_were_written_again() {
    with_each(|world| {
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        anon(&process, BASE, 4);
        fill(&process, &mut cpu, BASE, 4, 1);
        process.madvise(BASE, 3 * PAGE, Advice::Free).unwrap();
        process.store(&mut cpu, BASE + PAGE, 9u64).unwrap();
        assert_eq!(reclaim_all(world).freed, 2);
        let words: Vec<u64> =
            (0..4).map(|page| process.load(&mut cpu, BASE + page * PAGE).unwrap()).collect();
        assert_eq!(words, [0, 9, 0, 4]);
    });
}

#[test]
fn droppable_memory_goes() {
    with_each(|world| {
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        let flags = MapFlags::DROPPABLE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE, 4 * PAGE, RW, flags, None, 0).unwrap();
        fill(&process, &mut cpu, BASE, 4, 1);
        assert_eq!(reclaim_all(world).freed, 4);
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(0));
    });
}

/// The policy tests pages again and again, and none of them can go. Without an end, the call would use all of
/// its visits.
#[test]
fn call_ends_although_no_page_can_go() {
    with_each(|world| {
        let (file, process) = (world.file(8), world.process(Locking::default()));
        let at = process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.mlock(at, 8 * PAGE).unwrap();
        let reclaimed = world.engine().reclaim(&ReclaimRequest::pages(1).visits(u64::MAX));
        assert_eq!((reclaimed.freed, file.mapping().present_pages()), (0, 8));
        drop((process, file));
    });
}

#[test]
fn locked_pages_stay() {
    with_each(|world| {
        let (file, process) = (world.file(8), world.process(Locking::default()));
        let at = process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let other = world.process(Locking::default());
        let elsewhere = other.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        other.madvise(elsewhere, 8 * PAGE, Advice::PopulateRead).unwrap();
        process.mlock2(at, 3 * PAGE, LockFlags::empty()).unwrap();
        let reclaimed = reclaim_all(world);
        assert_eq!((reclaimed.freed, cached(&file)), (5, vec![0, 1, 2]));
        assert_eq!(process.rss().file, 3);
        process.munlock(at, 3 * PAGE).unwrap();
        assert_eq!(reclaim_all(world).freed, 3);
    });
}

#[test]
fn pinned_pages_stay() {
    with_each(|world| {
        let (file, process) = (world.file(4), world.process(Locking::default()));
        let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let pins = process.pin_user_pages(at, 2, PinFlags::empty()).unwrap();
        process.madvise(at, 4 * PAGE, Advice::PopulateRead).unwrap();
        let reclaimed = reclaim_all(world);
        assert_eq!((reclaimed.freed, cached(&file)), (2, vec![0, 1]));
        drop(pins);
        assert_eq!(reclaim_all(world).freed, 2);
    });
}

#[test]
fn request_for_some_frames_takes_only_them() {
    with_each(|world| {
        let files = [world.file(8), world.file(8)];
        files.iter().for_each(|file| fill_cache(file));
        let process = world.process(Locking::default());
        let at = process.mmap(0, 8 * PAGE, R, MapFlags::SHARED, Some(&files[1]), 0).unwrap();
        process.madvise(at, 8 * PAGE, Advice::PopulateRead).unwrap();
        let wanted: Vec<Pfn> = (0..8).map(|page| process.frame_at(at + page * PAGE).unwrap()).collect();
        let only = |pfn| wanted.contains(&pfn);
        let freed = world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).only(&only)).freed;
        assert_eq!((freed, cached(&files[0]).len(), cached(&files[1]).len()), (8, 8, 0));
    });
}

#[test]
fn pages_in_use_stay_longer_than_pages_read_once() {
    with_each(|world| {
        let (hot, once) = (world.file(16), world.file(64));
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 16 * PAGE, R, MapFlags::SHARED, Some(&hot), 0).unwrap();
        let touch = |cpu: &mut Vcpu| {
            // A CPU sets the accessed bit of an entry only without a cached translation.
            [Prot::empty(), R].into_iter().for_each(|prot| process.mprotect(at, 16 * PAGE, prot).unwrap());
            (0..16).for_each(|page| assert!(process.load::<u64>(cpu, at + page * PAGE).is_ok()));
        };
        touch(&mut cpu);
        // Both files are used, but only `hot` again and again.
        let mut byte = [0];
        for round in 0..64 {
            once.mapping().read_at(round * PAGE, &mut byte).unwrap();
            touch(&mut cpu);
            if round % 8 == 7 {
                world.engine().reclaim(&ReclaimRequest::pages(8).visits(512));
                assert_eq!(cached(&hot).len(), 16, "round {round}: {:?}", cached(&hot));
            }
        }
        assert!(cached(&once).len() < 32, "{:?}", cached(&once));
    });
}

/// A policy that records its calls, and evicts pages of files that have age 2.
#[derive(Debug, Default)]
struct Recorder {
    steps: Mutex<Vec<(PageKind, u8)>>,
    swept: Mutex<Vec<u64>>,
}

impl Policy for Recorder {
    fn step(&self, kind: PageKind, age: Age, _: &Tested) -> Step {
        self.steps.lock().unwrap().push((kind, age.number()));
        match age.number() {
            0 | 1 => Step::Keep(Age::new(age.number() + 1)),
            _ => Step::Test,
        }
    }

    fn tested(&self, kind: PageKind, age: Age, accessed: Accessed) -> Verdict {
        assert_eq!(accessed, Accessed::No);
        if kind == PageKind::File { Verdict::Evict(age) } else { Verdict::Keep(age) }
    }

    fn swept(&self, population: &Population) {
        self.swept.lock().unwrap().push(population.of(PageKind::File));
    }
}

#[test]
fn policy_of_the_embedder_sees_each_page_with_its_age() {
    let recorder: &'static Recorder = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(recorder));
    let file = world.file(3);
    fill_cache(&file);
    let memfd = Mapping::memfd(world.engine(), PAGE).unwrap();
    memfd.write_at(0, b"shared").unwrap();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 2);
    fill(&process, &mut cpu, BASE, 2, 1);
    process.madvise(BASE, PAGE, Advice::Free).unwrap();
    let one_visit = || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    for age in [0, 1, 2] {
        let freed = one_visit().freed;
        let mut steps = std::mem::take(&mut *recorder.steps.lock().unwrap());
        steps.sort_unstable_by_key(|(kind, _)| *kind as usize);
        let file = (PageKind::File, age);
        assert_eq!(steps, [(PageKind::Anonymous, age), file, file, file], "shared memory has no place to go");
        assert_eq!(freed, if age == 2 { 3 } else { 0 });
    }
    one_visit();
    assert_eq!(*recorder.swept.lock().unwrap(), [3, 3, 0], "pages that are left after each visit");
    // A new page begins without an age.
    file.mapping().fill(PageIndex::ZERO).unwrap();
    recorder.steps.lock().unwrap().clear();
    one_visit();
    assert!(recorder.steps.lock().unwrap().contains(&(PageKind::File, 0)));
    drop((file, memfd, cpu, process));
    world.end();
}

#[test]
fn file_that_ends_during_reclaim_is_freed() {
    with_each(|world| {
        let file = Mapping::new(world.engine(), Sink, 8 * PAGE, false).unwrap();
        (0..8).for_each(|page| file.fill(PageIndex::new(page)).unwrap());
        file.write_back(PageRange::ALL).unwrap();
        drop(file);
        assert_eq!(reclaim_all(world).freed, 0);
        let zeroes = Mapping::new(world.engine(), Zeroes, 2 * PAGE, true).unwrap();
        zeroes.write_at(0, b"kept").unwrap();
        assert_eq!(reclaim_all(world).freed, 0, "shared memory has no other copy");
    });
}

/// A policy that evicts every page of a file with age 7, and records refaults.
#[derive(Debug, Default)]
struct Refaults {
    /// The age and the distance of each refault.
    refaults: Mutex<Vec<(u8, u64)>>,
    /// The number of evicted pages, from the reports.
    evicted: AtomicU64,
}

impl Policy for Refaults {
    fn step(&self, _: PageKind, age: Age, _: &Tested) -> Step {
        if age == Age::new(9) { Step::Skip } else { Step::Test }
    }

    fn tested(&self, _: PageKind, _: Age, _: Accessed) -> Verdict {
        Verdict::Evict(Age::new(7))
    }

    fn refaulted(&self, kind: PageKind, age: Age, distance: u64) -> Age {
        assert_eq!(kind, PageKind::File);
        self.refaults.lock().unwrap().push((age.number(), distance));
        Age::new(9)
    }

    fn swept(&self, population: &Population) {
        let evicted = population.evicted[PageKind::File as usize];
        assert_eq!(evicted.iter().sum::<u64>(), evicted[7]);
        self.evicted.fetch_add(evicted[7], Relaxed);
        let refaulted = population.refaulted[PageKind::File as usize];
        assert_eq!(refaulted.iter().sum::<u64>(), refaulted[7]);
    }
}

#[test]
fn refaults_have_the_age_and_distance_of_their_eviction_and_a_new_age() {
    let refaults: &'static Refaults = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(refaults));
    // The table of evicted pages has one place for several pages, and the places depend on addresses. So an
    // eviction may be forgotten, and the scenario is repeated until none is.
    let mut all = 0;
    let found = (0..1000).any(|_| {
        let [file, other] = [2, 40].map(|pages| world.file(pages));
        let found = || std::mem::take(&mut *refaults.refaults.lock().unwrap());
        fill_cache(&file);
        assert_eq!(reclaim_all(&world).freed, 2);
        fill_cache(&other);
        let new = found();
        assert_eq!(reclaim_all(&world).freed, 40 - new.len() as u64);
        file.mapping().fill(PageIndex::new(1)).unwrap();
        other.mapping().fill(PageIndex::new(39)).unwrap();
        let refaulted = found();
        all += (new.len() + refaulted.len()) as u64;
        assert_eq!(
            reclaim_all(&world).freed,
            2 - refaulted.len() as u64,
            "the age of a refault keeps a page"
        );
        // Evictions since the call that evicted the page.
        new.is_empty() && refaulted == [(7, 42), (7, 40)]
    });
    assert!(found);
    assert_eq!(world.engine().reclaim_stats().refaulted, [0, 0, all]);
    let freed = world.engine().reclaim_stats().reclaimed.freed;
    // A report covers the visit before it, and all pages were evicted in visits that have ended by then.
    (0..2).for_each(|_| _ = reclaim_all(&world));
    assert_eq!(refaults.evicted.load(Relaxed), freed);
    world.end();
}

/// A policy that evicts every page, and records the ages of pages before their tests.
#[derive(Debug, Default)]
struct Olds(Mutex<Vec<u8>>);

impl Policy for Olds {
    fn step(&self, _: PageKind, age: Age, _: &Tested) -> Step {
        self.0.lock().unwrap().push(age.number());
        Step::Test
    }

    fn tested(&self, _: PageKind, age: Age, _: Accessed) -> Verdict {
        Verdict::Evict(age)
    }

    fn old(&self, _: PageKind) -> Age {
        Age::new(11)
    }
}

#[test]
fn page_whose_write_began_gets_the_age_of_old_pages() {
    let olds: &'static Olds = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(olds));
    let file = world.file(1);
    file.mapping().write_at(0, b"dirty").unwrap();
    let one_visit = || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    let first = one_visit();
    assert_eq!((first.freed, first.writing), (0, 1));
    assert_eq!(one_visit().freed, 1);
    assert_eq!(*olds.0.lock().unwrap(), [0, 11]);
    drop(file);
    world.end();
}

/// A policy that promotes accessed pages, counts the promoted pages that it sees, and evicts the others.
#[derive(Debug, Default)]
struct Promotes(Mutex<u64>);

impl Policy for Promotes {
    fn step(&self, _: PageKind, age: Age, _: &Tested) -> Step {
        if age != Age::new(5) {
            return Step::Test;
        }
        *self.0.lock().unwrap() += 1;
        Step::Skip
    }

    fn tested(&self, _: PageKind, _: Age, accessed: Accessed) -> Verdict {
        if accessed.is_any() { Verdict::Keep(Age::new(5)) } else { Verdict::Evict(Age::NEW) }
    }
}

#[test]
fn page_that_is_read_again_gets_the_age_of_an_accessed_page() {
    let promotes: &'static Promotes = Box::leak(Box::default());
    let world = with(ReclaimPolicy::Custom(promotes));
    let file = world.file(3);
    (0..3).for_each(|page| read_again(&file, page));
    for promoted in [0, 3, 6] {
        assert_eq!(world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256)).freed, 0);
        assert_eq!(*promotes.0.lock().unwrap(), promoted);
    }
    drop(file);
    world.end();
}

#[test]
fn page_that_is_read_again_stays_longer() {
    for policy in [ReclaimPolicy::Clock, ReclaimPolicy::TwoLists] {
        let world = with(policy);
        let file = world.file(4);
        let mut byte = [0];
        for page in [0, 1, 2, 2, 3] {
            file.mapping().read_at(page * PAGE, &mut byte).unwrap();
        }
        assert_eq!(world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256)).freed, 3);
        assert_eq!(cached(&file), [2], "{policy:?}");
        assert_eq!(reclaim_all(&world).freed, 1);
        drop(file);
        world.end();
    }
}

#[test]
fn pages_that_cannot_go_do_not_keep_others() {
    with_each(|world| {
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        // Reclaim gives up the pages of ordinary memory and cannot take them.
        anon(&process, BASE + HUGE, 8);
        fill(&process, &mut cpu, BASE + HUGE, 8, 1);
        process.madvise(BASE + HUGE, 8 * PAGE, Advice::Cold).unwrap();
        for round in 0..20 {
            let flags = MapFlags::DROPPABLE | MapFlags::ANONYMOUS | MapFlags::FIXED;
            process.mmap(BASE, 4 * PAGE, RW, flags, None, 0).unwrap();
            fill(&process, &mut cpu, BASE, 4, 1);
            let reclaimed = reclaim_all(world);
            assert_eq!(reclaimed.freed, 4, "round {round}: {reclaimed:?}");
        }
    });
}
