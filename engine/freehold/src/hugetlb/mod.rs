//! Huge pages that programs request explicitly (hugetlb): 2 MiB or 1 GiB mapped by one entry. The pages come
//! from preallocated pools. Reservations guarantee that a process that got a mapping also gets the pages of
//! the mapping.
//!
//! Reading order:
//!
//! 1. this file;
//! 2. `freehold-vmspace/src/memory/pool.rs`: the pools and the counts of reserved pages;
//! 3. `state/reserves.rs`: the owners of reservations;
//! 4. `file/kinds/huge.rs`: files of huge pages;
//! 5. `sharing.rs`: page tables that address spaces share, and the lock in each VMA that guards the sharing;
//! 6. `unmap_file.rs`: unmapping pages of a file;
//! 7. `tables.rs`, `zap.rs`, `moves.rs`, `fault/`: operations of address spaces; `pools.rs`: operations of an
//!    engine; `vma_reserves.rs`: the end of a VMA's reservations.
//!
//! The code that also handles small pages does everything else. A VMA of huge pages maps a file and has the
//! flag `HUGETLB`. The record of a page's first frame holds the page's reference count. A new call that
//! clears or changes entries needs a row in the table of `sharing.rs` that says why the call's page tables
//! are unshared.
//!
//! # Locks
//!
//! | lock | held by | excludes |
//! | --- | --- | --- |
//! | content, exclusive | mmap that reserves pages of a file, until the mapping is complete; fallocate | changes of the file's size and other reservations, while a call can still fail |
//! | invalidate, shared | a fault or a call that brings a page into a file | truncation, hole punch, migration |
//! | fault mutex, hashed by file and page offset | a fault, or the pager of a userfaultfd, that makes a page or a private copy | a second task that would take an unneeded page, perhaps the last page of the pool |
//! | hugetlb VMA lock, shared | a fault, from before it looks up a table until it ends; a reader of entries | calls that remove a shared table from this VMA |
//! | hugetlb VMA lock, exclusive | DONTNEED, mprotect, registration with a userfaultfd; truncation and migration, for each VMA whose table they remove | faults in this VMA |
//! | i_mmap, shared | a fault that looks for a table to share, until the table is linked | unsharing: a table that was found stays with the VMA in which it was found |
//! | i_mmap, exclusive | a call that unshares, until the flush | faults that share; other calls that unshare, which could otherwise regard a table as unshared too early |
//!
//! The table lists the locks in locking order. All except the first come between the VMA's own lock and the
//! locks of page tables. The first comes before the mmap lock.
//!
//! A file's page is allocated with no lock of an address space held: the fault drops all its locks, brings
//! the page in, and starts over. As for every file (see [`file`](crate::file)), pages are looked up, counted,
//! and checked again under the lock of the table. Neither truncation nor migration therefore needs the fault
//! mutex.
//!
//! `tests/hugetlb` tests calls and counts of pools, and `shuttle_engine/hugetlb.rs` tests concurrent calls.
//! `docs/guide/hugetlb.md` introduces the subject.

pub(crate) mod fault;
mod moves;
mod pools;
pub(crate) mod sharing;
pub(crate) mod state;
mod tables;
pub(crate) mod unmap_file;
mod vma_reserves;
mod zap;

pub use freehold_vmspace::{HugePageSize, HugePool, HugePoolCounts, NoHugePages};
