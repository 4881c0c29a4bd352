//! Storage for direct access (DAX): its frames are the pages of a file, so the page cache copies nothing. The
//! storage also keeps the words that would survive a power failure: those that were made persistent by a
//! write-back. `files/direct.rs`, `pins/files.rs`, `access/between.rs`, `random_interactions/` and `sweep/`
//! use it.
//!
//! The storage asserts that a frame that the engine returns has no user left. A test can make the storage
//! fail (`broken`) or return a wrong frame (`lie`).

use super::{
    Counted, File, FileAccess, ForeignFrames, IoError, Machine, Mapping, PAGE, Pager, Pfn, Platform, World,
    foreign, gate::Gate,
};
use freehold::{
    PageIndex, PageRange,
    file::WriteRequest,
    platform::{FramePurpose, FrameRequest},
};
use freehold_machine::exempt;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

/// State of the storage.
#[derive(Default)]
pub struct State {
    /// Frames by page number.
    pub frames: BTreeMap<u64, Pfn>,
    /// First words of pages, as they would be after a power failure.
    pub lasting: BTreeMap<u64, u64>,
    /// Pages that were made persistent, in order.
    pub persisted: Vec<u64>,
    /// Number of frames that were returned because their pages were truncated or punched.
    pub freed: usize,
    /// True if every request fails.
    pub broken: bool,
    /// Frame that the storage returns in place of its own.
    pub lie: Option<Pfn>,
    /// If set, requests to make pages persistent are put here and wait for the test.
    pub held: Option<Vec<WriteRequest<Machine>>>,
}

/// A storage device on a machine.
#[derive(Clone)]
pub struct Storage {
    machine: Machine,
    state: Arc<Mutex<State>>,
    /// Passed when the storage is asked for a frame.
    pub asked: Gate,
    /// Passed after the storage has named a frame.
    pub named: Gate,
}

impl Storage {
    pub fn new(machine: &Machine) -> Self {
        let (asked, named) = Default::default();
        Storage { machine: machine.clone(), state: Arc::default(), asked, named }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates a file of `pages` pages on the storage.
    pub fn file(&self, world: &World, pages: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::direct(world.engine(), Device(self.clone()), pages * PAGE).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/dax/file").unwrap()
    }

    pub fn frame(&self, index: u64) -> Option<Pfn> {
        self.state().frames.get(&index).copied()
    }

    pub fn freed(&self) -> usize {
        self.state().freed
    }

    /// Returns the first word of a page in the storage.
    pub fn word(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.machine.read_frame(self.frame(index).unwrap(), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns the first word of a page as it would be after a power failure now.
    pub fn lasting(&self, index: u64) -> u64 {
        self.state().lasting.get(&index).copied().unwrap_or_default()
    }

    /// Returns the pages that were made persistent since the last call.
    pub fn persisted(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().persisted)
    }

    /// Makes the pages of a request persistent.
    pub fn serve(&self, mut request: WriteRequest<Machine>) {
        while let Some((index, frame)) = request.next_page() {
            request.complete(index, self.persist(index, frame));
        }
    }

    fn persist(&self, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        if self.state().broken {
            return Err(IoError);
        }
        let index = index.get();
        assert_eq!(self.frame(index), Some(frame));
        let word = self.word(index);
        let mut state = self.state();
        exempt(|| {
            state.lasting.insert(index, word);
            state.persisted.push(index);
        });
        Ok(())
    }

    /// Returns the frame of a page, and allocates it if the page has none.
    fn name(&self, platform: &Machine, index: PageIndex) -> Result<ForeignFrames, IoError> {
        let (mut state, index) = (self.state(), index.get());
        if state.broken {
            return Err(IoError);
        }
        if let Some(frame) = state.lie.or(state.frames.get(&index).copied()) {
            return Ok(foreign(frame, 1));
        }
        let mut frame = [Pfn::new(0)];
        if platform.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame) == 0 {
            return Err(IoError);
        }
        platform.zero_frame(frame[0]);
        exempt(|| state.frames.insert(index, frame[0]));
        Ok(foreign(frame[0], 1))
    }

    fn free(&self, frame: Pfn) {
        // Not even a gather, a transfer or a lookup holds the frame.
        assert!(self.machine.frame(frame).is_free(), "{frame:?} is still in use");
        // SAFETY: the frame was allocated by the storage, and its record says that it has no user.
        unsafe { self.machine.free_frames(&[frame]) };
    }
}

/// Pager of the only file on the storage.
struct Device(Storage);

impl Pager<Machine> for Device {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.copy_frame(frame, self.direct_access(platform, index)?.first());
        Ok(())
    }

    fn direct_access(&self, platform: &Machine, index: PageIndex) -> Result<ForeignFrames, IoError> {
        self.0.asked.pass();
        let named = self.0.name(platform, index);
        self.0.named.pass();
        named
    }

    fn write(&self, request: WriteRequest<Machine>) {
        let mut state = self.0.state();
        if let Some(held) = &mut state.held {
            return exempt(|| held.push(request));
        }
        drop(state);
        self.0.serve(request);
    }

    fn discard(&self, pages: PageRange) {
        for index in pages.numbers() {
            let gone = self.0.state().frames.remove(&index);
            if let Some(frame) = gone {
                self.0.free(frame);
                self.0.state().freed += 1;
            }
            self.0.state().lasting.remove(&index);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let frames = std::mem::take(&mut self.0.state().frames);
        frames.into_values().for_each(|frame| self.0.free(frame));
    }
}
