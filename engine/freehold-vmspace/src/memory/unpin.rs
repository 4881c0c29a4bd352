//! Dropping pins. `remote/pin.rs` of `freehold` calls this when the user of pinned memory, such as a device,
//! has finished. `frame/pin.rs` describes pins.
//!
//! The call may come at any time, and takes no lock except that of a pool. The pages may have been unmapped
//! since they were pinned. So a pin may be the last reference, and then this file frees the frame. A page
//! that was stored to through the pin is marked dirty before the pin is dropped, because afterwards a page of
//! a file may leave the cache, and a lazily freed page may be discarded. `tests/pins/` of `freehold` tests
//! this file.

use super::Memory;
use crate::{Pfn, frame::pin::PIN, platform::Platform};
use arrayvec::ArrayVec;

#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Drops a pin of each frame. `dirty` says that stores were made through the pin. Frames of zeroes are
    /// not counted.
    pub fn unpin(&self, frames: &[Pfn], dirty: bool) {
        let mut free = ArrayVec::<Pfn, 32>::new();
        for &pfn in frames.iter().filter(|pfn| !self.is_zero(**pfn)) {
            let record = self.record_of(pfn);
            let frame = self.platform().frame(record);
            if dirty {
                self.set_dirty_late(frame);
            }
            if frame.hugetlb().is_some() {
                self.put_huge_page_by(record, PIN);
            } else if frame.unpin() {
                free.push(pfn);
            }
            if free.is_full() {
                self.free_frames(&mut free);
            }
        }
        self.free_frames(&mut free);
    }
}
