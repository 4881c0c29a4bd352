//! What the engine says of the frames that it asks for.

use freehold_pagetable::Level;

/// A wish for frames; see [`Platform::alloc_frames`](crate::platform::Platform::alloc_frames).
///
/// Only `order` binds the platform. It may ignore all else: one without nodes, zones, accounting or reclaim
/// does.
#[derive(Debug)]
pub struct FrameRequest<'s, Mmu> {
    /// Blocks of 2 to the power of `order` frames, each block at a multiple of its size: 0 for single frames,
    /// else the order of what one entry of a [`Level`] maps (9 for 2 MiB, 18 for 1 GiB).
    pub order: u32,
    /// Where the frames should lie.
    pub node: NodeChoice,
    /// What they become.
    pub purpose: FramePurpose,
    /// On whose behalf: the space that has the fault or makes the call. `None`: the engine, a pool, or a
    /// file. Single frames come in batches, of which the first is for this space, and the others for the next
    /// spaces that need one on the same processor. So a platform sees here which space makes it work, and is
    /// not told exactly which space owns what.
    pub space: Option<&'s Mmu>,
    /// How hard to try.
    pub effort: AllocEffort,
}

/// On which NUMA node frames should lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// As the platform thinks best: that of the calling processor, say.
    Any,
    /// On this node and no other.
    Only(usize),
}

/// What frames become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePurpose {
    /// Pages of programs' private memory. They can be moved to other frames while programs run.
    Anonymous,
    /// Pages of files and of shared memory. They can be moved, too.
    File,
    /// Pages of a pool of huge pages.
    HugePool,
    /// The engine's own, for as long as it lives: frames of zeroes.
    Engine,
}

/// How hard a platform should try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocEffort {
    /// Only what is free: without it the caller goes on with less (smaller pages, say), and nothing fails.
    Opportunistic,
    /// As hard as is reasonable, taking back what others can do without: a call or a fault fails otherwise.
    Normal,
}

impl<'s, Mmu> FrameRequest<'s, Mmu> {
    /// Single frames, wherever they lie, for nobody in particular, with normal effort.
    #[inline]
    pub const fn pages(purpose: FramePurpose) -> Self {
        FrameRequest { order: 0, node: NodeChoice::Any, purpose, space: None, effort: AllocEffort::Normal }
    }

    /// Blocks of what one entry of `level` maps, otherwise as [`pages`](Self::pages).
    pub const fn blocks(purpose: FramePurpose, level: Level) -> Self {
        FrameRequest { order: level.frames().trailing_zeros(), ..Self::pages(purpose) }
    }

    /// On behalf of `space`.
    #[inline]
    pub const fn of(self, space: &'s Mmu) -> Self {
        FrameRequest { space: Some(space), ..self }
    }

    /// With this effort.
    pub const fn with(self, effort: AllocEffort) -> Self {
        FrameRequest { effort, ..self }
    }

    /// On this node alone.
    pub const fn on(self, node: usize) -> Self {
        FrameRequest { node: NodeChoice::Only(node), ..self }
    }
}

impl<Mmu> Clone for FrameRequest<'_, Mmu> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Mmu> Copy for FrameRequest<'_, Mmu> {}
