//! The end of the process with the most memory, if memory is used up.
//!
//! Before a process ends, the pages that programs do not need are freed (MADV_FREE, MAP_DROPPABLE), and then
//! pages of files in the image, which can be read again. If that is not enough, a process ends:
//!
//! | situation | reaction |
//! | --- | --- |
//! | a page fault gets no frame | the largest process ends; the fault is repeated, or the thread ends with its process |
//! | a page fault gets no frame of the nodes of its strict memory policy, although other nodes have memory | the thread's own process ends |
//! | a call fails with ENOMEM because memory is short | the largest process ends and the call is repeated; if that is the caller's process, the call fails |
//! | a call fails with ENOMEM again and again, although memory is free each time before it is repeated | the same: the call needs more than is free, and frees what it took when it fails |
//! | a call begins while half of the reserve is used | the largest process ends before the call is performed |
//!
//! The size of a process is the sum of its resident and swapped pages, its page tables, its VMAs and the
//! kernel memory that it has caused (`sched/charge.rs`), in pages. Kernel memory that ended processes have left counts for
//! the processes that have files of it. As on Linux, oom_score_adj adds thousandths of all memory, and
//! -1000 exempts the process. The first process ends only if there is no other, because its end stops the
//! machine. The thread that found memory short frees the private pages of the other process (`victim.rs`),
//! which may be unable to end soon, and waits for its end if memory is still short. A killed process needs no
//! memory to end: its calls fail, and its threads leave every wait.
//!
//! `calls/mod.rs` and `process/fault.rs` call this file. The program `shortage.c` of the tests checks which
//! process ends, and `pageout.c` checks that discardable pages are freed first.

use crate::arch::report::say;
use crate::arch::{clock, preempt::preempt_point};
use crate::memory::frames::{self, Supply};
use crate::memory::total_bytes;
use crate::platform::engine::engine;
use crate::process::{self, Process, aging, exit, names::short_name, status::Status, victim};
use crate::sched::wait::{self, Key, Sleep};
use crate::sched::{checkpoint, current};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::{PAGE_SIZE, reclaim::ReclaimRequest};
use linux_raw_sys::general::SIGKILL;

/// Bytes of kernel memory for a VMA, with its share of the tree and of the reverse map.
const VMA_BYTES: u64 = 512;
/// The oom_score_adj of a process that is never chosen.
const EXEMPT: i64 = -1000;
/// The number of the first process, whose end stops the machine.
const FIRST: u32 = 1;
/// Number of pages of files that are freed between two looks at the supply of memory.
const RECLAIM_PAGES: u64 = 128;
/// Nanoseconds without reclaim after it has found no page.
const RECLAIM_PAUSE_NS: u64 = 100_000_000;
/// Nanoseconds to wait for the end of a process before another process is chosen.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Nanoseconds between two looks at a process that has to end.
const LOOK_NS: u64 = 1_000_000;

/// Frees the discardable pages of all processes and then pages of files, until memory is not short any more.
/// Returns true if it is not short. The caller holds no spin lock.
fn drop_unneeded() -> bool {
    for process in process::all() {
        preempt_point();
        // The lock is released before the space is used, because its last reference frees memory.
        let space = process.space.lock().clone();
        if space.is_some_and(|space| space.drop_discardable() > 0) && frames::supply() == Supply::Plenty {
            return true;
        }
    }
    engine().trim();
    if frames::supply() == Supply::Plenty {
        return true;
    }
    aging::age_spaces();
    reclaim()
}

/// Frees pages of files until memory is not short any more. Returns true if it is not short. Does nothing if
/// no page was found a short time ago.
fn reclaim() -> bool {
    /// The time from which on pages are looked for again.
    static NEXT_NS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: a hint without other data.
    while clock::now_ns() >= NEXT_NS.load(Relaxed) {
        let freed = engine().reclaim(&ReclaimRequest::pages(RECLAIM_PAGES)).freed;
        engine().trim();
        if frames::supply() == Supply::Plenty {
            return true;
        }
        if freed == 0 {
            NEXT_NS.store(clock::now_ns() + RECLAIM_PAUSE_NS, Relaxed);
        }
    }
    false
}

/// Which processes may end for the calling thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The thread cannot continue without memory: the largest process ends, even if it is the caller's own.
    Must,
    /// The thread can continue: only a process that is larger than the caller's ends.
    May,
    /// The thread can continue, but needs more memory than is free: as `May`, even if memory is free.
    MayDespiteFree,
}

