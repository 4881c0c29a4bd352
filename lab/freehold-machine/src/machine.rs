//! The handle of a machine, and the traits of the engine that the handle implements.
//!
//! [`Machine`] stands for the hardware and the kernel below the engine: [`Host`] (waiting, RCU, clock),
//! [`TableMemory`] (page tables) and [`Platform`] (frames, TLB flushes). Each function of a trait checks its
//! context (`context.rs`) and passes the work on: to [`Inner`] for memory, to `mmu.rs` for flushes, and to
//! the host (`host_std` or another) for threads. The state is in [`Inner`]; a handle has none. A new function
//! of a trait is implemented here, begins with a check, and gets a line in the table of
//! [`freehold::platform`]. `tests/host.rs` tests the functions of [`Host`]; `tests/memory.rs` and
//! `tests/tlb.rs` test the other traits.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits")]

use crate::DefaultFormat;
use crate::config::MachineConfig;
use crate::contents::Page;
use crate::context;
use crate::cpu::Cpu;
use crate::exempt::exempt;
use crate::host;
use crate::inner::Inner;
use crate::inside::Inside;
use crate::lock_log;
use crate::mmu::Mmu;
use crate::report::{Accounting, MachineStats};
use freehold::platform::{Frame, FrameRequest};
use freehold::platform::{MemoryShortage, PageOwner, PkeyRights, Platform, ShortageAnswer};
use freehold_pagetable::{Flush, Format, OutOfTables, Pfn, Table, TableMemory, TableMeta};
use freehold_sync::atomic::AtomicU32;
use freehold_sync::stats::LockUse;
use freehold_sync::{Host, Interrupted, Killed, LockContext, Rank, RcuHead};
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A function that answers [`Platform::memory_short`] for a machine.
pub type MemoryShort<F = DefaultFormat> = dyn Fn(&MemoryShortage<'_, Mmu<F>>) -> ShortageAnswer + Send + Sync;

/// A handle of a machine in this process. Cloning is cheap. The machine is freed when its last handle, CPU
/// and address space are dropped.
///
/// `F` is the format of the page tables.
pub struct Machine<F: Format = DefaultFormat> {
    /// The state, shared by all handles.
    inner: Arc<Inner<F>>,
}

impl<F: Format> Machine<F> {
    /// Builds a machine.
    ///
    /// # Errors
    /// Fails if the host refuses to reserve address space, or if a size is zero or greater than the machine
    /// can number.
    pub fn new(config: MachineConfig) -> io::Result<Self> {
        Ok(Machine { inner: Arc::new(Inner::new(config)?) })
    }

    /// Returns the state.
    pub(crate) fn inner(&self) -> &Inner<F> {
        &self.inner
    }

    /// Claims a virtual CPU. One thread at a time may run the CPU.
    ///
    /// # Panics
    /// Panics if there is no such CPU, or if the CPU is already claimed.
    pub fn cpu(&self, number: usize) -> Cpu<F> {
        assert!(number < self.inner.cpus.len(), "this machine has {} CPUs", self.inner.cpus.len());
        Cpu::claim(&self.inner, number).unwrap_or_else(|| panic!("CPU {number} is claimed already"))
    }

    /// The configuration that the machine was built from.
    pub fn config(&self) -> &MachineConfig {
        &self.inner.config
    }

    /// Returns the resources that are in use. The result [is clean](Accounting::is_clean) once all address
    /// spaces are dropped.
    pub fn accounting(&self) -> Accounting {
        Accounting::of(&self.inner)
    }

    /// Returns the pages whose loss was reported to programs since the last call, and empties the list. Each
    /// entry is the root table of the space and the address of the page.
    pub fn take_lost_pages(&self) -> Vec<(Pfn, u64)> {
        std::mem::take(&mut *self.inner.lost_pages.lock())
    }

    /// Sets the function that answers [`Platform::memory_short`], or removes it. Without a function, every
    /// operation that finds no memory fails. A function that refers to an engine or address space must be
    /// removed before the machine can be freed.
    pub fn set_memory_short(&self, answer: Option<Arc<MemoryShort<F>>>) {
        let before = exempt(|| std::mem::replace(&mut *self.inner.memory_short.lock(), answer));
        // Dropping the function may drop an engine, which takes locks of the machine.
        drop(before);
    }

    /// Adds an entry to the kernel's half of every root table, both of existing spaces and of spaces that are
    /// created later.
    ///
    /// # Panics
    /// Panics if the machine has no [kernel's half](MachineConfig::kernel_half), or if the half is full.
    pub fn extend_kernel_half(&self) {
        let kernel = self.inner.kernel.as_ref().expect("a machine with a kernel's half");
        kernel.extend(&self.inner);
    }

    /// Number of flushes that were requested since the machine was built. Takes no lock of a CPU, so it can
    /// be called inside a [walk](Platform::walk_tables), which holds the lock of its CPU.
    pub fn flushes(&self) -> u64 {
        let [ranges, all, _] = self.inner.flush_counts();
        ranges + all
    }

    /// Copies the contents of a frame. Does nothing in phantom memory.
    fn copy_page(&self, to_pfn: Pfn, from: Pfn) {
        if let (Some(to), Some(from)) = (self.inner.page(to_pfn), self.inner.page(from)) {
            to.copy_from(from);
            self.inner.set_published(to_pfn, false);
        }
    }

    /// Returns the counts of events since the machine was built.
    pub fn stats(&self) -> MachineStats {
        MachineStats::of(&self.inner)
    }
}

impl<F: Format> Clone for Machine<F> {
    fn clone(&self) -> Self {
        Machine { inner: Arc::clone(&self.inner) }
    }
}

impl<F: Format> fmt::Debug for Machine<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

// SAFETY: `host` keeps each promise: waits are futexes by address, running contexts have different `with_cpu`
// numbers, and a deferred function runs after every earlier reader has ended.
unsafe impl<F: Format> Host for Machine<F> {
    const MAX_CPUS: usize = host::MAX_CPUS;

    fn cpus() -> usize {
        host::cpus()
    }

    type RcuGuard = context::RcuGuard;

    fn wait(word: &AtomicU32, expected: u32) {
        context::check("wait", context::SLEEPS);
        host::wait(word, expected);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        context::check("wait_killable", context::SLEEPS);
        host::wait_killable(word, expected)
    }

    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        context::check("wait_interruptible", context::SLEEPS);
        host::wait_interruptible(word, expected)
    }

    fn wake_one(word: &AtomicU32) {
        context::check("wake_one", context::SHORT);
        host::wake_one(word);
    }

    fn wake_all(word: &AtomicU32) {
        context::check("wake_all", context::SHORT);
        host::wake_all(word);
    }

    #[inline(always)]
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        context::check("with_cpu", context::ALONE);
        host::with_cpu(|cpu| context::inside(Inside::Cpu, || f(cpu)))
    }

    fn now_ns() -> u64 {
        context::check("now_ns", context::NOWHERE);
        host::now_ns()
    }

    fn lock_used(used: &LockUse) {
        lock_log::add(used);
    }

    #[inline(always)]
    fn spin_enter(rank: Rank) {
        context::spin_enter(rank);
    }

    #[inline(always)]
    fn spin_exit(rank: Rank) {
        context::spin_exit(rank);
    }

    fn relax() {
        host::relax();
    }

    fn cond_resched() {
        context::check("cond_resched", context::RESCHEDULES);
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        host::lock_context(f)
    }

    #[inline]
    fn rcu_read() -> Self::RcuGuard {
        context::rcu_read()
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        context::check("rcu_defer", context::DEFERS);
        // SAFETY: the caller keeps the contract of `rcu_defer`, which is the same for `host::rcu_defer`.
        unsafe { host::rcu_defer(head, f) }
    }

    fn rcu_barrier() {
        context::check("rcu_barrier", context::SLEEPS);
        host::rcu_barrier();
    }
}

