//! A replay in little memory: the options, the clock, and what reclaim costs the program.
//!
//! A machine with fewer frames than the program needs takes pages away, by a policy of the engine, and brings
//! them back at the next recorded access. The answers do not change, so all comparisons stay on; `compare.rs`
//! counts a swapped page as present. `device.rs` has the device that holds swapped pages and pages of files,
//! and `heat.rs` the pages that were accessed lately. `report/policies.rs` shows the result.
//!
//! The clock is virtual, and belongs to the task of the current step: the time of the step in the recording,
//! plus the time for which the task has waited for the device so far. The device serves one request at a time
//! in [`LATENCY`]. A replay in little memory has one virtual CPU, so that its figures are the same each time,
//! except for the times of faults, which include the time of the host.
//!
//! ```text
//! each step      few frames are free: pages go until enough are free or on their way    ShortMemory::begin
//! no free frame  the task waits for the oldest write; without one, more pages go        ShortMemory::answer
//! a fault        a page that was taken away is read, and the task waits                 device.rs
//! ```

mod device;
mod heat;
mod sample;
mod step;

pub(super) use device::{Stored, SwapFile};
pub(super) use heat::Heat;
pub use heat::Hot;
pub(super) use sample::add_sample;
pub(super) use step::{add_fault, begin_step, waited};

use super::workers::lock;
use device::Queue;
use freehold::engine::Engine;
use freehold::platform::ShortageAnswer;
use freehold::reclaim::{ReclaimPolicy, ReclaimRequest};
use freehold_machine::Machine;
use freehold_sync::stats::Histogram;
use heat::HotPage;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

const PAGE: u64 = 4096;
/// Time in nanoseconds in which the device serves a request.
pub const LATENCY: u64 = 100_000;
/// Number of pages that are taken away at a time.
const BATCH: u64 = 32;
/// Pages are taken away if less than one frame in this number is free.
const LOW: u64 = 32;
/// Pages are then taken away until one frame in this number is free.
const HIGH: u64 = 16;
/// A page that was accessed within this time, in nanoseconds, is hot.
pub const HOT: u64 = 1_000_000_000;

/// The memory of a replay, and how it is reclaimed.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Size in bytes.
    pub bytes: u64,
    /// Size in bytes of the swap device. 0 means that there is none.
    pub swap: u64,
    /// The policy.
    pub policy: ReclaimPolicy,
}

impl Memory {
    /// The policies with their names, in the order of reports.
    pub const POLICIES: [(&'static str, ReclaimPolicy); 3] = [
        ("clock", ReclaimPolicy::Clock),
        ("two-lists", ReclaimPolicy::TwoLists),
        ("generations", ReclaimPolicy::Generations),
    ];

    /// Returns the name of the policy.
    pub fn policy_name(&self) -> &'static str {
        match self.policy {
            ReclaimPolicy::Clock => "clock",
            ReclaimPolicy::TwoLists => "two-lists",
            ReclaimPolicy::Generations => "generations",
            _ => "custom",
        }
    }
}

/// Costs of reclaim for the program.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Pages that were read from the swap device.
    pub swap_ins: u64,
    /// Pages of files that were read again after they had been in memory before.
    pub reread: u64,
    /// Pages written to the swap device and to files.
    pub written: u64,
    /// Time for which tasks waited for the device, summed over the tasks.
    pub waited: Duration,
    /// The hot pages, sampled after each second of the recording and at the end of each address space.
    pub hot: Hot,
    /// Times of faults in nanoseconds: the time of the host and the time for which the task waited.
    pub faults: Histogram,
    /// Operations that found no memory although everything that could go was gone.
    pub failed: u64,
}

impl Figures {
    /// Returns the number of pages that came back after they had been taken away.
    pub fn refaults(&self) -> u64 {
        self.swap_ins + self.reread
    }
}

/// The clock and the device of a replay in little memory.
pub(super) struct ShortMemory {
    /// Number of frames.
    frames: u64,
    state: Mutex<State>,
}

/// The part that steps and the device change.
struct State {
    /// The task of the current step.
    task: u32,
    /// The time of the current step in the recording.
    recorded: u64,
    /// Number of the current step.
    step: u64,
    /// The time for which each task has waited so far.
    delays: HashMap<u32, u64>,
    /// The time in the recording at which the hot pages are looked at next.
    next_look: u64,
    /// Hot pages of files of processes that have ended.
    past: Vec<HotPage>,
    queue: Queue,
    figures: Figures,
}

