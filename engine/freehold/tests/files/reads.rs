//! Reads of pages (`src/file/read.rs`, `src/file/cache/reading.rs`): requests that a pager completes later,
//! in any order, in part, or not at all.
//!
//! A [`Device`] queues its requests, and the test completes them. [`World::end`] fails if a frame of a request
//! leaks. `every_call/killed.rs` kills calls that wait for a read, and `shuttle_engine/reads.rs` explores
//! schedules.

use super::device::*;
use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    call::Advice,
    error::MigrateError,
    fault::{Access, FaultError},
    file::FillError,
    remote::PinFlags,
    rmap::OfflineError,
};
use std::sync::Mutex;

/// Reads the first number of a page by a call.
fn read_number(mapping: &Mapping<Machine>, page: u64) -> Result<u64, FillError> {
    let mut bytes = [0; 8];
    mapping.read_at(page * PAGE, &mut bytes).map(|_| u64::from_le_bytes(bytes))
}

#[test]
fn request_has_the_absent_pages_around_the_wanted_one() {
    let world = World::new();
    for (window, wanted, expected) in [
        (1, 5, pages(5, 6)),
        (8, 5, pages(4, 8)),
        (8, 1, pages(0, 3)),
        (32, 9, pages(4, 13)),
        (6, 9, pages(8, 12)),
    ] {
        let device = Device::new(window);
        let file = device.file(&world, 12 * PAGE + 1);
        let mapping = file.mapping();
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            scope.spawn(|| mapping.fill(PageIndex::new(3)).unwrap());
            let mut request = device.next();
            complete(&mut request, 3);
            drop(request);
            assert_eq!(cached(mapping, 13), [3]);
            scope.spawn(|| mapping.fill(PageIndex::new(wanted)).unwrap());
            let request = device.next();
            assert_eq!(request.pages(), expected, "window {window}");
            assert_eq!(request.len(), expected.len());
            assert_eq!(mapping.present_pages(), 1 + expected.len().get());
            mapping.check();
            complete_all(request);
        });
        let found: Vec<u64> =
            (0..13).filter(|&page| page == 3 || expected.contains(PageIndex::new(page))).collect();
        assert_eq!(cached(mapping, 13), found);
        mapping.check();
    }
    world.end();
}

#[test]
fn pages_become_visible_one_by_one_in_any_order() {
    everywhere(|world, process, cpu| {
        let device = Device::new(4);
        let file = device.file(world, 4 * PAGE);
        map(process, &file, pages(0, 4), MapFlags::SHARED);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let load = |page: u64| {
                let cpu = world.machine.cpu(1 + page as usize);
                scope.spawn(move || {
                    let mut cpu = cpu;
                    process.load::<u64>(&mut cpu, BASE + page * PAGE)
                })
            };
            let zero = load(0);
            let mut request = device.next();
            let two = load(2);
            complete(&mut request, 2);
            assert_eq!(two.join().unwrap(), Ok(Disk::number(2)));
            assert_eq!(cached(file.mapping(), 4), [2]);
            // A part of the request is completed by another thread.
            let rest = request.split_off(PageIndex::new(1));
            assert_eq!((request.pages(), rest.pages()), (pages(0, 1), pages(1, 4)));
            let three = load(3);
            scope.spawn(move || complete_all(rest));
            assert_eq!(three.join().unwrap(), Ok(Disk::number(3)));
            assert!(!zero.is_finished());
            complete_all(request);
            assert_eq!(zero.join().unwrap(), Ok(Disk::number(0)));
        });
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(Disk::number(1)));
        assert_eq!(device.asked(), 0);
    });
}

