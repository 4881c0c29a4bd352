//! Operations on all entries of one page (`src/rmap/entries.rs`): unmapping (`try_to_unmap`),
//! write-protecting (`mkclean`), and reading accessed bits (`referenced`). The tests compare the numbers of
//! entries that the operations return, the loaded words, and the words on the disk `Store`, which keeps what
//! was written back.

use crate::support::*;
use freehold::{
    PageIndex,
    call::{Advice, RemapFlags, SyncFlags},
    engine::HugePages,
    file::{FillError, Zeroes},
    nommu::{NoMmuSpace, Regions},
    rmap::{MigrateError, OfflineError, PageError},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// A disk that keeps the first word of each written page.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Pager<Machine> for Store {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        platform.zero_frame(frame);
        let kept = self.kept(index).unwrap_or(Disk::number(index));
        platform.write_frame(frame, 0, &kept.to_le_bytes());
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let mut bytes = [0; 8];
        platform.read_frame(frame, 0, &mut bytes);
        self.0.lock().unwrap().insert(index, u64::from_le_bytes(bytes));
        Ok(())
    }
}

impl Store {
    fn kept(&self, index: u64) -> Option<u64> {
        self.0.lock().unwrap().get(&index).copied()
    }
}

fn everywhere(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    everywhere_with(24 << 20, &Config::new().huge_pages(HugePages::Madvise), scenario);
}

fn opened(world: &World, store: &Store, pages: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::new(world.engine(), store.clone(), pages * PAGE, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
}

fn map(process: &Process, file: &Counted<File<Machine>>, flags: MapFlags) -> u64 {
    process.mmap(0, 4 * PAGE, RW, flags, Some(file), 0).unwrap()
}

#[test]
fn try_to_unmap_removes_all_entries_of_a_file_page() {
    everywhere(|world, process, cpu| {
        let (store, other) = (Store::default(), world.process(Locking::default()));
        let file = opened(world, &store, 4);
        let (shared, private) =
            (map(process, &file, MapFlags::SHARED), map(process, &file, MapFlags::PRIVATE));
        let elsewhere = map(&other, &file, MapFlags::SHARED);
        // Fault-around also maps the adjacent pages. A private copy is not a page of the file.
        process.store(cpu, private + PAGE, 9u64).unwrap();
        process.store(cpu, shared, 5u64).unwrap();
        for (process, at) in [(process, private), (&other, elsewhere)] {
            assert_eq!(process.load(cpu, at), Ok(5u64));
        }
        let page = process.frame_at(shared).unwrap();
        let neighbour = other.frame_at(elsewhere + PAGE).unwrap();
        assert_eq!(world.engine().try_to_unmap(page), Ok(3));
        assert_eq!(world.engine().try_to_unmap(neighbour), Ok(1));
        assert_eq!((process.frame_at(shared), process.frame_at(private)), (None, None));
        assert_eq!((world.engine().entries_of(page), world.engine().try_to_unmap(page)), (0, Ok(0)));
        process.check();
        other.check();
        // The file knows that the page is dirty, and the page is still in its cache.
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(store.kept(0), Some(5));
        assert_eq!((other.load(cpu, elsewhere), process.load(cpu, private + PAGE)), (Ok(5u64), Ok(9u64)));
        assert_eq!(other.frame_at(elsewhere), Some(page));
    });
}

#[test]
fn try_to_unmap_keeps_locked_entries_and_refuses_anonymous_pages() {
    everywhere(|world, process, cpu| {
        let file = opened(world, &Store::default(), 4);
        let (shared, locked) = (map(process, &file, MapFlags::SHARED), map(process, &file, MapFlags::SHARED));
        process.mlock(locked, PAGE).unwrap();
        assert_eq!(process.load(cpu, shared), Ok(Disk::number(0)));
        let page = process.frame_at(locked).unwrap();
        assert_eq!(world.engine().try_to_unmap(page), Ok(1));
        assert_eq!((process.frame_at(locked), process.frame_at(shared)), (Some(page), None));
        let at = anon(process, BASE, 1);
        process.store(cpu, at, 1u64).unwrap();
        let page = process.frame_at(at).unwrap();
        assert_eq!(world.engine().try_to_unmap(page), Err(PageError::Anonymous));
        assert_eq!(world.engine().mkclean(page), Err(PageError::Anonymous));
        process.munmap(at, PAGE).unwrap();
        assert_eq!(world.engine().try_to_unmap(page), Err(PageError::NoPage));
        assert_eq!(world.engine().mkclean(page), Err(PageError::NoPage));
        assert_eq!(world.engine().referenced(page), Err(PageError::NoPage));
    });
}

#[test]
fn store_after_mkclean_makes_the_page_dirty() {
    everywhere(|world, process, cpu| {
        let store = Store::default();
        let file = opened(world, &store, 4);
        let (one, two) = (map(process, &file, MapFlags::SHARED), map(process, &file, MapFlags::SHARED));
        let private = map(process, &file, MapFlags::PRIVATE);
        process.store(cpu, one, 1u64).unwrap();
        process.store(cpu, two, 2u64).unwrap();
        process.store(cpu, private, 3u64).unwrap();
        let page = process.frame_at(one).unwrap();
        assert_eq!(world.engine().mkclean(page), Ok(2));
        assert_eq!(world.engine().mkclean(page), Ok(0), "both entries are clean");
        // No store is lost. The next store makes the page dirty, although this CPU has cached a writable
        // translation.
        file.mapping().write_back((0..1).into()).unwrap();
        assert_eq!(store.kept(0), Some(2));
        process.store(cpu, one, 4u64).unwrap();
        process.store(cpu, private, 5u64).unwrap();
        assert_eq!(world.engine().mkclean(page), Ok(1));
        process.msync(two, PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!((store.kept(0), process.load(cpu, private)), (Some(4), Ok(5u64)));
    });
}

#[test]
fn referenced_reads_and_clears_accessed_bits() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 8);
        fill(process, cpu, at, 8, 10);
        // Three generations of processes map the page. The operation finds the page also after a split, a
        // merge and a move.
        let child = Process::of(process.fork().unwrap());
        let grandchild = Process::of(child.fork().unwrap());
        child.mprotect(at + PAGE, PAGE, R).unwrap();
        child.mprotect(at + PAGE, PAGE, RW).unwrap();
        let far = at + (1 << 30);
        grandchild.mremap(at, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far).unwrap();
        let page = process.frame_at(at).unwrap();
        assert_eq!(world.engine().entries_of(page), 3);
        let referenced = || world.engine().referenced(page);
        // The children have not accessed the page yet.
        assert_eq!((referenced(), referenced()), (Ok(1), Ok(0)));
        assert_eq!((child.load(cpu, at), grandchild.load(cpu, far)), (Ok(10u64), Ok(10u64)));
        assert_eq!((referenced(), referenced()), (Ok(2), Ok(0)));
        grandchild.store(cpu, far, 1u64).unwrap();
        assert_eq!((referenced(), world.engine().entries_of(page)), (Ok(0), 2), "the copy is another page");
        child.check();
        grandchild.check();
        let file = opened(world, &Store::default(), 4);
        let maps = [MapFlags::SHARED, MapFlags::PRIVATE].map(|flags| map(process, &file, flags));
        for at in maps {
            assert_eq!(process.load(cpu, at), Ok(Disk::number(0)));
        }
        let page = process.frame_at(maps[0]).unwrap();
        assert_eq!((world.engine().referenced(page), world.engine().referenced(page)), (Ok(2), Ok(0)));
        world.engine().try_to_unmap(page).unwrap();
        assert_eq!(world.engine().referenced(page), Ok(0), "a page that is only in the cache has no entries");
    });
}