// SAFETY: the pool hands a table number to one caller at a time, and a free table is all zero with a reset
// record. Memory and records do not move while a handle lives. Numbers outside the pool panic.
unsafe impl<F: Format> TableMemory for Machine<F> {
    fn alloc_table(&self, root: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        context::check("alloc_table", context::SLEEPS);
        let table = self.inner.alloc_table().ok_or(OutOfTables)?;
        // A root is charged when its space is created.
        if let Some(root) = root {
            self.inner.charge_table(root, table).inspect_err(|_| self.inner.free_table(table))?;
        }
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        context::check("free_table", context::SLEEPS);
        self.inner.free_table(table);
    }

    #[inline]
    fn table(&self, table: Pfn) -> &Table {
        context::check("table", context::NOWHERE);
        self.inner.table(table)
    }

    #[inline]
    fn table_meta(&self, table: Pfn) -> &TableMeta {
        context::check("table_meta", context::NOWHERE);
        self.inner.table_record(table)
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        context::check("publish_code", context::FLUSHES);
        (0..frames).for_each(|n| self.inner.set_published(first.add(n), true));
    }
}

// SAFETY: the pool hands a frame number to one caller at a time, and records do not move. The head of `mmu`
// explains why a flush returns only when no CPU holds or uses a translation that the flush covers.
unsafe impl<F: Format> Platform for Machine<F> {
    type Format = F;
    type Mmu = Mmu<F>;

