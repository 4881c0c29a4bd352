//! A platform that forwards to the machine and has *gates*. A function that a test puts into a [`Gate`] runs
//! once, on the next thread that passes the gate. The gates are at the start of a flush and of a copy, read,
//! write or clearing of a frame. Tests use gates to make a second call at a chosen point of a first call,
//! without a race.
//!
//! Three similar functions affect only the calling thread: they run a function before the thread takes a spin
//! lock of a given rank ([`before_lock`]), accesses a page table ([`before_table`]) or enters a read section
//! ([`before_read_section`]). The platform can also
//! report when a thread begins to wait for a grace period. The thread inside a gate may hold locks of the
//! engine. A call that would wait for these locks must therefore run on another thread. After the first call,
//! the test checks with [`Gate::is_waiting`], [`waits_for_lock`] or [`waits_for_table`] that its function has
//! run.
//!
//! A new gate is a field of [`Gated`], which the method of the platform passes before it forwards to the
//! machine.
#![allow(dead_code, reason = "each test program uses its part")]
#![expect(unsafe_code, reason = "implements the engine's unsafe traits by forwarding to the machine")]

use freehold::{
    Pfn,
    platform::{
        AllocEffort, FileId, Frame, FramePurpose, FrameRequest, MemoryShortage, NodeChoice, PageOwner,
        Platform, ShortageAnswer,
    },
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Machine, Mmu, exempt};
use freehold_pagetable::{Flush, Level, OutOfTables, Table, TableMemory, TableMeta};
use freehold_sync::{Host, Interrupted, Killed, LockContext, Rank, RcuHead, atomic::AtomicU32};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::Sender,
    },
};

/// A function that a thread runs at a gate.
type Visit = Box<dyn FnOnce() + Send>;

/// A gate. Runs the function that a test has put into it, once.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<Option<Visit>>>);

impl Gate {
    /// Makes the next thread that passes the gate run `visit`.
    pub fn put(&self, visit: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(visit));
    }

    /// Returns true if no thread has passed the gate.
    pub fn is_waiting(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    /// Runs the function in the gate, if there is one.
    pub fn pass(&self) {
        // The function is taken out first, because it may pass the gate, too.
        let visit = self.0.lock().unwrap().take();
        if let Some(visit) = visit {
            // The function is not part of the engine, so it may use the heap where the engine may not.
            exempt(visit);
        }
    }
}

thread_local! {
    static BARRIER_SENDER: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

thread_local! {
    static BEFORE: RefCell<Option<(Rank, Visit)>> = const { RefCell::new(None) };
}

/// Makes this thread run `visit` before it next takes a spin lock of this rank.
pub fn before_lock(rank: Rank, visit: impl FnOnce() + Send + 'static) {
    BEFORE.set(Some((rank, Box::new(visit))));
}

/// Returns true if this thread has not yet reached the lock of [`before_lock`].
pub fn waits_for_lock() -> bool {
    BEFORE.with_borrow(Option::is_some)
}

thread_local! {
    static TABLES: RefCell<Option<(usize, Visit)>> = const { RefCell::new(None) };
}

/// Makes this thread run `visit` before it accesses a page table for the `number`th time from now on.
pub fn before_table(number: usize, visit: impl FnOnce() + Send + 'static) {
    TABLES.set(Some((number, Box::new(visit))));
}

/// Returns true if this thread has not yet reached the access of [`before_table`].
pub fn waits_for_table() -> bool {
    TABLES.with_borrow(Option::is_some)
}

thread_local! {
    static READS: RefCell<Option<Visit>> = const { RefCell::new(None) };
}

/// Makes this thread run `visit` before it next enters a read section.
pub fn before_read_section(visit: impl FnOnce() + Send + 'static) {
    READS.set(Some(Box::new(visit)));
}

/// Sends a message when this thread begins to wait for a grace period.
pub fn send_at_barriers(sender: Sender<()>) {
    BARRIER_SENDER.set(Some(sender));
}

thread_local! {
    /// The added length of grace periods, and the time added to the clock so far, in nanoseconds.
    static BARRIER_NS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Makes each wait of this thread for a grace period take `ns` nanoseconds more on the clock of [`Gated`].
pub fn prolong_barriers(ns: u64) {
    BARRIER_NS.set((ns, BARRIER_NS.get().1));
}

/// A machine with gates.
#[derive(Clone)]
pub struct Gated {
    pub machine: Machine,
    /// Passed before a flush.
    pub flush: Gate,
    /// Passed before bytes are read from a frame on behalf of a task.
    pub read: Gate,
    /// Passed before a frame is copied to another.
    pub copy: Gate,
    /// Passed before bytes are written to a frame on behalf of a task.
    pub write: Gate,
    /// Passed before a frame is filled with zeroes.
    pub zero: Gate,
    /// All requests for frames.
    pub asked: Arc<Mutex<Vec<Asked>>>,
    /// The number of requests for page tables.
    pub tables: Arc<AtomicU64>,
    /// The number of nodes. Successive blocks of 2 MiB belong to successive nodes.
    pub nodes: usize,
    /// True if tasks have a policy.
    pub task_policy: Arc<AtomicBool>,
}

/// One call of `alloc_frames` or `alloc_run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub order: u32,
    pub node: NodeChoice,
    pub purpose: FramePurpose,
    pub owner: Option<AskedOwner>,
    pub effort: AllocEffort,
    pub frames: AskedFrames,
}

impl Asked {
    fn new(request: &FrameRequest<'_, Mmu<DefaultFormat>>, frames: AskedFrames) -> Self {
        let FrameRequest { order, node, purpose, owner, effort } = *request;
        let owner = owner.map(|owner| match owner {
            PageOwner::Space(mmu) => AskedOwner::Space(mmu.root()),
            PageOwner::File(file) => AskedOwner::File(file),
            PageOwner::Caller => AskedOwner::Caller,
            PageOwner::SameAs(pfn) => AskedOwner::SameAs(pfn),
            other => unimplemented!("{other:?}"),
        });
        Asked { order, node, purpose, owner, effort, frames }
    }
}

/// The owner that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedOwner {
    /// The space with this root table.
    Space(Pfn),
    File(FileId),
    Caller,
    SameAs(Pfn),
}

