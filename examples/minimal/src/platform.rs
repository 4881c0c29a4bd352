//! The platform of a machine with one CPU and one task. The module `platform` of `freehold` is the contract.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits")]

use freehold::PAGE_SIZE;
use freehold::platform::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use freehold::platform::{
    Flush, Frame, FrameRequest, Host, Killed, LockContext, OutOfTables, Pfn, Platform, RcuHead, Table,
    TableMemory, TableMeta, X86_4,
};
use freehold_kit::{Qsbr, QsbrCpu};
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

static RCU: Qsbr<1> = Qsbr::new([const { QsbrCpu::new() }; 1]);
static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The thread that acts as the CPU.
static TASK: OnceLock<ThreadId> = OnceLock::new();

/// Panics if a second thread calls the engine: its read sections would not delay a grace period.
fn check_task() {
    let caller = thread::current().id();
    assert_eq!(*TASK.get_or_init(|| caller), caller, "this platform has one task");
}

/// Runs the functions whose grace period is over, as the tick of a kernel does. The caller holds no read
/// section.
pub fn tick() {
    check_task();
    RCU.quiescent(0);
    RCU.advance();
}

/// The memory of the machine, with the engine's record of each frame and table. Frame `n` is `memory[n]`.
pub struct Board {
    memory: Box<[Table]>,
    frames: Box<[Frame]>,
    tables: Box<[TableMeta]>,
    free: Mutex<Vec<Pfn>>,
}

impl Board {
    /// Creates a machine with `frames` frames. Frame 0 is never allocated.
    pub fn new(frames: usize) -> Self {
        if !RCU.is_online(0) {
            RCU.online(0);
        }
        Board {
            memory: (0..frames).map(|_| Table::new()).collect(),
            frames: (0..frames).map(|_| Frame::new()).collect(),
            tables: (0..frames).map(|_| TableMeta::new()).collect(),
            free: Mutex::new((1..frames as u64).rev().map(Pfn::new).collect()),
        }
    }

    /// Returns the word that contains the byte at `offset` of a frame.
    pub fn word(&self, pfn: Pfn, offset: u64) -> &AtomicU64 {
        self.memory[pfn.get() as usize].entry(offset as usize / 8)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Pfn>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        Self::rcu_barrier();
        let leaked = self.frames.len() - 1 - self.free().len();
        println!("{leaked} frames leaked");
        assert!(leaked == 0 || thread::panicking(), "a frame or a table is still in use");
    }
}

// SAFETY: `check_task` ensures that only one task uses the number 0. `freehold-kit` explains why a deferred
// function waits for all read sections: `tick` and `rcu_barrier` are called outside of read sections.
unsafe impl Host for Board {
    const MAX_CPUS: usize = 1;
    type RcuGuard = ();

    fn wait(word: &AtomicU32, expected: u32) {
        assert_ne!(word.load(Relaxed), expected, "no other task can wake the only task");
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        Self::wait(word, expected);
        Ok(())
    }

    fn wake_one(_: &AtomicU32) {}

    fn wake_all(_: &AtomicU32) {}

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        check_task();
        f(0)
    }

    fn now_ns() -> u64 {
        BOOT.elapsed().as_nanos() as u64
    }

    fn relax() {}

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    fn rcu_read() {
        check_task();
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        check_task();
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe { RCU.defer(0, head, f) };
    }

    fn rcu_barrier() {
        check_task();
        RCU.barrier(|| RCU.quiescent(0));
    }
}

// SAFETY: each frame that leaves the free list has one owner. Records do not move while the board lives.
unsafe impl TableMemory for Board {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let table = self.free().pop().ok_or(OutOfTables)?;
        self.zero_frame(table);
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        self.tables[table.get() as usize].reset();
        self.free().push(table);
    }

    fn table(&self, pfn: Pfn) -> &Table {
        &self.memory[pfn.get() as usize]
    }

    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        &self.tables[pfn.get() as usize]
    }
}

// SAFETY: as above. The CPU walks the tables for each access, so it never keeps a translation.
unsafe impl Platform for Board {
    type Format = X86_4;
    /// The root table, which the CPU loads.
    type Mmu = Pfn;

    fn alloc_frames(&self, request: &FrameRequest<'_, Pfn>, out: &mut [Pfn]) -> usize {
        let mut free = self.free();
        // There are no blocks of several frames, so the engine uses no huge pages.
        let blocks = if request.order == 0 { out.len() } else { 0 };
        out[..blocks].iter_mut().map_while(|out| free.pop().map(|frame| *out = frame)).count()
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        self.free().extend(frames);
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        pfn.get() < self.frames.len() as u64
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        &self.frames[pfn.get() as usize]
    }

    fn zero_frame(&self, pfn: Pfn) {
        (0..PAGE_SIZE).step_by(8).for_each(|at| self.word(pfn, at).store(0, Relaxed));
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        let copy = |at| self.word(to, at).store(self.word(from, at).load(Relaxed), Relaxed);
        (0..PAGE_SIZE).step_by(8).for_each(copy);
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        for (at, byte) in (offset as u64..).zip(out) {
            *byte = self.word(pfn, at).load(Relaxed).to_le_bytes()[at as usize % 8];
        }
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        for (at, byte) in (offset as u64..).zip(data) {
            let word = self.word(pfn, at);
            // No program runs between the load and the store, because there is one CPU.
            let mut bytes = word.load(Relaxed).to_le_bytes();
            bytes[at as usize % 8] = *byte;
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }

    fn space_created(&self, root: Pfn) -> Option<Pfn> {
        Some(root)
    }

    fn flush(&self, _: &Pfn, _: &Flush) {}

    fn runs_elsewhere(&self, _: &Pfn) -> bool {
        false
    }
}
