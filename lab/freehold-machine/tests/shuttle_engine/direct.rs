//! Direct access (DAX): write-back concurrent with stores, and frames that are returned while other tasks may
//! still use them.

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

const PAGES: usize = 3;

/// State of the storage. No method waits, so the checker need not explore it.
#[derive(Default)]
struct State {
    /// Frame of each page, plus one; 0 stands for none.
    frames: [AtomicU64; PAGES],
    /// Persistent first words of pages.
    lasting: [AtomicU64; PAGES],
}

/// Storage that is memory of the machine. The storage frees each returned frame at once, so the frame must
/// have no user left.
#[derive(Clone)]
pub struct Storage {
    machine: Machine,
    state: Arc<State>,
}

/// Pager of the only file on the storage.
struct Device(Storage);

impl Storage {
    pub fn new(scene: &Scene) -> Self {
        Storage { machine: scene.machine.clone(), state: Arc::default() }
    }

    /// Creates a file of all pages.
    pub fn file(&self, scene: &Scene) -> Opened {
        let mapping = Mapping::direct(&scene.engine, Device(self.clone()), PAGES as u64 * PAGE).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "storage").unwrap()
    }

    fn frame(&self, index: usize) -> Option<Pfn> {
        self.state.frames[index].load(SeqCst).checked_sub(1).map(Pfn::new)
    }

    fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.machine.read_frame(self.frame(index).unwrap(), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn free(&self, frame: Pfn) {
        let record: &Frame = self.machine.frame(frame);
        assert!(record.is_free(), "{frame:?} is still in use");
        // SAFETY: the frame was allocated by the storage, and its record says that it has no user.
        unsafe { self.machine.free_frames(&[frame]) };
    }

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
                    // This holds even if another task had begun to write the page back.
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
        // A page is dirty exactly if its last store is not persistent, so this call makes all stores
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
