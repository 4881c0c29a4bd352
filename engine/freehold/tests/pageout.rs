//! MADV_PAGEOUT and `AddressSpace::drop_discardable` (`src/call/madvise/pageout.rs`,
//! `freehold-vmspace/src/evict.rs`): which pages are taken away, and which stay. The expected results are
//! those of Linux 6.18 without swap. Most tests compare the words of all pages, where 0 means that the page
//! was freed (`words`), and the number of resident pages. `shuttle_engine/pageout.rs`
//! (`lab/freehold-machine`) explores concurrent stores, pins and forks. A new kind of page that can be taken
//! needs a test for each reason for which such a page must stay.

use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    call::{Advice, LockFlags},
    engine::HugePages,
    error::MadviseError,
    file::Zeroes,
    remote::{AccessMode, IoVec, PinFlags},
    uffd::{Features, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};

const DROPPABLE: MapFlags = MapFlags::DROPPABLE.union(MapFlags::ANONYMOUS).union(MapFlags::FIXED);

fn advise(process: &Process, at: u64, pages: u64, advice: Advice) {
    process.madvise(at, pages * PAGE, advice).unwrap();
}

/// Returns the first words of pages.
fn words<const N: usize>(process: &Process, cpu: &mut Vcpu, at: u64) -> [u64; N] {
    core::array::from_fn(|page| process.load(cpu, at + page as u64 * PAGE).unwrap())
}

/// Returns the result of mincore.
fn resident<const N: usize>(process: &Process, at: u64) -> [u8; N] {
    let mut out = [9; N];
    process.mincore(at, N as u64 * PAGE, &mut out).unwrap();
    out
}

#[test]
fn pageout_frees_lazily_freed_pages_until_they_are_written_again() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        advise(process, BASE, 4, Advice::PageOut);
        assert_eq!(process.rss().anon, 4, "there is no swap");
        advise(process, BASE, 3, Advice::Free);
        // The CPU has a translation from before MADV_FREE. Its store makes the page live again.
        process.store(cpu, BASE + PAGE, 9u64).unwrap();
        process.write_memory(BASE + 2 * PAGE, &[8], AccessMode::Plain).unwrap();
        advise(process, BASE, 4, Advice::PageOut);
        assert_eq!(process.rss().anon, 3);
        assert_eq!(words(process, cpu, BASE), [0, 9, 8, 4]);
        // A page that was written stays, even if it was protected since.
        advise(process, BASE, 4, Advice::Free);
        process.store(cpu, BASE + 3 * PAGE, 7u64).unwrap();
        process.mprotect(BASE, 4 * PAGE, R).unwrap();
        advise(process, BASE, 4, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [0, 0, 0, 7]);
    });
}

#[test]
fn pageout_keeps_pages_that_another_process_maps() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        advise(process, BASE, 2, Advice::Free);
        let child = Process::of(process.fork().unwrap());
        for process in [process, &child] {
            advise(process, BASE, 4, Advice::PageOut);
            assert_eq!(words(process, cpu, BASE), [1, 2, 3, 4]);
        }
        // One process frees the page. The other one still needs the contents.
        advise(&child, BASE + 2 * PAGE, 2, Advice::Free);
        advise(&child, BASE, 4, Advice::PageOut);
        drop(child);
        advise(process, BASE, 4, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [0, 0, 3, 4]);
    });
}

#[test]
fn pageout_keeps_pinned_pages_and_stores_of_devices() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 3);
        fill(process, cpu, BASE, 3, 1);
        let pins = process.pin_user_pages(BASE, 3, PinFlags::WRITE).unwrap();
        advise(process, BASE, 3, Advice::Free);
        advise(process, BASE, 3, Advice::PageOut);
        assert_eq!(process.rss().anon, 3, "pinned");
        pins.write(0, &[5]).unwrap();
        pins.unpin_dirty();
        advise(process, BASE, 3, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [5, 2, 3], "a device may have stored to all pages");
        let pins = process.pin_user_pages(BASE, 1, PinFlags::empty()).unwrap();
        advise(process, BASE, 1, Advice::Free);
        drop(pins);
        advise(process, BASE, 1, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [0]);
    });
}

#[test]
fn move_to_another_frame_keeps_a_page_that_was_written_after_madv_free() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        advise(process, BASE, 2, Advice::Free);
        process.store(cpu, BASE, 9u64).unwrap();
        // The entry of a page that cannot be written is clean after the move.
        process.mprotect(BASE, 2 * PAGE, R).unwrap();
        (0..2).for_each(|page| {
            world.engine().migrate(process.frame_at(BASE + page * PAGE).unwrap()).unwrap();
        });
        advise(process, BASE, 2, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [9, 0]);
    });
}

