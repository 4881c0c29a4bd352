//! Sizes that the storage has changed first (`src/file/change/adopt_size.rs`). `Remote` is a file on another
//! machine: its bytes and its size change behind the cache.

use crate::support::*;
use freehold::{
    PageIndex, PageRange,
    fault::FaultError,
    file::{FillError, ReadRequest, Zeroes},
    remote::PinFlags,
};
use freehold_machine::Process;
use std::sync::{Arc, Mutex};

/// The bytes of a remote file, and the requests that it has not answered yet.
#[derive(Clone, Default)]
struct Remote {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// The requests wait here if there is a list.
    held: Arc<Mutex<Option<Vec<ReadRequest<Machine>>>>>,
}

impl Remote {
    fn with(bytes: u64) -> Self {
        let remote = Remote::default();
        remote.set(bytes, 1);
        remote
    }

    /// Sets the size of the file. New bytes have this value.
    fn set(&self, size: u64, value: u8) {
        self.bytes.lock().unwrap().resize(size as usize, value);
    }

    /// Fills the frames of a request with the bytes that the file has now.
    fn fill(&self, request: &ReadRequest<Machine>) {
        let bytes = self.bytes.lock().unwrap();
        for index in request.pages() {
            let Some(frame) = request.frame(index) else { continue };
            let start = (index.byte() as usize).min(bytes.len());
            let end = (start + PAGE as usize).min(bytes.len());
            request.platform().zero_frame(frame);
            request.platform().write_frame(frame, 0, &bytes[start..end]);
        }
    }

    /// Answers the requests that wait, and every further request at once.
    fn go_on(&self) {
        let held = self.held.lock().unwrap().take();
        held.into_iter().flatten().for_each(|request| self.answer(request));
    }

    fn answer(&self, mut request: ReadRequest<Machine>) {
        self.fill(&request);
        while let Some((index, _)) = request.next_page() {
            request.complete(index, Ok(()));
        }
    }
}

impl Pager<Machine> for Remote {
    fn read(&self, request: ReadRequest<Machine>) {
        match &mut *self.held.lock().unwrap() {
            Some(held) => held.push(request),
            None => self.answer(request),
        }
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let mut bytes = self.bytes.lock().unwrap();
        let start = (index.byte() as usize).min(bytes.len());
        let end = (start + PAGE as usize).min(bytes.len());
        platform.read_frame(frame, 0, &mut bytes[start..end]);
        Ok(())
    }

    fn discard(&self, _: PageRange) {
        unreachable!("the storage has changed its size itself");
    }

    fn resized(&self, _: u64) {
        unreachable!("the storage has changed its size itself");
    }
}

/// Returns the byte at `at` of the file.
fn byte(mapping: &Mapping<Machine>, at: u64) -> u8 {
    let mut found = [0xee];
    assert_eq!(mapping.read_at(at, &mut found), Ok(1));
    found[0]
}

