//! Questions to a pager that guards writes, concurrent with every other operation on the page.
//!
//! The code under test is `file/permit.rs`, and the begin of writes in `file/change/write_back.rs`. Each test
//! belongs to a row of the first table of `docs/guide/write-back.md`. The pager ([`Journal`]) makes a record
//! for each page that it permits to change, and uses one record for each page that it writes. It panics if
//! there is no record, because then a store had no permission. Each scenario ends with a write-back, after
//! which the journal must have the contents of each page.

use crate::{
    device::{self, PAGES, mapped, unmap_file},
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, Vcpu, beyond, page},
};
use freehold::{
    PageIndex, PageRange, Pfn,
    file::{IoError, Pager, WriteRefused},
    platform::Platform,
    space::Locking,
};
use freehold_machine::Machine;
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const ALL: PageRange = PageRange::ALL;

/// A file system with a journal.
#[derive(Clone, Default)]
struct Journal {
    /// A lock of the standard library, held without a wait in between.
    pages: Arc<Mutex<[JournalPage; PAGES as usize]>>,
    /// Number of tasks that must have ended before a question is answered.
    awaited: Arc<AtomicU64>,
}

/// A page of a [`Journal`].
#[derive(Clone, Copy, Default)]
struct JournalPage {
    /// Number of questions about the page that no write and no removal has used.
    records: u64,
    /// The first three words, as they were last written.
    stored: [u64; 3],
}

impl Journal {
    /// Changes a page of the journal.
    fn change<R>(&self, index: PageIndex, how: impl FnOnce(&mut JournalPage) -> R) -> R {
        how(&mut self.pages.lock().unwrap()[index.get() as usize])
    }

    /// Uses a record.
    fn use_record(&self, index: PageIndex) {
        self.change(index, |page| {
            assert!(page.records > 0, "page {index:?} changed without permission");
            page.records -= 1;
        });
    }

    /// Ends a scene after its threads.
    fn end(&self, scene: Scene, file: Opened) {
        assert_eq!(file.mapping().write_back(ALL), Ok(()));
        unmap_file(&scene, &file);
        assert_eq!(file.mapping().write_back(ALL), Ok(()));
        for index in 0..PAGES {
            let stored = self.change(PageIndex::new(index), |page| page.stored);
            assert_eq!(words(&file, index), stored, "a change of page {index} was not written");
        }
        let cached = file.mapping().present_pages();
        assert_eq!(file.drop_clean(ALL), cached, "a page is still dirty or in use");
        device::end(scene, file);
    }
}

impl Pager<Machine> for Journal {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let stored = self.change(index, |page| page.stored);
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, stored.map(u64::to_le_bytes).as_flattened());
        Ok(())
    }

    fn guards_writes(&self) -> bool {
        true
    }

    fn make_writable(&self, pages: PageRange) -> Result<(), WriteRefused> {
        // The checker may switch to another task before and after the answer.
        thread::yield_now();
        while self.awaited.load(SeqCst) != 0 {
            thread::yield_now();
        }
        pages.numbers().for_each(|index| self.change(PageIndex::new(index), |page| page.records += 1));
        thread::yield_now();
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        self.use_record(index);
        let mut bytes = [0; 24];
        platform.read_frame(frame, 0, &mut bytes);
        self.change(index, |page| page.stored = words_of(&bytes));
        Ok(())
    }

    fn not_changed(&self, index: PageIndex) {
        self.use_record(index);
    }

    fn discard(&self, pages: PageRange) {
        // Other tasks may ask before the pages are discarded.
        (0..4).for_each(|_| thread::yield_now());
        for index in pages.numbers().take_while(|index| *index < PAGES) {
            self.change(PageIndex::new(index), |page| *page = JournalPage::default());
        }
    }
}

/// Returns three words.
fn words_of(bytes: &[u8; 24]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks();
    [0, 1, 2].map(|word: usize| u64::from_le_bytes(words[word]))
}

/// Reads the first three words of a page of the file.
fn words(file: &Opened, index: u64) -> [u64; 3] {
    let mut bytes = [0; 24];
    assert_eq!(file.mapping().read_at(index * PAGE, &mut bytes), Ok(24));
    words_of(&bytes)
}

/// Writes a word of the file by a call.
fn write(file: &Opened, at: u64, word: u64) {
    assert_eq!(file.mapping().write_at(at, &word.to_le_bytes()), Ok(8));
}

/// Stores 1 and then 2 to a word through the mapping.
fn store_twice(scene: &Scene, cpu: &mut Vcpu, at: u64) {
    for word in 1..3u64 {
        assert_eq!(scene.process.store(cpu, at, word), Ok(()));
    }
}

/// Returns a scene and a file in which the process has mapped each page and stored nothing.
fn loaded(locking: Locking, journal: &Journal) -> (Scene, Opened) {
    let (scene, file) = mapped(locking, journal.clone());
    let mut cpu = scene.machine.cpu(0);
    for number in 0..PAGES {
        assert_eq!(scene.process.load::<u64>(&mut cpu, page(number)), Ok(0));
    }
    drop(cpu);
    (scene, file)
}