#[test]
fn pageout_frees_all_pages_of_droppable_memory() {
    everywhere(|_, process, cpu| {
        process.mmap(BASE, 6 * PAGE, RW, DROPPABLE, None, 0).unwrap();
        fill(process, cpu, BASE, 6, 1);
        let pins = process.pin_user_pages(BASE, 1, PinFlags::WRITE).unwrap();
        process.mlock(BASE, 6 * PAGE).unwrap();
        advise(process, BASE, 4, Advice::PageOut);
        assert_eq!(words(process, cpu, BASE), [1, 0, 0, 0, 5, 6], "droppable memory is never locked");
        // A device keeps the memory that it has pinned.
        pins.write(0, &[7]).unwrap();
        assert_eq!(words(process, cpu, BASE), [7]);
        drop(pins);
        fill(process, cpu, BASE, 6, 1);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(words(&child, cpu, BASE), [0; 6]);
        assert_eq!(process.drop_discardable(), 6);
        assert_eq!((process.rss().anon, child.rss().anon), (0, 0));
        assert_eq!(words(process, cpu, BASE), [0; 6]);
    });
}

#[test]
fn drop_discardable_frees_pages_of_the_whole_address_space() {
    everywhere(|world, process, cpu| {
        let far = BASE + (5 << 30);
        for at in [BASE, far] {
            anon(process, at, 8);
            fill(process, cpu, at, 8, 1);
            advise(process, at, 6, Advice::Free);
            process.store(cpu, at, 9u64).unwrap();
        }
        // Populating the memory would write to the page.
        process.mlock2(far + PAGE, PAGE, LockFlags::ONFAULT).unwrap();
        let file = world.file(4);
        let mapped = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.load::<u64>(cpu, mapped).unwrap();
        assert_eq!(process.drop_discardable(), 9);
        assert_eq!(words(process, cpu, BASE), [9, 0, 0, 0, 0, 0, 7, 8]);
        assert_eq!(words(process, cpu, far), [9, 2, 0, 0, 0, 0, 7, 8]);
        assert_eq!((process.drop_discardable(), process.rss().file), (0, 1));
        let guard = process.space().write();
        assert_eq!(process.drop_discardable(), 0, "never waits for the mmap lock");
        drop(guard);
    });
}

#[test]
fn lazily_freed_huge_page_is_freed_as_a_whole_or_in_part() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(16 << 20, &config, |_, process, cpu| {
        let all = HUGE / PAGE;
        anon(process, BASE, all);
        process.store(cpu, BASE, 1u64).unwrap();
        advise(process, BASE, all, Advice::PageOut);
        assert_eq!(process.rss().anon, all as i64);
        advise(process, BASE, all, Advice::Free);
        process.store(cpu, BASE + 5 * PAGE, 2u64).unwrap();
        advise(process, BASE, all, Advice::PageOut);
        assert_eq!(process.rss().anon, all as i64, "written again");
        process.store(cpu, BASE + 6 * PAGE, 3u64).unwrap();
        // A part is freed, and the rest stays.
        advise(process, BASE, all, Advice::Free);
        advise(process, BASE, 6, Advice::PageOut);
        assert_eq!(process.rss().anon, all as i64 - 6);
        assert_eq!(words(process, cpu, BASE), [0, 0, 0, 0, 0, 0, 3]);
        advise(process, BASE, all, Advice::DontNeed);
        process.munmap(BASE, HUGE).unwrap();
        anon(process, BASE, all);
        process.store(cpu, BASE, 1u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        advise(process, BASE, all, Advice::Free);
        advise(process, BASE, all, Advice::PageOut);
        assert_eq!((process.rss().anon, words(process, cpu, BASE)), (all as i64, [1]), "shared");
        drop(child);
        advise(process, BASE, all, Advice::Free);
        advise(process, BASE, all, Advice::PageOut);
        assert_eq!((process.rss().anon, words(process, cpu, BASE)), (0, [0]));
    });
}

