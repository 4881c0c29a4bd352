//! What the embedding kernel supplies: frames, the direct map, the TLB, and (through [`Host`] and
//! [`TableMemory`]) processors, waiting, grace periods, time and memory for page tables.
//!
//! This trait is the engine's only seam to its surroundings. Everything behind it may be a kernel on bare
//! metal, a simulator, or the machine in an ordinary process of `freehold-machine`.
//!
//! Every type that an implementation has to name is found here, whichever crate it comes from, and the
//! atomics under [`atomic`]: an embedding depends on `freehold` alone.
//!
//! # What a platform keeps in memory
//!
//! | type | one for each | bytes | aligned to | all bytes zero |
//! | --- | --- | --- | --- | --- |
//! | [`Frame`] | frame of [`alloc_frames`](Platform::alloc_frames) and its relatives, and of storage mapped directly | 32 | 8 | the record of a free frame |
//! | [`Table`] | table: it is the frame, as hardware reads it | 4096 | 4096 | an empty table |
//! | [`TableMeta`] | table | 64 | 64 | the record of an empty, unlocked table |
//!
//! All three are made of atomics, `repr(C)`, need no destructor, and stay where they are as long as the
//! platform lives: a kernel may make them by a cast of zeroed memory, an array by frame number say. A frame
//! and a record come back all zero: a frame's record when the frame goes to
//! [`free_frames`](Platform::free_frames), a table when it goes to [`free_table`](TableMemory::free_table),
//! and its record after a [`reset`](TableMeta::reset). The *contents* of frames do not: they are what
//! programs left there.
//!
//! # Contents of frames
//!
//! While the engine reads, writes, copies or zeroes a frame, processors may read and write the same bytes for
//! their programs, and devices, too. So [`read_frame`](Platform::read_frame) and its relatives make no
//! reference to the bytes, and use accesses for which a race is no undefined behaviour: atomic ones, volatile
//! ones, or instructions of the machine. A write leaves every byte outside its range alone: it does not write
//! back what it has read there. Nothing more is asked of a race: bytes may be torn, of one word too. What the
//! engine publishes, by an entry or a lock, is ordered by an atomic release after the write; stores that the
//! machine does not order before a release (non-temporal ones) are fenced by the platform before it returns.
//!
//! # A kernel's own half
//!
//! Entries of a root table from [`Format::USER_ENTRIES`] on are the kernel's: the engine neither reads nor
//! writes them while the space lives. [`space_created`](Platform::space_created) may fill them, with tables
//! that all spaces share; they may change as the kernel likes until [`space_ending`](Platform::space_ending)
//! returns. Then they are emptied, and the root is freed.
//!
//! # Contexts
//!
//! The engine is called by tasks, with preemption and interrupts on, and most of its calls may sleep. None
//! may be made from an interrupt, a deferred function, or a function of the traits here; a page fault is a
//! call of the task that has it. Where the engine calls the platform, the task is inside of
//!
//! | letter | what | from, to | preemption | interrupts |
//! | --- | --- | --- | --- | --- |
//! | L | sleeping locks of the engine, or none | | on | on |
//! | T | locks of page tables, one or two | [`spin_enter`](Host::spin_enter), [`spin_exit`](Host::spin_exit) | off | on, where flushes are interrupts and [`relax`](Host::relax) does not take them; else as the host likes |
//! | S | one other spin lock | the same | off | as the host likes: no lock of the engine is taken in an interrupt |
//! | C | a CPU's number | [`with_cpu`](Host::with_cpu) and the end of its function | off | as the host likes |
//! | W | a walk without locks | [`walk_tables`](Platform::walk_tables) and the end of its function | off | off, where flushes are interrupts |
//! | R | a read section | [`rcu_read`](Host::rcu_read), the end of the guard | as the host's readers need it | on |
//! | D | a deferred function | | on or off | on or off |
//!
//! Each with L beside it, and R with T too. Inside of anything but L and D the engine neither sleeps, nor
//! takes or gives back memory, of the heap or of the platform; under T, S, C and W it wakes nobody either. In
//! D it frees heap memory, and does nothing else of all this: it takes no lock, so deferred functions may run
//! in a task, or in an interrupt where the heap may be used, on any processor.
//!
//! | method | called inside of | may sleep | may allocate | does |
//! | --- | --- | --- | --- | --- |
//! | `wait`, `wait_killable`, `wait_interruptible` | L | it is meant to | yes | |
//! | `wake_one`, `wake_all` | L, R | no | no | takes the scheduler's locks |
//! | `with_cpu` | L, T, R; not nested | no | no | its function calls nothing that is listed here |
//! | `spin_enter`, `spin_exit` | L, T, S, W, R | no | no | |
//! | `relax` | L, T, S, R | no; may give the processor to others in L and R | no | what this processor owes to others that wait for it, for instance flushes |
//! | `now_ns` | everywhere | no | no | |
//! | `lock_context` | everywhere | no | no | only with debug assertions |
//! | `rcu_read`, and the end of its guard | L, T, R | no | no | |
//! | `rcu_defer` | L, R, D | no | no | |
//! | `rcu_barrier` | L | it is meant to | yes | |
//! | `alloc_table`, `alloc_frames`, `alloc_run`, `withdraw_frame` | L | yes, for no task that waits for L | yes | |
//! | `space_created`, `space_ending` | nothing, not L | yes | yes | |
//! | `free_table`, `free_frames` | L | yes, for no task that waits for L | yes | |
//! | `table`, `table_meta`, `frame`, `has_frame`, `has_pkeys`, `node_of` | everywhere | no | no | computes an address |
//! | `zero_frame`, `zero_frames`, `copy_frame`, `copy_frames`, `copy_part`, `read_frame`, `write_frame` | L, T, R | no | no | |
//! | `flush` | L, T, R | no: it spins until other processors have answered | no | waits for no processor that spins for T |
//! | `runs_elsewhere`, `pkey_rights`, `set_pkey_rights`, `memory_failed` | L | no | no | |
//! | `walk_tables` | nothing, not L | no | no | its function tries for T, and looks |
//!
//! "May sleep" and "may allocate" say what an implementation may do. What it waits for must not be held by a
//! task that waits for a lock of the engine; in particular it does not call the engine. The global allocator
//! is called like `alloc_frames`, and its freeing also in D.
//!
//! Spin locks are held for the entries of one page table, at most 512, and a flush; for the length of a
//! pool's list or of a file's set of reservations where pages of pools are concerned; for the faults and
//! readers that wait for one userfaultfd. The machine of `freehold-machine` checks all of this at every call,
//! in every build with debug assertions.
//!
//! Of stack the engine needs, from its caller to the deepest call of the platform, at most 15 KiB in a build
//! without optimisation (munmap 10.2 KB, fork 6.3 KB, most faults below 6 KB; the most is msync's 14.1 KB),
//! and 8.4 KB in an optimised one with assertions: `tests/stack_depth.rs` goes through the entries. What the
//! platform's own functions need comes on top.
#![expect(unsafe_code, reason = "declares the contract that a platform keeps")]