/// A page fails, a page is read, and the pages that are left fail when the request is dropped. A later access
/// reads a failed page again.
#[test]
fn failed_and_dropped_pages_raise_sigbus_and_are_read_again() {
    everywhere(|world, process, cpu| {
        let device = Device::new(4);
        let file = device.file(world, 4 * PAGE);
        map(process, &file, pages(0, 4), MapFlags::PRIVATE);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let load = |page: u64| {
                let cpu = world.machine.cpu(1 + page as usize);
                spawn_until_waiting(scope, move || {
                    let mut cpu = cpu;
                    process.load::<u64>(&mut cpu, BASE + page * PAGE)
                })
            };
            let loads = [0, 1, 2].map(load);
            let mut request = device.next();
            complete(&mut request, 1);
            request.complete(PageIndex::new(0), Err(IoError));
            request.complete(PageIndex::new(0), Ok(()));
            request.complete(PageIndex::new(9), Ok(()));
            drop(request);
            let found = loads.map(|load| load.join().unwrap());
            let bus = |page: u64| Err(FaultError::Bus { addr: BASE + page * PAGE });
            assert_eq!(found, [bus(0), Ok(Disk::number(1)), bus(2)]);
            assert_eq!((cached(file.mapping(), 4), device.asked()), (vec![1], 0));
            file.mapping().check();
            let served = scope.spawn(|| complete_all(device.next()));
            assert_eq!(read_number(file.mapping(), 2), Ok(Disk::number(2)));
            served.join().unwrap();
            assert_eq!(cached(file.mapping(), 4), [1, 2, 3]);
            scope.spawn(|| drop(device.next()));
            assert_eq!(read_number(file.mapping(), 0), Err(FillError::Io));
        });
        assert_eq!(process.load::<u64>(cpu, BASE + 3 * PAGE), Ok(Disk::number(3)));
    });
}

/// Eight tasks need one cold page: they cause one read, whether it succeeds or fails.
#[test]
fn tasks_that_need_one_page_cause_one_read() {
    everywhere(|world, process, _| {
        for succeeds in [true, false] {
            let device = Device::new(1);
            let file = device.file(world, PAGE);
            map(process, &file, pages(0, 1), MapFlags::SHARED);
            std::thread::scope(|scope| {
                let _closes = device.closes_on_panic();
                let fault = || process.handle_fault(BASE, Access::READ).map(|resolved| resolved.major);
                let faults = [(); 8].map(|()| spawn_until_waiting(scope, fault));
                let request = device.next();
                match succeeds {
                    true => complete_all(request),
                    false => drop(request),
                }
                let expected = if succeeds { Ok(true) } else { Err(FaultError::Bus { addr: BASE }) };
                for fault in faults {
                    assert_eq!(fault.join().unwrap(), expected);
                }
            });
            assert_eq!(device.asked(), 0, "a second read");
            process.munmap(BASE, PAGE).unwrap();
        }
    });
}

/// A page is removed while it is read. The removal does not wait, the tasks that wait for the page are woken,
/// and the read has no effect, even on a later read of the same page.
#[test]
fn removal_of_a_page_that_is_being_read_wins() {
    everywhere(|world, process, _| {
        let device = Device::new(4);
        let file = device.file(world, 4 * PAGE);
        let mapping = file.mapping();
        map(process, &file, pages(0, 4), MapFlags::SHARED);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let load = |number: usize| {
                let cpu = world.machine.cpu(number);
                spawn_until_waiting(scope, move || {
                    let mut cpu = cpu;
                    process.load::<u64>(&mut cpu, BASE + 2 * PAGE)
                })
            };
            // A truncation: the fault finds the end of the file.
            let waits = load(1);
            let cut = device.next();
            mapping.truncate(2 * PAGE).unwrap();
            assert_eq!(waits.join().unwrap(), Err(FaultError::Bus { addr: BASE + 2 * PAGE }));
            assert_eq!(mapping.present_pages(), 2);
            mapping.check();
            mapping.truncate(4 * PAGE).unwrap();
            // A hole: the fault reads the page again. The old request ends first, with old contents.
            let waits = load(2);
            let again = device.next();
            assert_eq!(again.pages(), pages(2, 4));
            mapping.punch(2 * PAGE..3 * PAGE).unwrap();
            let last = device.next();
            assert_eq!(last.pages(), pages(2, 3));
            let [old, new] = [&again, &last].map(|request| request.frame(PageIndex::new(2)).unwrap());
            assert_ne!(old, new);
            complete_all(cut);
            assert_eq!(cached(mapping, 4), [0, 1]);
            complete_all(again);
            assert_eq!(cached(mapping, 4), [0, 1, 3]);
            assert!(!waits.is_finished());
            complete_all(last);
            assert_eq!(waits.join().unwrap(), Ok(Disk::number(2)));
        });
        mapping.check();
    });
}

