//! The device of a replay in little memory: a swap device and the storage of files, with one queue.
//!
//! A read is complete when the call returns, and the task waits in virtual time only. A write stays in the
//! queue, and keeps its frames, until its time has come or a task waits for it. Contents are stored only if
//! the frames have contents; otherwise pages read as the fill of the machine. No completion happens under the
//! lock of the state, because a completion may discard slots.

use super::{LATENCY, ShortMemory, State};
use crate::workers::lock;
use freehold::PageIndex;
use freehold::Pfn;
use freehold::file::{IoError, Pager};
use freehold::platform::Platform;
use freehold::swap::{SwapDevice, SwapRead, SwapWrite};
use freehold_machine::Machine;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

const PAGE: usize = 4096;

/// The requests that wait, and what the device stores.
pub(super) struct Queue {
    /// The time at which the device has served all requests.
    idle_at: u64,
    /// Writes to the swap device, each with the time of its end.
    writes: VecDeque<(u64, SwapWrite<Machine>)>,
    /// Number of pages of these writes.
    pages: u64,
    /// The contents of slots, if frames have contents.
    contents: HashMap<u64, Box<[u8]>>,
    /// True if frames have contents.
    keeps: bool,
    /// The pages of files that were read before.
    seen: HashSet<(u32, u64)>,
    /// The step, file and page of the last read of a file. A read of the next page in the same step is a part
    /// of the same request.
    last: (u64, u32, u64),
}

impl Queue {
    pub(super) fn new(keeps: bool) -> Queue {
        Queue {
            idle_at: 0,
            writes: VecDeque::new(),
            pages: 0,
            contents: HashMap::default(),
            keeps,
            seen: HashSet::default(),
            last: (0, 0, 0),
        }
    }

    /// Returns the number of pages that are being written.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds a request at this time. Returns the time of its end.
    fn add(&mut self, now: u64) -> u64 {
        self.idle_at = self.idle_at.max(now) + LATENCY;
        self.idle_at
    }
}

impl State {
    /// Adds a request of the current task. Returns the time of its end.
    fn request(&mut self) -> u64 {
        let now = self.now();
        self.queue.add(now)
    }
}

impl ShortMemory {
    /// Ends the writes whose time has come.
    pub(super) fn finish_due(&self) {
        loop {
            let write = {
                let mut state = lock(&self.state);
                let now = state.now();
                let due = state.queue.writes.front().is_some_and(|(end, _)| *end <= now);
                due.then(|| state.queue.writes.pop_front()).flatten()
            };
            let Some((_, write)) = write else { return };
            self.finish(write);
        }
    }

    /// Makes the current task wait for the oldest write. Returns false if there is none.
    pub(super) fn finish_oldest(&self) -> bool {
        let write = {
            let mut state = lock(&self.state);
            let oldest = state.queue.writes.pop_front();
            oldest.map(|(end, write)| {
                state.wait_until(end);
                write
            })
        };
        write.map(|write| self.finish(write)).is_some()
    }

    /// Ends all writes, at the end of the replay.
    pub(in super::super) fn finish_all(&self) {
        while let Some((_, write)) = { lock(&self.state).queue.writes.pop_front() } {
            self.finish(write);
        }
    }

    /// Ends a write.
    fn finish(&self, mut write: SwapWrite<Machine>) {
        while let Some((slot, frame)) = write.next_page() {
            {
                let mut state = lock(&self.state);
                state.queue.pages -= 1;
                state.figures.written += 1;
                if state.queue.keeps {
                    let mut page = vec![0; PAGE].into_boxed_slice();
                    write.platform().read_frame(frame, 0, &mut page);
                    state.queue.contents.insert(slot, page);
                }
            }
            write.complete(slot, Ok(()));
        }
    }

    /// Reads a page of a file. The first read costs nothing, because the page was in the page cache when the
    /// program was recorded, or the recording contains the wait.
    fn read_file(&self, file: u32, index: u64) {
        let mut state = lock(&self.state);
        if state.queue.seen.insert((file, index)) {
            return;
        }
        state.figures.reread += 1;
        let (step, last) = (state.step, state.queue.last);
        state.queue.last = (step, file, index);
        if last != (step, file, index.wrapping_sub(1)) {
            let end = state.request();
            state.wait_until(end);
        }
    }
}

/// The swap device.
pub(in super::super) struct SwapFile {
    pub(in super::super) memory: Arc<ShortMemory>,
    /// Number of slots.
    pub(in super::super) slots: u64,
}

impl SwapDevice<Machine> for SwapFile {
    fn slots(&self) -> u64 {
        self.slots
    }

    fn read(&self, mut request: SwapRead<Machine>) {
        {
            let mut state = lock(&self.memory.state);
            state.figures.swap_ins += request.len();
            let end = state.request();
            state.wait_until(end);
        }
        while let Some((slot, frame)) = request.next_page() {
            {
                let state = lock(&self.memory.state);
                if let Some(page) = state.queue.contents.get(&slot) {
                    request.platform().write_frame(frame, 0, page);
                }
            }
            request.complete(slot, Ok(()));
        }
    }

    fn write(&self, request: SwapWrite<Machine>) {
        let mut state = lock(&self.memory.state);
        let end = state.request();
        state.queue.pages += request.len();
        state.queue.writes.push_back((end, request));
    }

    fn discard(&self, slot: u64) {
        lock(&self.memory.state).queue.contents.remove(&slot);
    }
}

/// The storage of a file. Pages read as zeroes, as in a replay with enough memory.
pub(in super::super) struct Stored {
    pub(in super::super) memory: Arc<ShortMemory>,
    /// The number of the file in the plan.
    pub(in super::super) file: u32,
}

impl Pager<Machine> for Stored {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        self.memory.read_file(self.file, index.get());
        Ok(())
    }

    fn write_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        let mut state = lock(&self.memory.state);
        state.figures.written += 1;
        state.request();
        Ok(())
    }
}
