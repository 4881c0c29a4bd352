//! Addresses of mappings without a fixed address. The engine chooses each address in the same state as Linux,
//! and must choose the same address.
//!
//! The state is known after an exec whose snapshot shows the VMAs. The only unknown is the base of Linux's
//! search, which is random. Linux maps the program's loader at the base, or the vdso if there is no loader.
//! The snapshot shows the end of that mapping, which is the base. In the legacy layout, which searches
//! upwards, the start of that mapping is the base.
//!
//! `perform.rs` calls [`chosen`] before a call, lets the engine choose with [`Chosen::make`], and compares.
//! After a difference, [`Chosen::follow`] brings the mapping to Linux's address, so that later answers can be
//! compared. `tests/places.rs` checks that equal and different addresses are both recognised. Another call
//! for which the kernel chooses an address needs an arm in [`chosen`] and in [`Chosen::follow`].

use super::answers::returned;
use super::calls;
use super::image::Image;
use super::world::{Mapped, World};
use freehold::call::RemapFlags;
use freehold_machine::Process;
use freehold_trace::plan::PlannedCall;
use freehold_trace::{CallName, Returned};

/// Bytes that a PMD entry maps.
const HUGE: u64 = 2 << 20;
const MAP_SHARED: u64 = 1;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_32BIT: u64 = 0x40;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_FIXED: u64 = 2;

/// A call for which the kernel chose the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The address that Linux chose.
    pub(super) linux: u64,
}

/// Returns the address that Linux chose for the mapping that the call creates or moves. Returns `None` if an
/// argument fixed the address, or if the base of the search is not known.
pub(super) fn chosen(image: &Image, planned: &PlannedCall) -> Option<Chosen> {
    let call = &planned.call;
    let args = &call.args;
    let linux = call.returned.value()?;
    let free = match call.name {
        CallName::Mmap => args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) == 0 && linux != args[0] & !4095,
        CallName::Mremap => args[3] & MREMAP_FIXED == 0 && linux != args[0],
        CallName::Shmat => args[1] == 0,
        _ => false,
    };
    (free && image.places).then_some(Chosen { linux })
}

impl Chosen {
    /// Returns true if the address depends on a random number that no snapshot shows (MAP_32BIT).
    pub(super) fn is_random(planned: &PlannedCall) -> bool {
        planned.call.name == CallName::Mmap && planned.call.args[3] & MAP_32BIT != 0
    }

    /// Makes the call with an address that the engine chooses. Returns the engine's answer.
    pub(super) fn make(self, world: &World, process: &Process, planned: &PlannedCall) -> Option<Returned> {
        let answer = calls::answer(world, process, planned, true)?;
        let Some(ours) = answer.value().filter(|ours| *ours != self.linux) else { return Some(answer) };
        match self.aligned_otherwise(world, process, planned, ours) {
            Some(other) => Some(Returned::Value(other)),
            None => Some(answer),
        }
    }

    /// Makes the call again with the other alignment of the file, and keeps that alignment if the engine then
    /// chooses Linux's address. Returns the engine's last address. Linux aligns a file of at least 2 MiB if
    /// its file system can map huge pages. No recording shows which file systems can.
    fn aligned_otherwise(
        self,
        world: &World,
        process: &Process,
        planned: &PlannedCall,
        ours: u64,
    ) -> Option<u64> {
        let args = &planned.call.args;
        let large = planned.call.name == CallName::Mmap && args[3] & MAP_ANONYMOUS == 0 && args[1] >= HUGE;
        let Some(Mapped::File(file)) = planned.file.filter(|_| large).and_then(|id| world.mapped(id)) else {
            return None;
        };
        let mapping = &file.mapping;
        let was = mapping.aligns_to_huge_pages();
        process.munmap(ours, args[1]).ok()?;
        mapping.align_to_huge_pages(!was);
        let other = calls::answer(world, process, planned, true)?.value();
        if other == Some(self.linux) {
            return other;
        }
        mapping.align_to_huge_pages(was);
        let _ = other.map(|other| process.munmap(other, args[1]));
        calls::answer(world, process, planned, true)?.value()
    }

    /// Returns true if Linux aligned shared memory to a larger page, and the engine did not.
    pub(super) fn is_aligned_shared_memory(self, world: &World, planned: &PlannedCall, ours: u64) -> bool {
        /// Size of the smallest larger page.
        const LARGER: u64 = 16 << 10;
        let [_, len, _, flags, ..] = planned.call.args;
        let file = planned.file.and_then(|id| world.mapped(id));
        let shared = match file {
            Some(Mapped::File(file)) => {
                file.mapping.is_shmem() || (file.mapping.is_zeroes() && flags & MAP_SHARED != 0)
            }
            _ => flags & MAP_ANONYMOUS != 0 && flags & MAP_SHARED != 0,
        };
        let mut sizes = std::iter::successors(Some(LARGER), |size| Some(size * 2))
            .take_while(|size| *size <= len.min(HUGE));
        let aligned = sizes.any(|size| self.linux.is_multiple_of(size) && !ours.is_multiple_of(size));
        planned.call.name == CallName::Mmap && shared && aligned
    }

    /// Brings the mapping that the engine placed at `ours` to Linux's address, and returns the answer. After
    /// an mremap, moves the mapping again. After any other call, unmaps the mapping and repeats the call.
    pub(super) fn follow(
        self,
        world: &World,
        process: &Process,
        planned: &PlannedCall,
        ours: u64,
    ) -> Option<Returned> {
        let args = &planned.call.args;
        match planned.call.name {
            CallName::Mremap => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let moved = process.mremap(ours, args[2], args[2], flags, self.linux);
                return Some(returned(moved.map_err(|error| error.errno())));
            }
            CallName::Shmat => drop(process.shmdt(ours)),
            _ => drop(process.munmap(ours, args[1])),
        }
        calls::answer(world, process, planned, false)
    }
}
