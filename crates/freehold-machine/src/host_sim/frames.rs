//! What it costs to take frames and to give them back, in a kernel whose processors have lists of their own:
//! every so many frames, one of them takes the lock of its socket's memory.

use freehold_sim::{
    Machine,
    atomic::{AtomicU32, Ordering},
    task,
};
use std::cell::RefCell;

/// Frames that pass between a processor's list and its socket's memory at once: what Linux uses for a
/// processor of a large machine, a multiple of its smallest batch.
const BATCH: u64 = 63;
/// What taking a frame off the socket's memory takes, in nanoseconds: a few lines of its lists.
const EACH: u64 = 25;

/// The lock of a socket's free frames.
#[repr(align(128))]
struct Zone(AtomicU32);

static ZONES: [Zone; 8] = [const { Zone(AtomicU32::new(0)) }; 8];

thread_local! {
    /// Frames in the list of each processor.
    static LISTS: RefCell<[u64; Machine::MAX_CPUS]> = const { RefCell::new([0; Machine::MAX_CPUS]) };
}

/// So many frames were taken.
pub(crate) fn frames_taken(frames: u64) {
    let Some(cpu) = task::cpu() else { return };
    let refills = LISTS.with_borrow_mut(|lists| {
        let missing = frames.saturating_sub(lists[cpu]);
        let refills = missing.div_ceil(BATCH);
        lists[cpu] = lists[cpu] + refills * BATCH - frames;
        refills
    });
    (0..refills).for_each(|_| pass_batch());
}

/// So many frames were given back.
pub(crate) fn frames_given(frames: u64) {
    let Some(cpu) = task::cpu() else { return };
    let spills = LISTS.with_borrow_mut(|lists| {
        let most = 2 * BATCH;
        let spills = (lists[cpu] + frames).saturating_sub(most).div_ceil(BATCH);
        lists[cpu] = lists[cpu] + frames - spills * BATCH;
        spills
    });
    (0..spills).for_each(|_| pass_batch());
}

/// A batch passes between a processor's list and its socket's memory.
fn pass_batch() {
    task::keep();
    let zone = &ZONES[task::socket().unwrap_or(0) % ZONES.len()].0;
    while zone.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while zone.load(Ordering::Relaxed) != 0 {
            task::relax();
        }
    }
    task::work(BATCH * EACH);
    zone.store(0, Ordering::Release);
    task::release();
}
