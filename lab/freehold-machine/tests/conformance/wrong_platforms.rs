//! Platforms with one mistake each, made of the machine. The suite must name the mistake.
//!
//! [`Wrong`] forwards to the machine, without its oracles, which would find some of the mistakes first. Waits
//! are its own: they record exactly which thread sleeps, so that a lost wake-up is found without a clock.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits by forwarding to the machine")]

use crate::threads::Threads;
use freehold::platform::{
    Flush, Format, Frame, FrameRequest, Host, Interrupted, Killed, LockContext, OutOfTables, Pfn, Platform,
    RcuHead, Table, TableMemory, TableMeta,
    atomic::{AtomicU32, Ordering::SeqCst},
};
use freehold_kit::conformance::{self, Kernel, NotRun, Report};
use freehold_machine::{DefaultFormat, Machine, MachineConfig, Mmu};
use std::{
    collections::HashSet,
    ops::Range,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, Thread, ThreadId},
};

/// No mistake: the suite passes.
const NONE: u8 = 0;
/// `alloc_frames` returns a frame of the call before.
const FRAME_TWICE: u8 = 1;
/// A block begins one frame late.
const MISALIGNED_BLOCK: u8 = 2;
/// Every number is the number of a frame.
const HAS_ALL_FRAMES: u8 = 3;
/// All frames have one record.
const ONE_RECORD: u8 = 4;
/// A new table has an old entry.
const DIRTY_TABLE: u8 = 5;
/// `zero_frame` leaves the last word.
const ZEROES_PART: u8 = 6;
/// `write_frame` also writes the byte behind its range.
const WRITES_NEIGHBOUR: u8 = 7;
/// `with_cpu` passes a number that no CPU has.
const NUMBER_TOO_LARGE: u8 = 8;
/// `wait` sleeps even if the word has changed.
const WAIT_IGNORES_WORD: u8 = 9;
/// `wake_one` wakes no task.
const LOST_WAKEUP: u8 = 10;
/// A fatal signal does not end a wait.
const IGNORES_SIGNAL: u8 = 11;
/// A deferred function runs at once.
const NO_GRACE_PERIOD: u8 = 12;
/// `rcu_barrier` returns at once.
const NO_BARRIER: u8 = 13;
/// `flush` does nothing.
const NO_FLUSH: u8 = 14;
/// `flush` keeps cached tables.
const KEEPS_TABLES: u8 = 15;
/// `space_created` fills an entry for addresses of programs.
const FILLS_LOW_ENTRY: u8 = 16;

/// A machine with a mistake.
struct Wrong<const MISTAKE: u8> {
    machine: Machine,
    /// The first frame of the last call of `alloc_frames`.
    last: Mutex<Option<Pfn>>,
}

/// The sleepers of all [`Wrong`] platforms, and the threads with a fatal signal.
static WAITS: Mutex<Waits> = Mutex::new(Waits { sleepers: Vec::new(), killed: None });

struct Waits {
    sleepers: Vec<Sleeper>,
    killed: Option<HashSet<ThreadId>>,
}

struct Sleeper {
    word: usize,
    thread: Thread,
    is_killable: bool,
}

impl Waits {
    fn lock() -> MutexGuard<'static, Waits> {
        WAITS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_killed(&self, id: ThreadId) -> bool {
        self.killed.as_ref().is_some_and(|killed| killed.contains(&id))
    }

    fn sleeps(&self, id: ThreadId) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.thread.id() == id)
    }

    /// Wakes up to `most` threads.
    fn wake(&mut self, most: usize, chosen: impl Fn(&Sleeper) -> bool) {
        for _ in 0..most {
            let Some(at) = self.sleepers.iter().position(&chosen) else { return };
            self.sleepers.remove(at).thread.unpark();
        }
    }
}