pub use crate::{
    frame::Frame,
    request::{AllocEffort, FramePurpose, FrameRequest, NodeChoice},
};
pub use freehold_pagetable::{
    Access, ENTRIES, Flush, Format, Level, OutOfTables, Pfn, PkeyRights, PteFlags, Rights, Table,
    TableMemory, TableMeta, Translation, VirtAddr, WalkFault, X86, X86_4, X86_5, hw_walk,
};
pub use freehold_sync::{Host, Interrupted, Killed, LockContext, Rank, RcuHead, atomic};

/// The machine below an address space.
///
/// # Safety
///
/// An implementation promises that
/// - a frame handed out by [`alloc_frames`](Self::alloc_frames) or [`alloc_run`](Self::alloc_run) is used by
///   nobody else until it comes back;
/// - [`frame`](Self::frame) returns the same record for the same frame number as long as the platform lives;
///   for a number that [`has_frame`](Self::has_frame) denies, and for one beyond the memory of the platform,
///   it may panic, but nothing undefined comes of it; and so may every method here that takes the number of a
///   frame;
/// - [`flush`](Self::flush) returns only when no processor can still use a translation it covers, nor read a
///   page table it covers where the flush says that tables were freed, be it in
///   [`walk_tables`](Self::walk_tables).
pub unsafe trait Platform: TableMemory + Host {
    /// The page-table format of this machine.
    type Format: Format;

    /// What the machine keeps for one address space, for instance which processors run it. Made by
    /// [`space_created`](Self::space_created), dropped with the space after its last flush.
    type Mmu: Send + Sync + 'static;

