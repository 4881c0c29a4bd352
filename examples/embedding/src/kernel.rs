//! The platform that Freehold requires from a kernel, implemented with threads: each thread that calls it
//! acts as a CPU. `freehold-kit` implements grace periods and flushes. This file implements memory, waiting
//! and CPU numbers in the simplest correct way.
//!
//! An embedder replaces this file by parts of its kernel. The module `platform` of `freehold` is the
//! contract: it says what each method must do, in which contexts it is called, and whether it may sleep.
//! Optional parts are missing here: larger blocks of frames (without them there are no huge pages), signals,
//! and checks of the lock order. `tests.rs` tests this platform through the engine:
//! `cargo test --package freehold-example-embedding`.
//!
//! Two rules are easy to break. A flush must not return while a CPU can use an old translation: here `BUSY`
//! makes a flush wait for the end of an instruction. A write to a frame must not write back neighbouring
//! bytes, because a program may be storing to them.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits")]

use freehold::platform::atomic::{AtomicU32, AtomicU64, Ordering};
use freehold::platform::{
    Flush, Frame, Host, Killed, LockContext, OutOfTables, Pfn, Platform, RcuHead, Table, TableMemory,
    TableMeta, X86_4,
};
use freehold::{PAGE_SIZE, platform::FrameRequest};
use freehold_kit::{Processors, Qsbr, QsbrCpu, ShootCpu, Shootdown, SpaceCpus};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const WORD: usize = size_of::<u64>();
/// Maximum number of threads at the same time.
const CPUS: usize = 64;

static RCU: Qsbr<CPUS> = Qsbr::new([const { QsbrCpu::new() }; CPUS]);
static TLBS: Shootdown<CPUS> = Shootdown::new([const { ShootCpu::new() }; CPUS]);
/// Held by the thread that acts as the CPU: its own thread while a program's instruction runs, or a thread
/// that interrupts the CPU between two instructions.
static BUSY: [Mutex<()>; CPUS] = [const { Mutex::new(()) }; CPUS];
/// One bit per CPU, set while a thread acts as that CPU.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// One mutex and one condition variable for all waiters, no matter what they wait for, and for the tasks that
/// wake them.
static SLEEP: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static CPU: Cpu = Cpu::claim();
}

/// The CPU that a thread acts as, from its first call until it ends.
struct Cpu {
    number: usize,
    /// Number of open read sections.
    sections: Cell<usize>,
}

impl Cpu {
    fn claim() -> Self {
        let take = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        // Acquire: pairs with the release of the thread that was this CPU before.
        let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        let number = before.expect("more threads than CPUs").trailing_ones() as usize;
        Cpu { number, sections: Cell::new(0) }
    }

