#![no_std]
#![deny(unsafe_code)]
//! The tables the hardware reads: formats, table locks, one walker, the TLB gather.
//!
//! The crate knows nothing of processes or files. It keeps the tables well-formed while faults, unmapping,
//! protection changes and the hardware itself work on them at the same time; which addresses may be mapped,
//! and which lock keeps which task away, its caller knows.
//!
//! ```
//! use freehold_pagetable::{Kind, Level, MarkerKind, Pfn, Pte, PteFlags, X86_4};
//!
//! let flags = PteFlags::USER | PteFlags::WRITE;
//! let pte = Pte::<X86_4>::page(Pfn::new(0x1234), flags);
//! assert_eq!(pte.kind(Level::Pte), Kind::Leaf { pfn: Pfn::new(0x1234), flags });
//! let guard = Pte::<X86_4>::marker(MarkerKind::Guard, 0);
//! assert_eq!(guard.kind(Level::Pte), Kind::Marker { kind: MarkerKind::Guard, payload: 0 });
//! ```
//!
//! # The protocol
//!
//! What is done to tables, and what each needs:
//!
//! | | locks of the caller | locks taken here | what it may meet |
//! | --- | --- | --- | --- |
//! | **walk**, read, [zap](PteGuard::zap_each), [change](EntryGuard::change) | any one of: mmap lock, VMA lock, a reverse-mapping lock over the range | the table's | installs, other walks, reclaiming; no other end of a table |
//! | **install** into an empty slot, and making tables for it | mmap lock or VMA lock, in any mode. A reverse-mapping lock is *not* enough: munmap has a window between zapping and unlinking in which the range can still be found that way | the table's; none for upper levels | other installs, the hardware |
//! | **[unlink](PageTable::unlink_tables)** | the range can be reached neither by a fault nor by a reverse mapping, and no neighbour can grow into it; then no lock is needed for it | none | the hardware only |
//! | **[reclaim]** a table of the lowest level that is empty | any one of: mmap lock, VMA lock; all of the table's span lies in that VMA | the table's | everything but unlinking |
//! | **[share](PageTable::share)** | as install; and a lock against unsharing | none; compare-and-swap | other installs, the hardware |
//! | **[unshare](PageTable::unshare)** | nobody installs, shares or unshares there; the lock that says so is held until the flush has returned | the table's | walks, by the other spaces too; the hardware |
//! | **free** | the flush that covers the unlinking has returned | none | nobody |
//!
//! The hardware walks at any time, without a lock ([`hw_walk`]). It reads what an entry points to only
//! through the entry, and writes nothing but accessed and dirty bits, by a compare-and-swap of the whole
//! entry that fails when anything in it changed.
//!
//! ## Writers of an entry
//!
//! | entry | from | to | how, and by which writer |
//! | --- | --- | --- | --- |
//! | any, upper level | empty | table | compare-and-swap, no lock; the loser frees its table and uses the winner's |
//! | upper level | empty | leaf, marker | compare-and-swap, under its table's lock |
//! | upper level | leaf, marker | anything | exchange or compare-and-swap, under its table's lock |
//! | upper level | table | empty | plain store, by the task that unlinks; that reclaims, or that unshares, under the lock of the table |
//! | lowest level | not cached by hardware | anything | plain store, under its table's lock |
//! | lowest level | leaf | another leaf, marker | compare-and-swap in place, under its table's lock: never empty in between |
//! | lowest level | leaf | empty | under its table's lock: exchange, where accessed and dirty bits are wanted; otherwise a plain store, see [`PteGuard::take_plain`] |
//! | any leaf | | accessed, dirty set | the hardware |
//!
//! Every store that makes something reachable is a release, every load that is followed is an acquire: a walk
//! that finds a table finds it filled, one that finds a page finds its contents.
//!
//! ## Zapping, step by step
//!
//! 1. The [`Gather`] counts itself in the space's [`GatherState`], before the first store.
//! 2. Entries are cleared under the lock of one table at a time; the gather learns the range and the frames.
//!    It flushes and releases between tables when it is full.
//! 3. Tables whose whole span is free are unlinked, from the leaves up.
//! 4. [`Gather::finish`]: flush; leave the count; release the frames; free the tables. Where another gather
//!    is still counted, the flush is of everything, because an entry found empty may be one that the other
//!    has not flushed (hazard C-4).
//!
//! ## Order of locks
//!
//! A table of an upper level, then one of the lowest, then a second of the lowest; two of one level in the
//! order of their addresses ([`EntryTable::lock_two`]). The walker holds one at a time and none while it
//! calls [`Visitor::unlocked`].

extern crate alloc;

mod addr;
mod count;
mod entries;
mod format;
mod gather;
mod groups;
mod hardware_walk;
mod leaf;
mod memory;
mod page_table;
pub mod reclaim;
mod share;
mod split;
mod table;
mod unlink;
mod walk;

pub use addr::{ENTRIES, Level, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, Pfn, VaRange, VirtAddr};
pub use count::TableCount;
pub use entries::ZapEntry;
pub use format::{
    Format, Kind, MarkerKind, PAYLOAD_BITS, Pte, PteFlags, X86, X86_4, X86_5, table_bits::TABLE_BITS,
};
pub use gather::{Flush, Gather, GatherState, Tlb, UnmappedFrame};
pub use hardware_walk::{Access, FaultCode, PkeyRights, Rights, Translation, WalkFault, hw_walk};
pub use leaf::LeafGuard;
pub use memory::{OutOfTables, Table, TableMemory, TableMeta};
pub use page_table::{PageTable, TableError};
pub use split::PreallocatedTable;
pub use table::{
    EntryGuard, EntryTable, NotCached, PmdGuard, PmdTable, PteGuard, PteTable, PudGuard, PudTable,
    StaleTranslations,
};
pub use walk::{AbsentPolicy, LargeLeafPolicy, Visitor, Walked};