    /// Takes up to `out.len()` blocks of 2<sup>`order`</sup> frames off the free list, ascending where
    /// possible, their contents undefined; writes the first frame of each to the front of `out`, and returns
    /// how many there are. Zero means: out of memory.
    ///
    /// Blocks of more than one frame begin at a multiple of their size; their frames come back one by one or
    /// together. A platform that has none, or not of that order, returns 0: then there are no huge pages,
    /// which nobody but time notices, and pools of them stay empty. The engine asks for blocks one at a time.
    fn alloc_frames(&self, request: &FrameRequest<'_, Self::Mmu>, out: &mut [Pfn]) -> usize;

    /// NUMA nodes of the machine.
    const NODES: usize = 1;

    /// On which of them a frame lies: less than [`NODES`](Self::NODES).
    fn node_of(&self, pfn: Pfn) -> usize {
        let _ = pfn;
        0
    }

    /// Takes so many frames that follow each other, anywhere, their contents undefined; returns the first. An
    /// allocator whose blocks are larger keeps the surplus. They come back one by one or together. None: out
    /// of memory, in pieces, or not offered at all; then there is no memory for address spaces without an
    /// MMU, which alone ask.
    fn alloc_run(&self, frames: u64) -> Option<Pfn> {
        let _ = frames;
        None
    }

    /// Puts frames back. Their records are all zero; their contents are what was last in them.
    ///
    /// # Safety
    ///
    /// Each frame came from `alloc_frames` or `alloc_run`, nothing refers to it, and every translation to
    /// it was flushed.
    unsafe fn free_frames(&self, frames: &[Pfn]);

    /// Takes this very frame off the free list, because its memory failed: it never comes back. False: it is
    /// not there, or this is not offered.
    fn withdraw_frame(&self, pfn: Pfn) -> bool {
        let _ = pfn;
        false
    }

    /// The page at this address of a space is lost: its memory failed. Accesses will find that out; a program
    /// that wants to hear of it before gets SIGBUS with BUS_MCEERR_AO. Called with locks of the engine held,
    /// so it only notes it.
    fn memory_failed(&self, mmu: &Self::Mmu, addr: u64) {
        let _ = (mmu, addr);
    }

    /// Whether there is a frame of this number, and so a record of it. Asked with numbers that were rounded
    /// down to the start of a huge page, which may lie before the first frame, and with those that callers
    /// pass, before anything else is asked of them.
    fn has_frame(&self, pfn: Pfn) -> bool {
        let _ = pfn;
        true
    }

    /// Whether processors know protection keys, 16 of them; the format's leaves have room for one.
    fn has_pkeys(&self) -> bool {
        false
    }

    /// What the calling thread denies itself of the pages of a key, by the same register.
    fn pkey_rights(&self, pkey: u8) -> PkeyRights {
        let _ = pkey;
        PkeyRights::empty()
    }

    /// Sets what the calling thread may do with pages of a protection key from now on, in its register of
    /// such rights (PKRU): after an allocation, and when memory that may only be executed gets its key.
    /// Called with locks of the engine held.
    fn set_pkey_rights(&self, pkey: u8, rights: PkeyRights) {
        let _ = (pkey, rights);
    }

    /// The engine's record of a frame; all zero while the frame is free. A frame of storage that programs map
    /// directly (by a pager's `direct_access`) has one as well.
    fn frame(&self, pfn: Pfn) -> &Frame;

    /// Fills a frame with zeroes.
    fn zero_frame(&self, pfn: Pfn);

    /// Fills so many frames with zeroes, from `first` on.
    fn zero_frames(&self, first: Pfn, frames: u64) {
        (0..frames).for_each(|n| self.zero_frame(first.add(n)));
    }

    /// Copies so many frames, from `from` on to `to` and what follows it.
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

    /// A new address space with this root table exists. The table is empty, and no processor runs it yet:
    /// here the kernel fills its own half of it, if it has one (see the [module](self)). `None`: no memory
    /// for the record; nothing refers to the root then.
    fn space_created(&self, root: Pfn) -> Option<Self::Mmu>;

    /// The address space with this root table is about to go: nothing is mapped in it any more, and the last
    /// [`flush`](Self::flush) is over. When this returns no processor has the root in its register, not even
    /// one that ran the space last and has only kept it (lazy TLB), and nobody writes the kernel's half of
    /// the table any more. Called once for each space that was created, with no lock of the engine held.
    fn space_ending(&self, mmu: &Self::Mmu, root: Pfn) {
        let _ = (mmu, root);
    }

    /// Removes the translations that `what` describes from every processor; returns when none is left. May be
    /// called with page-table spin locks held, so it must not sleep, and must not need a processor that
    /// spins for one to let go of it.
    fn flush(&self, mmu: &Self::Mmu, what: &Flush);

    /// Runs `f`, which walks the tables of this space without a lock, so that [`flush`](Self::flush) does not
    /// return while it runs if it says that tables were freed. `f` is short; it takes no lock but by trying,
    /// does not wait, and allocates nothing. Where flushes interrupt processors, that is: this one runs the
    /// space, and interrupts are off meanwhile. `None`: `f` was not run, because this processor does not run
    /// the space, or because walks without a lock are not offered.
    fn walk_tables<R>(&self, mmu: &Self::Mmu, f: impl FnOnce() -> R) -> Option<R> {
        let _ = (mmu, f);
        None
    }

    /// Whether a processor other than the calling one may hold translations of this space. May err towards
    /// `true` only.
    fn runs_elsewhere(&self, mmu: &Self::Mmu) -> bool;
}
