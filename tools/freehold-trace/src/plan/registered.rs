//! Memory that is registered with a userfaultfd: which one a descriptor is, what it has, and when it ends.
//!
//! A userfaultfd is of the address space of the process that made it, and ends with the last descriptor of
//! it; then nothing is registered with it any more. Descriptors that another process was sent are not
//! followed, nor is a call that has not returned and holds one. So from what the plan takes for the end on,
//! moves that Linux refuses there are not checked.

use super::Planner;
use super::area::flag;
use super::calls::{Doing, MREMAP_FIXED, Space, span};
use super::descriptors::Open;
use super::order::Stamp;
use super::step::What;
use crate::operation::uffdio;
use crate::{Call, CallName, Returned};
use rustc_hash::FxHashMap as HashMap;
use std::ops::Range;

const EFAULT: u16 = 14;

/// The userfaultfds of a recording.
#[derive(Debug, Default)]
pub(super) struct Userfaultfds {
    /// The address space of each, by its number.
    spaces: HashMap<u32, u32>,
    /// How many there were.
    count: u32,
    /// The recording has registrations.
    recorded: bool,
}

impl Planner {
    /// A process has made a userfaultfd, or said what it wants of one.
    pub(super) fn note_userfaultfd(&mut self, task: u32, call: &Call) {
        let Some(value) = call.returned.value() else { return };
        match (call.name, call.args[1]) {
            (CallName::Userfaultfd, _) | (CallName::Ioctl, uffdio::NEW) => self.new_userfaultfd(task, value),
            (CallName::Ioctl, uffdio::API) => self.note_features(task, call),
            _ => {}
        }
    }

    fn note_features(&mut self, task: u32, call: &Call) {
        self.userfaultfds.recorded = true;
        let [descriptor, _, _, features, ..] = call.args;
        let Some(known) = self.descriptors.get(task, descriptor).and_then(|open| open.userfaultfd) else {
            return;
        };
        let space = self.userfaultfds.spaces.get(&known).and_then(|number| self.spaces.get_mut(number));
        space.into_iter().for_each(|space| _ = space.features.insert(known, features));
    }

    fn new_userfaultfd(&mut self, task: u32, descriptor: u64) {
        let Some(number) = self.space_of(task) else { return };
        let Some(space) = self.spaces.get_mut(&number) else { return };
        space.has_userfaultfd = true;
        self.userfaultfds.count += 1;
        let userfaultfd = self.userfaultfds.count;
        self.userfaultfds.spaces.insert(userfaultfd, number);
        let open = Open { userfaultfd: Some(userfaultfd), ..Open::default() };
        self.descriptors.set(task, descriptor, Some(open));
    }

    /// The userfaultfd that an ioctl is about, if it is known and of the caller's own address space. If not,
    /// something is registered somewhere of which the plan does not know.
    pub(super) fn userfaultfd_of(&mut self, task: u32, call: &Call) -> Option<u32> {
        if !self.recording.follows_descriptors() {
            return None;
        }
        let known = self.descriptors.get(task, call.args[0]).and_then(|open| open.userfaultfd);
        let of = known.and_then(|known| self.userfaultfds.spaces.get(&known).copied());
        self.userfaultfds.recorded = true;
        if of.is_some() && of == self.space_of(task) {
            return known;
        }
        if call.returned.value().is_some() {
            let spaces = self.spaces.iter_mut().filter(|(number, _)| of.is_none_or(|of| of == **number));
            spaces.for_each(|(_, space)| space.doubts_userfaultfd = true);
        }
        None
    }

    /// Mappings that are registered with a userfaultfd are not moved several at once. Which are, not every
    /// recording tells; then such a move is not made. Some of them may have moved before Linux came to
    /// the one that it refused.
    pub(super) fn passes_over_move(&mut self, space: u32, call: &Call) -> bool {
        let recorded = self.userfaultfds.recorded;
        let doubted =
            |space: &&mut Box<Space>| space.doubts_userfaultfd || space.has_userfaultfd && !recorded;
        let refused = call.name == CallName::Mremap && call.returned == Returned::Error(EFAULT);
        let Some(space) = self.spaces.get_mut(&space).filter(|_| refused).filter(doubted) else {
            return false;
        };
        let [at, old, new, flags, to, _] = call.args;
        if flags & MREMAP_FIXED != 0 {
            space.untell(&span(at, old));
            space.untell(&span(to, new));
        }
        true
    }

    /// `task` has closed descriptors, perhaps the last ones of userfaultfds: these end.
    pub(super) fn end_userfaultfds(&mut self, line: u32, task: u32) {
        for userfaultfd in self.descriptors.ended() {
            let number = self.userfaultfds.spaces.remove(&userfaultfd);
            let Some(number) = number.filter(|number| self.spaces.contains_key(number)) else { continue };
            self.gather_whole(number, task);
            let stamp = self.stamp(task);
            let Some(space) = self.spaces.get_mut(&number) else { continue };
            space.order.note_whole(stamp);
            space.doubts_userfaultfd = true;
            space.unregister(&(0..u64::MAX), Some(userfaultfd), stamp);
            space.features.remove(&userfaultfd);
            let Some(member) = space.members.first().copied() else { continue };
            self.push(task, line, What::EndUserfaultfd { userfaultfd, task: member });
        }
    }
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
    fn unregister(&mut self, range: &Range<u64>, userfaultfd: Option<u32>, stamp: Stamp) {
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