#[test]
fn pageout_drops_clean_pages_of_files_that_only_this_mapping_maps() {
    everywhere(|world, process, cpu| {
        let file = world.file(6);
        let map = |flags| process.mmap(0, 6 * PAGE, RW, flags, Some(&file), 0).unwrap();
        let at = map(MapFlags::SHARED);
        (0..4).for_each(|page| _ = process.load::<u64>(cpu, at + page * PAGE).unwrap());
        file.mapping().fill(PageIndex::new(5)).unwrap();
        process.store(cpu, at + PAGE, 9u64).unwrap();
        advise(process, at, 6, Advice::PageOut);
        // A written page is unmapped and stays in the cache. A cached page that is not mapped also stays.
        assert_eq!((process.rss().file, resident(process, at)), (0, [0, 1, 0, 0, 0, 1]));
        file.mapping().write_back(PageRange::ALL).unwrap();
        advise(process, at, 6, Advice::PageOut);
        assert_eq!(resident(process, at), [0, 1, 0, 0, 0, 1], "only mapped pages are taken");
        assert_eq!(process.load(cpu, at + PAGE), Ok(9u64));
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(Disk::number(2)));
        // Pages that another mapping maps stay, in the same process too.
        let second = map(MapFlags::SHARED);
        process.load::<u64>(cpu, second + 2 * PAGE).unwrap();
        let mapped = process.rss().file;
        advise(process, at + 2 * PAGE, 1, Advice::PageOut);
        assert_eq!((process.rss().file, resident(process, at + 2 * PAGE)), (mapped, [1]));
        process.munmap(second, 6 * PAGE).unwrap();
        process.munmap(at, 6 * PAGE).unwrap();
        // A private copy stays, and so does the page of a pin.
        file.drop_clean(PageRange::ALL);
        let at = map(MapFlags::PRIVATE);
        process.store(cpu, at, 3u64).unwrap();
        process.load::<u64>(cpu, at + 3 * PAGE).unwrap();
        process.load::<u64>(cpu, at + 4 * PAGE).unwrap();
        let pins = process.pin_user_pages(at + 4 * PAGE, 1, PinFlags::empty()).unwrap();
        advise(process, at, 6, Advice::PageOut);
        assert_eq!((process.rss().file, process.rss().anon), (0, 1));
        assert_eq!(resident(process, at + 3 * PAGE), [0, 1, 0]);
        drop(pins);
        assert_eq!(words(process, cpu, at), [3]);
    });
}

#[test]
fn pageout_unmaps_shared_memory_and_keeps_its_contents() {
    everywhere(|_, process, cpu| {
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS;
        let at = process.mmap(0, 3 * PAGE, RW, flags, None, 0).unwrap();
        fill(process, cpu, at, 3, 1);
        advise(process, at, 3, Advice::PageOut);
        assert_eq!((process.rss().shmem, resident(process, at)), (0, [1; 3]));
        assert_eq!(words(process, cpu, at), [1, 2, 3]);
    });
}

#[test]
fn c73_cache_of_a_file_of_another_user_is_neither_shown_nor_changed() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ, "/of/another/user").unwrap();
        for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let at = process.mmap(0, 4 * PAGE, R, flags, Some(&file), 0).unwrap();
            assert_eq!(resident(process, at), [1; 4], "no page is in the cache");
            process.load::<u64>(cpu, at).unwrap();
            let cached = mapping.present_pages();
            advise(process, at, 4, Advice::PageOut);
            assert_eq!((process.rss().file, mapping.present_pages()), (cached as i64, cached));
            process.munmap(at, 4 * PAGE).unwrap();
            mapping.drop_clean(PageRange::ALL);
        }
        let own = File::new(&mapping, FileAccess::READ.shows_cache(true), "/own").unwrap();
        let at = process.mmap(0, 4 * PAGE, R, MapFlags::SHARED, Some(&own), 0).unwrap();
        assert_eq!(resident(process, at), [0; 4]);
    });
}

#[test]
fn pageout_keeps_write_protection_by_a_userfaultfd() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::memfd(world.engine(), 2 * PAGE).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        let at = process.mmap(0, 2 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        fill(process, cpu, at, 2, 1);
        let config = UffdConfig::new().features(Features::empty());
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(at, 2 * PAGE, RegisterMode::WP).unwrap();
        uffd.write_protect(at, PAGE, ProtectMode::WP).unwrap();
        advise(process, at, 2, Advice::PageOut);
        let protected: Vec<_> = (0..2)
            .map(|page| {
                let mut found = None;
                process.page_entries(at + page * PAGE..at + (page + 1) * PAGE, |run| {
                    found = Some(run.write_protected);
                    core::ops::ControlFlow::Continue(())
                });
                found
            })
            .collect();
        assert_eq!(protected, [Some(true), Some(false)]);
        drop(uffd);
    });
}

#[test]
fn pageout_reports_holes_and_refuses_locked_memory() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        advise(process, BASE, 4, Advice::Free);
        process.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!(process.madvise(BASE, 3 * PAGE, Advice::PageOut), Err(MadviseError::NotMapped));
        assert_eq!(process.rss().anon, 1, "the mapped parts were processed");
        process.mlock(BASE + 2 * PAGE, PAGE).unwrap();
        assert_eq!(process.madvise(BASE + 2 * PAGE, 2 * PAGE, Advice::PageOut), Err(MadviseError::Invalid));
        let range = IoVec { base: BASE + 3 * PAGE, len: PAGE };
        assert_eq!(process.process_madvise(&[range], Advice::PageOut, false), Ok(PAGE));
        assert_eq!(process.load(cpu, BASE + 3 * PAGE), Ok(0u64));
    });
}

#[test]
fn pageout_of_a_large_file_ends_after_a_fatal_signal() {
    everywhere(|world, process, _| {
        let mapping = Mapping::new(world.engine(), Zeroes, 1 << 37, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/large").unwrap();
        let at = process.mmap(0, 1 << 37, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let ended = killed(|| process.madvise(at, 1 << 37, Advice::PageOut));
        assert_eq!(ended, Err(MadviseError::Killed));
    });
}
