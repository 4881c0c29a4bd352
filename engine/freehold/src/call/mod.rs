//! System calls on an address space, one per file or folder.
//!
//! Each call decodes its arguments, acquires the right that it needs (`space::locking`), and uses the
//! operations of the layers below: changes (`space/`), faults (`fault/`), huge pages (`hugetlb/`).

mod brk;
mod exit;
mod fork;
mod ksm;
mod madvise;
mod mbind;
mod mlock;
pub(crate) mod mmap;
mod mprotect;
mod mremap;
mod mseal;
mod msync;
pub(crate) mod munmap;
mod pkeys;
mod remap_file_pages;
mod shm;
mod special;
mod stack_move;

pub use madvise::Advice;
pub use mlock::{LockAllFlags, LockFlags};
pub use mremap::RemapFlags;
pub use msync::SyncFlags;
pub use shm::ShmFlags;
pub use special::SpecialPart;