/// The number of frames of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedFrames {
    /// One frame, or one block.
    One,
    /// Several single frames.
    Batch,
    /// Consecutive frames.
    Run(u64),
}

/// Returns the node that a policy selects.
fn node_of_policy(tag: u64, place: u64) -> usize {
    let nth = place as usize % tag.count_ones() as usize;
    (0..64).filter(|node| tag >> node & 1 != 0).nth(nth).unwrap()
}

impl Gated {
    pub fn new(machine: &Machine) -> Self {
        Gated {
            machine: machine.clone(),
            flush: Gate::default(),
            read: Gate::default(),
            copy: Gate::default(),
            write: Gate::default(),
            zero: Gate::default(),
            asked: Arc::default(),
            tables: Arc::default(),
            nodes: 1,
            task_policy: Arc::default(),
        }
    }

    /// Returns true if a frame may serve a request. The tag of a policy is the set of its nodes, one bit
    /// each, and the pages are distributed over these nodes.
    fn suits(&self, node: NodeChoice, pfn: Pfn) -> bool {
        match node {
            NodeChoice::Any | NodeChoice::Task => true,
            NodeChoice::Only(node) => self.node_of(pfn) == node,
            NodeChoice::Policy { tag, place } => self.node_of(pfn) == node_of_policy(tag, place),
        }
    }
}

// SAFETY: every method forwards to the machine, which upholds the contract.
unsafe impl Host for Gated {
    const MAX_CPUS: usize = Machine::<DefaultFormat>::MAX_CPUS;
    type RcuGuard = <Machine as Host>::RcuGuard;

    fn wait(word: &AtomicU32, expected: u32) {
        <Machine as Host>::wait(word, expected);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        <Machine as Host>::wait_killable(word, expected)
    }

    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        <Machine as Host>::wait_interruptible(word, expected)
    }

    fn wake_one(word: &AtomicU32) {
        <Machine as Host>::wake_one(word);
    }

    fn wake_all(word: &AtomicU32) {
        <Machine as Host>::wake_all(word);
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        <Machine as Host>::with_cpu(f)
    }

    fn now_ns() -> u64 {
        <Machine as Host>::now_ns() + BARRIER_NS.get().1
    }

    fn spin_enter(rank: Rank) {
        // A thread that ends may take a lock after its thread-local values were dropped; `try_with` then
        // fails.
        let visit = BEFORE.try_with(|before| before.borrow_mut().take_if(|(wanted, _)| *wanted == rank));
        if let Ok(Some((_, visit))) = visit {
            exempt(visit);
        }
        <Machine as Host>::spin_enter(rank);
    }

    fn spin_exit(rank: Rank) {
        <Machine as Host>::spin_exit(rank);
    }

    fn relax() {
        <Machine as Host>::relax();
    }

    fn cond_resched() {
        <Machine as Host>::cond_resched();
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        <Machine as Host>::lock_context(f)
    }

    fn rcu_read() -> Self::RcuGuard {
        if let Some(visit) = READS.take() {
            exempt(visit);
        }
        <Machine as Host>::rcu_read()
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller upholds the contract of `rcu_defer`.
        unsafe { <Machine as Host>::rcu_defer(head, f) }
    }

    fn rcu_barrier() {
        BARRIER_SENDER.with_borrow(|sender| {
            if let Some(sender) = sender {
                // The send fails if the receiver has got a message and was dropped.
                let _ = sender.send(());
            }
        });
        <Machine as Host>::rcu_barrier();
        let (more, added) = BARRIER_NS.get();
        BARRIER_NS.set((more, added + more));
    }
}

