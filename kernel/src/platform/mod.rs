//! The implementation of Freehold's platform on bare metal: [`Machine`] implements the traits `Host`,
//! `TableMemory` and `Platform`. `examples/embedding/src/kernel.rs` is its counterpart in a process.
//!
//! This file only connects the engine's contract with the kernel. The work is done elsewhere:
//!
//! | functions | work |
//! | --- | --- |
//! | `wait...`, `wake...` | `sched/wait.rs`; a sleeper's key is the address of the word ([`key`]) |
//! | `spin_enter`, `spin_exit`, `with_cpu`, `rcu_read` | `arch/preempt.rs`: the thread keeps its CPU |
//! | `rcu_defer`, `rcu_barrier` | `memory/rcu.rs` |
//! | frames and tables, their records | `memory/frames.rs`; contents are accessed through the direct map |
//! | `space_created`, `flush`, `walk_tables` and others | `memory/tlb.rs` |
//!
//! The engine calls these functions; the documentation of `freehold::platform` says in which context each may
//! be called. Only the three waits of `Host` sleep. `rcu_barrier`, `relax`, `cond_resched`, `spin_exit` and
//! `free_frames` may let another thread run. No other function sleeps or lets another thread run. Functions
//! that allocate return an error if programs may get no more frames (`memory/frames.rs`), so a program cannot
//! exhaust the kernel's own memory. Contents of frames are accessed only by assembly, because programs may write them at
//! the same time.
//!
//! [`engine`] has the engine itself, and [`user`] has the functions by which system calls access a program's
//! memory. The rest of the kernel uses address spaces as [`Space`]. Every test of the kernel runs on this
//! file (`kernel/tests/README.md`).

use crate::arch::cpu::{self, MAX_CPUS};
use crate::arch::layout::{Tables, direct};
use crate::arch::{clock, features, frame::UserAddr, lock, preempt};
use crate::memory::{frames, frames::Kind, kernel_root, rcu::RCU, tlb};
use crate::sched::charge;
use crate::sched::current;
use crate::sched::wait::{self, Sleep};
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::platform::atomic::{AtomicU32, Ordering};
use freehold::platform::{
    Flush, Format, Frame, FrameRequest, Host, Interrupted, Killed, LockContext, NodeChoice, OutOfTables, Pfn,
    PkeyRights, Platform, Rank, RcuHead, Table, TableMemory, TableMeta,
};
use freehold::space::AddressSpace;
use freehold_kit::SpaceCpus;

pub mod engine;
pub mod policy;
pub mod swap;
pub mod user;

pub use engine::engine;

/// An address space of this kernel.
pub type Space = Counted<AddressSpace<Machine>>;

const _: () = assert!(UserAddr::END == AddressSpace::<Machine>::TASK_SIZE);

/// The platform. All its state is in statics of other modules, so the type is empty.
pub struct Machine;

/// An RCU read section. The thread keeps its CPU until the section ends, so the CPU passes no quiescent
/// state.
pub struct Reading(PhantomData<*const ()>);

impl Drop for Reading {
    #[inline(always)]
    fn drop(&mut self) {
        preempt::release();
    }
}

/// Runs `f` while the thread keeps its CPU.
#[inline(always)]
fn held<R>(f: impl FnOnce() -> R) -> R {
    preempt::hold();
    let result = f();
    preempt::release();
    result
}

// SAFETY: each CPU has its own number, and a thread leaves its CPU only while `Cpu::held` is 0. The
// documentation of `freehold-kit` explains why deferred functions wait for read sections.
unsafe impl Host for Machine {
    const MAX_CPUS: usize = MAX_CPUS;
    type RcuGuard = Reading;

    fn cpus() -> usize {
        cpu::count()
    }

    fn wait(word: &AtomicU32, expected: u32) {
        wait_while(word, expected, Sleep::Deaf);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        if wait_while(word, expected, Sleep::Killable) { Ok(()) } else { Err(Killed) }
    }

    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        if wait_while(word, expected, Sleep::Interruptible) { Ok(()) } else { Err(Interrupted) }
    }

    fn wake_one(word: &AtomicU32) {
        wait::wake(key(word), 1);
    }

    fn wake_all(word: &AtomicU32) {
        wait::wake(key(word), usize::MAX);
    }

    #[inline(always)]
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        held(|| f(cpu::number()))
    }

    #[inline(always)]
    fn spin_enter(_: Rank) {
        preempt::hold();
    }

    #[inline(always)]
    fn spin_exit(_: Rank) {
        preempt::release_and_look();
    }

    fn now_ns() -> u64 {
        clock::now_ns()
    }

    fn relax() {
        lock::relax();
        // The thread for which this loop waits may have yielded on this CPU. The preemption point lets that
        // thread run.
        preempt::preempt_point();
    }

    #[inline]
    fn cond_resched() {
        preempt::preempt_point();
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    #[inline(always)]
    fn rcu_read() -> Reading {
        preempt::hold();
        Reading(PhantomData)
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: by the caller's promise, which is the contract of `defer`.
        unsafe { RCU.defer(cpu::number(), head, f) };
    }

    fn rcu_barrier() {
        // Another CPU may need a tick, and this CPU an interrupt, before the grace period ends.
        RCU.barrier(|| {
            crate::sched::scheduler::give_way();
            preempt::preempt_point();
        });
    }
}