    fn number() -> usize {
        CPU.with(|cpu| cpu.number)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

/// Runs `f` as one instruction of a program in this space; `f` may use translations. A flush that finds the
/// CPU in the space waits for the end of the instruction. Table walks that begin later see the changed
/// tables.
pub fn run<R>(space: &SpaceCpus, f: impl FnOnce() -> R) -> R {
    let cpu = Cpu::number();
    let _busy = lock(&BUSY[cpu]);
    TLBS.enter(cpu, space);
    let result = f();
    TLBS.leave(cpu, space);
    result
}

/// Does the work of a kernel's tick: runs the functions whose grace period is over.
pub fn tick() {
    RCU.advance();
}

/// The way in which CPUs reach each other. A CPU keeps no translation after an instruction.
struct Threads;

impl Processors for Threads {
    fn interrupt(&self, cpu: usize) {
        // Runs between two instructions: the interrupting thread acts in place of the interrupted thread.
        let _busy = lock(&BUSY[cpu]);
        TLBS.answer(cpu, self);
    }

    fn flush_here(&self, _: usize, _: Pfn, _: &Flush) {}

    fn switch_away(&self, _: usize, _: Pfn) {}

    fn relax(&self) {
        std::thread::yield_now();
    }
}

/// Guard of a read section.
pub struct Reading(PhantomData<*const ()>);

impl Drop for Reading {
    fn drop(&mut self) {
        CPU.with(|cpu| {
            cpu.sections.set(cpu.sections.get() - 1);
            if cpu.sections.get() == 0 {
                RCU.offline(cpu.number);
            }
        });
    }
}

/// Memory and its records. Frame `n` is `memory[n]`, so the direct map is an index. Page tables use the same
/// frames.
pub struct Board {
    memory: Box<[Table]>,
    frames: Box<[Frame]>,
    tables: Box<[TableMeta]>,
    free: Mutex<Vec<Pfn>>,
}

impl Board {
    /// Creates a board with `frames` frames of memory. Frame 0 is never allocated.
    pub fn new(frames: usize) -> Self {
        Board {
            memory: (0..frames).map(|_| Table::new()).collect(),
            frames: (0..frames).map(|_| Frame::new()).collect(),
            tables: (0..frames).map(|_| TableMeta::new()).collect(),
            free: Mutex::new((1..frames as u64).rev().map(Pfn::new).collect()),
        }
    }

    /// Returns the aligned word at `offset` bytes of a frame.
    pub fn word(&self, pfn: Pfn, offset: usize) -> &AtomicU64 {
        self.memory[pfn.get() as usize].entry(offset / WORD)
    }

    /// Returns the number of free frames.
    pub fn free_frames(&self) -> usize {
        lock(&self.free).len()
    }

    fn bytes(&self, pfn: Pfn, offset: usize, count: usize) -> impl Iterator<Item = (&AtomicU64, usize)> {
        (offset..offset + count).map(move |at| (self.word(pfn, at), at % WORD * 8))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // Functions that wait for a grace period may point to this board.
        Self::rcu_barrier();
    }
}

// SAFETY: each living thread has its own number. `freehold-kit` explains why a deferred function waits for
// all read sections.
unsafe impl Host for Board {
    const MAX_CPUS: usize = CPUS;
    type RcuGuard = Reading;

    fn wait(word: &AtomicU32, expected: u32) {
        let awake = lock(&SLEEP.0);
        // SeqCst: a task changes the word before it wakes the sleepers. The wake-up cannot come before this
        // task sleeps, because the waking task needs the mutex.
        if word.load(Ordering::SeqCst) == expected {
            drop(SLEEP.1.wait(awake));
        }
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        // This example sends no signals.
        Self::wait(word, expected);
        Ok(())
    }

    fn wake_one(word: &AtomicU32) {
        Self::wake_all(word);
    }

    fn wake_all(_: &AtomicU32) {
        let _awake = lock(&SLEEP.0);
        SLEEP.1.notify_all();
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(Cpu::number())
    }

    fn now_ns() -> u64 {
        BOOT.elapsed().as_nanos() as u64
    }

    fn relax() {
        std::thread::yield_now();
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        // This example does not check the lock order.
        None
    }

    fn rcu_read() -> Reading {
        CPU.with(|cpu| {
            if cpu.sections.get() == 0 {
                RCU.online(cpu.number);
            }
            cpu.sections.set(cpu.sections.get() + 1);
        });
        Reading(PhantomData)
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe { RCU.defer(Cpu::number(), head, f) };
    }

    fn rcu_barrier() {
        RCU.barrier(std::thread::yield_now);
    }
}

// SAFETY: each frame that leaves the free list has one owner. Records and memory do not move while the board
// lives, and invalid frame numbers panic.
unsafe impl TableMemory for Board {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let table = lock(&self.free).pop().ok_or(OutOfTables)?;
        self.zero_frame(table);
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        self.tables[table.get() as usize].reset();
        lock(&self.free).push(table);
    }

    fn table(&self, pfn: Pfn) -> &Table {
        &self.memory[pfn.get() as usize]
    }

    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        &self.tables[pfn.get() as usize]
    }
}

// SAFETY: as above. `freehold-kit` explains why no CPU uses a flushed translation after the flush.
unsafe impl Platform for Board {
    type Format = X86_4;
    /// The data that this kernel keeps for an address space: its root table, and the CPUs that run it.
    type Mmu = SpaceCpus;

    // Only single frames: without larger blocks there are no huge pages.
    fn alloc_frames(&self, request: &FrameRequest<'_, SpaceCpus>, out: &mut [Pfn]) -> usize {
        if request.order != 0 {
            return 0;
        }
        let mut free = lock(&self.free);
        out.iter_mut().map_while(|out| free.pop().map(|frame| *out = frame)).count()
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        lock(&self.free).extend(frames.iter().rev());
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        pfn.get() < self.frames.len() as u64
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        &self.frames[pfn.get() as usize]
    }

    fn zero_frame(&self, pfn: Pfn) {
        (0..PAGE_SIZE as usize).step_by(WORD).for_each(|at| self.word(pfn, at).store(0, Ordering::Relaxed));
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        for at in (0..PAGE_SIZE as usize).step_by(WORD) {
            self.word(to, at).store(self.word(from, at).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        for ((word, shift), out) in self.bytes(pfn, offset, out.len()).zip(out) {
            *out = (word.load(Ordering::Relaxed) >> shift) as u8;
        }
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        for ((word, shift), byte) in self.bytes(pfn, offset, data.len()).zip(data) {
            // Changes the byte atomically: a program may store to the other bytes of the word.
            let put = |old: u64| Some(old & !(0xff << shift) | u64::from(*byte) << shift);
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, put);
        }
    }

    fn space_created(&self, root: Pfn) -> Option<SpaceCpus> {
        Some(TLBS.space(root))
    }

    fn space_ending(&self, mmu: &SpaceCpus, _: Pfn) {
        TLBS.end(Cpu::number(), mmu, &Threads);
    }

    fn flush(&self, mmu: &SpaceCpus, what: &Flush) {
        TLBS.flush(Cpu::number(), mmu, what, &Threads);
    }

    fn runs_elsewhere(&self, mmu: &SpaceCpus) -> bool {
        TLBS.runs_elsewhere(Cpu::number(), mmu)
    }
}
