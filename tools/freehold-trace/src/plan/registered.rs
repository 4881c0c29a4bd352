//! Memory that is registered with a userfaultfd: which one a descriptor is, what it has, and when it ends.
//!
//! A userfaultfd is of the address space of the process that made it, and ends with the last descriptor of
//! it; then nothing is registered with it any more. Descriptors that another process was sent are not
//! followed, nor is a call that has not returned and holds one. So from what the plan takes for the end on,
//! moves that Linux refuses there are not checked.

use super::area::flag;
use super::order::Stamp;
use super::space::{Doing, Space};
use crate::addresses::span;
use crate::operation::uffdio;
use crate::{Call, CallName};
use rustc_hash::FxHashMap as HashMap;
use std::ops::Range;

/// The userfaultfds of a recording.
#[derive(Debug, Default)]
pub(super) struct Userfaultfds {
    /// The address space of each, by its number.
    pub(super) spaces: HashMap<u32, u32>,
    /// How many there were.
    pub(super) count: u32,
    /// The recording has registrations.
    pub(super) recorded: bool,
}

impl Space {
    /// `UFFDIO_REGISTER` or `UFFDIO_UNREGISTER`. What is registered for that and more stays so.
    pub(super) fn register(&mut self, doing: &Doing<'_>) {
        let [_, operation, start, len, mode, _] = doing.call.args;
        let range = span(start, len);
        if operation != uffdio::REGISTER {
            return self.unregister(&range, None, doing.stamp);
        }
        let modes =
            [(uffdio::MISSING, flag::MISSING), (uffdio::WP, flag::PROTECTED), (uffdio::MINOR, flag::MINOR)];
        let bits = modes.iter().fold(0, |all, (bit, flag)| if mode & bit != 0 { all | flag } else { all });
        self.areas.change(&range, true, doing.stamp, |area| {
            if area.flags & bits != bits {
                area.flags = area.flags & !flag::REGISTERED | bits;
                area.userfaultfd = doing.userfaultfd;
            }
        });
    }

    /// Returns whether a forked child may have copies of registrations.
    pub(super) fn copies_registrations(&self) -> bool {
        let mut registered = self.areas.iter().filter_map(|(_, area)| area.userfaultfd);
        registered.any(|userfaultfd| self.may_have(userfaultfd, uffdio::EVENT_FORK))
    }

    /// Whether a userfaultfd may have this feature: its `UFFDIO_API` says so, or is not recorded.
    pub(super) fn may_have(&self, userfaultfd: u32, feature: u64) -> bool {
        self.features.get(&userfaultfd).is_none_or(|features| features & feature != 0)
    }

    /// Returns whether the `UFFDIO_API` of a userfaultfd says that it has this feature.
    pub(super) fn has(&self, userfaultfd: u32, feature: u64) -> bool {
        self.features.get(&userfaultfd).is_some_and(|features| features & feature != 0)
    }

    /// Returns the userfaultfd with which what an mremap moves stays registered.
    pub(super) fn stays_registered(&self, call: &Call) -> Option<u32> {
        let moved =
            call.name == CallName::Mremap && call.returned.value().is_some_and(|to| to != call.args[0]);
        let by = self.areas.find(call.args[0]).filter(|_| moved)?.1.userfaultfd;
        by.filter(|by| self.has(*by, uffdio::EVENT_REMAP))
    }

    /// What is registered in `range` is so no more; with this userfaultfd alone, if one is given.
    pub(super) fn unregister(&mut self, range: &Range<u64>, userfaultfd: Option<u32>, stamp: Stamp) {
        self.areas.change(range, true, stamp, |area| {
            if userfaultfd.is_none_or(|ended| area.userfaultfd == Some(ended)) {
                area.unregister();
            }
        });
    }

    /// The step that brings in the pages of what is registered for missing ones gives it a family, also by a
    /// read.
    pub(super) fn is_supplied(&self, at: u64) -> bool {
        self.areas.find(at).is_some_and(|(_, area)| !area.shared && area.flags & flag::MISSING != 0)
    }
}

#[cfg(test)]
#[path = "registered_tests.rs"]
mod tests;
