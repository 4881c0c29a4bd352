//! What the embedding kernel supplies: frames, the direct map, the TLB, and (through [`Host`] and
//! [`TableMemory`]) processors, waiting, grace periods, time and memory for page tables.
//!
//! This trait is the engine's only seam to its surroundings. Everything behind it may be a kernel on
//! bare metal, a simulator, or the machine in an ordinary process of `freehold-machine`.
#![expect(unsafe_code, reason = "declares the contract that a platform keeps")]

use crate::frame::Frame;
pub use crate::space::pkeys::PkeyRights;
use freehold_pagetable::{Flush, Format, Pfn, TableMemory};
pub use freehold_sync::Host;

/// The machine below an address space.
///
/// # Safety
///
/// An implementation promises that
/// - a frame handed out by [`alloc_frames`](Self::alloc_frames), [`alloc_huge`](Self::alloc_huge) or
///   [`alloc_run`](Self::alloc_run) is used by nobody else until it comes back;
/// - [`frame`](Self::frame) returns the same record for the same frame number as long as the platform lives;
/// - [`flush`](Self::flush) returns only when no processor can still use a translation it covers, nor read
///   a page table it covers where the flush says that tables were freed.
pub unsafe trait Platform: TableMemory + Host {
    /// The page-table format of this machine.
    type Format: Format;

    /// What the machine keeps for one address space, for instance which processors run it. Made by
    /// [`space_created`](Self::space_created), dropped with the space after its last flush.
    type Mmu: Send + Sync + 'static;

    /// Takes up to `out.len()` frames off the free list, ascending where possible, their contents
    /// undefined; returns how many were written to the front of `out`. Zero means: out of memory.
    fn alloc_frames(&self, out: &mut [Pfn]) -> usize;

    /// Takes 2 MiB of frames that follow each other, the first at a multiple of 2 MiB, their contents undefined; returns the
    /// first. They come back one by one or together. None: out of memory, in pieces, or not offered at all; then there are
    /// no huge pages, which nobody but time notices.
    fn alloc_huge(&self) -> Option<Pfn> {
        None
    }

    /// Takes so many frames that follow each other, anywhere, their contents undefined; returns the first. An allocator whose
    /// blocks are larger keeps the surplus. They come back one by one or together. None: out of memory, in pieces, or not
    /// offered at all; then there is no memory for address spaces without an MMU, which alone ask.
    fn alloc_run(&self, frames: u64) -> Option<Pfn> {
        let _ = frames;
        None
    }

    /// Puts frames back.
    ///
    /// # Safety
    ///
    /// Each frame came from `alloc_frames`, `alloc_huge` or `alloc_run`, nothing refers to it, and every translation to it was flushed.
    unsafe fn free_frames(&self, frames: &[Pfn]);

    /// Takes this very frame off the free list, because its memory failed: it never comes back. False: it is not there, or this is
    /// not offered.
    fn withdraw_frame(&self, pfn: Pfn) -> bool {
        let _ = pfn;
        false
    }

    /// The page at this address of a space is lost: its memory failed. Accesses will find that out; a program that wants to
    /// hear of it before gets SIGBUS with BUS_MCEERR_AO. Called with locks of the engine held, so it only notes it.
    fn memory_failed(&self, mmu: &Self::Mmu, addr: u64) {
        let _ = (mmu, addr);
    }

    /// Whether processors know protection keys, 16 of them; the format's leaves have room for one.
    fn has_pkeys(&self) -> bool {
        false
    }

    /// Sets what the calling thread may do with pages of a protection key from now on, in its register of such rights (PKRU): after
    /// an allocation, and when memory that may only be executed gets its key. Called with locks of the engine held.
    fn set_pkey_rights(&self, pkey: u8, rights: PkeyRights) {
        let _ = (pkey, rights);
    }

    /// The engine's record of a frame; all zero while the frame is free. A frame of storage that programs map directly
    /// ([`Pager::direct_access`](crate::object::Pager::direct_access)) has one as well.
    fn frame(&self, pfn: Pfn) -> &Frame;

    /// Fills a frame with zeroes.
    fn zero_frame(&self, pfn: Pfn);

    /// Copies a whole frame.
    fn copy_frame(&self, to: Pfn, from: Pfn);

    /// Reads `out.len()` bytes at `offset` of a frame; the range stays inside the frame.
    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]);

    /// Writes `data` at `offset` of a frame; the range stays inside the frame.
    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]);

    /// A new address space with this root table exists. `None`: no memory for the record.
    fn space_created(&self, root: Pfn) -> Option<Self::Mmu>;

    /// Removes the translations that `what` describes from every processor; returns when none is left. May be called with
    /// page-table spin locks held, so it must not sleep, and must not need a processor that spins for one to let go of it.
    fn flush(&self, mmu: &Self::Mmu, what: &Flush);

    /// Whether a processor other than the calling one may hold translations of this space.
    /// May err towards `true` only.
    fn runs_elsewhere(&self, mmu: &Self::Mmu) -> bool;
}
