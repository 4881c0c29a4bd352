//! Batches of pages (`src/reclaim/batch.rs`): how many flushes they need, and how many pages they may have.

use super::*;

#[test]
fn batch_of_pages_needs_one_flush_for_each_space() {
    let world = with(ReclaimPolicy::Clock);
    let files = [16, 16].map(|pages| world.file(pages));
    let processes = [(); 3].map(|()| world.process(Locking::default()));
    for process in &processes {
        for file in &files {
            let at = process.mmap(0, 16 * PAGE, RW, MapFlags::SHARED, Some(file), 0).unwrap();
            process.madvise(at, 16 * PAGE, Advice::PopulateRead).unwrap();
        }
    }
    let before = world.machine.flushes();
    let reclaimed = reclaim_all(&world);
    assert_eq!((reclaimed.freed, world.machine.flushes() - before), (32, 3), "{reclaimed:?}");
    drop((files, processes));
    world.end();
}

#[test]
fn space_with_a_listener_is_flushed_for_each_entry() {
    struct Heard(Mutex<Vec<UserRange>>);
    impl Listener for Heard {
        fn range_start(&self, range: UserRange) {
            self.0.lock().unwrap().push(range);
        }
        fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
            self.range_start(range);
            Ok(())
        }
        fn range_end(&self, _: UserRange) {}
        fn release(&self) {}
    }
    let world = with(ReclaimPolicy::Clock);
    let (file, process) = (world.file(4), world.process(Locking::default()));
    let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
    process.madvise(at, 4 * PAGE, Advice::PopulateRead).unwrap();
    let heard = Arc::new(Heard(Mutex::default()));
    let id = process.register_listener(heard.clone()).unwrap();
    assert_eq!(reclaim_all(&world).freed, 4);
    let mut ranges = std::mem::take(&mut *heard.0.lock().unwrap());
    ranges.sort_unstable_by_key(|range| range.start());
    let pages = (0..4).map(|page| UserRange::new(at + page * PAGE, at + (page + 1) * PAGE));
    assert_eq!(ranges, pages.collect::<Vec<_>>());
    process.unregister_listener(id);
    drop((file, process));
    world.end();
}

/// A batch holds the locks of few homes at a time.
#[test]
fn pages_of_many_files_and_spaces_go_in_one_visit() {
    let world = with(ReclaimPolicy::Clock);
    let files: Vec<_> = (0..40).map(|_| world.file(1)).collect();
    let processes = [(); 10].map(|()| world.process(Locking::default()));
    for (file, process) in files.iter().zip(processes.iter().cycle()) {
        let at = process.mmap(0, PAGE, RW, MapFlags::SHARED, Some(file), 0).unwrap();
        process.madvise(at, PAGE, Advice::PopulateRead).unwrap();
    }
    let before = world.machine.flushes();
    let reclaimed = reclaim_all(&world);
    assert_eq!((reclaimed.freed, reclaimed.kept), (40, 0));
    assert!(world.machine.flushes() - before <= 40);
    drop((files, processes));
    world.end();
}
