#![no_std]
#![deny(unsafe_code)]
//! The half of an address space that the hardware sees.
//!
//! A [`VmSpace`] is a page table, the processors that use it, and how many pages are resident; [`Memory`] is
//! a platform's frames, which spaces share. What is here installs, protects, zaps, copies, moves and looks at
//! entries. It knows no mapped area, no file, no process, and no lock above those of tables and frames.
//!
//! The crate `freehold` builds address spaces with the behaviour of Linux on it, and hides nothing here but
//! what would be unsound without its rules: functions that count references and entries, or that trust their
//! caller to keep tables from going away. A space is also of use [by itself](VmSpace::map), to an owner that
//! has it alone: `examples/second_stage.rs` gives a guest its memory.
//!
//! # Where is what
//!
//! | file | what it has |
//! | --- | --- |
//! | `platform.rs`, `request.rs` | what the embedding kernel supplies; the only seam |
//! | `frame/` | the record of each frame: references, entries that map it, whose it is, its lock, pins |
//! | `memory/` | free frames by processor, huge ones in pools, runs of frames |
//! | `space.rs` | [`VmSpace`]: its fields, gathers, access to its tables |
//! | `install.rs`, `huge.rs`, `copy_on_write.rs` | filling entries, as faults do |
//! | `protect.rs`, `write_protect.rs`, `clean.rs`, `guard.rs` | changing what entries allow |
//! | `aging.rs` | clearing accessed and dirty bits |
//! | `zap.rs`, `collapse.rs` | taking pages away |
//! | `move_entries.rs`, `copy.rs`, `large.rs`, `shared.rs` | moving and copying entries, those of pools too; tables that spaces share |
//! | `entry.rs`, `migration_entry.rs` | one entry, found by the reverse map |
//! | `residency.rs`, `rss.rs`, `rss_counters.rs` | what is present, how much |
//! | `standalone.rs` | a space by itself |
//! | `page_index.rs`, `user_range.rs` | pages by their place in a file, and in a space |

extern crate alloc;

mod aging;
mod clean;
mod collapse;
mod copy;
mod copy_on_write;
mod entry;
mod error;
pub mod frame;
mod guard;
mod huge;
mod install;
mod large;
mod memory;
mod migration_entry;
mod move_entries;
mod page_index;
pub mod platform;
mod protect;
mod request;
mod residency;
mod rss;
mod rss_counters;
mod shared;
mod space;
mod standalone;
mod user_range;
mod write_protect;
mod zap;

#[doc(hidden)]
pub use aging::Aging;
pub use copy::{Fork, ForkGather};
pub use copy_on_write::{ReadOnly, StoreOutcome};
pub use error::NoMemory;
pub use frame::page::{AnonPage, CachePage};
pub use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE, Pfn, VirtAddr};
pub use huge::HugePage;
#[doc(hidden)]
pub use install::CacheFill;
pub use large::LargeFork;
pub use memory::{HugePageSize, HugePool, HugePoolCounts, Memory, NoHugePages, Run, TakeError};
#[doc(hidden)]
pub use migration_entry::MigrationEntry;
pub use move_entries::{MoveGather, TableMoves};
pub use page_index::{PageCount, PageIndex, PageRange};
pub use protect::Protect;
pub use residency::{PageKind, Present, Usage, UsageSum};
pub use rss::{Rss, RssKind};
pub use space::{SpaceTlb, VmGather, VmSpace};
pub use standalone::{MapError, Mapped};
pub use user_range::UserRange;
pub use write_protect::{is_wp_marker, unprotected};
pub use zap::Zap;
