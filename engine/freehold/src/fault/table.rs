//! Two steps that several kinds of faults share: filling a page of a file, and a fault at the marker of
//! failed memory.
//!
//! `fill` is called by faults, by `populate.rs`, by MADV_COLLAPSE and by remote access, when an attempt has
//! returned `FaultOutcome::Fill`. The caller must hold no lock, because the page may be read from storage.
//! `poison_fault` is called by `marker_fault` in `mod.rs`. A new error of a fill needs an arm here that
//! selects the signal. `tests/rmap/failure.rs` tests accesses to failed memory.

use crate::{
    VirtAddr,
    fault::outcome::{FaultError, FaultOutcome, WaitFor},
    file::{File, FillError, Wanted},
    platform::Platform,
    rmap::failed_frame,
    space::AddressSpace,
};
use freehold_pagetable::{MarkerKind, Pte, PteTable};

impl<P: Platform> AddressSpace<P> {
    /// Brings a page of a file into its cache, or starts readahead at a marked page. The caller holds no
    /// lock.
    pub(crate) fn fill(&self, file: &File<P>, wanted: Wanted, addr: u64) -> Result<(), FaultError> {
        file.fill_wanted(wanted).map_err(|error| match error {
            FillError::NoMemory => FaultError::OutOfMemory,
            FillError::Lost => FaultError::MemoryFailed { addr },
            FillError::Killed => FaultError::Killed,
            FillError::BeyondEnd
            | FillError::Io
            | FillError::Sealed
            | FillError::Busy
            | FillError::NoSpace
            | FillError::NoHugePages
            | FillError::Unsupported
            | FillError::Invalid => FaultError::Bus { addr },
        })
    }

    /// Handles a fault at the marker of a frame whose memory failed.
    #[inline(never)]
    pub(super) fn poison_fault(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        payload: u64,
    ) -> FaultOutcome<P> {
        if let Some(pfn) = failed_frame(payload) {
            if self.platform().frame(pfn).is_locked() {
                return FaultOutcome::Wait(WaitFor::Frame(pfn));
            }
            // The marker exists either while the frame is locked or permanently. If the frame was unlocked
            // before the check above, the task that held its lock has finished with this table. The result is
            // visible under the table's lock.
            let marker = Pte::marker(MarkerKind::Poison, payload);
            if table.lock_linked().is_none_or(|table| table.get(address) != marker) {
                return FaultOutcome::Retry;
            }
        }
        FaultOutcome::Failed(FaultError::MemoryFailed { addr: address.get() })
    }
}
