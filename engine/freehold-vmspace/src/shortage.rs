//! Shortages of memory: the question that the engine asks the platform at a *safe point*, where the task
//! holds nothing, and the answers.
//!
//! `shortage.rs` of the crate `freehold` asks, and [`Platform::memory_short`] answers. The types are
//! plain values and public API of `freehold` (`freehold::platform`). `tests/shortage.rs` of `freehold` has
//! the tests.
//!
//! [`Platform::memory_short`]: crate::platform::Platform::memory_short

use crate::request::PageOwner;

/// An operation that has found no memory; see
/// [`Platform::memory_short`](crate::platform::Platform::memory_short).
#[derive(Debug)]
pub struct MemoryShortage<'s, Mmu> {
    /// The space or the file that the operation works on, for a platform that accounts memory to owners.
    /// `Caller` if the space has no MMU, or if the operation creates a space or a file, or fills a pool.
    /// `SameAs` if it moves a page.
    pub owner: PageOwner<'s, Mmu>,
    /// The operation needs a block of 2 to the power of `order` frames, which begins at a multiple of its
    /// size, or a run that is not longer. 0 means that single frames, page tables or the heap have run out.
    pub order: u32,
    /// Number of earlier rounds in which the platform was asked for this operation: 0 in the first round. The
    /// number begins at 0 again after each page that the operation has completed.
    pub round: u32,
}

/// The answer of a platform to a [`MemoryShortage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShortageAnswer {
    /// Memory may have become free: the operation is tried again.
    Retry,
    /// No memory will become free: the operation fails.
    Fail,
}
