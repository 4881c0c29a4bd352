//! Taking frames back that special mappings of a file have: Linux's `unmap_mapping_range`, for a device.
//!
//! ```text
//! driver    its hooks give other answers from now on
//! count     the revocation is counted
//! wait      a grace period: a fault that had asked a hook before, and found the count unchanged, has made its entry
//! zap       under the i_mmap lock, shared: every entry goes, and is flushed
//! ```
//!
//! The code that makes an entry (`fault/special.rs`, `call/mmap/driver.rs`) has read the count before it
//! asked the hook, and reads it again within the read section in which it makes the entry: unchanged, the
//! walk meets the entry, since the VMA was linked before; changed, it asks again. Nobody waits for a hook, so
//! the driver may hold locks that its hooks take.

use crate::{
    file::{Copies, mapping::Mapping},
    platform::Platform,
    wait::grace_period,
};
use freehold_sync::atomic::Ordering::Release;
use freehold_vmspace::PageRange;

impl<P: Platform> Mapping<P> {
    /// Takes the frames of these pages away from every VMA that maps them: when this returns no processor can
    /// reach them, and the next access asks the [fault hook](crate::file::VmOps::fault) again, which the
    /// caller has told what to say. With `copies` what private mappings have copied of them goes as well.
    ///
    /// A mapping that is just being made is made again, by asking its mmap hook again.
    ///
    /// # Locks
    ///
    /// Waits for a grace period; then the i_mmap lock for reading, the tables' locks one at a time. The
    /// caller holds no lock of the engine and is in no read section.
    pub fn revoke(&self, pages: PageRange, copies: bool) {
        // Release pairs with the acquire in `revocations`: a fault that sees this count gets the hooks' new
        // answers.
        self.revoked.fetch_add(1, Release);
        grace_period::<P>();
        self.unmap(pages, if copies { Copies::Go } else { Copies::Stay });
    }
}