/// Returns the size of a process in pages, at least 1. Returns `None` if the process has no memory.
fn size(process: &Process) -> Option<i64> {
    // The lock is released before the space is used, because its last reference frees memory.
    let space = process.space.lock().clone()?;
    let kernel = space.page_table_bytes() + space.counts().map_count * VMA_BYTES;
    let own = kernel + process.account.bytes() + left_to(process);
    let rss = space.rss();
    let pages = rss.total() + rss.swap + (own / PAGE_SIZE) as i64;
    let adjustment = process.oom_score.load(Relaxed);
    Some((pages + adjustment * (total_bytes() / PAGE_SIZE) as i64 / 1000).max(1))
}

/// Returns the bytes that ended processes have left in files that this process has.
fn left_to(process: &Process) -> u64 {
    static SURVEYS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number only has to differ from others.
    let survey = SURVEYS.fetch_add(1, Relaxed) + 1;
    let (mut sum, mut last) = (0, 0);
    for place in 0.. {
        let Some(thread) = process.threads.lock().get(place).cloned() else { break };
        // Usually all threads have the same table.
        let table = thread.files.address();
        if table != last {
            sum += thread.files.left(survey);
        }
        last = table;
    }
    sum
}

/// The processes that have not ended.
#[derive(Default)]
struct Survey {
    /// The largest process that may have to end, with its size. The first process only if there is no other.
    largest: Option<(Arc<Process>, i64)>,
    /// A process that has to end and may still have memory.
    ending: Option<Arc<Process>>,
}

impl Survey {
    fn new() -> Self {
        let mut survey = Survey::default();
        for process in process::all() {
            preempt_point();
            if process.status.lock().is_some() {
                continue;
            }
            if process.ending.lock().is_some() {
                survey.ending = Some(process);
                continue;
            }
            let Some(size) = size(&process) else { continue };
            // The first process comes first.
            let is_larger = |(before, most): &(Arc<Process>, i64)| before.pid == FIRST || size > *most;
            if process.oom_score.load(Relaxed) > EXEMPT && survey.largest.as_ref().is_none_or(is_larger) {
                survey.largest = Some((process, size));
            }
        }
        survey
    }
}

/// Ends the largest process and waits until it has freed its memory. Returns true if the thread should try
/// again. The caller holds no spin lock.
pub fn relieve(need: Need) -> bool {
    let here = current();
    here.wants_memory.set(false);
    if here.is_killed() {
        return false;
    }
    // The end of another process would not help: its memory may be on other nodes.
    if here.lacks_node.take() {
        if need == Need::Must {
            say!("process {}: killed, the nodes of its memory policy have no memory", here.process().pid);
        }
        return false;
    }
    let survey = Survey::new();
    if let Some(ending) = survey.ending {
        if !released(&ending, need) {
            return false;
        }
        if need == Need::MayDespiteFree && ending.status.lock().is_some() {
            return true;
        }
    }
    if need != Need::MayDespiteFree && (frames::supply() == Supply::Plenty || drop_unneeded()) {
        return true;
    }
    let Some((victim, most)) = survey.largest else { return false };
    let is_own = Arc::ptr_eq(&victim, here.process());
    // A process that never ends for others also need not step back for others.
    let own = if here.process().pid == FIRST { 0 } else { size(here.process()).unwrap_or(0) };
    if is_own || need != Need::Must && most <= own {
        return false;
    }
    let name = short_name(&victim);
    say!("process {} ({}): killed, memory is used up", victim.pid, name.escape_ascii());
    victim.end(Status::by_signal(SIGKILL as u8));
    released(&victim, need)
}

/// Frees the memory of a process that has to end. Returns false if the calling thread has to end.
fn released(process: &Arc<Process>, need: Need) -> bool {
    // If the memory cannot be freed yet, the process frees it at its end.
    let _ = victim::release(process);
    waited_for(process, need)
}

/// Waits until the process has ended, [`PATIENCE_NS`] are over, or memory is free and that is enough. Returns
/// false if the calling thread has to end.
fn waited_for(process: &Process, need: Need) -> bool {
    let deadline = clock::now_ns() + PATIENCE_NS;
    let is_over = || {
        let is_enough = need != Need::MayDespiteFree && frames::supply() == Supply::Plenty;
        process.status.lock().is_some() || is_enough || clock::now_ns() >= deadline
    };
    while !is_over() {
        if checkpoint().is_err() {
            return false;
        }
        let waiting = wait::enqueue(Key::kernel(&raw const deadline as u64), u32::MAX);
        waiting.sleep(Sleep::Killable, clock::now_ns() + LOOK_NS);
    }
    !current().is_killed()
}

/// Waits until more than half of the reserve is free, before a call that may use the reserve. Ends processes
/// until that is the case. Ends the calling thread if its process has to end.
#[cold]
pub fn before_call() {
    while frames::supply() == Supply::Desperate {
        if !relieve(Need::Must) {
            exit::out_of_memory();
        }
    }
}
