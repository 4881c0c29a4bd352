//! The arguments of mremap, and the checks that need no address space: the step decode.
//!
//! `mod.rs` decodes each call here, and makes one request for each VMA of a move of several VMAs. A request
//! whose checks fail must not reach the locks. The model's `mremap.rs` has the order of the checks.

use super::RemapFlags;
use crate::{PAGE_SIZE, error::MremapError, platform::Platform, space::AddressSpace};
use freehold_vmspace::UserRange;

/// The arguments, with lengths in whole pages. A move of several VMAs uses one request for each VMA.
#[derive(Clone, Copy)]
pub(super) struct Remap {
    /// Start of the source.
    pub(super) addr: u64,
    /// Length of the source in bytes. With length zero, the call duplicates a shared mapping.
    pub(super) old_len: u64,
    /// Length of the target in bytes.
    pub(super) new_len: u64,
    pub(super) flags: RemapFlags,
    /// Start of the target, or a hint for it; see [`has_target`](Remap::has_target).
    pub(super) new_addr: u64,
}

impl Remap {
    /// Returns true if the request has a target: `FIXED` gives an address, and `DONTUNMAP` a hint.
    pub(super) fn has_target(&self) -> bool {
        self.flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP)
    }

    pub(super) fn fixed(&self) -> bool {
        self.flags.contains(RemapFlags::FIXED)
    }

    pub(super) fn keeps_source(&self) -> bool {
        self.flags.contains(RemapFlags::DONTUNMAP)
    }

    /// Returns true if the mapping may move to any address.
    pub(super) fn may_move(&self) -> bool {
        self.flags.contains(RemapFlags::MAYMOVE) && !self.has_target()
    }

    pub(super) fn grows(&self) -> bool {
        self.new_len > self.old_len
    }

    /// Returns the number of bytes by which the mapping grows.
    pub(super) fn growth(&self) -> u64 {
        self.new_len - self.old_len
    }

    /// Performs decode: the checks that do not need the address space.
    pub(super) fn decode<P: Platform>(
        addr: u64,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        new_addr: u64,
    ) -> Result<Self, MremapError> {
        let pages = |len: u64| len.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
        let request = Remap { addr, old_len: pages(old_len), new_len: pages(new_len), flags, new_addr };
        let unknown = !RemapFlags::all().contains(flags);
        let fits = request.new_len != 0 && request.new_len <= AddressSpace::<P>::TASK_SIZE;
        let target_is_sane = || !request.has_target() || request.target_is_sane::<P>();
        let sane = !unknown && addr.is_multiple_of(PAGE_SIZE) && fits && target_is_sane();
        if sane { Ok(request) } else { Err(MremapError::Invalid) }
    }

    /// Returns true if the target lies in user space, is aligned, does not overlap the source, and fits the
    /// flags.
    pub(super) fn target_is_sane<P: Platform>(&self) -> bool {
        let ends_after = |start: u64, len: u64, other: u64| start.wrapping_add(len) > other;
        let overlap = ends_after(self.addr, self.old_len, self.new_addr)
            && ends_after(self.new_addr, self.new_len, self.addr);
        self.new_addr <= AddressSpace::<P>::TASK_SIZE - self.new_len
            && self.new_addr.is_multiple_of(PAGE_SIZE)
            && self.flags.contains(RemapFlags::MAYMOVE)
            && !(self.keeps_source() && self.old_len != self.new_len)
            && !overlap
    }

    /// Returns the ranges that the request may need: the source with the range that it grows into, and a
    /// fixed target.
    pub(super) fn ranges(&self) -> [UserRange; 2] {
        let target = match self.fixed() {
            true => UserRange::at(self.new_addr, self.new_len),
            false => UserRange::EMPTY,
        };
        [UserRange::clipped(self.addr, self.old_len.max(self.new_len)), target]
    }
}
