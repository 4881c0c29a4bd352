//! The plan's model of one address space, and what a call does to it, as data.

use super::area::Areas;
use super::descriptors::Access;
use super::order::{Order, Stamp};
use super::told::Told;
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
/// Bytes of a huge page, where nothing else is said.
pub(super) const HUGE: u64 = 2 << 20;

/// Forks of an address space, each with its time and the task that it made.
pub(super) type Forks = VecDeque<(u64, u32)>;

/// One address space, as the plan knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    pub(crate) areas: Areas,
    pub(crate) order: Order,
    /// Start and end of the heap, once a brk has told.
    pub(crate) heap: Option<(u64, u64)>,
    /// What mlockall and `PR_SET_MEMORY_MERGE` add to new mappings.
    pub(crate) future: u32,
    /// Tasks that run in it.
    pub(crate) members: Vec<u32>,
    /// The last call that changed which addresses are free.
    pub(crate) layout: Stamp,
    /// What calls have said of the addresses, where no snapshot shows what was there before them.
    pub(crate) told: Option<Told>,
    /// Of the rest, what was mapped here because calls found something there.
    pub(crate) assumed: Told,
    /// There are, or were, mappings that grow downwards without a call.
    pub(crate) grows: bool,
    /// Where such mappings may have grown to.
    pub(crate) grown: Told,
    /// Bytes that recorded calls wrote.
    pub(crate) written: Told,
    /// Where memory is perhaps locked, perhaps not.
    pub(crate) locks: Told,
    /// How much of it counts as locked is not known.
    pub(crate) doubts_locked: bool,
    /// What was mapped when a call was under way that may have made it free, beside one that follows.
    pub(crate) awaited: Told,
    /// Ranges may be registered with a userfaultfd: the process has made one.
    pub(crate) has_userfaultfd: bool,
    /// What is known of its userfaultfds: the features that `UFFDIO_API` was given.
    pub(crate) features: BTreeMap<u32, u64>,
    /// Others may be registered, or no more, than the model has.
    pub(crate) doubts_userfaultfd: bool,
    /// The limits that the replay has given it.
    pub(crate) limits: KnownLimits,
    /// Forks of it of which the recording does not say until when they copied.
    pub(crate) forks: Forks,
    /// The number of its [`Kin`](super::kin::Kin); 0 while it shares no huge pages.
    pub(crate) kin: u32,
}

/// What a call concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The VMAs at these addresses and whatever touches them.
    Vmas([Range<u64>; 2]),
    /// The pages at these addresses; VMAs stay as they are.
    Pages(Range<u64>),
    /// The address space as a whole.
    Whole,
}

/// What a step that changes VMAs brings with it.
pub(crate) struct Doing<'c> {
    pub(crate) call: &'c Call,
    /// What is mapped, by its number.
    pub(crate) file: Option<u32>,
    /// How that was opened, where known.
    pub(crate) access: Option<Access>,
    /// That is /dev/zero.
    pub(crate) zeroes: bool,
    /// Bytes of the segment that shmat attaches.
    pub(crate) segment: u64,
    /// The userfaultfd that an ioctl is about.
    pub(crate) userfaultfd: Option<u32>,
    pub(crate) stamp: Stamp,
    /// Families of anonymous pages so far.
    pub(crate) families: &'c mut u32,
}

#[cfg(test)]
impl<'c> Doing<'c> {
    /// What task 1 does first, to memory without a file.
    pub(crate) fn first(call: &'c Call, families: &'c mut u32) -> Doing<'c> {
        let stamp = Stamp { task: 1, index: 0 };
        Doing {
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

/// Whether it is an mmap that takes the place of what is there.
pub(super) fn replaces(call: &Call) -> bool {
    call.name == CallName::Mmap && call.args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED
}

/// Whether the call may change which addresses are free, or be given some.
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
    /// Whether the space has one task alone. It waits for those who have left, whose steps go into `scratch`;
    /// from then on there is nobody to wait for.
    pub(crate) fn is_alone(&mut self, scratch: &mut Vec<Stamp>) -> bool {
        let alone = self.members.len() == 1;
        if alone {
            scratch.push(self.order.whole);
            scratch.append(&mut self.order.departed);
            self.order.forget();
        }
        alone
    }

    /// A write at `at`: whether it was the first that gives its area a family of anonymous pages.
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

    /// A write at `at` would be the first of its private area.
    pub(crate) fn needs_family(&self, at: u64) -> bool {
        let area = self.areas.find(at).map(|(_, area)| area);
        area.is_some_and(|area| !area.shared && area.family == 0 && area.prot & PROT_WRITE != 0)
    }
}
