//! The services of the embedding kernel: frames, the direct map, the TLB, and (through [`Host`] and
//! [`TableMemory`]) processors, waiting, grace periods, time and memory for page tables.
//!
//! The trait [`Platform`], with its supertraits [`Host`] and [`TableMemory`], is the engine's only interface
//! to its surroundings. The implementation may be a kernel on bare metal, a simulator, or the machine of
//! `freehold-machine`, which runs in an ordinary process. `docs/guide/platform.md` lists the callers of each
//! function and common mistakes.
//!
//! This module exports every type that an implementation has to name, no matter which crate defines the type,
//! and the atomics under [`atomic`]. An embedding therefore depends on `freehold` only.
//!
//! # Records that a platform keeps in memory
//!
//! | type | one for each | bytes | aligned to | all bytes zero |
//! | --- | --- | --- | --- | --- |
//! | [`Frame`] | frame of [`alloc_frames`](Platform::alloc_frames), of the other functions that allocate frames, and of storage mapped directly | 32 | 8 | the record of a free frame |
//! | [`Table`] | table: it is the frame, as hardware reads it | 4096 | 4096 | an empty table |
//! | [`TableMeta`] | table | 64 | 64 | the record of an empty, unlocked table |
//!
//! All three types are made of atomics, are `repr(C)`, need no destructor, and must not move during the life
//! of the platform. A kernel may create them by casting zeroed memory, for example an array indexed by frame
//! number. The records are all zero again when the engine frees them: a frame's record when the frame is
//! passed to [`free_frames`](Platform::free_frames), a table when it is passed to
//! [`free_table`](TableMemory::free_table), and the record of a table after a [`reset`](TableMeta::reset).
//! The *contents* of a freed frame are not zeroed: they are the last data that programs stored there.
//!
//! # Contents of frames
//!
//! While the engine reads, writes, copies or zeroes a frame, processors may read and write the same bytes for
//! their programs, and so may devices. [`read_frame`](Platform::read_frame) and the similar functions
//! therefore create no reference to the bytes. They use accesses for which a race is not undefined behaviour:
//! atomic accesses, volatile accesses, or instructions of the machine. A write leaves every byte outside its
//! range alone: it does not write back bytes that it has read. The result of a race is not defined further:
//! bytes may be torn, even within one word. The engine publishes contents by an entry or a lock, with an
//! atomic release after the write. If the machine does not order a store before a release (a non-temporal
//! store), the platform fences the store before it returns.
//!
//! # A kernel's own half
//!
//! Entries of a root table from [`Format::USER_ENTRIES`] on belong to the kernel. The engine neither reads
//! nor writes these entries while the space lives. [`space_created`](Platform::space_created) may fill them
//! with tables that all spaces share, and the kernel may change them until
//! [`space_ending`](Platform::space_ending) returns. The engine then empties the entries and frees the root.
//!
//! The entries below [`Format::USER_ENTRIES`] belong to the engine, also those at whose addresses nothing is
//! mapped: the engine takes the tables that it finds there for its own. A kernel with memory at lower
//! addresses keeps a root of its own, which contains copies of the engine's entries
//! (`docs/guide/adopting.md`).
//!
//! # Contexts
//!
//! Tasks call the engine with preemption and interrupts enabled, and most calls may sleep. The engine must
//! not be called from an interrupt, a deferred function, or a function of these traits. A page fault is a
//! call by the task that faults. The engine calls the platform in these contexts:
//!
//! | letter | context | from, to | preemption | interrupts |
//! | --- | --- | --- | --- | --- |
//! | L | sleeping locks of the engine, or none | | on | on |
//! | T | locks of page tables, one or two | [`spin_enter`](Host::spin_enter), [`spin_exit`](Host::spin_exit) | off | on if flushes are interrupts and [`relax`](Host::relax) does not handle them; otherwise the host's choice |
//! | S | one other spin lock | as for T | off | the host's choice: the engine takes no lock in an interrupt |
//! | C | a CPU's number | [`with_cpu`](Host::with_cpu) and the end of its function | off | the host's choice |
//! | W | a walk without locks | [`walk_tables`](Platform::walk_tables) and the end of its function | off | off if flushes are interrupts |
//! | R | a read section | [`rcu_read`](Host::rcu_read), the end of the guard | as the host's read sections require | on |
//! | D | a deferred function | | on or off | on or off |
//!
//! Each context may be combined with L, and R also with T. The engine sleeps only in L. The engine uses the
//! heap and the memory of the platform only in L, except that it also frees heap memory in D. In T, S, C and
//! W the engine also wakes no task. In D the engine neither sleeps, nor wakes tasks, nor takes a lock. A
//! deferred function may therefore run on any processor, in a task, or in an interrupt if the heap may be
//! used there.
//!
//! | method | called in | may sleep | may allocate | notes |
//! | --- | --- | --- | --- | --- |
//! | `wait`, `wait_killable`, `wait_interruptible` | L | yes, that is its purpose | yes | |
//! | `wake_one`, `wake_all` | L, R | no | no | takes the scheduler's locks |
//! | `with_cpu` | L, T, R; not nested | no | no | its function calls nothing that is listed here |
//! | `spin_enter`, `spin_exit` | L, T, S, W, R | no | no | |
//! | `relax` | L, T, S, R | no; may yield the processor in L, and in R if a read section may be preempted | no | does work that other processors wait for, for example flushes |
//! | `cond_resched` | L, S, R | in L; in S and R it does nothing | no | called by long loops |
//! | `now_ns` | everywhere | no | no | |
//! | `lock_context` | everywhere | no | no | only with debug assertions |
//! | `rcu_read`, and the end of its guard | L, T, R | no | no | |
//! | `rcu_defer` | L, R, D | no | no | |
//! | `rcu_barrier` | L | yes, that is its purpose | yes | |
//! | `alloc_table`, `alloc_frames`, `alloc_run`, `withdraw_frame` | L | yes, but must not wait for a task that waits for a lock of the engine | yes | |
//! | `space_created`, `space_ending` | no context, not even L | yes | yes | |
//! | `memory_short` | no context, not even L | yes | yes | may call the engine |
//! | `charge`, `uncharge`, `charge_huge_page`, `uncharge_huge_page` | L | yes, but must not wait for a task that waits for a lock of the engine | yes | |
//! | `free_table`, `free_frames` | L | yes, but must not wait for a task that waits for a lock of the engine | yes | |
//! | `table`, `table_meta`, `frame`, `frames`, `has_frame`, `has_pkeys`, `nodes`, `node_of`, `local_node`, `has_task_policy` | everywhere | no | no | computes an address |
//! | `zero_frame`, `zero_frames`, `copy_frame`, `copy_frames`, `copy_part`, `read_frame`, `write_frame` | L, T, R | no | no | |
//! | `flush` | L, T, R | no: it spins until other processors have answered | no | does not wait for a processor that spins for T |
//! | `runs_elsewhere`, `pkey_rights`, `set_pkey_rights`, `thread_id`, `memory_failed` | L | no | no | |
//! | `walk_tables` | no context, not even L | no | no | its function reads entries and tries to take T |
//!
//! "May sleep" and "may allocate" say what an implementation may do. An implementation must not wait for
//! anything that is held by a task that waits for a lock of the engine. In particular, it does not call the
//! engine, except in `memory_short`. The global allocator is called in the same contexts as `alloc_frames`,
//! and its freeing functions are also called in D.
//!
//! A spin lock is held for at most one of the following:
//!
//! - the entries of one page table (at most 512) and a flush;
//! - for pages of pools, the length of a pool's list or of a file's set of reservations;
//! - the faults and readers that wait for one userfaultfd.
//!
//! The machine of `freehold-machine` checks all these rules at every call, in every build with debug
//! assertions.
//!
//! In a build without optimisation, the engine needs at most 15 KiB of stack, from its caller to the deepest
//! call of the platform. Munmap needs 11.3 KB, fork 13.3 KB, reclaim 14.0 KB, and most faults need less than
//! 9 KB; the maximum is 15.2 KB, in MADV_PAGEOUT of a file. An optimised build with assertions needs at most
//! 11.5 KB. `tests/stack_depth.rs` of `freehold` measures the entry points. The stack of the platform's own
//! functions is additional.
//!
//! A new function gets a row in the table of contexts and in `docs/guide/platform.md`. It needs a default, or
//! a change of every platform: the kernel, the test machine, `examples/minimal`, `examples/embedding`,
//! `lab/size`, and `tests/support/gate.rs` of `freehold`, which forwards to the test machine. `freehold-c`
//! passes the functions on to a kernel in C.
#![expect(unsafe_code, reason = "declares the contract that a platform keeps")]

