//! The numbers that reclaim reports: of one call ([`Reclaimed`]), and of all calls ([`ReclaimStats`]).

use super::policy::PageKind;

/// Result of [`Engine::reclaim`](crate::engine::Engine::reclaim): numbers of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Pages whose frames are free now.
    pub freed: u64,
    /// Pages whose writes have begun and not ended. Dirty pages of files can be reclaimed when the writes
    /// have ended. Anonymous pages on their way to a swap device are free then, unless they are needed
    /// before.
    pub writing: u64,
    /// Pages that the policy gave up, and that stay because they are in use: locked, pinned, or without a
    /// place to go.
    pub kept: u64,
    /// Pages that were tested.
    pub tested: u64,
    /// Frames that were visited.
    pub visited: u64,
}

/// Sums of what reclaim has done, for statistics. Returned by
/// [`Engine::reclaim_stats`](crate::engine::Engine::reclaim_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimStats {
    /// Number of calls of [`Engine::reclaim`](crate::engine::Engine::reclaim).
    pub calls: u64,
    /// The sums of the results of these calls. A page whose write ends during a later call may count as
    /// `writing` in one call and as `freed` in another one.
    pub reclaimed: Reclaimed,
    /// Number of pages with [`PageKind`] `kind` that were needed again after their eviction, at `[kind]`.
    pub refaulted: [u64; PageKind::COUNT],
}
