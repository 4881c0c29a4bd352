#![no_std]
#![deny(unsafe_code)]
//! The page tables that the hardware reads: entry formats, table locks, one walker, and the TLB gather.
//!
//! The crate does not depend on processes or files. The crate keeps the tables well-formed while faults,
//! unmapping, protection changes and the hardware work on them concurrently. The caller decides which
//! addresses may be mapped, and which locks exclude which tasks.
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
//! The operations on tables, and what each needs:
//!
//! | operation | locks of the caller | locks taken here | may run concurrently with |
//! | --- | --- | --- | --- |
//! | **walk**, read, [zap](PteGuard::zap_each), [change](EntryGuard::change) | any one of: mmap lock, VMA lock, a reverse-mapping lock over the range | the table's | installs, other walks, reclaiming; nothing else that removes a table |
//! | **install** into an empty slot, and creating tables for it | mmap lock or VMA lock, in any mode. A reverse-mapping lock is *not* enough: between zapping and unlinking, munmap has a window in which the reverse map still finds the range | the table's; none for upper levels | other installs, the hardware |
//! | **[unlink](PageTable::unlink_tables)** | none, if neither a fault nor the reverse map can reach the range, and no neighbour can grow into it | none | the hardware only |
//! | **[reclaim]** an empty table of the lowest level | any one of: mmap lock, VMA lock; the whole span of the table lies in that VMA | the table's | everything except unlinking |
//! | **[share](PageTable::share)** | as install, and a lock that excludes unsharing | none; compare-and-swap | other installs, the hardware |
//! | **[unshare](PageTable::unshare)** | a lock that excludes installing, sharing and unsharing there, held until the flush has returned | the table's | walks, also by the other spaces; the hardware |
//! | **free** | the flush that covers the unlinking has returned | none | no other operation |
//!
//! The hardware walks at any time, without a lock ([`hw_walk`]). The hardware reaches the memory behind an
//! entry only through the entry. The hardware writes only accessed and dirty bits, by a compare-and-swap of
//! the whole entry. The compare-and-swap fails if anything in the entry has changed.
//!
//! ## Writers of an entry
//!
//! | entry | from | to | how, and by which writer |
//! | --- | --- | --- | --- |
//! | any, upper level | empty | table | compare-and-swap, no lock; the loser frees its table and uses the winner's |
//! | upper level | empty | leaf, marker | compare-and-swap, under the table's lock |
//! | upper level | leaf, marker | anything | exchange or compare-and-swap, under the table's lock |
//! | upper level | table | empty | plain store, by the task that unlinks; when reclaiming or unsharing, under the lock of the table that is unlinked |
//! | lowest level | not cached by hardware | anything | plain store, under the table's lock |
//! | lowest level | leaf | another leaf, marker | compare-and-swap in place, under the table's lock: never empty in between |
//! | lowest level | leaf | empty | under the table's lock: an exchange if accessed and dirty bits are needed, otherwise a plain store, see [`PteGuard::take_plain`] |
//! | any leaf | | accessed, dirty set | the hardware |
//!
//! Every store that makes an object reachable is a release. Every load of an entry that is followed is an
//! acquire. So a walk that finds a table finds it filled, and a walk that finds a page finds its contents.
//!
//! ## Zapping, step by step
//!
//! 1. The [`Gather`] counts itself in the space's [`GatherState`], before the first store.
//! 2. Entries are cleared under the lock of one table at a time. The gather records the range and the frames.
//!    A full gather flushes and releases between two tables.
//! 3. Tables whose whole span is free are unlinked, from the leaves up.
//! 4. [`Gather::finish`] flushes, removes itself from the count, releases the frames and frees the tables. If
//!    another gather is still counted, [`Gather::finish`] flushes everything, because the other gather may
//!    have emptied an entry and not flushed it yet (hazard C-4).
//!
//! ## Lock order
//!
//! The lock of an upper table comes first, then that of a table of the lowest level, then that of a second
//! table of the lowest level. Two tables of the same level are locked in the order of their addresses
//! ([`EntryTable::lock_two`]). The walker holds one lock at a time, and none while it calls
//! [`Visitor::unlocked`].
//!
//! # Files
//!
//! - Entries and memory: `format/` encodes entries, `memory.rs` is the interface to the platform, and
//!   `addr.rs` has addresses and levels.
//! - One table: `table.rs` has a table and its lock, `entries.rs` and `groups.rs` iterate over its entries,
//!   and `leaf.rs` treats tables of all levels alike.
//! - The tables of a space: `page_table.rs` finds and creates them, `walk.rs` visits those of a range, and
//!   `count.rs` counts them. `split.rs`, `share.rs`, `reclaim.rs` and `unlink.rs` change which tables are
//!   linked.
//! - `gather.rs` flushes, and then releases frames and frees tables. `hardware_walk.rs` walks as a processor
//!   does.
//!
//! A new operation on one entry belongs in `table.rs`, and in `leaf.rs` if callers use it at every level. A
//! new operation on a range is a [`Visitor`] in a crate above. A new store to an entry gets a row in "Writers
//! of an entry". `tests/main.rs` lists the tests, and `cargo xtask loom` runs `tests/loom*.rs`.

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
mod phys_addr;
pub mod reclaim;
mod share;
mod split;
mod table;
mod unlink;
mod walk;

pub use addr::{ENTRIES, Level, Levels, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, Pfn, VaRange, VirtAddr};
pub use count::TableCount;
pub use entries::ZapEntry;
pub use format::{
    Aarch64, Aarch64NoHafdbs, Format, Kind, MarkerKind, PAYLOAD_BITS, Pte, PteFlags, Riscv64, Sv39, Sv48,
    Sv57, X86, X86_4, X86_5, table_bits::TABLE_BITS,
};
pub use gather::{Flush, GATHER_FRAMES, Gather, GatherState, Tlb, UnmappedFrame};
pub use hardware_walk::{Access, FaultCode, PkeyRights, Rights, Translation, WalkFault, hw_walk};
pub use leaf::LeafGuard;
pub use memory::{OutOfTables, Table, TableMemory, TableMeta};
pub use page_table::{PageTable, TableError};
pub use phys_addr::PhysAddr;
pub use split::PreallocatedTable;
pub use table::{
    EntryGuard, EntryTable, NotCached, PmdGuard, PmdTable, PteGuard, PteTable, PudGuard, PudTable,
    StaleTranslations,
};
pub use walk::{AbsentPolicy, LargeLeafPolicy, Visitor, Walked};
