//! Frames that are not the engine's, and their owner's word that programs may have them.
#![expect(unsafe_code, reason = "the caller that names frames says whose they are")]

use crate::Pfn;

/// Frames of somebody else that follow each other, one at least: registers of a device, its memory, a ROM,
/// the vdso.
///
/// To map a frame is to let programs read it and perhaps write it, and the engine touches it on their behalf.
/// A number alone would let safe code map page tables, or memory of another process. So the code that makes
/// frames into an argument of the engine vouches for them here, once; hooks, drivers and pagers pass them on
/// in safe code.
///
/// # Invariants
///
/// No frame of it is, as long as the engine may map it, in the keeping of an engine or the memory of page
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFrames {
    first: Pfn,
    count: u64,
}

impl ForeignFrames {
    /// `count` frames from `first` on; at least one.
    ///
    /// # Safety
    ///
    /// As long as a hook, a driver or a pager names them and until what was mapped of them is unmapped or
    /// revoked, none of these frames is on the free lists of the platform, of an engine, a page table, or
    /// memory in which anybody relies on a value: the platform's memory as
    /// [`Platform::alloc_frames`](crate::platform::Platform::alloc_frames) hands it out to their owner, or no
    /// memory of the platform at all. Any program that they are mapped for may read them, and write them
    /// where rights allow.
    pub const unsafe fn new(first: Pfn, count: u64) -> Self {
        assert!(
            count > 0 && first.get().checked_add(count).is_some(),
            "no frames, or more than there are numbers"
        );
        ForeignFrames { first, count }
    }

    /// The first of them.
    pub const fn first(self) -> Pfn {
        self.first
    }

    /// How many.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The one with this number, counted from 0.
    pub const fn get(self, n: u64) -> Option<Self> {
        if n < self.count {
            Some(ForeignFrames { first: Pfn::new(self.first.get() + n), count: 1 })
        } else {
            None
        }
    }

    /// So many of them, from this number on.
    pub const fn part(self, from: u64, count: u64) -> Option<Self> {
        match from.checked_add(count) {
            Some(end) if count > 0 && end <= self.count => {
                Some(ForeignFrames { first: Pfn::new(self.first.get() + from), count })
            }
            _ => None,
        }
    }
}
