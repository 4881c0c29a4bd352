#![no_std]
#![deny(unsafe_code)]
//! The tables the hardware reads: formats, table locks, one walker, the TLB gather.

mod addr;
mod each;
mod format;
mod gather;
mod groups;
mod hw;
mod memory;
mod split;
mod table;
mod tree;
mod unlink;
mod walk;

pub use addr::{ENTRIES, Level, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, Pfn, VaRange, VirtAddr};
pub use each::Slot;
pub use format::{Format, Kind, MarkerKind, PAYLOAD_BITS, Pte, PteFlags, TABLE_BITS, X86, X86_4, X86_5};
pub use gather::{Flush, Gather, GatherState, Tlb, Unmapped};
pub use hw::{Access, FaultCode, Rights, Translation, WalkFault, hw_walk};
pub use memory::{OutOfTables, Table, TableMemory, TableMeta};
pub use table::{
    EntryGuard, EntryTable, NotCached, PmdGuard, PmdTable, PteGuard, PteTable, PudGuard, PudTable, Stale,
};
pub use tree::{PageTable, TableError};
pub use walk::{Absent, Large, LargeGuard, Visitor, Walked};
