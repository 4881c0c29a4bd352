#![no_std]
#![deny(unsafe_code)]
//! The hardware half of an address space: frames, page tables, TLBs and resident pages.
//!
//! A [`VmSpace`] is a page table, the set of processors that use the table, and the counts of resident pages.
//! [`Memory`] manages the frames of a platform, which all spaces share. The functions of this crate install,
//! protect, zap, copy, move and examine page-table entries. The crate does not know VMAs, files or processes,
//! and takes no lock except those of page tables, frames and pools.
//!
//! The crate `freehold` builds address spaces with the behaviour of Linux on this crate. An item is
//! `#[doc(hidden)]` only if it would be unsound without the rules of `freehold`: the item counts references
//! and entries, or trusts its caller to keep tables linked. A space is also useful [by itself](VmSpace::map)
//! to a single owner: `examples/second_stage` of the repository uses a space as the memory of a guest. A
//! guest whose memory is a part of a process follows the process as a [`Listener`] (`docs/guide/devices.md`).
//!
//! # Files
//!
//! | file | contents |
//! | --- | --- |
//! | `platform.rs`, `request.rs` | the services that the embedding kernel supplies; the only interface to it |
//! | `frame/` | the record of each frame: references, map count, owner, lock, pins |
//! | `memory/` | free frames per CPU, pools of huge pages, runs of frames |
//! | `space.rs` | [`VmSpace`]: its fields, gathers, access to its tables |
//! | `install.rs`, `huge.rs`, `copy_on_write.rs` | filling entries, as faults do |
//! | `protect.rs`, `write_protect.rs`, `protect_reported.rs`, `clean.rs`, `guard.rs` | changing what entries allow |
//! | `aging.rs`, `young.rs`, `soft_dirty.rs` | clearing accessed, dirty and soft-dirty bits |
//! | `zap.rs`, `collapse.rs`, `evict.rs` | removing pages |
//! | `move_entries.rs`, `copy.rs`, `large.rs`, `shared.rs` | moving and copying entries, including those of pools; tables that spaces share |
//! | `notify/` | listeners: devices and hypervisors that have translations of their own |
//! | `entry.rs`, `migration_entry.rs` | one entry, found by the reverse map |
//! | `swap_entry.rs` | markers of pages that were swapped out |
//! | `residency.rs`, `rss.rs`, `rss_counters.rs` | which pages are present, and how many |
//! | `standalone.rs` | a space without an address space above it |
//! | `page_index.rs`, `user_range.rs` | positions of pages in a file, and ranges of pages in a space |
//!
//! A new operation on entries gets a file here, with a row in this table: methods of [`VmSpace`] and, for a
//! range, a `Visitor`. The operation keeps the counts. Each entry that maps a frame, except an entry with
//! `PteFlags::SPECIAL`, holds one reference and one mapping of the record. Such an entry also counts as
//! resident, unless it maps a huge page of a pool. `tests/vmspace` tests what a single owner may call. The
//! tests of `freehold` cover the rest, and compare the number of resident pages with the entries
//! (`report/check.rs`).

extern crate alloc;

mod aging;
mod clean;
mod collapse;
mod copy;
mod copy_on_write;
mod entry;
mod error;
mod evict;
pub mod frame;
mod guard;
mod huge;
mod install;
mod large;
mod memory;
mod migration_entry;
mod move_entries;
mod notify;
mod page_index;
pub mod platform;
mod protect;
mod protect_reported;
mod request;
mod residency;
mod rss;
mod rss_counters;
mod shared;
mod shortage;
mod soft_dirty;
mod space;
mod standalone;
mod swap_entry;
mod user_range;
mod write_protect;
mod young;
mod zap;

#[doc(hidden)]
pub use aging::{Aging, OldAges};
pub use copy::{Fork, ForkGather};
pub use copy_on_write::{ReadOnly, StoreOutcome};
pub use error::NoMemory;
#[doc(hidden)]
pub use evict::Discardable;
pub use frame::page::{AnonPage, CachePage};
pub use freehold_pagetable::{MarkerKind, PAGE_SHIFT, PAGE_SIZE, Pfn, VirtAddr};
pub use huge::HugePage;
#[doc(hidden)]
pub use install::CacheFill;
pub use large::LargeFork;
pub use memory::{HugePageSize, HugePool, HugePoolCounts, Memory, NoHugePages, Run, TakeError};
#[doc(hidden)]
pub use migration_entry::MigrationEntry;
pub use move_entries::{MoveGather, TableMoves};
pub use notify::{Interval, IntervalSequence, ListenError, Listener, ListenerId, Refused};
pub use page_index::{PageCount, PageIndex, PageRange};
pub use protect::Protect;
pub use residency::{EntryRun, PageEntry, PageKind, Usage, UsageSum};
pub use rss::{Rss, RssKind};
pub use space::{BatchGather, SpaceTlb, VmGather, VmSpace};
pub use standalone::{MapError, Mapped};
#[doc(hidden)]
pub use swap_entry::{SwapFault, SwapMark, SwapSlots, SwappedPage};
pub use user_range::UserRange;
pub use write_protect::{is_wp_marker, unprotected};
pub use zap::Zap;