/// Calls `test` with a remote file of this size, a shared mapping of 4 pages of it, and the address.
fn each(size: u64, test: impl Fn(&Remote, &Counted<File<Machine>>, &Process, &mut Vcpu, u64)) {
    for locking in Locking::ALL {
        let world = World::new();
        let remote = Remote::with(size);
        let mapping = Mapping::new(world.engine(), remote.clone(), size, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        test(&remote, &file, &process, &mut cpu, at);
        mapping.check();
        drop((mapping, file, process, cpu));
        world.end();
    }
}

#[test]
fn smaller_size_of_the_storage_removes_pages_without_telling_the_pager() {
    each(4 * PAGE, |remote, file, process, cpu, at| {
        let mapping = file.mapping();
        (0..4).for_each(|page| process.store(cpu, at + page * PAGE, 9u8).unwrap());
        remote.set(PAGE + 100, 0);
        mapping.adopt_size(PAGE + 100).unwrap();
        assert_eq!((mapping.size(), mapping.present_pages()), (PAGE + 100, 2));
        let beyond = process.load::<u8>(cpu, at + 2 * PAGE);
        assert!(matches!(beyond, Err(FaultError::Bus { .. })), "{beyond:?}");
        // The rest of the last page is zeroes, also after the file grows again.
        assert_eq!(process.load(cpu, at + PAGE + 100), Ok(0u8));
        remote.set(4 * PAGE, 5);
        mapping.write_back(PageRange::ALL).unwrap();
        mapping.adopt_size(4 * PAGE).unwrap();
        assert_eq!([PAGE, PAGE + 99, 2 * PAGE].map(|at| byte(mapping, at)), [9, 1, 5]);
    });
}

#[test]
fn smaller_size_reads_no_page() {
    each(4 * PAGE, |remote, file, _, _, _| {
        *remote.held.lock().unwrap() = Some(Vec::new());
        file.mapping().adopt_size(PAGE + 100).unwrap();
        assert_eq!(file.mapping().present_pages(), 0);
        assert!(remote.held.lock().unwrap().take().unwrap().is_empty());
    });
}

#[test]
fn larger_size_shows_the_bytes_that_the_storage_has() {
    each(PAGE + 100, |remote, file, process, cpu, at| {
        let mapping = file.mapping();
        assert_eq!(process.load(cpu, at + PAGE + 99), Ok(1u8));
        assert_eq!(process.load(cpu, at + PAGE + 100), Ok(0u8));
        remote.set(3 * PAGE, 7);
        mapping.adopt_size(3 * PAGE).unwrap();
        let found = [99, 100, PAGE].map(|at_page| process.load(cpu, at + PAGE + at_page));
        assert_eq!(found, [Ok(1u8), Ok(7), Ok(7)]);
    });
}

#[test]
fn larger_size_keeps_a_dirty_or_pinned_last_page() {
    each(100, |remote, file, process, cpu, at| {
        let mapping = file.mapping();
        process.store(cpu, at + 200, 8u8).unwrap();
        process.store(cpu, at, 8u8).unwrap();
        remote.set(PAGE, 7);
        mapping.adopt_size(PAGE).unwrap();
        // Stores beyond the old end were no part of the file.
        assert_eq!([0, 99, 100, 200].map(|at| byte(mapping, at)), [8, 1, 0, 0]);
        mapping.write_back(PageRange::ALL).unwrap();
        let pins = process.pin_user_pages(at, 1, PinFlags::empty()).unwrap();
        remote.set(PAGE + 10, 7);
        mapping.adopt_size(PAGE + 10).unwrap();
        assert_eq!([0, 100, PAGE].map(|at| byte(mapping, at)), [8, 0, 7]);
        drop(pins);
    });
}

/// A read that began with the old size lacks the new bytes.
#[test]
fn larger_size_ends_a_read_of_the_last_page() {
    each(100, |remote, file, _, _, _| {
        let mapping = file.mapping();
        *remote.held.lock().unwrap() = Some(Vec::new());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| byte(mapping, 50));
            let take = || remote.held.lock().unwrap().as_mut().and_then(Vec::pop);
            let first = std::iter::from_fn(|| Some(take())).flatten().next().unwrap();
            remote.fill(&first);
            remote.set(PAGE, 7);
            mapping.adopt_size(PAGE).unwrap();
            // The old read ends. The reader makes another one, maybe before requests are answered at once.
            remote.go_on();
            let mut first = first;
            first.complete(PageIndex::ZERO, Ok(()));
            drop(first);
            assert_eq!(reader.join().unwrap(), 1);
        });
        assert_eq!([99, 100, PAGE - 1].map(|at| byte(mapping, at)), [1, 7, 7]);
    });
}

#[test]
fn only_files_with_storage_adopt_sizes() {
    let world = World::new();
    let memory = Mapping::new(world.engine(), Zeroes, PAGE, true).unwrap();
    assert_eq!(memory.adopt_size(0), Err(FillError::Unsupported));
    let file = Mapping::new(world.engine(), Remote::with(PAGE), PAGE, false).unwrap();
    assert_eq!(file.adopt_size(u64::MAX), Err(FillError::BeyondEnd));
    assert_eq!(file.adopt_size(PAGE), Ok(()));
    drop((memory, file));
    world.end();
}