pub use crate::{
    frame::Frame,
    request::{AllocEffort, FileId, FramePurpose, FrameRequest, NodeChoice, PageOwner},
    shortage::{MemoryShortage, ShortageAnswer},
};
pub use freehold_pagetable::{
    Aarch64, Aarch64NoHafdbs, Access, ENTRIES, FaultCode, Flush, Format, Kind, Level, Levels, MarkerKind,
    OutOfTables, PAYLOAD_BITS, Pfn, PhysAddr, PkeyRights, PteFlags, Rights, Riscv64, Sv39, Sv48, Sv57, Table,
    TableMemory, TableMeta, Translation, VirtAddr, WalkFault, X86, X86_4, X86_5, hw_walk,
};
pub use freehold_sync::{Host, Interrupted, Killed, LockContext, Rank, RcuHead, atomic};

use core::ops::Range;

/// The machine below an address space.
///
/// # Safety
///
/// An implementation guarantees the following:
///
/// - A frame that [`alloc_frames`](Self::alloc_frames) or [`alloc_run`](Self::alloc_run) returned has no
///   other user until the engine frees it.
/// - [`frame`](Self::frame) returns the same record for the same frame number during the life of the
///   platform. Every method that takes a frame number may panic for a number for which
///   [`has_frame`](Self::has_frame) returns false, and for a number beyond the memory of the platform, but
///   causes no undefined behaviour.
/// - [`flush`](Self::flush) returns only when no processor can still use a translation that the flush covers.
///   If the flush says that tables were freed, no processor can then read a covered page table either,
///   including by [`walk_tables`](Self::walk_tables).
pub unsafe trait Platform: TableMemory + Host {
    /// The page-table format of this machine.
    type Format: Format;

