//! A device with memory of its own, the *board*, and its driver. A test chooses the behaviour of the driver
//! ([`DriverMode`]), can run code inside a hook ([`Board::inside`]), and reads how often each hook was called
//! ([`Counts`]). The modules `special` and `sweep` use the board.
//!
//! Hooks are the functions that the engine calls on an embedder's driver and mappings (`Driver`, `VmOps`).
//! The hooks check their own arguments. The balance of `open` and `close` is checked when a mapping is
//! dropped, and by [`Board::assert_closed`], which a test calls after its last process has ended. A new hook
//! of [`VmOps`] must call `enter` with its name, so that [`Board::inside`] can use it.

use super::*;
use freehold::{
    PageIndex, UserRange,
    error::{MmapError, MremapError},
    file::{Caching, Driver, HookFault, MapRequest, Special, VmOps, VmaInfo},
    platform::{FramePurpose, FrameRequest},
    vma::flags::VmFlags,
};
use freehold_machine::Mmu;
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
};

/// Behaviour of the driver.
#[derive(Clone, Default)]
pub struct DriverMode {
    /// If set, mmap maps all pages at once, and fails when it reaches this page.
    pub whole: Option<u64>,
    /// Flags to set.
    pub add: VmFlags,
    /// Flags to clear.
    pub take: VmFlags,
    /// True if VMAs may be split.
    pub splits: bool,
    /// True if moves are refused.
    pub stays: bool,
    /// Pages on which faults fail.
    pub gone: BTreeSet<u64>,
    /// True if the driver wants to be notified of first stores.
    pub notified: bool,
    /// True if all mappings share one object.
    pub one_for_all: bool,
    /// Number that is added to a page's offset to find the frame that the driver maps for the page. A test
    /// changes this number to make the driver map other frames of the board.
    pub exchanged: u64,
}

/// Counts of events.
#[derive(Default)]
pub struct Counts {
    pub opened: AtomicU64,
    pub closed: AtomicU64,
    /// Objects of private data that were created and dropped.
    pub made: AtomicU64,
    pub dropped: AtomicU64,
    pub faults: AtomicU64,
    pub writes: AtomicU64,
    /// Target of the last move.
    pub moved_to: AtomicU64,
}

/// A function that runs inside a hook.
type Hook = Box<dyn Fn() + Send + Sync>;

/// A device: its frames, the mode of its driver, and the counts of the calls of its hooks.
pub struct Board {
    machine: Machine,
    frames: Vec<Pfn>,
    pub counts: Counts,
    driver_mode: Mutex<DriverMode>,
    /// A function that runs once, inside the next hook of this name.
    inside: Mutex<Option<(&'static str, Hook)>>,
    shared: Mutex<Option<Counted<Special<Machine>>>>,
}

/// The driver of an open file.
pub struct OpenBoard(pub Arc<Board>);

/// One mapping of the board.
struct Mapped {
    board: Arc<Board>,
    /// Number of VMAs of this mapping.
    open: AtomicI64,
}

/// Number of pages of the board that can be mapped. The board has twice as many frames.
pub const PAGES: u64 = 8;

impl Board {
    /// Returns the first word of a page before any store.
    pub fn number(page: u64) -> u64 {
        page * 100 + 5
    }

    pub fn new(machine: &Machine) -> Arc<Self> {
        Self::sized(machine, PAGES)
    }

