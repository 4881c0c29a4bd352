//! Huge pages that programs ask for by name (hugetlb): 2 MiB or 1 GiB behind one entry, from pools that are
//! set aside, with reservations, so that a process that was given a mapping is given its pages.
//!
//! Reading order: this file, `freehold-vmspace/src/memory/pool.rs` (pages and reservations of pages), then
//! `state/reserves.rs` (whose reservations they are), `file/kinds/huge.rs` (files of huge pages),
//! `sharing.rs` (tables that address spaces share, and the lock of each VMA that this calls for),
//! `unmap_file.rs`; then what address spaces do with them: `tables.rs`, `zap.rs`, `moves.rs`, `fault/`.
//! Everything else is done by the code for all pages: a VMA of huge pages is one of a file, with the flag
//! `HUGETLB`; the page's one counted record is that of its first frame.
//!
//! # Locks, and what they keep out
//!
//! | lock | held by | against |
//! | --- | --- | --- |
//! | content, exclusive | mmap that reserves a file's pages, until the mapping stands; fallocate | another size of the file, and other reservations, while a call can still fail |
//! | invalidate, shared | a fault or a call that brings a page into a file | truncation, hole punch, migration |
//! | fault mutex, hashed by file and page offset | a fault, or the pager of a userfaultfd, that makes a page or a private copy | a second one that would take a page in vain, and perhaps the last |
//! | hugetlb VMA lock, shared | a fault, from before it looks for a table until it is done; a reader of entries | calls that take a shared table away from this VMA |
//! | hugetlb VMA lock, exclusive | DONTNEED, mprotect, registration with a userfaultfd; truncation and migration, of each VMA whose table they take away | faults of this VMA |
//! | i_mmap, shared | a fault that looks for a table to share, until it hangs | unsharing: a table that was found stays with the VMA that it was found in |
//! | i_mmap, exclusive | a call that unshares, until the flush | faults that share; other sharers that would see themselves alone too early |
//!
//! In this order, all but the first between the VMA's own lock and the tables' locks; the first comes before
//! the mmap lock. A file's page is made with no lock of an address space held: the fault lets go of all it
//! has, brings the page in, and starts over. Pages are found, counted, and looked at again under the
//! table's lock, as those of every file (see [`object`](crate::file)), so neither truncation nor migration
//! needs a fault's mutex.

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
