//! System calls on an address space, one per file or folder.
//!
//! Each call decodes its arguments and acquires the right that it needs (`space/locking.rs`). It then uses
//! the operations of the layers below: changes (`space/change/`), faults (`fault/`), huge pages (`hugetlb/`).
//! The section *Locks* of a public call names its locks. Most files bear the name of their call. `exit.rs`
//! also empties a space for exec, `age_pages.rs` ages pages for reclaim, `ksm.rs` has PR_SET_MEMORY_MERGE,
//! `swap_off.rs` empties a swap device, and `special.rs` installs the vdso and similar mappings. `report/`
//! has mincore and the data of /proc files.
//!
//! A call makes its checks in Linux's order, because a program can observe which of two errors the call
//! returns. The model (`lab/freehold-model/src/model`) has most calls and their order of checks. Random calls
//! compare the model with the engine and with the running kernel, and each file in `lab/freehold-model/cases`
//! tests one rule.
//!
//! A new call gets a file of its own here, an enum in `error/`, a row in `docs/reference/operations.md`, and
//! tests; the heads of `tests/main.rs` and `tests/every_call/mod.rs` list the places. `tests/sweep` makes
//! each allocation of each public call fail, and checks the state that the call leaves. Without an entry in
//! `tests/sweep/ops`, the test `every_public_call_is_swept_or_exempt_for_a_reason` fails.

mod age_pages;
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
mod reap;
mod remap_file_pages;
mod shm;
mod special;
mod stack_move;
mod swap_off;

pub use age_pages::AgedPages;
pub use madvise::Advice;
pub use mlock::{LockAllFlags, LockFlags};
pub use mremap::RemapFlags;
pub use msync::SyncFlags;
pub use shm::ShmFlags;
pub use special::SpecialPart;