#[test]
fn referenced_treats_a_huge_page_as_one_entry() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 512);
        process.madvise(at, 512 * PAGE, Advice::HugePage).unwrap();
        process.store(cpu, at + 100 * PAGE, 1u64).unwrap();
        let pages: Vec<_> =
            [0, 100, 511].map(|page| process.frame_at(at + page * PAGE).unwrap()).into_iter().collect();
        assert_eq!(
            pages.iter().map(|page| world.engine().referenced(*page)).collect::<Vec<_>>(),
            [Ok(1), Ok(0), Ok(0)]
        );
        let usage = process.smaps(at).next().unwrap().usage;
        assert_eq!((usage.anonymous_huge, usage.referenced), (512 * PAGE, 0), "the huge page was split");
    });
}

/// C-27: a migration unmaps a page, fails, and maps the page again. A later truncation or hole finds the page
/// mapped and removes it.
#[test]
fn c27_page_is_removed_after_a_failed_migration() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
        mapping.lay_out().unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap();
        let at = map(process, &file, MapFlags::SHARED);
        fill(process, cpu, at, 2, 1);
        let pages = [0, 1].map(|page| process.frame_at(at + page * PAGE).unwrap());
        // A space without an MMU maps the frames directly. The reverse map does not find these mappings, so
        // the migration fails.
        let regions = Regions::new(world.engine()).unwrap();
        let flat = NoMmuSpace::new(&regions).unwrap();
        let borrowed = flat.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        for _ in 0..2 {
            assert_eq!(world.engine().migrate(pages[0]), Err(MigrateError::Busy));
            assert_eq!(world.engine().soft_offline(pages[0]), Err(OfflineError::Busy));
            assert_eq!(world.engine().memory_failure(pages[0]), Err(OfflineError::Busy));
            assert!(mapping.has_page(PageIndex::new(0)));
            assert_eq!((process.load(cpu, at), world.engine().entries_of(pages[0])), (Ok(1u64), 1));
            assert_eq!(mapping.punch(0..PAGE), Err(FillError::Busy));
        }
        flat.munmap(borrowed, 4 * PAGE).unwrap();
        mapping.punch(0..PAGE).unwrap();
        assert_eq!((world.engine().entries_of(pages[0]), process.frame_at(at)), (0, None));
        assert_eq!((process.load(cpu, at), process.load(cpu, at + PAGE)), (Ok(0u64), Ok(2u64)));
        mapping.truncate(PAGE).unwrap();
        assert_eq!((world.engine().entries_of(pages[1]), mapping.has_page(PageIndex::new(1))), (0, false));
        assert!(process.load::<u64>(cpu, at + PAGE).is_err());
    });
}
