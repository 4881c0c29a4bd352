//! Files with direct access (DAX): write-back concurrent with stores, and frames that return to the storage
//! while tasks may still use them.
//!
//! The pages of such a file are frames of the storage, not of the engine (`file/kinds/direct.rs` in
//! `freehold`). [`Storage`] is a storage in the machine's memory; `files_shared.rs` uses it too. A scenario
//! creates a `Storage`, maps its file with `map` and ends with `Scene::end`. The scenarios make two checks:
//! after a write-back, the storage has recorded the last store to each page (`State::lasting`), and a frame
//! that the engine discards has no user (`Storage::free`).

use crate::{
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, beyond, page, unmap},
};
use freehold::{
    PageIndex, PageRange, Pfn,
    file::{File, FileAccess, ForeignFrames, IoError, Mapping, Pager},
    platform::{Frame, FramePurpose, FrameRequest, Platform},
    remote::AccessMode,
};
use freehold_machine::Machine;
use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// Number of pages of the storage.
const PAGES: usize = 3;

/// State of the storage. The atomics are those of the standard library, so the checker does not switch
/// threads at their accesses.
#[derive(Default)]
struct State {
    /// Number of the frame of each page, plus one. 0 means that the page has no frame.
    frames: [AtomicU64; PAGES],
    /// First word of each page at its last write-back. Only these words are persistent.
    lasting: [AtomicU64; PAGES],
}

/// A storage whose pages are frames of the machine. When the engine discards a page, the storage frees the
/// frame at once. The storage panics if the frame still has a user.
#[derive(Clone)]
pub struct Storage {
    machine: Machine,
    state: Arc<State>,
}

/// The pager of the only file on the storage.
struct Device(Storage);

impl Storage {
    pub fn new(scene: &Scene) -> Self {
        Storage { machine: scene.machine.clone(), state: Arc::default() }
    }

    /// Creates the file, which has all pages of the storage.
    pub fn file(&self, scene: &Scene) -> Opened {
        let mapping = Mapping::direct(&scene.engine, Device(self.clone()), PAGES as u64 * PAGE).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "storage").unwrap()
    }

    /// Returns the frame of a page, if it has one.
    fn frame(&self, index: usize) -> Option<Pfn> {
        self.state.frames[index].load(SeqCst).checked_sub(1).map(Pfn::new)
    }

    /// Returns the first word of a page. The word need not be persistent.
    fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.machine.read_frame(self.frame(index).unwrap(), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Frees a frame. Panics if its record says that the frame is in use.
    fn free(&self, frame: Pfn) {
        let record: &Frame = self.machine.frame(frame);
        assert!(record.is_free(), "{frame:?} is still in use");
        // SAFETY: the frame was allocated by the storage, and its record says that it has no user.
        unsafe { self.machine.free_frames(&[frame]) };
    }

    /// Discards a page and frees its frame.
    fn take(&self, index: usize) {
        let raw = self.state.frames[index].swap(0, SeqCst);
        self.state.lasting[index].store(0, SeqCst);
        if let Some(number) = raw.checked_sub(1) {
            self.free(Pfn::new(number));
        }
    }
}

fn foreign(frame: Pfn) -> ForeignFrames {
    // SAFETY: the frame was allocated from the machine, and is freed only after no file uses it.
    unsafe { ForeignFrames::new(frame, 1) }
}

impl Pager<Machine> for Device {
    fn read_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        Err(IoError)
    }

    fn direct_access(&self, platform: &Machine, index: PageIndex) -> Result<ForeignFrames, IoError> {
        if let Some(frame) = self.0.frame(index.get() as usize) {
            return Ok(foreign(frame));
        }
        let mut new = [Pfn::new(0)];
        assert_eq!(platform.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut new), 1);
        platform.zero_frame(new[0]);
        match self.0.state.frames[index.get() as usize].compare_exchange(0, new[0].get() + 1, SeqCst, SeqCst)
        {
            Ok(_) => Ok(foreign(new[0])),
            Err(winner) => {
                self.0.free(new[0]);
                Ok(foreign(Pfn::new(winner - 1)))
            }
        }
    }

    fn write_page(&self, _: &Machine, index: PageIndex, _: Pfn) -> Result<(), IoError> {
        let word = self.0.word(index.get() as usize);
        // A scheduling point, at which another task may request the same page.
        thread::yield_now();
        self.0.state.lasting[index.get() as usize].store(word, SeqCst);
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        pages.into_iter().for_each(|index| self.0.take(index.get() as usize));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        (0..PAGES).for_each(|index| self.0.take(index));
    }
}