/// Sleeps while the word has the expected value. Returns false if a fatal signal is pending.
fn sleep<const MISTAKE: u8>(word: &AtomicU32, expected: u32, is_killable: bool) -> bool {
    let thread = thread::current();
    let is_over = |waits: &Waits| MISTAKE != IGNORES_SIGNAL && is_killable && waits.is_killed(thread.id());
    let mut waits = Waits::lock();
    if is_over(&waits) {
        return false;
    }
    // The lock makes the comparison and going to sleep one step.
    if word.load(SeqCst) != expected && MISTAKE != WAIT_IGNORES_WORD {
        return true;
    }
    let is_killable = is_killable && MISTAKE != IGNORES_SIGNAL;
    waits.sleepers.push(Sleeper { word: address(word), thread: thread.clone(), is_killable });
    while waits.sleeps(thread.id()) {
        drop(waits);
        thread::park();
        waits = Waits::lock();
    }
    !is_over(&waits)
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

/// The kernel around a [`Wrong`] platform.
struct Exact(Threads);

impl<const MISTAKE: u8> Kernel<Wrong<MISTAKE>> for Exact {
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        Kernel::<Wrong<MISTAKE>>::run_two(&self.0, first, second)
    }

    fn load(
        &self,
        wrong: &Wrong<MISTAKE>,
        mmu: &Mmu<DefaultFormat>,
        address: u64,
    ) -> Result<Option<u64>, NotRun> {
        self.0.load(wrong, mmu, address)
    }

    fn leave_space(&self, mmu: &Mmu<DefaultFormat>) {
        Kernel::<Wrong<MISTAKE>>::leave_space(&self.0, mmu);
    }

    fn is_asleep(&self) -> Option<bool> {
        Some(self.0.second().is_some_and(|(_, id)| Waits::lock().sleeps(id)))
    }

    fn kill_second(&self) -> Result<(), NotRun> {
        let (_, id) = self.0.second().expect("the second task has begun");
        let mut waits = Waits::lock();
        waits.killed.get_or_insert_default().insert(id);
        waits.wake(1, |sleeper| sleeper.thread.id() == id && sleeper.is_killable);
        Ok(())
    }
}

// SAFETY: forwards to the machine, which keeps the contract. The mistakes break promises that only the engine
// relies on, and no engine runs on this platform: no frame of the machine is reached by a reference, records
// and tables are atomics, and a function that runs too early only counts.
unsafe impl<const MISTAKE: u8> Host for Wrong<MISTAKE> {
    const MAX_CPUS: usize = Machine::<DefaultFormat>::MAX_CPUS;
    type RcuGuard = <Machine as Host>::RcuGuard;

    fn wait(word: &AtomicU32, expected: u32) {
        sleep::<MISTAKE>(word, expected, false);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        if sleep::<MISTAKE>(word, expected, true) { Ok(()) } else { Err(Killed) }
    }

    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        if sleep::<MISTAKE>(word, expected, true) { Ok(()) } else { Err(Interrupted) }
    }

    fn wake_one(word: &AtomicU32) {
        if MISTAKE != LOST_WAKEUP {
            Waits::lock().wake(1, |sleeper| sleeper.word == address(word));
        }
    }

    fn wake_all(word: &AtomicU32) {
        Waits::lock().wake(usize::MAX, |sleeper| sleeper.word == address(word));
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        let more = if MISTAKE == NUMBER_TOO_LARGE { Self::MAX_CPUS } else { 0 };
        <Machine as Host>::with_cpu(|number| f(number + more))
    }

    fn now_ns() -> u64 {
        <Machine as Host>::now_ns()
    }

    fn relax() {
        <Machine as Host>::relax();
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        <Machine as Host>::lock_context(f)
    }

    fn rcu_read() -> Self::RcuGuard {
        <Machine as Host>::rcu_read()
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe {
            match MISTAKE {
                NO_GRACE_PERIOD => f(head),
                _ => <Machine as Host>::rcu_defer(head, f),
            }
        }
    }

    fn rcu_barrier() {
        if MISTAKE != NO_BARRIER {
            <Machine as Host>::rcu_barrier();
        }
    }
}

