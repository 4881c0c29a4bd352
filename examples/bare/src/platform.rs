//! The platform of the engine. Frames are single, so there are no huge pages.
//!
//! The kernel is not preemptive, and interrupts are off while it runs. A task that waits for a lock of the
//! engine therefore spins: the holder runs on the other CPU and continues.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits")]

use crate::{CPUS, RCU, arch, memory};
use core::ptr::NonNull;
use freehold::PAGE_SIZE;
use freehold::platform::atomic::{AtomicU32, Ordering::Relaxed};
use freehold::platform::{
    Flush, Frame, FrameRequest, Host, Killed, LockContext, OutOfTables, Pfn, Platform, RcuHead, Table,
    TableMemory, TableMeta,
};

/// The machine.
pub struct Board;

// SAFETY: a task keeps its CPU while it runs in the kernel. `freehold-kit` explains why a deferred function
// waits for all read sections.
unsafe impl Host for Board {
    const MAX_CPUS: usize = CPUS;
    type RcuGuard = ();

    fn wait(_: &AtomicU32, _: u32) {
        // May return early. No read section is open here.
        RCU.quiescent(arch::cpu());
        arch::relax();
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        Self::wait(word, expected);
        Ok(())
    }

    fn wake_one(_: &AtomicU32) {}

    fn wake_all(_: &AtomicU32) {}

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(arch::cpu())
    }

    fn now_ns() -> u64 {
        arch::now_ns()
    }

    fn relax() {
        arch::relax();
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    fn rcu_read() {
        debug_assert!(RCU.is_online(arch::cpu()), "a read section on a CPU that is offline");
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe { RCU.defer(arch::cpu(), head, f) };
    }

    fn rcu_barrier() {
        RCU.barrier(|| {
            RCU.quiescent(arch::cpu());
            arch::relax();
        });
    }
}

// SAFETY: each frame that leaves the free list has one owner. Records and memory do not move, and invalid
// numbers of frames panic.
unsafe impl TableMemory for Board {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let table = memory::allocate().ok_or(OutOfTables)?;
        self.zero_frame(table);
        Ok(table)
    }

    unsafe fn free_table(&self, table: Pfn) {
        self.table_meta(table).reset();
        memory::free(table);
    }

    fn table(&self, pfn: Pfn) -> &Table {
        memory::words(pfn)
    }

    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        memory::table_meta(pfn)
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        arch::publish_code(first, frames);
    }
}

/// Returns the address of a part of a frame in the direct map.
fn bytes(pfn: Pfn, offset: usize, count: usize) -> *mut u8 {
    assert!(offset + count <= PAGE_SIZE as usize, "the part ends behind the frame");
    memory::words(pfn).entry(0).as_ptr().cast::<u8>().wrapping_add(offset)
}

// SAFETY: as above. The files `mod.rs` of the architectures say why no CPU uses a flushed translation after
// the flush.
unsafe impl Platform for Board {
    type Format = arch::Format;
    type Mmu = arch::Mmu;

    fn alloc_frames(&self, request: &FrameRequest<'_, arch::Mmu>, out: &mut [Pfn]) -> usize {
        if request.order != 0 {
            return 0;
        }
        out.iter_mut().map_while(|out| memory::allocate().map(|frame| *out = frame)).count()
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        for frame in frames {
            debug_assert!(self.frame(*frame).is_free(), "a frame in use is freed");
            memory::free(*frame);
        }
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        memory::has_frame(pfn)
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        memory::frame(pfn)
    }

    fn zero_frame(&self, pfn: Pfn) {
        (0..512).for_each(|at| memory::words(pfn).entry(at).store(0, Relaxed));
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        for at in 0..512 {
            memory::words(to).entry(at).store(memory::words(from).entry(at).load(Relaxed), Relaxed);
        }
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        let from = bytes(pfn, offset, out.len());
        for (at, out) in out.iter_mut().enumerate() {
            // SAFETY: `bytes` has checked the range. The access is volatile, because programs may store to
            // the frame.
            *out = unsafe { from.add(at).read_volatile() };
        }
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        let to = bytes(pfn, offset, data.len());
        for (at, byte) in data.iter().enumerate() {
            // SAFETY: as in `read_frame`.
            unsafe { to.add(at).write_volatile(*byte) };
        }
    }

    fn space_created(&self, root: Pfn) -> Option<arch::Mmu> {
        Some(arch::space_created(root))
    }

    fn space_ending(&self, mmu: &arch::Mmu, _: Pfn) {
        arch::space_ending(mmu);
    }

    fn flush(&self, mmu: &arch::Mmu, what: &Flush) {
        arch::flush(mmu, what);
    }

    fn walk_tables<R>(&self, mmu: &arch::Mmu, f: impl FnOnce() -> R) -> Option<R> {
        arch::walk_tables(mmu, f)
    }

    fn runs_elsewhere(&self, _: &arch::Mmu) -> bool {
        true
    }
}