/// While a task waits for a page that is never read, every other page of the file and every call on the space
/// is usable.
#[test]
fn page_that_hangs_leaves_other_pages_usable() {
    everywhere(|world, process, cpu| {
        let device = Device::new(1);
        let file = device.file(world, 8 * PAGE);
        let mapping = file.mapping();
        map(process, &file, pages(0, 8), MapFlags::SHARED);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let mut other = world.machine.cpu(1);
            let load = spawn_until_waiting(scope, move || process.load::<u64>(&mut other, BASE));
            let write = spawn_until_waiting(scope, || mapping.write_at(8, b"part"));
            let probe = spawn_until_waiting(scope, || mapping.add_probe(64, &[0xcc]));
            let hung = device.next();
            let served = |page: u64| {
                scope.spawn({
                    let device = &device;
                    move || {
                        let request = device.next();
                        assert_eq!(request.pages(), pages(page, page + 1));
                        complete_all(request);
                    }
                })
            };
            // Faults, calls of the space, and calls of the file.
            served(1);
            assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(Disk::number(1)));
            process.store(cpu, BASE + PAGE, 9u64).unwrap();
            anon(process, BASE + 64 * PAGE, 4);
            process.munmap(BASE + 65 * PAGE, PAGE).unwrap();
            process.mprotect(BASE + 5 * PAGE, PAGE, R).unwrap();
            drop(process.fork().unwrap());
            process.munmap(BASE + 5 * PAGE, PAGE).unwrap();
            map_other(process, &file);
            served(2);
            assert_eq!(read_number(mapping, 2), Ok(Disk::number(2)));
            assert_eq!(mapping.write_at(3 * PAGE, &[1; PAGE as usize]), Ok(PAGE as usize));
            served(4);
            assert_eq!(mapping.write_at(4 * PAGE + 8, b"part"), Ok(4));
            mapping.write_back(PageRange::ALL).unwrap();
            assert_eq!(mapping.drop_clean(pages(2, 3)), 1);
            mapping.punch(3 * PAGE..4 * PAGE).unwrap();
            mapping.truncate(7 * PAGE).unwrap();
            served(6);
            mapping.truncate(6 * PAGE + 5).unwrap();
            mapping.check();
            assert!(!load.is_finished() && !write.is_finished() && !probe.is_finished());
            // The page itself can be removed. The tasks then read it again.
            mapping.punch(0..PAGE).unwrap();
            let again = device.next();
            assert_eq!(again.pages(), pages(0, 1));
            complete_all(again);
            assert_eq!(load.join().unwrap(), Ok(Disk::number(0)));
            assert_eq!(write.join().unwrap(), Ok(4));
            assert_eq!(probe.join().unwrap(), Ok(()));
            mapping.remove_probe(64).unwrap();
            drop(hung);
        });
        assert_eq!(
            (process.load::<u32>(cpu, BASE + 8), device.asked()),
            (Ok(u32::from_le_bytes(*b"part")), 0)
        );
    });
}

/// Maps the file a second time, which changes the tree of its VMAs.
fn map_other(process: &Process, file: &Counted<File<Machine>>) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    process.mmap(BASE + 32 * PAGE, PAGE, RW, flags, Some(file), 0).unwrap();
    process.munmap(BASE + 32 * PAGE, PAGE).unwrap();
}

/// A write of whole pages reads nothing and replaces a page that is being read.
#[test]
fn write_of_a_whole_page_replaces_a_read() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, 3 * PAGE);
    let mapping = file.mapping();
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let read = spawn_until_waiting(scope, || read_number(mapping, 1));
        let old = device.next();
        let bytes: Vec<u8> = 5u64.to_le_bytes().into_iter().cycle().take(2 * PAGE as usize).collect();
        assert_eq!(mapping.write_at(8, &[]), Ok(0));
        assert_eq!(mapping.write_at(PAGE, &bytes), Ok(2 * PAGE as usize));
        assert_eq!(read.join().unwrap(), Ok(5));
        complete_all(old);
        assert_eq!((read_number(mapping, 1), read_number(mapping, 2)), (Ok(5), Ok(5)));
    });
    assert_eq!((cached(mapping, 3), mapping.present_pages(), device.asked()), (vec![1, 2], 2, 0));
    mapping.check();
    drop(file);
    world.end();
}