// SAFETY: as above.
unsafe impl<const MISTAKE: u8> TableMemory for Wrong<MISTAKE> {
    fn alloc_table(&self, root: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let table = self.machine.alloc_table(root)?;
        if MISTAKE == DIRTY_TABLE {
            self.machine.table(table).entry(5).store(0xdead_0000, SeqCst);
        }
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        // SAFETY: the caller keeps the contract of `free_table`.
        unsafe { self.machine.free_table(table) }
    }

    fn table(&self, table: Pfn) -> &Table {
        self.machine.table(table)
    }

    fn table_meta(&self, table: Pfn) -> &TableMeta {
        self.machine.table_meta(table)
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        self.machine.publish_code(first, frames);
    }
}

// SAFETY: as above.
unsafe impl<const MISTAKE: u8> Platform for Wrong<MISTAKE> {
    type Format = DefaultFormat;
    type Mmu = Mmu<DefaultFormat>;

    fn alloc_frames(&self, request: &FrameRequest<'_, Self::Mmu>, out: &mut [Pfn]) -> usize {
        let got = self.machine.alloc_frames(request, out);
        if got > 0 && request.order == 0 {
            let last = self.last.lock().unwrap().replace(out[0]);
            if let (FRAME_TWICE, Some(last)) = (MISTAKE, last) {
                out[0] = last;
            }
        }
        if got > 0 && request.order > 0 && MISTAKE == MISALIGNED_BLOCK {
            out[0] = out[0].add(1);
        }
        got
    }

    fn alloc_run(&self, request: &FrameRequest<'_, Self::Mmu>, frames: u64) -> Option<Pfn> {
        self.machine.alloc_run(request, frames)
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        // SAFETY: the caller keeps the contract of `free_frames`.
        unsafe { self.machine.free_frames(frames) }
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        MISTAKE == HAS_ALL_FRAMES || self.machine.has_frame(pfn)
    }

    fn frames(&self) -> Range<Pfn> {
        self.machine.frames()
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        let pfn = if MISTAKE == ONE_RECORD { self.machine.frames().start } else { pfn };
        self.machine.frame(pfn)
    }

    fn zero_frame(&self, pfn: Pfn) {
        let mut last = [0; 8];
        let at = freehold::PAGE_SIZE as usize - last.len();
        self.machine.read_frame(pfn, at, &mut last);
        self.machine.zero_frame(pfn);
        if MISTAKE == ZEROES_PART {
            self.machine.write_frame(pfn, at, &last);
        }
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        self.machine.copy_frame(to, from);
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        self.machine.read_frame(pfn, offset, out);
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        self.machine.write_frame(pfn, offset, data);
        let end = offset + data.len();
        if MISTAKE == WRITES_NEIGHBOUR && end < freehold::PAGE_SIZE as usize {
            self.machine.write_frame(pfn, end, &[0]);
        }
    }

    fn space_created(&self, root: Pfn) -> Option<Self::Mmu> {
        if MISTAKE == FILLS_LOW_ENTRY {
            self.machine.table(root).entry(3).store(DefaultFormat::table(root), SeqCst);
        }
        self.machine.space_created(root)
    }

    fn space_ending(&self, mmu: &Self::Mmu, root: Pfn) {
        self.machine.space_ending(mmu, root);
    }

    fn flush(&self, mmu: &Self::Mmu, what: &Flush) {
        match MISTAKE {
            NO_FLUSH => {}
            KEEPS_TABLES => self.machine.flush(mmu, &Flush { tables_freed: false, ..*what }),
            _ => self.machine.flush(mmu, what),
        }
    }

    fn walk_tables<R>(&self, mmu: &Self::Mmu, f: impl FnOnce() -> R) -> Option<R> {
        self.machine.walk_tables(mmu, f)
    }

    fn runs_elsewhere(&self, mmu: &Self::Mmu) -> bool {
        self.machine.runs_elsewhere(mmu)
    }
}

