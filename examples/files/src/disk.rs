//! A file system: a disk with one file in blocks of a page, and the pager that connects the file with the
//! engine.

use freehold::file::{IoError, Pager};
use freehold::platform::Platform;
use freehold::{PAGE_SIZE, PageIndex, PageRange, Pfn};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Block = [u8; PAGE_SIZE as usize];

/// The state of the disk, which outlives the engine.
#[derive(Default)]
struct State {
    /// The size of the file in bytes.
    size: u64,
    /// The blocks of the file. A page without a block reads as zeroes.
    blocks: BTreeMap<u64, Box<Block>>,
    /// The number of pages read and written.
    reads: u64,
    writes: u64,
}

/// A disk with one file. Clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.state().size
    }

    /// Returns the number of blocks of the file.
    pub fn blocks(&self) -> usize {
        self.state().blocks.len()
    }

    /// Returns how many pages were read from the disk and written to it.
    pub fn transfers(&self) -> (u64, u64) {
        let state = self.state();
        (state.reads, state.writes)
    }

    /// Returns the byte that the disk stores at `offset`.
    pub fn stored(&self, offset: u64) -> u8 {
        let state = self.state();
        state.blocks.get(&(offset / PAGE_SIZE)).map_or(0, |block| block[(offset % PAGE_SIZE) as usize])
    }
}

// The engine holds no lock when it calls `read_page`, `write_page` and `discard`, so these functions may
// sleep, as a disk does. `resized` must not sleep.
impl<P: Platform> Pager<P> for Disk {
    fn read_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let mut state = self.state();
        state.reads += 1;
        match state.blocks.get(&index.get()) {
            Some(block) => platform.write_frame(frame, 0, &block[..]),
            None => platform.zero_frame(frame),
        }
        Ok(())
    }

    fn write_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let mut state = self.state();
        state.writes += 1;
        let block = state.blocks.entry(index.get()).or_insert_with(|| Box::new([0; PAGE_SIZE as usize]));
        platform.read_frame(frame, 0, &mut block[..]);
        Ok(())
    }

    fn resized(&self, size: u64) {
        self.state().size = size;
    }

    fn discard(&self, pages: PageRange) {
        self.state().blocks.retain(|index, _| !pages.contains(PageIndex::new(*index)));
    }
}