/// Waits for a grace period that begins after the call: requests a function, and waits until it has run.
pub fn wait_for_grace_period() {
    unsafe fn nothing(_: NonNull<RcuHead>) {}
    let head = RcuHead::new();
    // SAFETY: the head stays in place until the barrier returns, and by then the function has run.
    unsafe { Machine::rcu_defer(NonNull::from(&head), nothing) };
    Machine::rcu_barrier();
}

/// Returns the key of threads that sleep on a word of the engine.
pub fn key(word: &AtomicU32) -> wait::Key {
    wait::Key::kernel(word.as_ptr() as u64)
}

/// Sleeps while the word has the expected value. Returns false if a signal ended the wait.
fn wait_while(word: &AtomicU32, expected: u32, how: Sleep) -> bool {
    let here = current();
    let is_over = || here.work.load(Ordering::Relaxed) & how.ends_by() != 0;
    if is_over() {
        return false;
    }
    // SeqCst: to wake sleepers, a task first changes the word and then takes the lock of the list. So either
    // this load sees the change, or that task finds this thread in the list.
    if let Some(waiting) = wait::enqueue_if(key(word), || word.load(Ordering::SeqCst) == expected) {
        waiting.sleep(how, u64::MAX);
    }
    !is_over()
}

/// Returns the address of the frame's bytes in the direct map.
#[inline(always)]
fn bytes(pfn: Pfn) -> *mut u8 {
    assert!(frames::exists(pfn.get()));
    direct(pfn.get() * PAGE_SIZE)
}

// SAFETY: the allocator gives each frame to one owner. Records do not move. The functions panic on a frame
// number that does not exist.
unsafe impl TableMemory for Machine {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let Some(table) = frames::alloc_for_program(0).map(Pfn::new) else {
            charge::refused();
            return Err(OutOfTables);
        };
        self.zero_frame(table);
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        frames::table_record(table.get()).reset();
        // SAFETY: the frame came from `alloc_table`.
        unsafe { frames::free(table.get(), 0) };
    }

    #[inline(always)]
    fn table(&self, pfn: Pfn) -> &Table {
        // SAFETY: a frame has the size and alignment of a table, which consists of atomics. Memory is never
        // unmapped.
        unsafe { &*bytes(pfn).cast() }
    }

    #[inline(always)]
    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        frames::table_record(pfn.get())
    }
}

// SAFETY: as above. Contents are accessed by assembly, so that a race is not undefined behaviour. The
// documentation of `freehold-kit` explains why a flush returns only when no CPU uses the flushed translations
// any more.
unsafe impl Platform for Machine {
    type Format = Tables;
    type Mmu = SpaceCpus;

    fn alloc_frames(&self, request: &FrameRequest<'_, SpaceCpus>, out: &mut [Pfn]) -> usize {
        let nodes = policy::nodes(request.node);
        let kind = if request.purpose.is_movable() { Kind::Movable } else { Kind::Fixed };
        let one = || frames::alloc_on(request.order, nodes, kind).map(Pfn::new);
        let count = out.iter_mut().map_while(|out| one().map(|frame| *out = frame)).count();
        // Without a larger block, the engine asks for single frames. A page that cannot move stays where it
        // is.
        if count == 0 && request.order == 0 && !matches!(request.node, NodeChoice::Only(_)) {
            charge::refused();
            current().lacks_node.set(frames::are_used_up(nodes));
        }
        count
    }

    fn nodes(&self) -> usize {
        frames::nodes()
    }

    fn node_of(&self, pfn: Pfn) -> usize {
        frames::node_of(pfn.get())
    }

    fn local_node(&self) -> usize {
        frames::LOCAL
    }

    fn nth_node(&self, choice: NodeChoice, n: usize) -> Option<usize> {
        policy::nth_node(choice, n)
    }

    fn has_task_policy(&self) -> bool {
        current().policy.get() != 0
    }