/// Maps the whole file shared, at page 0.
fn map(process: &freehold_machine::Process, file: &Opened) {
    let flags = freehold::space::MapFlags::SHARED | freehold::space::MapFlags::FIXED;
    let len = PAGES as u64 * PAGE;
    assert_eq!(process.mmap(page(0), len, crate::scene::RW, flags, Some(file), 0), Ok(page(0)));
}

#[test]
fn page_is_dirty_until_its_stores_are_persistent() {
    explore("write-back of a direct file concurrent with stores and munmap", 60, |locking| {
        let scene = Scene::new(locking);
        let storage = Storage::new(&scene);
        let (file, other) = (storage.file(&scene), scene.another());
        map(&scene.process, &file);
        map(&other, &file);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in 1..4u64 {
                    scene.process.store(&mut cpu, page(number % 2), number).unwrap();
                    file.mapping().write_back((0..PAGES as u64).into()).unwrap();
                    // The last store is persistent even if another task had already begun to write the page
                    // back.
                    assert_eq!(storage.state.lasting[number as usize % 2].load(SeqCst), number);
                }
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, page(2), 7u64).unwrap();
                unmap(&other, 0..PAGES as u64);
            });
            scope.spawn(|| (0..2).for_each(|_| file.mapping().write_back((0..PAGES as u64).into()).unwrap()));
        });
        // A page is dirty if its last store is not persistent. This call therefore makes all stores
        // persistent.
        file.mapping().write_back((0..PAGES as u64).into()).unwrap();
        let (stored, lasting): ([u64; PAGES], [u64; PAGES]) = (
            array::from_fn(|index| storage.word(index)),
            array::from_fn(|index| storage.state.lasting[index].load(SeqCst)),
        );
        assert_eq!((stored, lasting), ([2, 3, 7], [2, 3, 7]));
        // The next store makes the page dirty, too.
        scene.process.store(&mut scene.machine.cpu(0), page(0), 9u64).unwrap();
        file.mapping().write_back((0..PAGES as u64).into()).unwrap();
        assert_eq!(storage.state.lasting[0].load(SeqCst), 9);
        unmap(&scene.process, 0..PAGES as u64);
        drop((file, other));
        scene.end();
    });
}

/// The truncation waits for references to the frames, and the addition for the truncation's lock.
#[test]
fn probe_and_truncation_of_a_direct_file_do_not_wait_for_each_other() {
    explore("a probe of a direct file concurrent with a truncation", 60, |locking| {
        let scene = Scene::new(locking);
        let storage = Storage::new(&scene);
        let file = storage.file(&scene);
        map(&scene.process, &file);
        scene.process.store(&mut scene.machine.cpu(0), page(1), 7u64).unwrap();
        let added = thread::scope(|scope| {
            scope.spawn(|| file.mapping().truncate(PAGE).unwrap());
            scope.spawn(|| file.mapping().add_probe(PAGE, &[0xcc]).is_ok()).join().unwrap()
        });
        assert_eq!(file.mapping().remove_probe(PAGE).is_ok(), added);
        unmap(&scene.process, 0..PAGES as u64);
        drop(file);
        scene.end();
    });
}

#[test]
fn c58_frame_returns_to_the_storage_without_users() {
    explore("truncation of a direct file concurrent with munmap, a transfer and stores", 60, |locking| {
        let scene = Scene::new(locking);
        let storage = Storage::new(&scene);
        let (file, other) = (storage.file(&scene), scene.another());
        map(&scene.process, &file);
        map(&other, &file);
        other.store(&mut scene.machine.cpu(1), page(1), 7u64).unwrap();
        let bus_or_done = |result| assert!(result == Ok(()) || result == beyond(page(1)), "{result:?}");
        thread::scope(|scope| {
            scope.spawn(|| bus_or_done(scene.process.store(&mut scene.machine.cpu(0), page(1), 8u64)));
            scope.spawn(|| unmap(&other, 0..2));
            scope.spawn(|| {
                let _ = scene.process.read_memory(page(1), &mut [0; 16], AccessMode::Plain);
            });
            scope.spawn(|| file.mapping().truncate(PAGE).unwrap());
        });
        assert_eq!(storage.frame(1), None);
        assert_eq!(scene.process.load::<u64>(&mut scene.machine.cpu(0), page(1)), beyond(page(1)));
        other.check();
        drop((file, other));
        scene.end();
    });
}
