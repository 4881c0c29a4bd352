//! Tests of the state of a segment under loom, which tries all schedules and the results that the memory
//! model allows.
#![expect(unsafe_code, reason = "the memory of a segment, which loom checks")]

use super::*;
use freehold_sync::testing::model;
use loom::{cell::UnsafeCell, sync::Arc, thread};

struct Segment {
    state: SegmentState,
    memory: UnsafeCell<u32>,
}

// SAFETY: users are counted, and the memory is freed after the last one; loom checks that this suffices.
unsafe impl Sync for Segment {}
// SAFETY: the memory is a number.
unsafe impl Send for Segment {}

impl Segment {
    /// Uses the memory, then detaches. Returns true if the caller frees the memory.
    fn use_and_detach(&self) -> bool {
        // SAFETY: loom checks the access.
        self.memory.with(|memory| unsafe { assert_eq!(*memory, 0) });
        self.freed_by(self.state.detach())
    }

    fn remove(&self) -> bool {
        self.freed_by(self.state.mark())
    }

    fn freed_by(&self, destroyed: bool) -> bool {
        if destroyed {
            // SAFETY: loom checks the access.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }
        destroyed
    }
}

/// Two users leave while a third task removes the segment. One of the three frees the memory, after all uses.
#[test]
fn memory_is_freed_once_after_every_use() {
    model(|| {
        let segment = Arc::new(Segment { state: SegmentState::new(), memory: UnsafeCell::new(0) });
        let users = [(); 2].map(|()| {
            assert!(segment.state.try_attach());
            let segment = segment.clone();
            thread::spawn(move || segment.use_and_detach())
        });
        let removed = segment.remove();
        let freed =
            users.map(|user| user.join().unwrap()).into_iter().chain([removed]).filter(|freed| *freed);
        assert_eq!(freed.count(), 1);
        assert!(segment.state.is_destroyed() && !segment.state.try_attach());
    });
}

/// The task that removes the segment finds it unused, and frees its memory.
#[test]
fn removal_of_an_unused_segment_sees_its_last_use() {
    model(|| {
        let segment = Arc::new(Segment { state: SegmentState::new(), memory: UnsafeCell::new(0) });
        assert!(segment.state.try_attach());
        let user = {
            let segment = segment.clone();
            thread::spawn(move || segment.use_and_detach())
        };
        let removed = segment.remove();
        assert!(user.join().unwrap() != removed);
    });
}