/// A store waits for its question. Operations that change nothing in the page, and the removal of the page,
/// end before the question is answered.
#[test]
fn question_delays_only_changes_of_its_page() {
    explore("operations during a question", 20, |locking| {
        let journal = Journal::default();
        let (scene, file) = loaded(locking, &journal);
        journal.awaited.store(4, SeqCst);
        let ended = || journal.awaited.fetch_sub(1, SeqCst);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(scene.process.store(&mut scene.machine.cpu(0), page(0), 5u64), Ok(())));
            scope.spawn(|| {
                assert_eq!(scene.process.load::<u64>(&mut scene.machine.cpu(1), page(0)), Ok(0));
                assert_eq!(words(&file, 0), [0; 3]);
                ended();
            });
            scope.spawn(|| {
                assert_eq!(file.mapping().write_back(ALL), Ok(()));
                ended();
            });
            scope.spawn(|| {
                file.drop_clean(ALL);
                // The page may have left its frame.
                let _ = scene.process.frame_at(page(0)).map(|frame| scene.engine.migrate(frame));
                ended();
            });
            scope.spawn(|| {
                file.mapping().punch(0..PAGE).unwrap();
                ended();
            });
        });
        assert_eq!(words(&file, 0), [5, 0, 0]);
        journal.end(scene, file);
    });
}

/// Stores, write calls and zeroes change one page while it is written back. Each change that follows a write
/// has a permission that the pager has given since.
#[test]
fn changes_concurrent_with_write_back_have_permissions() {
    explore("changes of a guarded page concurrent with write-back", 300, |locking| {
        let journal = Journal::default();
        let (scene, file) = loaded(locking, &journal);
        write(&file, 16, 7);
        thread::scope(|scope| {
            scope.spawn(|| store_twice(&scene, &mut scene.machine.cpu(0), page(0)));
            scope.spawn(|| (1..3).for_each(|word| write(&file, 8, word)));
            scope.spawn(|| file.mapping().punch(16..24).unwrap());
            scope.spawn(|| (0..2).for_each(|_| assert_eq!(file.mapping().write_back(ALL), Ok(()))));
        });
        assert_eq!(words(&file, 0), [2, 2, 0]);
        journal.end(scene, file);
    });
}

/// Holes remove a page before, during and after questions about it. Each discard may forget the records of
/// questions that began before its end.
#[test]
fn hole_during_a_question_makes_the_pager_answer_again() {
    explore("a hole concurrent with questions", 100, |locking| {
        let journal = Journal::default();
        let (scene, file) = loaded(locking, &journal);
        thread::scope(|scope| {
            scope.spawn(|| store_twice(&scene, &mut scene.machine.cpu(0), page(1)));
            scope.spawn(|| write(&file, PAGE + 8, 6));
            scope.spawn(|| (0..3).for_each(|_| file.mapping().punch(PAGE..2 * PAGE).unwrap()));
        });
        let [stored, written, _] = words(&file, 1);
        assert!([0, 1, 2].contains(&stored) && [0, 6].contains(&written), "{stored} {written}");
        journal.end(scene, file);
    });
}

/// A file becomes smaller and larger again before, during or after questions about the page that it loses.
#[test]
fn truncation_concurrent_with_questions() {
    explore("a truncation concurrent with questions", 60, |locking| {
        let journal = Journal::default();
        let (scene, file) = loaded(locking, &journal);
        thread::scope(|scope| {
            scope.spawn(|| {
                let stored = scene.process.store(&mut scene.machine.cpu(0), page(1), 5u64);
                assert!(stored == Ok(()) || stored == beyond(page(1)), "{stored:?}");
            });
            scope.spawn(|| write(&file, PAGE + 8, 6));
            scope.spawn(|| [PAGE, 2 * PAGE].map(|size| file.mapping().truncate(size).unwrap()));
        });
        let [stored, written, _] = words(&file, 1);
        assert!([0, 5].contains(&stored) && [0, 6].contains(&written), "{stored} {written}");
        journal.end(scene, file);
    });
}

/// A page is dropped as clean, again and again, while a store to it asks and is written back.
#[test]
fn page_dropped_during_a_question_is_read_again() {
    explore("drops of a clean page concurrent with questions", 60, |locking| {
        let journal = Journal::default();
        let (scene, file) = mapped(locking, journal.clone());
        thread::scope(|scope| {
            scope.spawn(|| store_twice(&scene, &mut scene.machine.cpu(0), page(0)));
            scope.spawn(|| (0..2).for_each(|_| _ = file.drop_clean(ALL)));
            scope.spawn(|| assert_eq!(file.mapping().write_back(ALL), Ok(())));
        });
        assert_eq!(words(&file, 0), [2, 0, 0]);
        journal.end(scene, file);
    });
}

/// A page moves to another frame before, during or after the questions of two stores.
#[test]
fn migration_concurrent_with_questions() {
    explore("a migration concurrent with questions", 60, |locking| {
        let journal = Journal::default();
        let (scene, file) = loaded(locking, &journal);
        let frame = scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| store_twice(&scene, &mut scene.machine.cpu(0), page(0)));
            // The move fails if the page is in use.
            scope.spawn(|| scene.engine.migrate(frame).is_ok());
            scope.spawn(|| assert_eq!(file.mapping().write_back(ALL), Ok(())));
        });
        assert_eq!(words(&file, 0), [2, 0, 0]);
        journal.end(scene, file);
    });
}