    fn alloc_run(&self, _: &FrameRequest<'_, SpaceCpus>, frames: u64) -> Option<Pfn> {
        let order = frames.next_power_of_two().ilog2();
        let first = frames::alloc_for_program(order)?;
        // SAFETY: the frames are a part of the block, and nothing uses them.
        (frames..1 << order).for_each(|surplus| unsafe { frames::free(first + surplus, 0) });
        Some(Pfn::new(first))
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        // SAFETY: each frame came from `alloc_frames`.
        frames.iter().rev().for_each(|frame| unsafe { frames::free(frame.get(), 0) });
        // No spin lock is held here: the engine holds none when it calls this function, and the kernel holds
        // none when it drops a file.
        preempt::preempt_point();
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        frames::exists(pfn.get())
    }

    fn frames(&self) -> Range<Pfn> {
        let numbers = frames::numbers();
        Pfn::new(numbers.start)..Pfn::new(numbers.end)
    }

    fn has_pkeys(&self) -> bool {
        features::has_pkeys()
    }

    fn pkey_rights(&self, pkey: u8) -> PkeyRights {
        features::pkey_rights(pkey)
    }

    fn set_pkey_rights(&self, pkey: u8, rights: PkeyRights) {
        features::set_pkey_rights(pkey, rights);
    }

    fn thread_id(&self) -> u32 {
        current().tid()
    }

    #[inline(always)]
    fn frame(&self, pfn: Pfn) -> &Frame {
        frames::record(pfn.get())
    }

    fn zero_frame(&self, pfn: Pfn) {
        let at = bytes(pfn);
        // SAFETY: writes exactly the frame, by assembly.
        unsafe {
            core::arch::asm!(
                "xorps xmm0, xmm0",
                "2:",
                "movaps [{0}], xmm0",
                "movaps [{0} + 16], xmm0",
                "movaps [{0} + 32], xmm0",
                "movaps [{0} + 48], xmm0",
                "movaps [{0} + 64], xmm0",
                "movaps [{0} + 80], xmm0",
                "movaps [{0} + 96], xmm0",
                "movaps [{0} + 112], xmm0",
                "sub {0}, -128",
                "dec {1:e}",
                "jnz 2b",
                inout(reg) at => _, inout(reg) 32u32 => _, out("xmm0") _, options(nostack),
            );
        }
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        // SAFETY: `bytes` checked both frames, which are copied whole.
        unsafe { copy(bytes(to), bytes(from), PAGE_SIZE as usize) };
    }

    fn copy_part(&self, (to, to_offset): (Pfn, usize), (from, from_offset): (Pfn, usize), len: usize) {
        assert!(to_offset + len <= PAGE_SIZE as usize && from_offset + len <= PAGE_SIZE as usize);
        // SAFETY: the assertion keeps both parts inside their frames.
        unsafe { copy(bytes(to).add(to_offset), bytes(from).add(from_offset), len) };
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= PAGE_SIZE as usize);
        // SAFETY: the assertion keeps the part inside its frame, and `out` is a unique reference.
        unsafe { copy(out.as_mut_ptr(), bytes(pfn).add(offset), out.len()) };
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= PAGE_SIZE as usize);
        // SAFETY: the assertion keeps the part inside its frame.
        unsafe { copy(bytes(pfn).add(offset), data.as_ptr(), data.len()) };
    }

    fn space_created(&self, root: Pfn) -> Option<SpaceCpus> {
        for entry in Tables::USER_ENTRIES..512 {
            // SAFETY: both are root tables, and the kernel's upper half has not changed since the start.
            unsafe {
                *direct::<u64>(root.get() * PAGE_SIZE).add(entry) = *direct::<u64>(kernel_root()).add(entry)
            };
        }
        Some(tlb::space(root))
    }

    fn space_ending(&self, mmu: &SpaceCpus, _: Pfn) {
        tlb::end(mmu);
    }

    fn flush(&self, mmu: &SpaceCpus, what: &Flush) {
        tlb::flush(mmu, what);
    }

    fn walk_tables<R>(&self, mmu: &SpaceCpus, f: impl FnOnce() -> R) -> Option<R> {
        held(|| tlb::runs(mmu).then(f))
    }

    fn runs_elsewhere(&self, mmu: &SpaceCpus) -> bool {
        tlb::runs_elsewhere(mmu)
    }
}

/// Copies bytes by the assembly of `ucopy.s`, so that no reference exists to memory that programs write.
///
/// # Safety
///
/// Both ranges are mapped for the kernel.
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    unsafe extern "C" {
        fn ucopy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    }
    // SAFETY: by the caller's promise.
    unsafe { ucopy(to, from, bytes) };
}
