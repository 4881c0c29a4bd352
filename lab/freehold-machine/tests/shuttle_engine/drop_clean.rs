//! Clean unused pages are dropped from the cache of a file while other tasks begin to use them (C-26, C-37).
//!
//! The code under test is `file/change/drop_clean.rs`. No store is lost, and no task keeps a page that the
//! file has dropped: two processes that map the file always see one page. [`Store`] is the backing store of
//! the files; `file_moves.rs` uses it too, with [`open_on`], [`map_file`] and [`words`]. In contrast to the
//! files of `files.rs`, these files have a backing store, so clean pages can be read again.

use crate::{
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, RW, Scene, page, unmap},
};
use freehold::{
    PageIndex, PageRange, Pfn,
    file::{File, FileAccess, IoError, Mapping, Pager},
    platform::Platform,
    space::MapFlags,
};
use freehold_machine::{Machine, Process};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

const ALL: PageRange = PageRange::ALL;

/// A disk that stores the first two words of each page. All files of a [`Store`] and of its clones share the
/// words.
#[derive(Clone, Default)]
pub struct Store(Arc<Mutex<HashMap<u64, [u8; 16]>>>);

impl Store {
    /// Returns the first word of a page as it was last written back.
    pub fn first(&self, index: u64) -> Option<u64> {
        let words = self.0.lock().unwrap().get(&index).copied()?;
        Some(u64::from_le_bytes(words[..8].try_into().unwrap()))
    }
}

impl Pager<Machine> for Store {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let words = self.0.lock().unwrap().get(&index.get()).copied().unwrap_or_default();
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &words);
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let mut words = [0; 16];
        platform.read_frame(frame, 0, &mut words);
        self.0.lock().unwrap().insert(index.get(), words);
        Ok(())
    }
}

/// Creates a file of two pages on a disk of its own.
pub fn open(scene: &Scene) -> Opened {
    open_on(scene, Store::default())
}

/// Creates a file of two pages on the given disk.
pub fn open_on(scene: &Scene, store: Store) -> Opened {
    let mapping = Mapping::new(&scene.engine, store, 2 * PAGE, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "stored").unwrap()
}

/// Maps both pages of the file shared, at page 0.
pub fn map_file(process: &Process, file: &Opened) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    assert_eq!(process.mmap(page(0), 2 * PAGE, RW, flags, Some(file), 0), Ok(page(0)));
}

/// Reads the first two words of a page of the file.
pub fn words(file: &Opened, number: u64) -> [u64; 2] {
    [0, 8].map(|offset| {
        let mut bytes = [0; 8];
        assert_eq!(file.mapping().read_at(number * PAGE + offset, &mut bytes), Ok(8));
        u64::from_le_bytes(bytes)
    })
}

#[test]
fn c26_stores_concurrent_with_drop_clean_are_kept() {
    explore("stores of two processes concurrent with drop_clean", 100, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (open(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        file.mapping().fill(PageIndex::new(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0), 5u64).unwrap();
                let found: u64 = scene.process.load(&mut cpu, page(0) + 8).unwrap();
                assert!(found == 0 || found == 6, "{found}");
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(5u64));
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, page(0) + 8, 6u64).unwrap();
                unmap(&other, 0..2);
                file.mapping().write_at(PAGE, &7u64.to_le_bytes()).unwrap();
            });
            scope.spawn(|| {
                for _ in 0..2 {
                    file.drop_clean(ALL);
                    file.mapping().write_back(ALL).unwrap();
                }
                scene.engine.drop_clean(u64::MAX);
            });
        });
        assert_eq!((words(&file, 0), words(&file, 1)), ([5, 6], [7, 0]));
        // The disk also has all stores, and the cache is empty at the end.
        unmap(&scene.process, 0..2);
        file.mapping().write_back(ALL).unwrap();
        assert_eq!(file.drop_clean(ALL), 2);
        assert_eq!((words(&file, 0), words(&file, 1)), ([5, 6], [7, 0]));
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn two_processes_see_one_page_during_drop_clean() {
    explore("first faults on one page concurrent with drop_clean", 60, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (open(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        file.mapping().fill(PageIndex::new(0)).unwrap();
        thread::scope(|scope| {
            for (cpu, process) in [&scene.process, &other].into_iter().enumerate() {
                let scene = &scene;
                scope.spawn(move || {
                    assert_eq!(process.load(&mut scene.machine.cpu(cpu), page(0)), Ok(0u64));
                });
            }
            scope.spawn(|| file.drop_clean(ALL));
        });
        let mut cpu = scene.machine.cpu(2);
        scene.process.store(&mut cpu, page(0), 9u64).unwrap();
        assert_eq!(
            other.load(&mut cpu, page(0)),
            Ok(9u64),
            "one process maps a page that is not in the file"
        );
        drop(cpu);
        unmap(&scene.process, 0..2);
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn files_may_be_dropped_during_drop_clean() {
    explore("the ends of two files concurrent with drop_clean", 40, |locking| {
        let scene = Scene::new(locking);
        let files = [open(&scene), open(&scene)];
        files.iter().for_each(|file| file.mapping().fill(PageIndex::new(1)).unwrap());
        thread::scope(|scope| {
            for file in files {
                scope.spawn(move || drop(file));
            }
            scope.spawn(|| scene.engine.drop_clean(u64::MAX));
        });
        assert_eq!(scene.engine.drop_clean(u64::MAX), 0);
        scene.assert_empty();
        scene.end();
    });
}
