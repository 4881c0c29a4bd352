//! Requests for frames: the number of frames that a call of
//! [`Platform::alloc_frames`](crate::platform::Platform::alloc_frames) requests, and their purpose.
//!
//! This crate makes the requests (`memory/` and `huge.rs`), and the implementation of the platform reads
//! them. Requests are plain values. A [`FrameRequest`] begins with [`pages`](FrameRequest::pages) or
//! [`blocks`](FrameRequest::blocks); `of`, `with` and `on` set one field each. Only
//! [`order`](FrameRequest::order) binds the platform. A platform may use the other fields to choose a node,
//! to keep memory that can move apart from memory that cannot, or to decide how long it tries.
//!
//! A request has no field for the following properties, because their values are the same for all requests:
//!
//! | property | value |
//! | --- | --- |
//! | may wait | yes with normal effort: no spin lock is held. Not for a task that waits for a lock of the engine |
//! | may start input or output | yes with normal effort, unless it calls the engine |
//! | may use a reserve | no: operations that free memory request no frames and no page tables, except that a truncation inside a page may have to read the page |
//!
//! The types are public API of `freehold` (`freehold::platform`): a new purpose or field is visible to every
//! platform. `fault/requests.rs` (`engine/freehold/tests`) compares the requests of each kind of fault with
//! the expected ones.

use crate::{AnonPage, platform::Platform};
use freehold_pagetable::{Level, Pfn};

/// A request for frames; see [`Platform::alloc_frames`](crate::platform::Platform::alloc_frames).
///
/// Only `order` binds the platform. A platform without nodes, zones, accounting or reclaim may ignore all
/// other fields.
#[derive(Debug)]
pub struct FrameRequest<'s, Mmu> {
    /// Each block has 2 to the power of `order` frames and begins at a multiple of its size. 0 means single
    /// frames. Any other value is the order of the block that one entry of a [`Level`] maps (9 for 2 MiB, 18
    /// for 1 GiB).
    pub order: u32,
    /// The NUMA node of the frames.
    pub node: NodeChoice,
    /// The use of the frames. Of a batch of single frames, only the first is sure to have this use. But
    /// either all frames of the batch are [movable](FramePurpose::is_movable) or none is.
    pub purpose: FramePurpose,
    /// The owner of the page that the frame will have. `None` if the request is for the engine or a pool.
    /// Single frames are allocated in batches: the first is for this owner, and the others are for the next
    /// pages that need a frame on the same processor. [`charge`](crate::platform::Platform::charge) says
    /// which owner has which frame.
    pub owner: Option<PageOwner<'s, Mmu>>,
    /// How hard the platform should try.
    pub effort: AllocEffort,
}

/// The NUMA node of requested frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// The local node ([`local_node`](crate::platform::Platform::local_node)) if it has memory, otherwise any
    /// node. Single frames may come from the engine's cache of the calling processor.
    Any,
    /// The nodes of the policy of the calling task (set_mempolicy), which
    /// [`has_task_policy`](crate::platform::Platform::has_task_policy) has reported.
    Task,
    /// Only this node.
    Only(usize),
    /// The nodes of a NUMA policy of a mapping. If the policy is strict and its nodes have no memory, the
    /// platform has no frame.
    Policy {
        /// The number by which the platform knows the policy (`AddressSpace::set_policy`).
        tag: u64,
        /// The offset in the mapped object, in units of the size of the requested page, by which a policy may
        /// distribute pages (MPOL_INTERLEAVE).
        place: u64,
    },
}

/// The use of requested frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramePurpose {
    /// Pages of private memory of programs.
    Anonymous,
    /// Pages of files and of shared memory.
    File,
    /// Pages of a pool of huge pages.
    HugePool,
    /// Pages of spaces without an MMU, whose addresses are the frames.
    NoMmu,
    /// Frames of zeroes that the engine keeps during its whole life.
    Engine,
}

impl FramePurpose {
    /// Returns true if `Engine::migrate` of `freehold` can move the page to another frame, except
    /// while the page is pinned. A platform that keeps movable pages apart from others can make large blocks
    /// free. A page of a pool cannot be moved while it is free in the pool.
    #[inline]
    pub const fn is_movable(self) -> bool {
        matches!(self, FramePurpose::Anonymous | FramePurpose::File)
    }
}