    /// Returns a board with `2 * pages` frames, each with its number in the first word.
    pub fn sized(machine: &Machine, pages: u64) -> Arc<Self> {
        let mut frames = vec![Pfn::new(0); 2 * pages as usize];
        // One allocation, so that the frames are contiguous.
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), frames.len());
        for (page, &frame) in (0..).zip(&frames) {
            machine.zero_frame(frame);
            machine.write_frame(frame, 0, &Board::number(page).to_le_bytes());
        }
        Arc::new(Board {
            machine: machine.clone(),
            frames,
            counts: Counts::default(),
            driver_mode: Mutex::default(),
            inside: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// Opens the board as a device file, for reading and writing.
    pub fn open(self: &Arc<Self>, world: &World) -> Counted<File<Machine>> {
        self.open_as(world, FileAccess::READ_WRITE)
    }

    pub fn open_as(self: &Arc<Self>, world: &World, access: FileAccess) -> Counted<File<Machine>> {
        let mapping = Mapping::new(world.engine(), freehold::file::Zeroes, 0, true).unwrap();
        File::with_driver(&mapping, OpenBoard(self.clone()), access, "/dev/board").unwrap()
    }

    pub fn driver_mode(&self) -> MutexGuard<'_, DriverMode> {
        self.driver_mode.lock().unwrap()
    }

    /// Runs `f` once, inside the next hook of this name. The names are `open`, `close`, `fault` and
    /// `mkwrite`, as in [`VmOps`], and `mmap` and `mapped` for the start and the end of the mmap hook.
    pub fn inside(&self, hook: &'static str, f: impl Fn() + Send + Sync + 'static) {
        *self.inside.lock().unwrap() = Some((hook, Box::new(f)));
    }

    fn enter(&self, hook: &'static str) {
        let mut inside = self.inside.lock().unwrap();
        if inside.as_ref().is_some_and(|(name, _)| *name == hook) {
            let (_, f) = inside.take().unwrap();
            drop(inside);
            f();
        }
    }

    pub fn frame(&self, page: u64) -> Pfn {
        self.frames[page as usize]
    }

    /// Returns the first word of a page, as the device sees it.
    pub fn word(&self, page: u64) -> u64 {
        let mut bytes = [0; 8];
        self.machine.read_frame(self.frame(page), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns the number of VMAs that were opened and not yet closed.
    pub fn open_vmas(&self) -> u64 {
        self.counts.opened.load(SeqCst) - self.counts.closed.load(SeqCst)
    }

    /// Checks that no VMA maps the board and that all its objects were dropped.
    #[track_caller]
    pub fn assert_closed(&self) {
        self.shared.lock().unwrap().take();
        assert_eq!(self.open_vmas(), 0, "VMAs that were opened and not closed");
        let (made, dropped) = (self.counts.made.load(SeqCst), self.counts.dropped.load(SeqCst));
        assert_eq!(made, dropped, "leaked private data");
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the frames were allocated from the machine. No mapping is left, because every mapping holds
        // a reference to the board.
        unsafe { self.machine.free_frames(&self.frames) };
    }
}

impl Driver<Machine> for OpenBoard {
    fn mmap(&self, request: &mut MapRequest<'_, Machine>) -> Result<Counted<Special<Machine>>, MmapError> {
        let board = &self.0;
        board.enter("mmap");
        let driver_mode = board.driver_mode().clone();
        if driver_mode.one_for_all
            && let Some(shared) = &*board.shared.lock().unwrap()
        {
            return Ok(shared.clone());
        }
        let ops = Mapped { board: board.clone(), open: AtomicI64::new(0) };
        board.counts.made.fetch_add(1, SeqCst);
        let special = Special::of_file(ops, request.file().mapping())?;
        request.set_flags((request.vma().flags | driver_mode.add) - driver_mode.take)?;
        if let Some(fails_at) = driver_mode.whole {
            for page in 0..request.vma().pages().get() {
                if page == fails_at {
                    return Err(MmapError::NotReady);
                }
                let first = board.frame(request.vma().pgoff.get() + page + driver_mode.exchanged);
                request.map_frames(page, foreign(first, 1))?;
            }
        }
        if driver_mode.one_for_all {
            *board.shared.lock().unwrap() = Some(special.clone());
        }
        board.enter("mapped");
        Ok(special)
    }
}

impl VmOps<Machine> for Mapped {
    fn name(&self) -> &str {
        "/dev/board"
    }

    fn open(&self, _: &Mmu<DefaultFormat>, vma: &VmaInfo) {
        assert!(!vma.range.is_empty());
        self.board.counts.opened.fetch_add(1, SeqCst);
        self.open.fetch_add(1, SeqCst);
        self.board.enter("open");
    }

    fn close(&self, _: &Mmu<DefaultFormat>, vma: &VmaInfo) {
        assert!(!vma.range.is_empty());
        self.board.counts.closed.fetch_add(1, SeqCst);
        assert!(self.open.fetch_sub(1, SeqCst) > 0, "closed more often than opened");
        self.board.enter("close");
    }

    fn may_split(&self, vma: &VmaInfo, at: u64) -> bool {
        assert!(vma.range.start() < at && at < vma.range.end());
        self.board.driver_mode().splits
    }

    fn mremap(&self, _: &Mmu<DefaultFormat>, vma: &VmaInfo, to: UserRange) -> Result<(), MremapError> {
        assert!(vma.range.len() <= to.len());
        if self.board.driver_mode().stays {
            return Err(MremapError::NotMapped);
        }
        self.board.counts.moved_to.store(to.start(), SeqCst);
        Ok(())
    }

    fn fault(
        &self,
        _: &Mmu<DefaultFormat>,
        vma: &VmaInfo,
        pgoff: PageIndex,
        _: bool,
    ) -> Result<ForeignFrames, HookFault> {
        assert!((vma.pgoff..vma.pgoff + vma.pages()).contains(&pgoff));
        self.board.counts.faults.fetch_add(1, SeqCst);
        let driver_mode = self.board.driver_mode().clone();
        let pgoff = pgoff.get();
        let found = if pgoff >= PAGES || driver_mode.gone.contains(&pgoff) {
            Err(HookFault::Bus)
        } else {
            Ok(foreign(self.board.frame(pgoff + driver_mode.exchanged), 1))
        };
        self.board.enter("fault");
        found
    }

    fn notifies_writes(&self) -> bool {
        self.board.driver_mode().notified
    }

    fn mkwrite(&self, _: &Mmu<DefaultFormat>, _: &VmaInfo, pgoff: PageIndex) -> Result<(), HookFault> {
        self.board.counts.writes.fetch_add(1, SeqCst);
        let gone = self.board.driver_mode().gone.contains(&pgoff.get());
        self.board.enter("mkwrite");
        if gone { Err(HookFault::Segv) } else { Ok(()) }
    }

    fn caching(&self) -> Caching {
        Caching::Uncached
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.board.counts.dropped.fetch_add(1, SeqCst);
        assert_eq!(*self.open.get_mut(), 0, "dropped while VMAs map it");
    }
}
