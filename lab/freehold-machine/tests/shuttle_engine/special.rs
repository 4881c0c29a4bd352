//! Mappings with hooks of the embedder: frames that are revoked concurrently with faults that request them,
//! hooks that fail concurrently with other faults, and VMAs that are closed exactly once (C-30, C-31).
//!
//! The code under test is `file/kinds/special.rs`, `fault/special.rs` and `file/change/revoke.rs`. [`Board`]
//! is a device whose two banks of frames replace each other. After `Handle::switch`, the old bank contains
//! [`GONE`]; `look` fails if a task still reads it. The board counts the VMAs that were opened and not
//! closed, and `end` requires that the count is 0.

use crate::{
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, RW, Scene, Vcpu, beyond, page},
};
use freehold::{
    PageIndex, Pfn,
    counted::Counted,
    error::MmapError,
    file::{
        Driver, File, FileAccess, ForeignFrames, HookFault, MapRequest, Mapping, Special, VmOps, VmaInfo,
        Zeroes,
    },
    platform::{FramePurpose, FrameRequest, Platform},
    space::MapFlags,
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Machine, Mmu, Process};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

const PAGES: u64 = 2;
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
/// First word of each frame of the bank that is not in use.
const GONE: u64 = u64::MAX;

/// A device with two banks of memory, one of which is in use. The atomics are those of the standard library,
/// so the checker does not switch threads at their accesses.
struct Board {
    machine: Machine,
    frames: [Pfn; 2 * PAGES as usize],
    /// Number of the bank in use.
    bank: AtomicU64,
    /// True if mmap maps all pages at once.
    whole: bool,
    /// True if the next hook that returns a frame fails.
    fails: AtomicBool,
    /// Number of VMAs that were opened and not closed.
    open: AtomicU64,
}

/// The board as the driver of a file.
#[derive(Clone)]
struct Handle(Arc<Board>);

/// The hooks of a mapping of the board.
struct Mapped(Arc<Board>);

impl Board {
    /// Creates a board. Page `n` of the bank in use begins with `n` + 1.
    fn plugged(scene: &Scene, whole: bool) -> Handle {
        let mut frames = [Pfn::new(0); 2 * PAGES as usize];
        assert_eq!(
            scene.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames),
            frames.len()
        );
        let board = Board {
            machine: scene.machine.clone(),
            frames,
            bank: AtomicU64::new(0),
            whole,
            fails: AtomicBool::new(false),
            open: AtomicU64::new(0),
        };
        for frame in frames {
            board.machine.zero_frame(frame);
        }
        board.write(0, |page| page + 1);
        board.write(1, |_| GONE);
        Handle(Arc::new(board))
    }

    fn frame(&self, bank: u64, page: u64) -> Pfn {
        self.frames[(bank * PAGES + page) as usize]
    }

    fn foreign(&self, bank: u64, page: u64) -> ForeignFrames {
        // SAFETY: the frames were allocated from the machine. The frames are freed only when no mapping is
        // left, because every mapping holds a reference to the board.
        unsafe { ForeignFrames::new(self.frame(bank, page), 1) }
    }

    fn write(&self, bank: u64, value: impl Fn(u64) -> u64) {
        for page in 0..PAGES {
            self.machine.write_frame(self.frame(bank, page), 0, &value(page).to_le_bytes());
        }
    }
}

impl Handle {
    fn file(&self, scene: &Scene) -> Opened {
        let mapping = Mapping::new(&scene.engine, Zeroes, 0, true).unwrap();
        File::with_driver(&mapping, self.clone(), FileAccess::READ_WRITE, "board").unwrap()
    }

    /// Switches to the other bank. No task reaches the old bank after the call has returned.
    fn switch(&self, file: &Opened) {
        let old = self.0.bank.load(SeqCst);
        self.0.write(1 - old, |page| page + 1);
        self.0.bank.store(1 - old, SeqCst);
        file.mapping().revoke((0..PAGES).into(), true);
        self.0.write(old, |_| GONE);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        assert_eq!(*self.open.get_mut(), 0, "VMAs that were never closed");
        // SAFETY: the frames were allocated from the machine. No mapping is left, because every mapping holds
        // a reference to the board.
        unsafe { self.machine.free_frames(&self.frames) };
    }
}

impl Driver<Machine> for Handle {
    fn mmap(&self, request: &mut MapRequest<'_, Machine>) -> Result<Counted<Special<Machine>>, MmapError> {
        let bank = self.0.bank.load(SeqCst);
        for page in 0..if self.0.whole { PAGES } else { 0 } {
            request.map_frames(page, self.0.foreign(bank, page))?;
            if self.0.fails.swap(false, SeqCst) {
                return Err(MmapError::NotReady);
            }
        }
        Ok(Special::of_file(Mapped(self.0.clone()), request.file().mapping())?)
    }
}

impl VmOps<Machine> for Mapped {
    fn open(&self, _: &Mmu<DefaultFormat>, _: &VmaInfo) {
        self.0.open.fetch_add(1, SeqCst);
    }

    fn close(&self, _: &Mmu<DefaultFormat>, _: &VmaInfo) {
        assert!(self.0.open.fetch_sub(1, SeqCst) > 0, "closed more often than opened");
    }

    fn may_split(&self, _: &VmaInfo, _: u64) -> bool {
        true
    }

    fn fault(
        &self,
        _: &Mmu<DefaultFormat>,
        _: &VmaInfo,
        pgoff: PageIndex,
        _: bool,
    ) -> Result<ForeignFrames, HookFault> {
        if self.0.fails.swap(false, SeqCst) {
            return Err(HookFault::Bus);
        }
        Ok(self.0.foreign(self.0.bank.load(SeqCst), pgoff.get()))
    }
}

