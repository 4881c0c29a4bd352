//! Questions to the pager before clean pages change (`src/file/permit.rs`). `Journal` is a file system that
//! reserves a record for each page that may change. It panics if a page is written that has no record: then a
//! store had no permission.

use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    call::Advice,
    fault::{Access, FaultError},
    file::{FillError, WriteRefused},
    remote::{AccessMode, PinFlags},
};
use freehold_machine::Process;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// A function that runs during each question.
type Hook = Box<dyn Fn(PageRange) -> Result<(), WriteRefused> + Send>;

/// A way to change a page.
type Path<'a> = Box<dyn FnMut(&mut Vcpu) + 'a>;

#[derive(Clone, Default)]
struct Journal {
    /// The number of records of each page.
    records: Arc<Mutex<HashMap<u64, u64>>>,
    /// The pages of the questions since the last look.
    asked: Arc<Mutex<Vec<u64>>>,
    /// Number of pages written.
    written: Arc<Mutex<u64>>,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Journal {
    /// Returns the pages of the questions since the last call.
    fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn on_question(&self, hook: impl Fn(PageRange) -> Result<(), WriteRefused> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }
}

impl Pager<Machine> for Journal {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        Disk.read_page(platform, index, frame)
    }

    fn guards_writes(&self) -> bool {
        true
    }

    fn make_writable(&self, pages: PageRange) -> Result<(), WriteRefused> {
        self.asked.lock().unwrap().extend(pages.numbers());
        let hook = self.hook.lock().unwrap().take();
        let answer = hook.as_ref().map_or(Ok(()), |hook| hook(pages));
        *self.hook.lock().unwrap() = hook;
        if answer.is_ok() {
            pages.numbers().for_each(|page| *self.records.lock().unwrap().entry(page).or_default() += 1);
        }
        answer
    }

    fn write_page(&self, _: &Machine, index: PageIndex, _: Pfn) -> Result<(), IoError> {
        *self.written.lock().unwrap() += 1;
        let mut records = self.records.lock().unwrap();
        let record = records.get_mut(&index.get()).filter(|count| **count > 0);
        *record.expect("a page changed without permission") -= 1;
        Ok(())
    }

    fn not_changed(&self, index: PageIndex) {
        *self.records.lock().unwrap().get_mut(&index.get()).unwrap() -= 1;
    }

    fn discard(&self, pages: PageRange) {
        self.records.lock().unwrap().retain(|page, _| !pages.contains(PageIndex::new(*page)));
    }
}

const ALL: PageRange = PageRange::ALL;

