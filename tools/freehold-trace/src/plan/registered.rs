//! Memory that is registered with a userfaultfd: the effect of registrations on the model of an address
//! space.
//!
//! A userfaultfd belongs to the address space of the process that created it. A userfaultfd and all its
//! registrations end when the last descriptor of the userfaultfd is closed. `userfaultfds.rs` has the other
//! half: it follows descriptors and adds the step that ends a userfaultfd.
//!
//! A registration keeps a VMA from merging with neighbours that are registered differently, and Linux may
//! refuse to move registered VMAs. The plan does not follow descriptors that were sent to another process,
//! nor descriptors held by a call that has not returned. Such a descriptor can keep a userfaultfd alive after
//! its planned end. After that end, registrations are therefore doubtful (`Space::doubts_userfaultfd`), and
//! refused moves are not checked. The tests are in `registered_tests.rs`.

use super::area::flag;
use super::order::Stamp;
use super::space::{AppliedCall, Space};
use crate::addresses::span;
use crate::operation::uffdio;
use crate::{Call, CallName};
use rustc_hash::FxHashMap as HashMap;
use std::ops::Range;

/// The userfaultfds of a recording.
#[derive(Debug, Default)]
pub(super) struct Userfaultfds {
    /// The number of the address space of each userfaultfd, by the number of the userfaultfd.
    pub(super) spaces: HashMap<u32, u32>,
    /// Number of userfaultfds so far.
    pub(super) count: u32,
    /// True if the recording contains a UFFDIO_API or a registration. A recording without these calls may
    /// come from a recorder that does not record them.
    pub(super) recorded: bool,
}

impl Space {
    /// Applies a `UFFDIO_REGISTER` or `UFFDIO_UNREGISTER`. Memory that is already registered with all
    /// requested modes keeps all its modes, including those that were not requested.
    pub(super) fn register(&mut self, applied: &AppliedCall<'_>) {
        let [_, operation, start, len, mode, _] = applied.call.args;
        let range = span(start, len);
        if operation != uffdio::REGISTER {
            return self.unregister(&range, None, applied.stamp);
        }
        let modes =
            [(uffdio::MISSING, flag::MISSING), (uffdio::WP, flag::PROTECTED), (uffdio::MINOR, flag::MINOR)];
        let bits = modes.iter().fold(0, |all, (bit, flag)| if mode & bit != 0 { all | flag } else { all });
        self.areas.change(&range, true, applied.stamp, |area| {
            if area.flags & bits != bits {
                area.flags = area.flags & !flag::REGISTERED | bits;
                area.userfaultfd = applied.userfaultfd;
            }
        });
    }

    /// Returns true if a forked child may inherit registrations.
    pub(super) fn copies_registrations(&self) -> bool {
        let mut registered = self.areas.iter().filter_map(|(_, area)| area.userfaultfd);
        registered.any(|userfaultfd| self.may_have(userfaultfd, uffdio::EVENT_FORK))
    }

    /// Returns true if a userfaultfd may have this feature: its `UFFDIO_API` requests the feature, or is not
    /// recorded.
    pub(super) fn may_have(&self, userfaultfd: u32, feature: u64) -> bool {
        self.features.get(&userfaultfd).is_none_or(|features| features & feature != 0)
    }

    /// Returns true if the `UFFDIO_API` of a userfaultfd requests this feature.
    pub(super) fn has(&self, userfaultfd: u32, feature: u64) -> bool {
        self.features.get(&userfaultfd).is_some_and(|features| features & feature != 0)
    }

    /// Returns the userfaultfd of the registration if `call` moves memory that stays registered, otherwise
    /// `None`.
    pub(super) fn stays_registered(&self, call: &Call) -> Option<u32> {
        let moved =
            call.name == CallName::Mremap && call.returned.value().is_some_and(|to| to != call.args[0]);
        let by = self.areas.find(call.args[0]).filter(|_| moved)?.1.userfaultfd;
        by.filter(|by| self.has(*by, uffdio::EVENT_REMAP))
    }

    /// Removes the registrations in `range`: all, or only those with `userfaultfd` if it is given.
    pub(super) fn unregister(&mut self, range: &Range<u64>, userfaultfd: Option<u32>, stamp: Stamp) {
        self.areas.change(range, true, stamp, |area| {
            if userfaultfd.is_none_or(|ended| area.userfaultfd == Some(ended)) {
                area.unregister();
            }
        });
    }

    /// Returns true if the pager of a userfaultfd supplies the page at `at` when it is missing
    /// (`UFFDIO_REGISTER_MODE_MISSING`). The step that brings in such a page gives its VMA a family, even if
    /// the step is a read.
    pub(super) fn is_supplied(&self, at: u64) -> bool {
        self.areas.find(at).is_some_and(|(_, area)| !area.shared && area.flags & flag::MISSING != 0)
    }
}

#[cfg(test)]
#[path = "registered_tests.rs"]
mod tests;