/// Maps all pages of the board, beginning at page 0 of the space.
fn map(process: &Process, file: &Opened) -> Result<u64, MmapError> {
    process.mmap(page(0), PAGES * PAGE, RW, SHARED, Some(file), 0)
}

/// Reads every page. A page must contain its number plus one, or raise SIGSEGV because it is unmapped.
fn look(process: &Process, cpu: &mut Vcpu) {
    for number in 0..PAGES {
        match process.load::<u64>(cpu, page(number)) {
            Ok(found) => assert_eq!(found, number + 1, "page {number}"),
            Err(error) => assert!(matches!(error, freehold::fault::FaultError::Segv { .. }), "{error:?}"),
        }
    }
}

/// Ends a scenario. Checks that every VMA was closed and nothing leaked.
fn end(scene: Scene, board: Handle) {
    scene.process.munmap(page(0), 64 * PAGE).unwrap();
    assert_eq!(board.0.open.load(SeqCst), 0);
    drop(board);
    scene.end();
}

/// Runs `name`: a switch of the bank, concurrent with faults and fork. If `whole` is true, mmap maps all
/// frames at once, and this call also runs concurrently.
fn taken_back(name: &'static str, whole: bool) {
    explore(name, 60, move |locking| {
        let scene = Scene::new(locking);
        let board = Board::plugged(&scene, whole);
        let file = board.file(&scene);
        if !whole {
            map(&scene.process, &file).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                if whole {
                    map(&scene.process, &file).unwrap();
                }
                look(&scene.process, &mut cpu);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                look(&scene.process, &mut cpu);
                let child = Process::of(scene.process.fork().unwrap());
                look(&child, &mut cpu);
                child.check();
            });
            board.switch(&file);
        });
        look(&scene.process, &mut scene.machine.cpu(2));
        file.mapping().check();
        drop(file);
        end(scene, board);
    });
}

#[test]
fn revocation_concurrent_with_faults_and_fork() {
    taken_back("revocation concurrent with faults and fork", false);
}

#[test]
fn revocation_concurrent_with_a_mapping_of_all_frames() {
    taken_back("revocation concurrent with a mapping of all frames, faults and fork", true);
}

/// Has as few steps as possible, so that some schedules revoke the frames after the fault has checked the
/// answer of the hook and before it installs the entry.
#[test]
fn revocation_concurrent_with_one_fault() {
    explore("revocation concurrent with one fault", 100, |locking| {
        let scene = Scene::new(locking);
        let board = Board::plugged(&scene, false);
        let file = board.file(&scene);
        map(&scene.process, &file).unwrap();
        look(&scene.process, &mut scene.machine.cpu(2));
        file.mapping().revoke((0..PAGES).into(), true);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(scene.process.load::<u64>(&mut cpu, page(0)), Ok(1));
            });
            board.switch(&file);
        });
        look(&scene.process, &mut scene.machine.cpu(2));
        drop(file);
        end(scene, board);
    });
}

/// C-31: the fault hook fails for one thread. The other thread gets the page, and so does a later access.
#[test]
fn c31_failed_hook_does_not_affect_a_concurrent_fault() {
    explore("a failed fault hook concurrent with another fault", 40, |locking| {
        let scene = Scene::new(locking);
        let board = Board::plugged(&scene, false);
        let file = board.file(&scene);
        map(&scene.process, &file).unwrap();
        board.0.fails.store(true, SeqCst);
        let results: Vec<_> = thread::scope(|scope| {
            let fault = |number| {
                let scene = &scene;
                scope.spawn(move || scene.process.load::<u64>(&mut scene.machine.cpu(number), page(0)))
            };
            let threads = [fault(0), fault(1)];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let failed = results.iter().filter(|result| **result == beyond(page(0))).count();
        let served = results.iter().filter(|result| **result == Ok(1)).count();
        assert_eq!((failed, served), (1, 1));
        assert_eq!(scene.process.load(&mut scene.machine.cpu(2), page(0)), Ok(1u64));
        drop(file);
        end(scene, board);
    });
}

/// C-31 a: an mmap hook fails after it has mapped a page. The mapping that the call would have replaced
/// stays.
#[test]
fn c31_failed_mmap_hook_keeps_the_old_mapping() {
    explore("a failed mmap hook concurrent with stores", 40, |locking| {
        let scene = Scene::new(locking);
        let board = Board::plugged(&scene, true);
        let file = board.file(&scene);
        scene.fill(0..PAGES);
        board.0.fails.store(true, SeqCst);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in 0..PAGES {
                    scene.process.store(&mut cpu, page(number), 50 + number).unwrap();
                }
            });
            assert_eq!(map(&scene.process, &file), Err(MmapError::NotReady));
        });
        let mut cpu = scene.machine.cpu(1);
        for number in 0..PAGES {
            assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(50 + number));
        }
        assert_eq!(board.0.open.load(SeqCst), 0);
        drop((cpu, file));
        end(scene, board);
    });
}

/// C-30, C-31: a munmap of a part, a fork, and a mapping over all pages run concurrently. Each VMA is closed
/// once, and the board is freed once.
#[test]
fn c30_c31_each_vma_is_closed_once() {
    explore("munmap concurrent with fork and a mapping over all pages", 60, |locking| {
        let scene = Scene::new(locking);
        let board = Board::plugged(&scene, true);
        let file = board.file(&scene);
        map(&scene.process, &file).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                look(&child, &mut scene.machine.cpu(0));
                child.munmap(page(1), PAGE).unwrap();
            });
            scope.spawn(|| scene.process.munmap(page(0), PAGE).unwrap());
            map(&scene.process, &file).unwrap();
        });
        drop(file);
        let open = scene.process.maps(0).count() as u64;
        assert_eq!(board.0.open.load(SeqCst), open);
        end(scene, board);
    });
}
