//! The planner's model of one address space ([`Space`]), the addresses that a call concerns ([`Reach`]), and
//! the data of a call that is applied to the model ([`AppliedCall`]).
//!
//! A planner has one [`Space`] per address space, in `Processes::spaces`. [`Space`] combines the VMAs
//! (`area.rs`), the order of steps (`order.rs`), and the addresses whose mappings are known
//! (`address_set.rs`, `unknown.rs`). The other files of the folder add its operations: `calls.rs`,
//! `mremap.rs`, `touch.rs`, `registered.rs`, `unknown.rs` and `bytes.rs`. Where the recording shows the
//! mappings, the model must follow Linux exactly. Elsewhere, the model records which mappings are unknown or
//! doubtful. A new field is empty in a forked child unless `Space::fork` (`calls.rs`) copies the field.

use super::address_set::AddressSet;
use super::area::Areas;
use super::descriptors::Access;
use super::order::{Order, Stamp};
use crate::addresses::{MAP_FIXED, MAP_FIXED_NOREPLACE};
use crate::{Call, CallName, KnownLimits};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

const PROT_WRITE: u8 = 2;
pub(super) const MAP_ANONYMOUS: u64 = 0x20;
pub(super) const MAP_GROWSDOWN: u64 = 0x100;
pub(super) const MREMAP_DONTUNMAP: u64 = 4;
pub(super) const CLONE_VM: u64 = 0x100;
pub(super) const MAP_HUGETLB: u64 = 0x4_0000;
/// The default size of a huge page in bytes.
pub(super) const HUGE: u64 = 2 << 20;

/// Forks of an address space, each with its time and the task that it created.
pub(super) type Forks = VecDeque<(u64, u32)>;

/// The planner's model of an address space: its VMAs, without pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// The VMAs.
    pub(crate) areas: Areas,
    /// The last steps at each address, for which later steps wait.
    pub(crate) order: Order,
    /// Start and end of the heap in bytes, known after the first brk.
    pub(crate) heap: Option<(u64, u64)>,
    /// Flags that mlockall and `PR_SET_MEMORY_MERGE` add to new mappings.
    pub(crate) future: u32,
    /// Tasks that run in the address space.
    pub(crate) members: Vec<u32>,
    /// The last of the calls that keep their order because of a limit or of the set of free addresses
    /// (`Space::keep_order`).
    pub(crate) layout: Stamp,
    /// Addresses whose mappings recorded calls determine. All other addresses are *unknown*. `None` if a
    /// snapshot shows the whole address space at its start: no address is unknown then.
    pub(crate) known_ranges: Option<AddressSet>,
    /// *Assumed* memory: addresses outside `known_ranges` that must be mapped, because a call on them
    /// succeeded.
    pub(crate) assumed: AddressSet,
    /// True if the address space has or had a mapping that grows downwards. Faults extend such a mapping
    /// without a call.
    pub(crate) grows: bool,
    /// Addresses into which mappings may have grown downwards.
    pub(crate) grown: AddressSet,
    /// Addresses of bytes that recorded calls wrote and that are still there (`bytes.rs`).
    pub(crate) written: AddressSet,
    /// Addresses where it is unknown whether memory is locked.
    pub(crate) locks: AddressSet,
    /// True if the number of locked pages is unknown.
    pub(crate) doubts_locked: bool,
    /// For two calls that overlap in time: addresses that were mapped when the plan reached the earlier call.
    /// If the later call received these addresses, the earlier call had freed them before.
    pub(crate) awaited: AddressSet,
    /// True if the process has created a userfaultfd, so that ranges may be registered with it.
    pub(crate) has_userfaultfd: bool,
    /// The known userfaultfds of the process, with the features of `UFFDIO_API`.
    pub(crate) features: BTreeMap<u32, u64>,
    /// True if registrations are doubtful: they may differ from those of the model.
    pub(crate) doubts_userfaultfd: bool,
    /// The limits that the plan has set on the address space.
    pub(crate) limits: KnownLimits,
    /// Recent forks of the address space for which the recording has no times of locks (`overlaps.rs`).
    pub(crate) forks: Forks,
    /// The number of the address space's kin (`kin.rs`). 0 if it shares no huge pages.
    pub(crate) kin: u32,
}

