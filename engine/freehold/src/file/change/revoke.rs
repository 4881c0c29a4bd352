//! Revoking the frames of special mappings of a file: Linux's `unmap_mapping_range`, for a device.
//!
//! ```text
//! driver    makes its hooks give new answers
//! count     the revocation is counted
//! wait      a grace period: every fault that still read the old count has then made its entry
//! zap       under the i_mmap lock, shared: clears and flushes every entry
//! ```
//!
//! Code that makes an entry (`fault/special.rs`, `call/mmap/driver.rs`) reads the count before it calls the
//! hook, and again in the read section in which it makes the entry. If the count is unchanged, the walk of
//! the revocation finds the entry, because the VMA was linked before the walk. If the count has changed, that
//! code calls the hook again. Revocation never waits for a hook, so the driver may hold locks that its hooks
//! take.
//!
//! `file/kinds/special.rs` defines the count that code reads before it calls a hook
//! ([`Asked`](crate::file::Asked)). A new call that maps the frame of a hook's answer must check the count in
//! the same way. `tests/special/revoke.rs` and `shuttle_engine/special.rs` have the tests.

use crate::{
    file::{Copies, mapping::Mapping},
    platform::Platform,
    wait::grace_period,
};
use freehold_vmspace::PageRange;

impl<P: Platform> Mapping<P> {
    /// Revokes the frames of these pages from every VMA that maps them. When this call returns, no CPU can
    /// access the frames. The next access calls the [fault hook](crate::file::VmOps::fault) again. The caller
    /// changes the answers of the hook before this call. With `copies`, private copies of the pages are
    /// unmapped as well.
    ///
    /// An mmap call that is running concurrently calls its mmap hook again.
    ///
    /// # Locks
    ///
    /// Waits for a grace period. Then takes the i_mmap lock for reading, and locks of page tables one at a
    /// time. The caller holds no lock of the engine and is in no read section.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, engine::{Config, Engine}, fault::*, file::*};
    /// # use freehold::{platform::{FramePurpose, FrameRequest, Platform}, space::*, vma::flags::VmFlags, Pfn};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// # let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let mut frames = [Pfn::new(0)];
    /// # assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), 1);
    /// // SAFETY: the frame is allocated from the machine for this device and is never freed.
    /// let frames = Frames::new("/dev/it", &[unsafe { ForeignFrames::new(frames[0], 1) }]).unwrap();
    /// let mapping = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let special = Special::of_file(frames, &mapping).unwrap();
    /// let at = space.install_special(0, PAGE_SIZE, VmFlags::READ, &special).unwrap();
    /// space.handle_fault(at, Access::READ).unwrap();
    /// mapping.revoke(PageRange::ALL, false);
    /// let mut entries = 0;
    /// space.pagemap(at..at + PAGE_SIZE, |_| entries += 1);
    /// assert_eq!(entries, 0);
    /// ```
    pub fn revoke(&self, pages: PageRange, copies: bool) {
        // A fault that sees the new count also sees the hooks' new answers.
        self.revoked.record();
        grace_period::<P>();
        self.unmap(pages, if copies { Copies::Go } else { Copies::Stay });
    }
}