/// The bytes beyond the end of the file are zeroes, whatever the pager stores there. A growth waits for the
/// read.
#[test]
fn bytes_beyond_the_end_are_zeroed_when_the_read_ends() {
    everywhere(|world, process, cpu| {
        let device = Device::new(1);
        let file = device.file(world, 16);
        map(process, &file, pages(0, 1), MapFlags::SHARED);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let fault = spawn_until_waiting(scope, || process.handle_fault(BASE, Access::READ).map(drop));
            let grow = spawn_until_waiting(scope, || file.mapping().truncate(PAGE));
            let mut request = device.next();
            let (index, frame) = request.next_page().unwrap();
            request.platform().write_frame(frame, 0, &[0xff; PAGE as usize]);
            assert!(!grow.is_finished() && file.mapping().size() == 16);
            request.complete(index, Ok(()));
            assert_eq!((fault.join().unwrap(), grow.join().unwrap()), (Ok(()), Ok(())));
        });
        assert_eq!(process.load::<u64>(cpu, BASE + 8), Ok(u64::MAX));
        assert_eq!(process.load::<u64>(cpu, BASE + 16), Ok(0));
        // Without a growth, a mapping shows the bytes beyond the end.
        file.mapping().truncate(16).unwrap();
        file.mapping().write_back(PageRange::ALL).unwrap();
        process.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(file.mapping().drop_clean(PageRange::ALL), 1);
        std::thread::scope(|scope| {
            let _closes = device.closes_on_panic();
            let fault = spawn_until_waiting(scope, || process.handle_fault(BASE, Access::READ).map(drop));
            let mut request = device.next();
            let (index, frame) = request.next_page().unwrap();
            request.platform().write_frame(frame, 0, &[0xff; PAGE as usize]);
            request.complete(index, Ok(()));
            assert_eq!(fault.join().unwrap(), Ok(()));
        });
        assert_eq!(process.load::<u64>(cpu, BASE + 16), Ok(0));
    });
}