fn report<const MISTAKE: u8>() -> Report {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20).fast()).unwrap();
    let wrong = Wrong::<MISTAKE> { machine: machine.clone(), last: Mutex::new(None) };
    conformance::platform(&wrong, &Exact(Threads::new(&machine)))
}

/// Checks that the suite finds the mistake, by the check of this name and with this text in the message.
#[track_caller]
fn finds<const MISTAKE: u8>(check: &str, text: &str) {
    let report = report::<MISTAKE>();
    let found = report.failures().any(|(name, message)| name == check && message.contains(text));
    assert!(found, "{check} must fail with {text:?}\n{report}");
}

#[test]
fn the_platform_without_a_mistake_passes() {
    report::<NONE>().assert_passed(&[]);
}

#[test]
fn a_frame_that_is_allocated_twice_is_found() {
    finds::<FRAME_TWICE>("frames::numbers", "was allocated twice: it was still in use");
}

#[test]
fn a_block_that_is_not_aligned_is_found() {
    finds::<MISALIGNED_BLOCK>("frames::blocks", "does not begin at a multiple of its 512 frames");
}

#[test]
fn a_number_without_a_frame_is_found() {
    finds::<HAS_ALL_FRAMES>("frames::numbers", "has_frame is true for the number of no frame");
}

#[test]
fn frames_that_share_a_record_are_found() {
    finds::<ONE_RECORD>("frames::numbers", "return the same record");
}

#[test]
fn a_table_that_is_not_zeroed_is_found() {
    finds::<DIRTY_TABLE>("tables::zeroed", "which is not zeroed: entry 5 is 0xdead0000");
}

#[test]
fn a_frame_that_is_not_zeroed_is_found() {
    finds::<ZEROES_PART>("contents::zero", "after zero_frame, byte 4088 of");
}

#[test]
fn a_write_beyond_its_range_is_found() {
    finds::<WRITES_NEIGHBOUR>("contents::write", "after write_frame of 1 bytes at 0, byte 1 of");
}

#[test]
fn a_cpu_number_beyond_the_limit_is_found() {
    finds::<NUMBER_TOO_LARGE>("cpus::numbers", "but cpus() is 64");
}

#[test]
fn a_wait_that_does_not_compare_its_word_is_found() {
    finds::<WAIT_IGNORES_WORD>("waits::differs", "wait(word, 0) sleeps although the word is 1");
}

#[test]
fn a_lost_wake_up_is_found() {
    finds::<LOST_WAKEUP>("waits::wake_one", "a wake-up was lost: wait and wake_one");
    finds::<LOST_WAKEUP>("waits::wake_killable", "a wake-up was lost: wait_killable and wake_one");
}

#[test]
fn a_signal_that_ends_no_wait_is_found() {
    finds::<IGNORES_SIGNAL>("waits::killed", "a fatal signal is pending, but the task sleeps on");
}

#[test]
fn a_grace_period_that_does_not_wait_for_readers_is_found() {
    finds::<NO_GRACE_PERIOD>("grace::own_reader", "a grace period did not wait for a reader");
    finds::<NO_GRACE_PERIOD>("grace::other_reader", "a grace period did not wait for a reader");
}

#[test]
fn a_barrier_that_does_not_wait_is_found() {
    finds::<NO_BARRIER>("grace::once", "a function that was deferred before has run 0 times");
}

#[test]
fn a_root_with_tables_of_the_kernel_at_low_addresses_is_found() {
    finds::<FILLS_LOW_ENTRY>("spaces::created", "space_created() fills entry 3 of the root table");
}

#[test]
fn a_flush_that_does_nothing_is_found() {
    finds::<NO_FLUSH>("spaces::flush_here", "reads the value 1 of a frame; it must be one that faults");
    finds::<NO_FLUSH>("spaces::flush_elsewhere", "another CPU emptied the entry");
}

#[test]
fn a_flush_that_keeps_cached_tables_is_found() {
    finds::<KEEPS_TABLES>("spaces::tables", "the table of the page was unlinked");
}