    fn alloc_frames(&self, request: &FrameRequest<'_, Mmu<F>>, out: &mut [Pfn]) -> usize {
        context::check("alloc_frames", context::SLEEPS);
        match request.order {
            0 => self.inner.alloc_frames(out),
            order => self.inner.alloc_blocks(order, out),
        }
    }

    fn alloc_run(&self, _: &FrameRequest<'_, Mmu<F>>, frames: u64) -> Option<Pfn> {
        context::check("alloc_run", context::SLEEPS);
        self.inner.alloc_run(frames)
    }

    fn withdraw_frame(&self, pfn: Pfn) -> bool {
        context::check("withdraw_frame", context::SLEEPS);
        self.inner.frames.take_this(pfn)
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        self.inner.frames.index(pfn).is_some()
    }

    fn frames(&self) -> Range<Pfn> {
        self.inner.frames.numbers()
    }

    fn has_pkeys(&self) -> bool {
        self.inner.config.pkeys
    }

    fn pkey_rights(&self, pkey: u8) -> PkeyRights {
        context::check("pkey_rights", context::SLEEPS);
        let pkru = self.inner.current_cpu().map_or(0, |cpu| self.inner.cpus[cpu].lock().pkru);
        PkeyRights::from_bits_truncate(pkru >> (2 * u32::from(pkey)))
    }

    fn set_pkey_rights(&self, pkey: u8, rights: PkeyRights) {
        context::check("set_pkey_rights", context::SLEEPS);
        // A thread that runs on no CPU has no pkey register.
        if let Some(cpu) = self.inner.current_cpu() {
            let (mut tlb, shift) = (self.inner.cpus[cpu].lock(), 2 * u32::from(pkey));
            tlb.pkru = tlb.pkru & !(3 << shift) | rights.bits() << shift;
        }
    }

    /// Returns the number of the CPU that the calling thread runs on, plus 1, or 0 without a CPU.
    fn thread_id(&self) -> u32 {
        context::check("thread_id", context::SLEEPS);
        self.inner.current_cpu().map_or(0, |cpu| cpu as u32 + 1)
    }

    #[inline(always)]
    fn charge(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        context::check("charge", context::SLEEPS);
        self.inner.charge(owner, first, frames)
    }

    #[inline(always)]
    fn uncharge(&self, frames: &[Pfn]) {
        context::check("uncharge", context::SLEEPS);
        self.inner.uncharge(frames);
    }

    fn charge_huge_page(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        context::check("charge_huge_page", context::SLEEPS);
        self.inner.charge_huge_page(owner, first, frames)
    }