/// The owner of pages, for [`Platform::charge`](crate::platform::Platform::charge).
#[derive(Debug)]
#[non_exhaustive]
pub enum PageOwner<'s, Mmu> {
    /// Private memory of this space.
    Space(&'s Mmu),
    /// A page in the page cache of this file, which may be shared memory. On Linux, the group of the calling
    /// task is charged for such a page.
    File(FileId),
    /// Memory that the calling task requests for a space without an MMU, or for a new space or file.
    Caller,
    /// The owner of the page in this frame. The contents move to the new frame, and the old frame is
    /// uncharged when it is freed.
    SameAs(Pfn),
}

/// Identifies a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(usize);

impl FileId {
    /// Returns the identifier of the file that this word of a frame's record leads to.
    #[doc(hidden)]
    pub fn new(rmap: usize) -> Self {
        FileId(rmap)
    }
}

/// How hard a platform should try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocEffort {
    /// Only memory that is free now, without waiting and without input or output. If there is none, the
    /// caller continues with less (for example smaller pages), and nothing fails.
    Opportunistic,
    /// A reasonable effort, which may include waiting, and reclaim of memory of other parts of the kernel.
    /// The engine's own memory cannot be reclaimed here, because
    /// [`alloc_frames`](crate::platform::Platform::alloc_frames) must not call the engine. If the request
    /// fails, most operations ask [`memory_short`](crate::platform::Platform::memory_short) without locks,
    /// and fail if the answer is no. A pool of huge pages stays smaller.
    Normal,
}

impl NodeChoice {
    /// Returns the nodes for an anonymous page that an entry of `level` maps.
    #[inline(always)]
    pub(crate) fn of<P: Platform>(platform: &P, page: AnonPage, level: Level) -> Self {
        Self::of_policy(platform, page.policy, page.index.get() / level.frames())
    }

    /// Returns the nodes for a page of a mapping with policy `tag`. With tag 0, the policy of the calling
    /// task applies. `place` is the offset in the mapped object, in units of the page's size.
    #[doc(hidden)]
    #[inline(always)]
    pub fn of_policy<P: Platform>(platform: &P, tag: u64, place: u64) -> Self {
        match tag {
            0 => Self::of_task(platform),
            tag => NodeChoice::Policy { tag, place },
        }
    }

    /// Returns the nodes for a page without a policy of its own.
    #[inline(always)]
    pub(crate) fn of_task<P: Platform>(platform: &P) -> Self {
        if platform.has_task_policy() { NodeChoice::Task } else { NodeChoice::Any }
    }
}

impl<'s, Mmu> FrameRequest<'s, Mmu> {
    /// Returns a request for single frames on any node, for no owner, with normal effort.
    #[inline]
    pub const fn pages(purpose: FramePurpose) -> Self {
        FrameRequest { order: 0, node: NodeChoice::Any, purpose, owner: None, effort: AllocEffort::Normal }
    }

    /// Returns a request like [`pages`](Self::pages), but for blocks of the size that one entry of `level`
    /// maps.
    pub const fn blocks(purpose: FramePurpose, level: Level) -> Self {
        FrameRequest { order: level.frames().trailing_zeros(), ..Self::pages(purpose) }
    }

    /// Sets the owner of the page.
    #[inline]
    pub const fn of(self, owner: PageOwner<'s, Mmu>) -> Self {
        FrameRequest { owner: Some(owner), ..self }
    }

    /// Sets the effort.
    pub const fn with(self, effort: AllocEffort) -> Self {
        FrameRequest { effort, ..self }
    }

    /// Sets the nodes.
    #[inline]
    pub const fn on(self, node: NodeChoice) -> Self {
        FrameRequest { node, ..self }
    }
}

impl<Mmu> Clone for PageOwner<'_, Mmu> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Mmu> Copy for PageOwner<'_, Mmu> {}

impl<Mmu> Clone for FrameRequest<'_, Mmu> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Mmu> Copy for FrameRequest<'_, Mmu> {}
