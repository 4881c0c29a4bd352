//! Where things go that have no fixed place: the engine chooses in the same state as Linux did, and has to
//! choose the same.
//!
//! That state is known from an exec on of which a snapshot shows the VMAs. What is left is where Linux begins
//! to look, which is drawn at random: it puts the program's loader there, or else the vdso, whose end the
//! snapshot shows. In the legacy layout, which looks upwards, it is their start.

use super::answers::returned;
use super::calls;
use super::image::Image;
use super::world::{Mapped, World};
use freehold::call::RemapFlags;
use freehold_machine::Process;
use freehold_trace::plan::PlannedCall;
use freehold_trace::{CallName, Returned};

/// Bytes that an entry of a page table's middle level maps.
const HUGE: u64 = 2 << 20;
const MAP_SHARED: u64 = 1;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_32BIT: u64 = 0x40;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_FIXED: u64 = 2;

/// A call for which the kernel has chosen a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Where.
    pub(super) linux: u64,
}

/// Where Linux has put what the call maps or moves, if nothing fixed it.
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
    /// The place depends on a random number.
    pub(super) fn is_random(planned: &PlannedCall) -> bool {
        planned.call.name == CallName::Mmap && planned.call.args[3] & MAP_32BIT != 0
    }

    /// The engine makes the call and chooses: its answer.
    pub(super) fn make(self, world: &World, process: &Process, planned: &PlannedCall) -> Option<Returned> {
        let answer = calls::answer(world, process, planned, true)?;
        let Some(ours) = answer.value().filter(|ours| *ours != self.linux) else { return Some(answer) };
        match self.aligned_otherwise(world, process, planned, ours) {
            Some(other) => Some(Returned::Value(other)),
            None => Some(answer),
        }
    }

    /// A file of 2 MiB or more is aligned if its file system can have it mapped by huge pages, and which can,
    /// no recording tells: the place where it goes in the other case, if that is Linux's. Then that is
    /// how it is from now on.
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

    /// Linux has put shared memory where a larger page may start, and the engine has not.
    pub(super) fn is_aligned_shared_memory(self, world: &World, planned: &PlannedCall, ours: u64) -> bool {
        /// The smallest that there may be.
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

    /// What the engine has put at `ours` goes where Linux has it; the answer then.
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
