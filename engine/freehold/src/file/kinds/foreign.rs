//! Frames that the engine does not own ([`ForeignFrames`]), with the promise of their owner that programs may
//! use them.
//!
//! Hooks of special mappings (`special.rs`), drivers (`driver.rs`) and pagers (`pager.rs`) return such
//! frames. The engine maps them, but neither counts nor frees them. Only the unsafe constructor creates a
//! value, and no function of this file may produce a frame outside the promised range. A new way for an
//! embedder to name frames must take this type instead of a frame number.
#![expect(unsafe_code, reason = "the caller that names frames vouches for their ownership")]

use crate::Pfn;

/// A non-empty range of contiguous frames that the engine does not own: registers or memory of a device, a
/// ROM, the vdso.
///
/// Mapping a frame lets programs read it and perhaps write it, and the engine accesses the frame on their
/// behalf. A bare frame number would let safe code map page tables or memory of another process. The code
/// that creates this value therefore guarantees once that programs may use the frames. Hooks, drivers and
/// pagers pass the value on in safe code.
///
/// # Invariants
///
/// No engine manages the frames, and none of the frames is a page table, as long as the engine may map them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFrames {
    /// The first frame.
    first: Pfn,
    /// Number of frames, at least one.
    count: u64,
}

impl ForeignFrames {
    /// Creates a range of `count` frames starting at `first`. `count` is at least one.
    ///
    /// # Safety
    ///
    /// The caller must guarantee the following as long as a hook, a driver or a pager names the frames, and
    /// until every mapping of them is unmapped or revoked. None of the frames is on a free list of the
    /// platform or of an engine, is a page table, or is memory whose contents any code relies on. The frames
    /// are either memory of the platform that
    /// [`Platform::alloc_frames`](crate::platform::Platform::alloc_frames) allocated to their owner, or not
    /// memory of the platform at all. Any program that maps the frames is permitted to read them, and
    /// to write them if its mapping is writable.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::ForeignFrames, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let frames = unsafe { ForeignFrames::new(Pfn::new(0x1000), 8) };
    /// assert_eq!((frames.first(), frames.count()), (Pfn::new(0x1000), 8));
    /// ```
    pub const unsafe fn new(first: Pfn, count: u64) -> Self {
        assert!(
            count > 0 && first.get().checked_add(count).is_some(),
            "the range is empty or exceeds the largest frame number"
        );
        ForeignFrames { first, count }
    }

    /// Returns the first frame.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::ForeignFrames, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let frames = unsafe { ForeignFrames::new(Pfn::new(0x1000), 8) };
    /// assert_eq!(frames.part(2, 4).unwrap().first(), Pfn::new(0x1002));
    /// ```
    pub const fn first(self) -> Pfn {
        self.first
    }

    /// Returns the number of frames.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::ForeignFrames, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let frames = unsafe { ForeignFrames::new(Pfn::new(0x1000), 8) };
    /// assert_eq!(frames.part(2, 4).unwrap().count(), 4);
    /// ```
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Returns the frame at position `n`, counted from 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::ForeignFrames, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let frames = unsafe { ForeignFrames::new(Pfn::new(0x1000), 8) };
    /// assert_eq!(frames.get(7).unwrap().first(), Pfn::new(0x1007));
    /// assert!(frames.get(8).is_none());
    /// ```
    pub const fn get(self, n: u64) -> Option<Self> {
        if n < self.count {
            Some(ForeignFrames { first: Pfn::new(self.first.get() + n), count: 1 })
        } else {
            None
        }
    }

    /// Returns `count` frames from position `from` on.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::ForeignFrames, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let frames = unsafe { ForeignFrames::new(Pfn::new(0x1000), 8) };
    /// let tail = frames.part(6, 2).unwrap();
    /// assert_eq!((tail.first(), tail.count()), (Pfn::new(0x1006), 2));
    /// assert!(frames.part(6, 3).is_none());
    /// ```
    pub const fn part(self, from: u64, count: u64) -> Option<Self> {
        match from.checked_add(count) {
            Some(end) if count > 0 && end <= self.count => {
                Some(ForeignFrames { first: Pfn::new(self.first.get() + from), count })
            }
            _ => None,
        }
    }
}
