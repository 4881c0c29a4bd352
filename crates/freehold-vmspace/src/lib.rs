#![no_std]
#![deny(unsafe_code)]
//! The half of an address space that the hardware sees.

extern crate alloc;

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
mod look;
mod memory;
mod move_entries;
mod moving;
pub mod platform;
mod protect;
mod rss;
mod shared;
mod space;
mod write_protect;
mod zap;

pub use copy::{Fork, ForkGather};
pub use copy_on_write::{ReadOnly, Store};
pub use error::NoMemory;
pub use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE, Pfn, VirtAddr};
pub use huge::HugePage;
pub use look::{PageKind, Present, Usage};
pub use memory::{CachePage, HugePageSize, HugePool, HugePoolCounts, Memory, NoHugePages, NotTaken, Run};
pub use move_entries::{MoveGather, Tables};
pub use moving::Moving;
pub use protect::Protect;
pub use rss::{Rss, RssKind};
pub use space::{SpaceTlb, VmGather, VmSpace};
pub use write_protect::{is_wp_marker, unprotected};
pub use zap::Zap;
