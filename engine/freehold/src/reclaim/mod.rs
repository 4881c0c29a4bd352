//! Memory reclaim: taking pages away from programs and files when memory is short.
//!
//! [`Engine::reclaim`](crate::engine::Engine::reclaim) visits the frames of memory in a cycle. A [`Policy`]
//! decides which pages go, and this folder decides whether and how a page can go:
//!
//! | page | goes by |
//! | --- | --- |
//! | of a file, clean | its entries are removed by the reverse map, and it leaves the cache |
//! | of a file, dirty | its entries are removed, and a write begins; it goes in a later visit |
//! | freed lazily (MADV_FREE) and not written since, droppable | its entry is removed, its contents are lost |
//! | anonymous | its entries become swap entries, and a write begins; it goes when the write ends |
//! | anonymous and full of zeroes | its entries become entries of the zero page |
//! | of shared memory | its entries are removed, its file names a swap slot, and a write begins |
//! | locked, pinned, secret, of a pool, or a frame of storage | stays |
//!
//! A page has no place in a list. Its age is in the record of its frame, and a fault sets it by the store
//! that sets the page's place, so reclaim costs faults nothing (`frame/age.rs` of `freehold-vmspace`). Tasks
//! that reclaim at the same time take different chunks of memory, first those of their own CPU
//! (`state/visits.rs`).
//!
//! Reclaim waits for no lock: a page whose locks are taken stays until the next visit. It holds no lock while
//! a pager works. It may be called where no lock of the engine is held, in particular in
//! [`Platform::memory_short`](crate::platform::Platform::memory_short), and by a task of the embedder that
//! runs before memory is short.
//!
//! `state/` has the policies; a new policy is a file there. `sweep.rs` visits frames, `evict.rs` takes pages
//! away, and `batch.rs` unmaps pages with one flush for each address space. `swap_out.rs` swaps pages out,
//! `drop_swapped.rs` drops pages from the swap cache. `call/age_pages.rs` ages pages by walks of page tables.
//! `tests/reclaim/` and `tests/swapped/` have the tests.

mod batch;
mod drop_swapped;
mod evict;
pub(crate) mod state;
mod swap_out;
mod sweep;

pub use state::{
    policy::{Accessed, Age, PageKind, PagesByAge, Policy, Population, ReclaimPolicy, Step, Tested, Verdict},
    stats::{ReclaimStats, Reclaimed},
};
pub use sweep::ReclaimRequest;