/// Calls `test` with a file of 8 pages and a shared mapping of it.
fn each(test: impl Fn(&Journal, &Counted<File<Machine>>, &Process, &mut Vcpu, u64)) {
    for locking in Locking::ALL {
        let world = World::new();
        let journal = Journal::default();
        let mapping = Mapping::new(world.engine(), journal.clone(), 8 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 8 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        test(&journal, &file, &process, &mut cpu, at);
        mapping.write_back(ALL).unwrap();
        mapping.check();
        *journal.hook.lock().unwrap() = None;
        drop((mapping, file, process, cpu));
        world.end();
    }
}

#[test]
fn each_path_to_a_clean_page_asks_the_pager() {
    each(|journal, file, process, cpu, at| {
        let mapping = file.mapping();
        let mut paths: Vec<(&str, u64, Path)> = vec![
            ("a store", 0, Box::new(|cpu| process.store(cpu, at, 1u64).unwrap())),
            ("a store after a load", 1, {
                Box::new(|cpu| {
                    assert!(process.load::<u64>(cpu, at + PAGE).is_ok());
                    process.store(cpu, at + PAGE, 1u64).unwrap();
                })
            }),
            ("a write of a part", 2, Box::new(|_| assert_eq!(mapping.write_at(2 * PAGE + 8, b"it"), Ok(2)))),
            ("a write of a page", 3, {
                Box::new(|_| assert_eq!(mapping.write_at(3 * PAGE, &[3; PAGE as usize]), Ok(PAGE as usize)))
            }),
            ("a hole in a page", 4, Box::new(|_| mapping.punch(4 * PAGE + 8..4 * PAGE + 16).unwrap())),
            ("population", 5, {
                Box::new(|_| process.space().madvise(at + 5 * PAGE, PAGE, Advice::PopulateWrite).unwrap())
            }),
            ("an access of another process", 6, {
                Box::new(|_| {
                    let space = process.space();
                    assert_eq!(space.write_memory(at + 6 * PAGE, b"it", AccessMode::Plain), Ok(2));
                })
            }),
            ("a pin", 7, {
                Box::new(|_| {
                    let pins = process.pin_user_pages(at + 7 * PAGE, 1, PinFlags::WRITE).unwrap();
                    pins.unpin_dirty();
                })
            }),
        ];
        for round in 0..3 {
            for (what, page, path) in &mut paths {
                path(cpu);
                assert_eq!(journal.asked(), [*page], "{what}, round {round}");
                // The permission lasts until the page is written.
                path(cpu);
                assert_eq!(journal.asked(), [], "{what} again, round {round}");
            }
            mapping.write_back(ALL).unwrap();
            assert_eq!(*journal.written.lock().unwrap(), 8 * (round + 1));
            if round == 1 {
                process.space().madvise(at, 8 * PAGE, Advice::DontNeed).unwrap();
                assert_eq!(file.drop_clean(ALL), 8);
            }
        }
    });
}

#[test]
fn changes_of_the_size_ask_for_the_last_page() {
    each(|journal, file, _, _, _| {
        let mapping = file.mapping();
        mapping.truncate(3 * PAGE + 100).unwrap();
        assert_eq!(journal.asked(), [3]);
        mapping.write_back(ALL).unwrap();
        mapping.truncate(6 * PAGE).unwrap();
        assert_eq!(journal.asked(), [3]);
        // A write beyond the end asks for the pages that it adds.
        mapping.write_back(ALL).unwrap();
        assert_eq!(mapping.write_at(6 * PAGE - 8, &[1; 2 * PAGE as usize]), Ok(2 * PAGE as usize));
        assert_eq!(journal.asked(), [5, 6, 7]);
        mapping.truncate(5 * PAGE).unwrap();
        assert_eq!(journal.asked(), []);
    });
}

#[test]
fn loads_and_private_stores_do_not_ask() {
    each(|journal, file, process, cpu, at| {
        assert!(process.load::<u64>(cpu, at).is_ok());
        let private = process.mmap(0, 8 * PAGE, RW, MapFlags::PRIVATE, Some(file), 0).unwrap();
        process.store(cpu, private, 1u64).unwrap();
        file.mapping().read_at(PAGE, &mut [0; 8]).unwrap();
        assert_eq!(journal.asked(), []);
    });
}

#[test]
fn refused_store_changes_nothing() {
    each(|journal, file, process, cpu, at| {
        let mapping = file.mapping();
        let full = |pages: PageRange| match pages.contains(PageIndex::new(2)) {
            true => Err(WriteRefused::NoSpace),
            false => Ok(()),
        };
        journal.on_question(full);
        assert_eq!(process.store(cpu, at + 2 * PAGE, 1u64), Err(FaultError::Bus { addr: at + 2 * PAGE }));
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(Disk::number(2)));
        assert_eq!(process.store(cpu, at + 2 * PAGE, 1u64), Err(FaultError::Bus { addr: at + 2 * PAGE }));
        assert_eq!(mapping.write_at(2 * PAGE, b"it"), Err(FillError::NoSpace));
        assert_eq!(mapping.write_at(2 * PAGE, &[1; PAGE as usize]), Err(FillError::NoSpace));
        assert_eq!(mapping.truncate(2 * PAGE + 8), Err(FillError::NoSpace));
        assert_eq!(mapping.punch(2 * PAGE + 8..2 * PAGE + 16), Err(FillError::NoSpace));
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(Disk::number(2)));
        assert_eq!(mapping.size(), 8 * PAGE);
        journal.on_question(|_| Err(WriteRefused::Io));
        assert_eq!(mapping.write_at(3 * PAGE, b"it"), Err(FillError::Io));
        journal.on_question(full);
        process.store(cpu, at + 3 * PAGE, 3u64).unwrap();
        assert_eq!(process.load(cpu, at + 3 * PAGE), Ok(3u64));
    });
}

/// A write asks for its pages together. If the rest is refused, the pages before it are written.
#[test]
fn write_asks_for_its_pages_together() {
    each(|journal, file, _, _, _| {
        let mapping = file.mapping();
        assert_eq!(mapping.write_at(PAGE, &[1; 3 * PAGE as usize]), Ok(3 * PAGE as usize));
        assert_eq!(journal.asked(), [1, 2, 3]);
        journal.on_question(|_| Err(WriteRefused::NoSpace));
        assert_eq!(mapping.write_at(2 * PAGE, &[2; 4 * PAGE as usize]), Ok(2 * PAGE as usize));
        assert_eq!(journal.asked(), [4, 5]);
        let mut bytes = [0; 1];
        assert_eq!(mapping.read_at(4 * PAGE - 1, &mut bytes), Ok(1));
        assert_eq!(bytes, [2]);
    });
}