impl State {
    /// Returns the virtual time of the current task.
    fn now(&self) -> u64 {
        self.recorded + self.delays.get(&self.task).copied().unwrap_or(0)
    }

    /// Makes the current task wait until `time`.
    fn wait_until(&mut self, time: u64) {
        let wait = time.saturating_sub(self.now());
        *self.delays.entry(self.task).or_default() += wait;
        self.figures.waited += Duration::from_nanos(wait);
    }
}

impl ShortMemory {
    /// Returns the state of a machine with this memory. `keeps` says that the frames have contents.
    pub(super) fn new(memory: &Memory, keeps: bool) -> ShortMemory {
        let state = State {
            task: 0,
            recorded: 0,
            step: 0,
            delays: HashMap::default(),
            next_look: 0,
            past: Vec::new(),
            queue: Queue::new(keeps),
            figures: Figures::default(),
        };
        ShortMemory { frames: memory.bytes / PAGE, state: Mutex::new(state) }
    }

    /// Begins a step of `task` at this time of the recording. Takes pages away if few frames are free.
    /// Returns true if the hot pages are to be looked at.
    fn begin(&self, engine: &Engine<Machine>, task: u32, time: u64) -> bool {
        let look = {
            let mut state = lock(&self.state);
            (state.task, state.recorded, state.step) = (task, time, state.step + 1);
            let look = state.next_look != 0 && time >= state.next_look;
            if look || state.next_look == 0 {
                state.next_look = time + HOT;
            }
            look
        };
        self.finish_due();
        let missing = (self.frames / HIGH).saturating_sub(self.free(engine));
        if missing <= self.frames / HIGH - self.frames / LOW {
            return look;
        }
        let mut gone = 0;
        while gone < missing {
            let done = engine.reclaim(&ReclaimRequest::pages(BATCH));
            if done.freed + done.writing == 0 {
                break;
            }
            gone += done.freed + done.writing;
        }
        look
    }

    /// Returns the number of frames that are free or about to be.
    fn free(&self, engine: &Engine<Machine>) -> u64 {
        let counts = engine.platform().stats().frames;
        self.frames.saturating_sub(counts.allocated - counts.freed) + lock(&self.state).queue.pages()
    }

    /// Makes memory free for an operation that found none.
    pub(super) fn answer(&self, engine: &Engine<Machine>) -> ShortageAnswer {
        if self.finish_oldest() {
            return ShortageAnswer::Retry;
        }
        let done = engine.reclaim(&ReclaimRequest::pages(BATCH));
        if done.freed > 0 || self.finish_oldest() {
            return ShortageAnswer::Retry;
        }
        lock(&self.state).figures.failed += 1;
        ShortageAnswer::Fail
    }

    /// Returns the time of the current step in the recording.
    fn recorded(&self) -> u64 {
        lock(&self.state).recorded
    }

    /// Returns the time for which tasks have waited for the device so far, in nanoseconds.
    fn waited(&self) -> u64 {
        lock(&self.state).figures.waited.as_nanos() as u64
    }

    /// Adds a fault that took `ns` nanoseconds of the host, and in which the task waited since `before`.
    fn add_fault(&self, ns: u64, before: u64) {
        let mut state = lock(&self.state);
        let waited = state.figures.waited.as_nanos() as u64 - before;
        state.figures.faults.record(ns + waited);
    }

    /// Counts the hot pages `pages` of a process at `time`. `all` are the hot pages of all processes.
    fn looked(&self, pages: &[HotPage], all: &[HotPage], time: u64) {
        let mut state = lock(&self.state);
        state.past.retain(|page| page.is_hot(time));
        // Reclaim begins when fewer frames are free.
        let most = self.frames - self.frames / LOW;
        let hot = Hot::count(pages, all.iter().chain(&state.past), most);
        state.figures.hot.add(hot);
    }

    /// Adds the hot pages of a process that ends. Its pages of files stay in memory.
    fn ended(&self, pages: Vec<HotPage>) {
        lock(&self.state).past.extend(pages.into_iter().filter(HotPage::is_of_file));
    }

    /// Returns the figures.
    pub(super) fn figures(&self) -> Figures {
        lock(&self.state).figures.clone()
    }
}
