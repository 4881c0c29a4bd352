//! A swap device in memory. It completes requests at once or when a test says so, fails the reads and writes
//! that a test chooses, by slot or by a seed, and checks the rules that the engine promises to devices.
//!
//! | oracle | panics if |
//! | --- | --- |
//! | read | a slot is read that has no contents |
//! | write | a slot is written whose contents were not discarded, or while another write of it is under way |
//! | bad | a slot is used after one of its writes has failed |
//!
//! A test keeps a clone of the device, because the engine owns the device itself. Requests that wait in the
//! device keep the device: a test completes or drops them before it ends the engine. `tests/swap.rs` of the
//! engine uses the device.

use crate::DefaultFormat;
use crate::{Machine, exempt, host::Lock};
use freehold::{
    file::IoError,
    platform::Platform,
    swap::{SwapDevice, SwapRead, SwapWrite},
};
use freehold_pagetable::{Format, PAGE_SIZE, Pfn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A swap device in memory, which completes requests when a test says so, and checks what the engine asks of
/// it. Clones are the same device.
pub struct MemorySwap<F: Format = DefaultFormat> {
    slots: u64,
    merges: bool,
    state: Arc<Lock<State<F>>>,
}

/// Numbers of events of a [`MemorySwap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySwapStats {
    /// Requests to read.
    pub read_requests: u64,
    /// Requests to write.
    pub write_requests: u64,
    /// Pages that were read without an error.
    pub pages_read: u64,
    /// Pages that were written without an error.
    pub pages_written: u64,
    /// Slots that were discarded.
    pub discards: u64,
}

/// A request that waits until the test completes it.
enum Waiting<F: Format> {
    Read(SwapRead<Machine<F>>),
    Write(SwapWrite<Machine<F>>),
}

/// Failures by a seed.
struct Seeded {
    state: u64,
    /// Number of pages that fail, of 1024.
    share: u64,
}

struct State<F: Format> {
    /// The contents of the slots that were written.
    pages: BTreeMap<u64, Box<[u8]>>,
    /// The slots that are being written.
    writing: BTreeSet<u64>,
    /// The slots whose write has failed.
    bad: BTreeSet<u64>,
    /// True if requests wait in `waiting`.
    later: bool,
    waiting: VecDeque<Waiting<F>>,
    failing_reads: BTreeSet<u64>,
    failing_writes: BTreeSet<u64>,
    seeded: Option<Seeded>,
    stats: MemorySwapStats,
}

impl<F: Format> Clone for MemorySwap<F> {
    fn clone(&self) -> Self {
        MemorySwap { slots: self.slots, merges: self.merges, state: self.state.clone() }
    }
}

impl<F: Format> MemorySwap<F> {
    /// Creates a device with this many slots, which completes requests at once.
    #[must_use]
    pub fn new(slots: u64) -> Self {
        let state = exempt(|| {
            Arc::new(Lock::new(State {
                pages: BTreeMap::new(),
                writing: BTreeSet::new(),
                bad: BTreeSet::new(),
                later: false,
                waiting: VecDeque::new(),
                failing_reads: BTreeSet::new(),
                failing_writes: BTreeSet::new(),
                seeded: None,
                stats: MemorySwapStats::default(),
            }))
        });
        MemorySwap { slots, merges: true, state }
    }

    /// Makes each request have a single page.
    #[must_use]
    pub fn without_merging(self) -> Self {
        MemorySwap { merges: false, ..self }
    }

    /// Makes later requests wait until the test completes them, or completes them at once again. A device
    /// whose requests are never completed hangs.
    pub fn complete_later(&self, later: bool) {
        self.state.lock().later = later;
    }

    /// Returns the number of requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Completes the request that has waited longest. Returns false if no request waits.
    pub fn complete_next(&self) -> bool {
        let next = self.state.lock().waiting.pop_front();
        self.perform(next)
    }

    /// Completes the request that has waited shortest. Returns false if no request waits.
    pub fn complete_last(&self) -> bool {
        let last = self.state.lock().waiting.pop_back();
        self.perform(last)
    }

    /// Drops the request that has waited longest without completing it, so that its pages fail. Returns false
    /// if no request waits.
    pub fn drop_next(&self) -> bool {
        let next = self.state.lock().waiting.pop_front();
        if let Some(Waiting::Write(request)) = &next {
            let mut state = self.state.lock();
            exempt(|| {
                for slot in request.slots().filter(|slot| request.frame(*slot).is_some()) {
                    state.writing.remove(&slot);
                    state.bad.insert(slot);
                }
            });
        }
        next.is_some()
    }

    /// Makes reads of these slots fail, and no others.
    pub fn fail_reads(&self, slots: impl IntoIterator<Item = u64>) {
        let mut state = self.state.lock();
        exempt(|| state.failing_reads = slots.into_iter().collect());
    }