/// The pager may lose what it has reserved for a page that is removed.
#[test]
fn removal_during_the_question_makes_the_pager_answer_again() {
    each(|journal, file, process, cpu, at| {
        let (mapping, records) = (file.mapping().clone(), journal.records.clone());
        let first = Mutex::new(true);
        journal.on_question(move |pages| {
            if std::mem::take(&mut *first.lock().unwrap()) {
                // The record is made before the hole discards it.
                records.lock().unwrap().insert(pages.start.get(), 1);
                mapping.punch(pages.start.byte()..pages.end.byte()).unwrap();
            }
            Ok(())
        });
        process.store(cpu, at + 2 * PAGE, 1u64).unwrap();
        assert_eq!(journal.asked(), [2, 2]);
        file.mapping().write_back(ALL).unwrap();
        assert_eq!(*journal.written.lock().unwrap(), 1);
    });
}

#[test]
fn permission_without_a_store_ends_by_a_write() {
    each(|journal, file, process, cpu, at| {
        let space = process.space().clone();
        // No lock is held during the question, so the pager can unmap the page that the store needs.
        journal.on_question(move |_| {
            space.munmap(at, 8 * PAGE).unwrap();
            Ok(())
        });
        assert!(matches!(process.store(cpu, at + PAGE, 1u64), Err(FaultError::Segv { .. })));
        assert_eq!(journal.asked(), [1]);
        // The pager counts on a write, so the page stays.
        assert!(file.mapping().has_page(PageIndex::new(1)));
        assert_eq!(file.drop_clean((1..2).into()), 0);
        file.mapping().write_back(ALL).unwrap();
        assert_eq!(*journal.written.lock().unwrap(), 1);
        assert!(journal.records.lock().unwrap().values().all(|count| *count == 0));
        assert_eq!(file.drop_clean((1..2).into()), 1);
    });
}

/// A call that fails after the question leaves permissions of absent pages. Write-back ends them.
#[test]
fn pager_learns_of_permissions_that_a_failed_write_has_not_used() {
    let world = World::new();
    let journal = Journal::default();
    let mapping = Mapping::new(world.engine(), journal.clone(), 8 * PAGE, false).unwrap();
    // The file may have two pages in memory.
    let two = |_: freehold_machine::Owner, charged, more| charged + more <= 2;
    world.machine.set_charge_limit(Some(Arc::new(two)));
    assert_eq!(mapping.write_at(PAGE, &[1; 4 * PAGE as usize]), Ok(2 * PAGE as usize));
    world.machine.set_charge_limit(None);
    assert_eq!(journal.asked(), [1, 2, 3, 4]);
    assert_eq!(journal.records.lock().unwrap().values().sum::<u64>(), 4);
    mapping.write_back(ALL).unwrap();
    assert_eq!((*journal.written.lock().unwrap(), mapping.present_pages()), (2, 2));
    assert_eq!(journal.records.lock().unwrap().values().sum::<u64>(), 0);
    mapping.check();
    drop(mapping);
    world.end();
}

/// A question that takes long delays only the tasks that need its pages.
#[test]
fn question_that_hangs_leaves_other_pages_usable() {
    each(|journal, file, process, cpu, at| {
        let (entered, hangs) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let first = Mutex::new(true);
        journal.on_question(move |_| {
            // The hole below makes the engine ask again.
            if std::mem::take(&mut *first.lock().unwrap()) {
                entered.send(()).unwrap();
                released.recv().unwrap();
            }
            Ok(())
        });
        std::thread::scope(|scope| {
            let space = process.space();
            let store = scope.spawn(move || space.handle_fault(at + 2 * PAGE, Access::WRITE));
            hangs.recv().unwrap();
            *journal.hook.lock().unwrap() = None;
            let mapping = file.mapping();
            process.store(cpu, at + 3 * PAGE, 3u64).unwrap();
            assert!(process.load::<u64>(cpu, at + 2 * PAGE).is_ok());
            assert_eq!(mapping.write_at(4 * PAGE, b"it"), Ok(2));
            mapping.write_back(ALL).unwrap();
            mapping.truncate(6 * PAGE).unwrap();
            mapping.punch(5 * PAGE..6 * PAGE).unwrap();
            release.send(()).unwrap();
            assert!(store.join().unwrap().is_ok());
        });
    });
}
