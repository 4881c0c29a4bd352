//! What Freehold asks of a kernel, supplied in the simplest way that is right: everything that a real kernel does per
//! processor is done here under one lock.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits")]

use freehold::frame::Frame;
use freehold::platform::{Host, Platform};
use freehold_pagetable::{Flush, OutOfTables, PAGE_SIZE, Pfn, Table, TableMemory, TableMeta, X86_4};
use freehold_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use freehold_sync::{Killed, LockContext, RcuHead};
use std::ptr::NonNull;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

const WORD: usize = size_of::<u64>();

/// Memory and its records. Frame `n` is `memory[n]`: the direct map is an index. Page tables come out of the same frames.
pub struct Board {
    memory: Box<[Table]>,
    frames: Box<[Frame]>,
    tables: Box<[TableMeta]>,
    free: Mutex<Vec<Pfn>>,
    /// Held for reading while a program uses a translation: a flush, which takes it for writing, waits for that.
    bus: RwLock<()>,
}

impl Board {
    /// A board with so many frames of memory. Frame 0 is never handed out.
    pub fn new(frames: usize) -> Self {
        Board {
            memory: (0..frames).map(|_| Table::new()).collect(),
            frames: (0..frames).map(|_| Frame::new()).collect(),
            tables: (0..frames).map(|_| TableMeta::new()).collect(),
            free: Mutex::new((1..frames as u64).rev().map(Pfn::new).collect()),
            bus: RwLock::new(()),
        }
    }

    /// The right to use a translation until the guard is dropped.
    pub fn use_bus(&self) -> RwLockReadGuard<'_, ()> {
        self.bus.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The aligned word at `offset` bytes of a frame.
    pub fn word(&self, pfn: Pfn, offset: usize) -> &AtomicU64 {
        self.memory[pfn.get() as usize].entry(offset / WORD)
    }

    /// Frames that nobody uses.
    pub fn free_frames(&self) -> usize {
        lock(&self.free).len()
    }

    fn bytes(&self, pfn: Pfn, offset: usize, count: usize) -> impl Iterator<Item = (&AtomicU64, usize)> {
        (offset..offset + count).map(move |at| (self.word(pfn, at), at % WORD * 8))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever is inside `with_cpu`: this kernel has one processor number.
static CPU: Mutex<()> = Mutex::new(());
/// Whoever waits, whatever for, and whoever wakes.
static SLEEP: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);
static RCU: Mutex<Rcu> = Mutex::new(Rcu { readers: 0, waiting: Vec::new(), running: 0 });

/// Grace periods: what was deferred runs at the first moment without a reader.
struct Rcu {
    readers: usize,
    waiting: Vec<Deferred>,
    running: usize,
}

impl Rcu {
    fn is_busy(&self) -> bool {
        self.running != 0 || !self.waiting.is_empty()
    }
}

struct Deferred(NonNull<RcuHead>);

// SAFETY: who defers a function allows it to run on any thread.
unsafe impl Send for Deferred {}

/// A read section.
pub struct Reading;

impl Drop for Reading {
    fn drop(&mut self) {
        lock(&RCU).readers -= 1;
        run_deferred();
    }
}

fn run_deferred() {
    let ready = {
        let mut rcu = lock(&RCU);
        if rcu.readers != 0 || rcu.waiting.is_empty() {
            return;
        }
        rcu.running += 1;
        std::mem::take(&mut rcu.waiting)
    };
    for Deferred(head) in ready {
        // SAFETY: `rcu_defer` has set it, and there was a moment without readers since.
        unsafe { RcuHead::run(head) };
    }
    lock(&RCU).running -= 1;
}

// SAFETY: one context at a time is inside `with_cpu`; what is deferred runs once, after a moment without readers.
unsafe impl Host for Board {
    const MAX_CPUS: usize = 1;
    type RcuGuard = Reading;

    fn wait(word: &AtomicU32, expected: u32) {
        let awake = lock(&SLEEP.0);
        // SeqCst: whoever changes the word wakes afterwards, and cannot before this sleeps: it needs the mutex.
        if word.load(Ordering::SeqCst) == expected {
            drop(SLEEP.1.wait(awake));
        }
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        // Nobody sends signals here.
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
        let _alone = lock(&CPU);
        f(0)
    }

    fn now_ns() -> u64 {
        BOOT.elapsed().as_nanos() as u64
    }

    fn relax() {
        std::thread::yield_now();
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        // The order of locks is not checked here.
        None
    }

    fn rcu_read() -> Reading {
        lock(&RCU).readers += 1;
        Reading
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller gave us the head.
        unsafe { RcuHead::set(head, None, f) };
        lock(&RCU).waiting.push(Deferred(head));
        run_deferred();
    }

    fn rcu_barrier() {
        run_deferred();
        while lock(&RCU).is_busy() {
            std::thread::yield_now();
            run_deferred();
        }
    }
}

// SAFETY: a frame leaves the free list for one owner; records and memory do not move while the board lives.
unsafe impl TableMemory for Board {
    fn alloc_table(&self) -> Result<Pfn, OutOfTables> {
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

// SAFETY: as above; there is no TLB, and a flush waits for the accesses that have walked the tables before.
unsafe impl Platform for Board {
    type Format = X86_4;
    /// All that this kernel keeps for an address space: its root table.
    type Mmu = Pfn;

    fn alloc_frames(&self, out: &mut [Pfn]) -> usize {
        let mut free = lock(&self.free);
        out.iter_mut().map_while(|out| free.pop().map(|frame| *out = frame)).count()
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        lock(&self.free).extend(frames.iter().rev());
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
            // One step: a program may be storing to the other bytes of the word.
            let put = |old: u64| Some(old & !(0xff << shift) | u64::from(*byte) << shift);
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, put);
        }
    }

    fn space_created(&self, root: Pfn) -> Option<Pfn> {
        Some(root)
    }

    fn flush(&self, _: &Pfn, _: &Flush) {
        drop(self.bus.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn runs_elsewhere(&self, _: &Pfn) -> bool {
        // Any thread may use any address space.
        true
    }
}
