//! Per-frame metadata: references, map counts, owner; and per-CPU caches over the platform's allocator.

use freehold_sync::atomic::{AtomicU32, AtomicU64};

/// What the engine knows about one frame of memory: 16 bytes, all zero while the frame is free.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    /// References: one per page-table entry, one for a page cache that holds it, one per borrower.
    pub(crate) refs: AtomicU32,
    /// Page-table entries that map it.
    pub(crate) maps: AtomicU32,
    /// Kind and flags; see `FrameFlags`.
    pub(crate) word: AtomicU64,
}

impl Frame {
    /// The record of a free frame.
    pub fn new() -> Self {
        Frame { refs: AtomicU32::new(0), maps: AtomicU32::new(0), word: AtomicU64::new(0) }
    }
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}