// SAFETY: every method forwards to the machine, which upholds the contract.
unsafe impl TableMemory for Gated {
    fn alloc_table(&self, root: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        self.tables.fetch_add(1, SeqCst);
        self.machine.alloc_table(root)
    }

    unsafe fn free_table(&self, table: Pfn) {
        // SAFETY: the caller upholds the contract of `free_table`.
        unsafe { self.machine.free_table(table) }
    }

    fn table(&self, table: Pfn) -> &Table {
        let next = |number: &mut usize| {
            *number -= 1;
            *number == 0
        };
        // The thread-local value is gone if an ending thread drops its values.
        let visit = TABLES.try_with(|tables| tables.borrow_mut().take_if(|(number, _)| next(number)));
        if let Ok(Some((_, visit))) = visit {
            exempt(visit);
        }
        self.machine.table(table)
    }

    fn table_meta(&self, table: Pfn) -> &TableMeta {
        self.machine.table_meta(table)
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        self.machine.publish_code(first, frames);
    }
}

// SAFETY: every method forwards to the machine, which upholds the contract.
unsafe impl Platform for Gated {
    type Format = DefaultFormat;
    type Mmu = Mmu<DefaultFormat>;

    fn alloc_frames(&self, request: &FrameRequest<'_, Self::Mmu>, out: &mut [Pfn]) -> usize {
        let FrameRequest { order, node, .. } = *request;
        let frames = if out.len() == 1 { AskedFrames::One } else { AskedFrames::Batch };
        exempt(|| self.asked.lock().unwrap().push(Asked::new(request, frames)));
        if matches!(node, NodeChoice::Any | NodeChoice::Task) {
            return self.machine.alloc_frames(request, out);
        }
        // Takes blocks one by one, and returns those that do not suit.
        let (mut others, mut got) = (Vec::new(), 0);
        while got < out.len() && self.machine.alloc_frames(request, &mut out[got..=got]) == 1 {
            match self.suits(node, out[got]) {
                true => got += 1,
                false => exempt(|| others.extend((0..1 << order).map(|n| out[got].add(n)))),
            }
        }
        // SAFETY: the machine has just allocated the frames, and nothing uses them.
        unsafe { self.machine.free_frames(&others) };
        got
    }

    fn alloc_run(&self, request: &FrameRequest<'_, Self::Mmu>, frames: u64) -> Option<Pfn> {
        exempt(|| self.asked.lock().unwrap().push(Asked::new(request, AskedFrames::Run(frames))));
        self.machine.alloc_run(request, frames)
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn nth_node(&self, choice: NodeChoice, n: usize) -> Option<usize> {
        match choice {
            NodeChoice::Policy { tag, place } => (n == 0).then(|| node_of_policy(tag, place)),
            NodeChoice::Only(node) => (n == 0).then_some(node),
            NodeChoice::Any | NodeChoice::Task => (n < self.nodes).then_some(n),
        }
    }

    fn node_of(&self, pfn: Pfn) -> usize {
        (pfn.get() / 512) as usize % self.nodes
    }

    fn has_task_policy(&self) -> bool {
        self.task_policy.load(SeqCst)
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        // SAFETY: the caller upholds the contract of `free_frames`.
        unsafe { self.machine.free_frames(frames) }
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        self.machine.has_frame(pfn)
    }

    fn frames(&self) -> Range<Pfn> {
        self.machine.frames()
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        self.machine.frame(pfn)
    }

    fn zero_frame(&self, pfn: Pfn) {
        self.zero.pass();
        self.machine.zero_frame(pfn);
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        self.copy.pass();
        self.machine.copy_frame(to, from);
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        self.read.pass();
        self.machine.read_frame(pfn, offset, out);
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        self.write.pass();
        self.machine.write_frame(pfn, offset, data);
    }

    fn space_created(&self, root: Pfn) -> Option<Self::Mmu> {
        self.machine.space_created(root)
    }

    fn charge(&self, owner: PageOwner<'_, Self::Mmu>, first: Pfn, frames: u64) -> bool {
        self.machine.charge(owner, first, frames)
    }

    fn uncharge(&self, frames: &[Pfn]) {
        self.machine.uncharge(frames);
    }

    fn charge_huge_page(&self, owner: PageOwner<'_, Self::Mmu>, first: Pfn, frames: u64) -> bool {
        self.machine.charge_huge_page(owner, first, frames)
    }

    fn uncharge_huge_page(&self, first: Pfn, frames: u64) {
        self.machine.uncharge_huge_page(first, frames);
    }

    fn memory_short(&self, shortage: &MemoryShortage<'_, Self::Mmu>) -> ShortageAnswer {
        self.machine.memory_short(shortage)
    }

    fn flush(&self, mmu: &Self::Mmu, what: &Flush) {
        self.flush.pass();
        self.machine.flush(mmu, what);
    }

    fn runs_elsewhere(&self, mmu: &Self::Mmu) -> bool {
        self.machine.runs_elsewhere(mmu)
    }
}