/// The *reach* of a call: the addresses that the call concerns. The reach decides for which steps the call
/// waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The VMAs in these two ranges and adjacent to them. A range may be empty.
    Vmas([Range<u64>; 2]),
    /// The pages in this range. VMAs do not change.
    Pages(Range<u64>),
    /// The whole address space.
    Whole,
}

/// A call that is applied to the model ([`Space::apply`]), with the data that its effect needs.
pub(crate) struct AppliedCall<'c> {
    /// The recorded call, with its result.
    pub(crate) call: &'c Call,
    /// The number of the mapped file.
    pub(crate) file: Option<u32>,
    /// The access mode of the file, if known.
    pub(crate) access: Option<Access>,
    /// True if the file is /dev/zero.
    pub(crate) zeroes: bool,
    /// Size in bytes of the segment that shmat attaches.
    pub(crate) segment: u64,
    /// The userfaultfd of an ioctl.
    pub(crate) userfaultfd: Option<u32>,
    /// The step of the call.
    pub(crate) stamp: Stamp,
    /// The highest number of a family of anonymous pages so far.
    pub(crate) families: &'c mut u32,
}

#[cfg(test)]
impl<'c> AppliedCall<'c> {
    /// Returns the call as the first step of task 1, on memory without a file.
    pub(crate) fn first(call: &'c Call, families: &'c mut u32) -> AppliedCall<'c> {
        let stamp = Stamp { task: 1, index: 0 };
        AppliedCall {
            call,
            file: None,
            access: None,
            zeroes: false,
            segment: 0,
            userfaultfd: None,
            stamp,
            families,
        }
    }
}

/// Returns true if the call is an mmap that replaces existing mappings.
pub(super) fn replaces(call: &Call) -> bool {
    call.name == CallName::Mmap && call.args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED
}

/// Returns true if the call may change the set of free addresses, or receive addresses that the kernel
/// chooses.
pub(super) fn changes_layout(name: CallName) -> bool {
    matches!(
        name,
        CallName::Mmap
            | CallName::Munmap
            | CallName::Mremap
            | CallName::Brk
            | CallName::Shmat
            | CallName::Shmdt
            | CallName::RemapFilePages
    )
}

impl Space {
    /// Returns true if exactly one task runs in the address space. If so, moves the last steps of departed
    /// tasks into `scratch`, the waits of the next step: later steps need not wait for these steps again.
    pub(crate) fn is_alone(&mut self, scratch: &mut Vec<Stamp>) -> bool {
        let alone = self.members.len() == 1;
        if alone {
            scratch.push(self.order.whole);
            scratch.append(&mut self.order.departed);
            self.order.forget();
        }
        alone
    }

    /// Notes a write at `at`. Returns true if the write was the first write in its area. The first write
    /// gives the area a family of anonymous pages.
    pub(crate) fn first_write(&mut self, at: u64, stamp: Stamp, families: &mut u32) -> bool {
        let first = self.needs_family(at);
        if first {
            let fresh = families.wrapping_add(1).max(1);
            let family = self.areas.family_for(at, fresh);
            if family == fresh {
                *families = fresh;
            }
            if let Some(area) = self.areas.find_mut(at) {
                (area.family, area.alone, area.family_by) = (family, true, stamp);
            }
        }
        first
    }

    /// Returns true if a write at `at` would be the first write in a private area.
    pub(crate) fn needs_family(&self, at: u64) -> bool {
        let area = self.areas.find(at).map(|(_, area)| area);
        area.is_some_and(|area| !area.shared && area.family == 0 && area.prot & PROT_WRITE != 0)
    }
}