/// Every way to need a page waits for the read that is under way, and makes no other read.
#[test]
fn every_path_to_a_page_waits_for_the_same_read() {
    type Path = (&'static str, fn(&Process) -> bool);
    const PATHS: &[Path] = &[
        ("populate", |p| p.madvise(BASE, PAGE, Advice::PopulateRead).is_ok()),
        ("populate for writing", |p| p.madvise(BASE, PAGE, Advice::PopulateWrite).is_ok()),
        ("mlock", |p| p.mlock(BASE, PAGE).is_ok()),
        ("a pin", |p| p.pin_user_pages(BASE, 1, PinFlags::empty()).is_ok()),
        ("a fast pin", |p| p.pin_user_pages_fast(BASE, 1, PinFlags::WRITE).is_ok()),
        ("another process", |p| {
            p.read_memory(BASE, &mut [0; 8], freehold::remote::AccessMode::Plain).is_ok()
        }),
        ("a debugger", |p| p.write_memory(BASE, &[1], freehold::remote::AccessMode::Forced).is_ok()),
        ("a fault", |p| p.handle_fault(BASE, Access::READ).is_ok()),
        ("a store", |p| p.handle_fault(BASE, Access::WRITE).is_ok()),
    ];
    everywhere(|world, process, _| {
        for kind in [MapFlags::SHARED, MapFlags::PRIVATE] {
            for (what, path) in PATHS {
                let device = Device::new(1);
                let file = device.file(world, PAGE);
                map(process, &file, pages(0, 1), kind);
                std::thread::scope(|scope| {
                    let _closes = device.closes_on_panic();
                    let first = spawn_until_waiting(scope, || file.mapping().fill(PageIndex::ZERO));
                    let second = spawn_until_waiting(scope, || path(process));
                    assert!(!second.is_finished(), "{what}");
                    complete_all(device.next());
                    assert_eq!(first.join().unwrap(), Ok(()));
                    assert!(second.join().unwrap(), "{what}");
                });
                assert_eq!(device.asked(), 0, "{what}");
                process.munmap(BASE, PAGE).unwrap();
            }
        }
    });
}

/// MADV_WILLNEED starts the reads and does not wait.
#[test]
fn willneed_starts_reads_and_does_not_wait() {
    everywhere(|world, process, cpu| {
        let device = Device::new(4);
        let file = device.file(world, 10 * PAGE);
        map(process, &file, pages(0, 10), MapFlags::SHARED);
        process.madvise(BASE + PAGE, 8 * PAGE, Advice::WillNeed).unwrap();
        let mut asked = device.take_all();
        assert_eq!(asked.iter().map(Request::pages).collect::<Vec<_>>(), [pages(1, 5), pages(5, 9)]);
        process.madvise(BASE + PAGE, 8 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!((device.asked(), cached(file.mapping(), 10)), (0, vec![]));
        asked.drain(..).rev().for_each(complete_all);
        assert_eq!(process.load::<u64>(cpu, BASE + 8 * PAGE), Ok(Disk::number(8)));
        assert_eq!(device.asked(), 0);
    });
}

/// A device that fails at once ends the advice, and its pages are neither counted nor in the cache.
#[test]
fn willneed_ends_at_the_first_failure() {
    let world = World::new();
    struct Fails(Mutex<u64>);
    impl Pager<Machine> for Fails {
        fn read(&self, _: Request) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let mapping = Mapping::new(world.engine(), Fails(Mutex::new(0)), 4 * PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ, "/fails").unwrap();
    let process = world.process(Locking::default());
    process.mmap(BASE, 4 * PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
    process.madvise(BASE, 4 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(mapping.present_pages(), 0);
    mapping.check();
    assert_eq!(mapping.fill(PageIndex::ZERO), Err(FillError::Io));
    drop((process, file, mapping));
    world.end();
}

/// A frame into which a page is being read is no page yet: it does not move, and its memory is not taken out
/// of use. Neither call waits for the read.
#[test]
fn frame_of_a_read_neither_moves_nor_fails() {
    let world = World::new();
    let device = Device::new(1);
    let file = device.file(&world, PAGE);
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let read = spawn_until_waiting(scope, || read_number(file.mapping(), 0));
        let request = device.next();
        let (_, frame) = request.next_page().unwrap();
        assert_eq!(world.engine().migrate(frame), Err(MigrateError::NoPage));
        assert_eq!(world.engine().soft_offline(frame), Err(OfflineError::Busy));
        assert_eq!(world.engine().memory_failure(frame), Err(OfflineError::Busy));
        complete_all(request);
        assert_eq!(read.join().unwrap(), Ok(Disk::number(0)));
    });
    drop(file);
    world.end();
}

/// A request keeps its file and its engine alive, and may be completed after all other references are gone.
#[test]
fn request_may_outlive_its_file() {
    for completes in [true, false] {
        let world = World::new();
        let device = Device::new(4);
        let file = device.file(&world, 4 * PAGE);
        let process = world.process(Locking::default());
        map(&process, &file, pages(0, 4), MapFlags::PRIVATE);
        process.madvise(BASE, PAGE, Advice::WillNeed).unwrap();
        let request = device.next();
        drop((process, file, device));
        match completes {
            true => complete_all(request),
            false => drop(request),
        }
        world.end();
    }
}

/// Without memory for the neighbours, the request has fewer pages. Without memory for the page, the fill
/// fails.
#[test]
fn request_is_smaller_without_memory() {
    let world = World::new();
    let device = Device::new(32);
    let file = device.file(&world, 32 * PAGE);
    let process = world.process(Locking::default());
    anon(&process, BASE, 2 * (16 << 20) / PAGE);
    let mut cpu = world.machine.cpu(0);
    let touched = (0..).find(|page| process.store(&mut cpu, BASE + page * PAGE, 1u64).is_err());
    let rest = world.file(64);
    assert!((0..64).any(|page| rest.mapping().fill(PageIndex::new(page)).is_err()), "{touched:?}");
    assert_eq!(file.mapping().fill(PageIndex::new(9)), Err(FillError::NoMemory));
    assert_eq!((file.mapping().present_pages(), device.asked()), (0, 0));
    process.madvise(BASE, 4 * PAGE, Advice::DontNeed).unwrap();
    // The frames may be in the cache of this thread's CPU.
    world.engine().trim();
    std::thread::scope(|scope| {
        let _closes = device.closes_on_panic();
        let fill = spawn_until_waiting(scope, || file.mapping().fill(PageIndex::new(9)));
        let request = device.next();
        assert!(request.frame(PageIndex::new(9)).is_some() && request.len().get() < 32, "{request:?}");
        complete_all(request);
        assert_eq!(fill.join().unwrap(), Ok(()));
    });
    file.mapping().check();
    drop((process, cpu, file, rest));
    world.end();
}