    /// The platform's record of one address space, for example the set of processors that run it. Created by
    /// [`space_created`](Self::space_created), dropped with the space after its last flush.
    type Mmu: Send + Sync + 'static;

    /// Takes up to `out.len()` blocks of 2<sup>`order`</sup> frames off the free list, ascending if possible,
    /// with undefined contents. Writes the first frame of each block to the front of `out` and returns the
    /// number of blocks. Zero means that the platform has no such block. The operation of the engine then
    /// releases its locks and calls [`memory_short`](Self::memory_short).
    ///
    /// A block of more than one frame begins at a multiple of its size. The engine frees its frames one by
    /// one or together. A platform that has no blocks, or none of that order, returns 0. The engine then uses
    /// no huge pages, which affects only speed, and pools of huge pages stay empty. The engine requests
    /// blocks one at a time.
    ///
    /// The caller may hold sleeping locks of the engine, for example that of the VMA that faults. So this
    /// function may reclaim memory that other parts of the kernel use, but not memory of the engine: the
    /// function neither calls the engine nor waits for a task that calls the engine. Memory of the engine is
    /// reclaimed in [`memory_short`](Self::memory_short), where no lock is held.
    fn alloc_frames(&self, request: &FrameRequest<'_, Self::Mmu>, out: &mut [Pfn]) -> usize;

    /// Charges consecutive frames to their owner. Returns false if the owner may not have more memory.
    ///
    /// The engine calls this function for each frame that becomes a page, before the page is mapped or enters
    /// a page cache. A refusal has the same effect as a lack of memory: the operation releases its locks,
    /// calls [`memory_short`](Self::memory_short), and fails if the answer is no. Where the engine can
    /// continue with smaller pages, it does so instead. The number of charged frames is exact at every
    /// moment: a frame in the engine's cache of free frames is not charged.
    ///
    /// A platform that needs the owner again in [`uncharge`](Self::uncharge) stores it by frame number. Page
    /// tables are charged by [`alloc_table`](TableMemory::alloc_table), and huge pages of pools by
    /// [`charge_huge_page`](Self::charge_huge_page). Frames of zeroes and frames that the engine does not own
    /// are not charged. The default accepts all.
    fn charge(&self, owner: PageOwner<'_, Self::Mmu>, first: Pfn, frames: u64) -> bool {
        let _ = (owner, first, frames);
        true
    }

    /// Ends the charge of each of these frames, which were charged before and are free now. Called after the
    /// last reference was dropped, before the frames go to the cache of free frames or to
    /// [`free_frames`](Self::free_frames).
    fn uncharge(&self, frames: &[Pfn]) {
        let _ = frames;
    }

    /// Charges a huge page of a pool, which has `frames` frames, to its owner. Returns false if the owner may
    /// not have more huge pages. A refusal has the same effect as that of [`charge`](Self::charge).
    ///
    /// The pool allocated the frames earlier, so Linux counts such pages separately (the controller of
    /// hugetlb). A page is charged from the moment at which it leaves the pool for a fault, a file or a move
    /// until it is in the pool again or is freed. Reservations and free pages of the pool are not charged.
    /// The default accepts all.
    fn charge_huge_page(&self, owner: PageOwner<'_, Self::Mmu>, first: Pfn, frames: u64) -> bool {
        let _ = (owner, first, frames);
        true
    }

    /// Ends the charge of a huge page of a pool. Called after the last reference was dropped.
    fn uncharge_huge_page(&self, first: Pfn, frames: u64) {
        let _ = (first, frames);
    }

    /// Makes memory free for an operation that has found none, or lets the operation fail.
    ///
    /// The engine calls this function at a safe point: the task holds no lock of the engine, no claim and no
    /// read section. The implementation may therefore sleep, wait for other tasks, and call the engine, for
    /// example to drop clean pages of files or to unmap memory. It may also end a program. A call of the
    /// engine in this function may find no memory either, and then calls this function again: the
    /// implementation answers [`Fail`](ShortageAnswer::Fail) to such a nested call.
    ///
    /// Before the first call for an operation, the engine returns the free frames in the cache of the calling
    /// processor to the platform, and tries the operation again. After [`Retry`](ShortageAnswer::Retry) the
    /// engine looks everything up again, because other tasks may have changed the space. The number of
    /// [rounds](MemoryShortage::round) of an operation is bounded, and a pending fatal signal ends the
    /// operation. A wait in this function is killable: it ends when a fatal signal arrives, with any answer.
    ///
    /// The default answers `Fail`. The operation then fails with its error for a lack of memory.
    fn memory_short(&self, shortage: &MemoryShortage<'_, Self::Mmu>) -> ShortageAnswer {
        let _ = shortage;
        ShortageAnswer::Fail
    }

    /// Returns the number of NUMA nodes of the machine, which stays the same during the life of the platform.
    fn nodes(&self) -> usize {
        1
    }

    /// Returns the node of a frame: less than [`nodes`](Self::nodes).
    fn node_of(&self, pfn: Pfn) -> usize {
        let _ = pfn;
        0
    }

    /// Returns the node whose memory the calling processor prefers. The engine returns freed frames of other
    /// nodes to the platform at once, and keeps only frames of this node in its cache of the processor.
    fn local_node(&self) -> usize {
        0
    }

    /// Returns the node that is the `n`-th best for a page of a pool of huge pages, or `None` if no further
    /// node may serve the request. A pool takes the page from the first of these nodes that has one. The
    /// engine calls this function under spin locks, so it must neither wait nor call the engine.
    ///
    /// By default, a policy has no effect: the local node is the best, and all others follow.
    fn nth_node(&self, choice: NodeChoice, n: usize) -> Option<usize> {
        match choice {
            NodeChoice::Only(node) => (n == 0).then_some(node),
            _ => (n < self.nodes()).then(|| (self.local_node() + n) % self.nodes()),
        }
    }

    /// Returns true if the calling task has a NUMA policy (set_mempolicy) other than the default. The
    /// engine's caches then serve no request of the task for a page without a policy of its own
    /// ([`NodeChoice::Task`]).
    fn has_task_policy(&self) -> bool {
        false
    }

    /// Takes `frames` consecutive frames, which need not begin at a multiple of their number, with undefined
    /// contents. Returns the first. The request says what the frames are for; its order is 0. An allocator
    /// whose blocks are larger keeps the surplus. The engine frees the frames one by one or together. Returns
    /// `None` if memory is exhausted or fragmented, or if the platform does not support runs. Address spaces
    /// without an MMU need runs. Blocks of shared memory are runs too; without runs, shared memory has single
    /// pages.
    fn alloc_run(&self, request: &FrameRequest<'_, Self::Mmu>, frames: u64) -> Option<Pfn> {
        let _ = (request, frames);
        None
    }

    /// Frees frames. Their records are all zero; their contents are the last data that was stored there.
    ///
    /// # Safety
    ///
    /// Each frame came from `alloc_frames` or `alloc_run`, nothing refers to it, and every translation to it
    /// was flushed.
    unsafe fn free_frames(&self, frames: &[Pfn]);

    /// Takes exactly this frame off the free list, because its memory failed. The frame is never freed again.
    /// Returns false if the frame is not on the list, or if the platform does not support this.
    fn withdraw_frame(&self, pfn: Pfn) -> bool {
        let _ = pfn;
        false
    }

    /// Reports that the page at this address of a space is lost because its memory failed. A later access
    /// discovers the loss; a program that wants an earlier report gets SIGBUS with BUS_MCEERR_AO. Called with
    /// locks of the engine held, so an implementation only records the report.
    fn memory_failed(&self, mmu: &Self::Mmu, addr: u64) {
        let _ = (mmu, addr);
    }

    /// Returns true if a frame with this number exists and has a record. The engine calls this with numbers
    /// that were rounded down to the start of a huge page, which may lie before the first frame. The engine
    /// also calls this with a number that a caller passed, before any other method with that number.
    fn has_frame(&self, pfn: Pfn) -> bool;

    /// Returns a range of frame numbers that contains every frame of [`alloc_frames`](Self::alloc_frames).
    /// Memory reclaim visits these frames. [`has_frame`](Self::has_frame) is false for numbers in the range
    /// that have no record. With the default, an empty range, reclaim finds no pages.
    fn frames(&self) -> Range<Pfn> {
        Pfn::new(0)..Pfn::new(0)
    }

    /// Returns true if processors have protection keys (16 of them). The leaves of the format have room for a
    /// key.
    fn has_pkeys(&self) -> bool {
        false
    }

    /// Returns which accesses to pages of a key are denied to the calling thread, from its PKRU register.
    fn pkey_rights(&self, pkey: u8) -> PkeyRights {
        let _ = pkey;
        PkeyRights::empty()
    }

    /// Sets which accesses to pages of a protection key are denied to the calling thread, in its PKRU
    /// register. Called after a key is allocated, and when execute-only memory gets its key. Called with
    /// locks of the engine held.
    fn set_pkey_rights(&self, pkey: u8, rights: PkeyRights) {
        let _ = (pkey, rights);
    }

    /// Returns the number of the calling thread, as the programs of its process see it (gettid). The messages
    /// of a userfaultfd contain it if its pager asks for it.
    fn thread_id(&self) -> u32 {
        0
    }

    /// Returns the engine's record of a frame, which is all zero while the frame is free. A frame of storage
    /// that programs map directly (by a pager's `direct_access`) also has a record.
    fn frame(&self, pfn: Pfn) -> &Frame;

    /// Fills a frame with zeroes. The caller is the only user of the frame.
    fn zero_frame(&self, pfn: Pfn);

    /// Fills `frames` frames with zeroes, starting at `first`.
    fn zero_frames(&self, first: Pfn, frames: u64) {
        (0..frames).for_each(|n| self.zero_frame(first.add(n)));
    }

    /// Copies `frames` consecutive frames, starting at `from`, to the frames starting at `to`.
    fn copy_frames(&self, to: Pfn, from: Pfn, frames: u64) {
        (0..frames).for_each(|n| self.copy_frame(to.add(n), from.add(n)));
    }

    /// Copies a whole frame.
    fn copy_frame(&self, to: Pfn, from: Pfn);

    /// Copies `len` bytes from `from_offset` of one frame to `to_offset` of another; both ranges stay inside
    /// their frames.
    fn copy_part(&self, (to, to_offset): (Pfn, usize), (from, from_offset): (Pfn, usize), len: usize) {
        let mut buffer = [0; 256];
        for done in (0..len).step_by(buffer.len()) {
            let part = &mut buffer[..(len - done).min(256)];
            self.read_frame(from, from_offset + done, part);
            self.write_frame(to, to_offset + done, part);
        }
    }

    /// Reads `out.len()` bytes at `offset` of a frame; the range stays inside the frame.
    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]);

    /// Writes `data` at `offset` of a frame; the range stays inside the frame.
    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]);

    /// Reports that a new address space with this root table exists. The table is empty, and no processor
    /// runs it yet. A kernel that has its own half of the table fills that half here (see the
    /// [module](self)). Returns `None` if there is no memory for the record; nothing may refer to the root
    /// then.
    fn space_created(&self, root: Pfn) -> Option<Self::Mmu>;

    /// Reports that the address space with this root table ends. Nothing is mapped in the space any more, and
    /// the last [`flush`](Self::flush) has finished. When this returns, no processor has the root in its
    /// register. This includes a processor that ran the space last and only kept the root (lazy TLB). No code
    /// writes the kernel's half of the table any more. Called once for each space that was created, with no
    /// lock of the engine held.
    fn space_ending(&self, mmu: &Self::Mmu, root: Pfn) {
        let _ = (mmu, root);
    }

    /// Removes from every processor the translations that `what` describes, and returns when none of them is
    /// left. May be called with page-table spin locks held. It must therefore not sleep, and must not depend
    /// on a processor that spins for such a lock.
    fn flush(&self, mmu: &Self::Mmu, what: &Flush);

    /// Runs `f`, which walks the tables of this space without a lock. A [`flush`](Self::flush) that says that
    /// tables were freed does not return while `f` runs. `f` is short: it takes locks only by trying, does
    /// not wait, and does not allocate. If flushes interrupt processors, the implementation checks that this
    /// processor runs the space, and keeps interrupts off while `f` runs. Returns `None` without running `f`
    /// if this processor does not run the space, or if the platform does not support walks without a lock.
    fn walk_tables<R>(&self, mmu: &Self::Mmu, f: impl FnOnce() -> R) -> Option<R> {
        let _ = (mmu, f);
        None
    }

    /// Returns true if a processor other than the calling one may hold translations of this space. May return
    /// true although no other processor holds translations, but never returns false if another processor
    /// holds some.
    fn runs_elsewhere(&self, mmu: &Self::Mmu) -> bool;
}