    fn uncharge_huge_page(&self, first: Pfn, frames: u64) {
        context::check("uncharge_huge_page", context::SLEEPS);
        self.inner.uncharge_huge_page(first, frames);
    }

    fn memory_short(&self, shortage: &MemoryShortage<'_, Mmu<F>>) -> ShortageAnswer {
        context::check("memory_short", context::SLEEPS);
        let answer = self.inner.memory_short.lock().clone();
        answer.map_or(ShortageAnswer::Fail, |answer| answer(shortage))
    }

    fn memory_failed(&self, mmu: &Mmu<F>, addr: u64) {
        context::check("memory_failed", context::SLEEPS);
        // Only tests read the list. The push is exempt from failure injection, because this function cannot
        // report a failure.
        exempt(|| self.inner.lost_pages.lock().push((mmu.root(), addr)));
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        context::check("free_frames", context::SLEEPS);
        self.inner.free_frames(frames);
    }

    #[inline]
    fn frame(&self, pfn: Pfn) -> &Frame {
        context::check("frame", context::NOWHERE);
        self.inner.frame_record(pfn)
    }

    #[inline]
    fn zero_frame(&self, pfn: Pfn) {
        context::check("zero_frame", context::READS);
        host::zeroed(1);
        if let Some(page) = self.inner.page(pfn) {
            page.zero();
            self.inner.set_published(pfn, false);
        }
    }

    fn zero_frames(&self, first: Pfn, frames: u64) {
        context::check("zero_frames", context::READS);
        host::zeroed(frames);
        let pages = (0..frames).map_while(|n| self.inner.page(first.add(n)));
        pages.for_each(Page::zero);
        if self.inner.has_contents() {
            (0..frames).for_each(|n| self.inner.set_published(first.add(n), false));
        }
    }

    fn copy_frames(&self, to: Pfn, from: Pfn, frames: u64) {
        context::check("copy_frames", context::READS);
        host::copied(frames);
        if self.inner.has_contents() {
            (0..frames).for_each(|n| self.copy_page(to.add(n), from.add(n)));
        }
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        context::check("copy_frame", context::READS);
        host::copied(1);
        self.copy_page(to, from);
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        context::check("read_frame", context::READS);
        // Lets the checker switch threads between finding the frame and reading its contents.
        host::take_time();
        match self.inner.page(pfn) {
            Some(page) => page.read(offset, out),
            None => out.fill(self.inner.config.fill),
        }
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        context::check("write_frame", context::READS);
        if let Some(page) = self.inner.page(pfn) {
            page.write(offset, data);
            self.inner.set_published(pfn, false);
        }
    }

    fn space_created(&self, root: Pfn) -> Option<Mmu<F>> {
        context::check("space_created", context::SLEEPS);
        if host::local(|local| local.allocation_fails()) {
            return None;
        }
        self.inner.charge_table(root, root).ok()?;
        let mmu = Mmu::new(&self.inner, root)?;
        if let Some(kernel) = &self.inner.kernel {
            kernel.join(&self.inner, root)?;
        }
        Some(mmu)
    }

    fn space_ending(&self, _: &Mmu<F>, root: Pfn) {
        context::check("space_ending", context::SLEEPS);
        if let Some(kernel) = &self.inner.kernel {
            kernel.leave(&self.inner, root);
        }
    }

    fn flush(&self, mmu: &Mmu<F>, what: &Flush) {
        context::check("flush", context::FLUSHES);
        mmu.flush(what);
    }

    fn walk_tables<R>(&self, mmu: &Mmu<F>, f: impl FnOnce() -> R) -> Option<R> {
        context::check("walk_tables", context::SLEEPS);
        mmu.walk(|| context::inside(Inside::Walk, f))
    }

    fn runs_elsewhere(&self, mmu: &Mmu<F>) -> bool {
        context::check("runs_elsewhere", context::SLEEPS);
        mmu.runs_elsewhere()
    }
}