    /// Makes writes of these slots fail, and no others.
    pub fn fail_writes(&self, slots: impl IntoIterator<Item = u64>) {
        let mut state = self.state.lock();
        exempt(|| state.failing_writes = slots.into_iter().collect());
    }

    /// Makes `share` of 1024 pages fail, chosen by the seed. A share of 0 ends the failures.
    pub fn fail_by_seed(&self, seed: u64, share: u64) {
        self.state.lock().seeded = (share != 0).then_some(Seeded { state: seed | 1, share });
    }

    /// Returns the slots that have contents.
    #[must_use]
    pub fn stored(&self) -> Vec<u64> {
        self.state.lock().pages.keys().copied().collect()
    }

    /// Returns the numbers of events.
    #[must_use]
    pub fn stats(&self) -> MemorySwapStats {
        self.state.lock().stats
    }

    /// Completes a request. Returns false if there is none.
    fn perform(&self, request: Option<Waiting<F>>) -> bool {
        match request {
            Some(Waiting::Read(request)) => self.perform_read(request),
            Some(Waiting::Write(request)) => self.perform_write(request),
            None => return false,
        }
        true
    }

    /// Reads the pages of a request, and completes them. The lock is not held during a completion.
    fn perform_read(&self, mut request: SwapRead<Machine<F>>) {
        while let Some((slot, frame)) = request.next_page() {
            let read = self.state.lock().read(request.platform(), slot, frame);
            request.complete(slot, read);
        }
    }

    fn perform_write(&self, mut request: SwapWrite<Machine<F>>) {
        while let Some((slot, frame)) = request.next_page() {
            let written = self.state.lock().write(request.platform(), slot, frame);
            request.complete(slot, written);
        }
    }
}

impl<F: Format> State<F> {
    fn fails_by_seed(&mut self) -> bool {
        let Some(seeded) = &mut self.seeded else { return false };
        // Xorshift.
        seeded.state ^= seeded.state << 13;
        seeded.state ^= seeded.state >> 7;
        seeded.state ^= seeded.state << 17;
        seeded.state >> 20 & 1023 < seeded.share
    }

    fn read(&mut self, machine: &Machine<F>, slot: u64, frame: Pfn) -> Result<(), IoError> {
        assert!(!self.bad.contains(&slot), "slot {slot} is read after a failed write");
        let Some(page) = self.pages.get(&slot) else { panic!("slot {slot} is read and has no contents") };
        if self.failing_reads.contains(&slot) {
            return Err(IoError);
        }
        machine.write_frame(frame, 0, page);
        if self.fails_by_seed() {
            return Err(IoError);
        }
        self.stats.pages_read += 1;
        Ok(())
    }

    fn write(&mut self, machine: &Machine<F>, slot: u64, frame: Pfn) -> Result<(), IoError> {
        exempt(|| {
            self.writing.remove(&slot);
            if self.failing_writes.contains(&slot) || self.fails_by_seed() {
                self.bad.insert(slot);
                return Err(IoError);
            }
            let mut page = vec![0; PAGE_SIZE as usize].into_boxed_slice();
            machine.read_frame(frame, 0, &mut page);
            self.pages.insert(slot, page);
            self.stats.pages_written += 1;
            Ok(())
        })
    }

    /// Checks that the pages of a new request may be written.
    fn begin_write(&mut self, request: &SwapWrite<Machine<F>>) {
        for slot in request.slots() {
            assert!(!self.bad.contains(&slot), "slot {slot} is written again after a failed write");
            assert!(!self.pages.contains_key(&slot), "slot {slot} is written and was not discarded");
            assert!(self.writing.insert(slot), "slot {slot} is written twice at once");
        }
        self.stats.write_requests += 1;
    }
}

impl<F: Format> SwapDevice<Machine<F>> for MemorySwap<F> {
    fn slots(&self) -> u64 {
        self.slots
    }

    fn can_merge(&self) -> bool {
        self.merges
    }

    fn read(&self, request: SwapRead<Machine<F>>) {
        let mut state = self.state.lock();
        state.stats.read_requests += 1;
        if state.later {
            exempt(|| state.waiting.push_back(Waiting::Read(request)));
            return;
        }
        drop(state);
        self.perform_read(request);
    }

    fn write(&self, request: SwapWrite<Machine<F>>) {
        let mut state = self.state.lock();
        exempt(|| state.begin_write(&request));
        if state.later {
            exempt(|| state.waiting.push_back(Waiting::Write(request)));
            return;
        }
        drop(state);
        self.perform_write(request);
    }

    fn discard(&self, slot: u64) {
        let mut state = self.state.lock();
        exempt(|| {
            assert!(!state.writing.contains(&slot), "slot {slot} is discarded during a write");
            state.pages.remove(&slot);
            state.stats.discards += 1;
        });
    }
}
