//! The userfaultfds of processes: which userfaultfd each descriptor denotes, and when each userfaultfd ends.
//!
//! A program creates a userfaultfd by a call or by an ioctl of /dev/userfaultfd, and names its descriptor in
//! later ioctls. This file maps descriptors to userfaultfds, so that `registered.rs` can note registrations,
//! and adds the step that ends a userfaultfd when its last descriptor is closed. The table is
//! [`Userfaultfds`](super::registered::Userfaultfds), a part of the planner; `file_calls.rs`, `events.rs` and
//! `syscall.rs` call these functions. If the recording does not determine which memory of an address space is
//! registered, the space is doubtful (`Space::doubts_userfaultfd`), and its refused moves are not compared.
//! The tests are in `userfaultfds_tests.rs` and `registered_tests.rs`.

use super::descriptors::Open;
use super::planner::Planner;
use super::space::Space;
use super::step::StepKind;
use crate::addresses::{MREMAP_FIXED, span};
use crate::operation::uffdio;
use crate::{Call, CallName, Returned};

const EFAULT: u16 = 14;

impl Planner {
    /// Notes a call that creates a userfaultfd or requests its features.
    pub(super) fn note_userfaultfd(&mut self, task: u32, call: &Call) {
        let Some(value) = call.returned.value() else { return };
        match (call.name, call.args[1]) {
            (CallName::Userfaultfd, _) | (CallName::Ioctl, uffdio::NEW) => self.new_userfaultfd(task, value),
            (CallName::Ioctl, uffdio::API) => self.note_features(task, call),
            _ => {}
        }
    }

    /// Notes the features that a UFFDIO_API has requested for a known userfaultfd.
    fn note_features(&mut self, task: u32, call: &Call) {
        self.userfaultfds.recorded = true;
        let [descriptor, _, _, features, ..] = call.args;
        let Some(known) = self.files.descriptors.get(task, descriptor).and_then(|open| open.userfaultfd)
        else {
            return;
        };
        let space =
            self.userfaultfds.spaces.get(&known).and_then(|number| self.processes.spaces.get_mut(number));
        space.into_iter().for_each(|space| _ = space.features.insert(known, features));
    }

    /// Adds a userfaultfd of the task's address space, with this descriptor.
    fn new_userfaultfd(&mut self, task: u32, descriptor: u64) {
        let Some(number) = self.space_of(task) else { return };
        let Some(space) = self.processes.spaces.get_mut(&number) else { return };
        space.has_userfaultfd = true;
        self.userfaultfds.count += 1;
        let userfaultfd = self.userfaultfds.count;
        self.userfaultfds.spaces.insert(userfaultfd, number);
        let open = Open { userfaultfd: Some(userfaultfd), ..Open::default() };
        self.files.descriptors.set(task, descriptor, Some(open));
    }

    /// Returns the userfaultfd of an ioctl, if it is known and belongs to the caller's address space.
    /// Otherwise returns `None`; a call that succeeded then makes the registrations doubtful in all address
    /// spaces that the call may concern.
    pub(super) fn userfaultfd_of(&mut self, task: u32, call: &Call) -> Option<u32> {
        if !self.recording.follows_descriptors() {
            return None;
        }
        let known = self.files.descriptors.get(task, call.args[0]).and_then(|open| open.userfaultfd);
        let of = known.and_then(|known| self.userfaultfds.spaces.get(&known).copied());
        self.userfaultfds.recorded = true;
        if of.is_some() && of == self.space_of(task) {
            return known;
        }
        if call.returned.value().is_some() {
            let spaces =
                self.processes.spaces.iter_mut().filter(|(number, _)| of.is_none_or(|of| of == **number));
            spaces.for_each(|(_, space)| space.doubts_userfaultfd = true);
        }
        None
    }

    /// Returns true if a refused mremap is set aside because registrations are doubtful. Linux refuses to
    /// move several VMAs at once if one of the VMAs is registered with a userfaultfd. Linux may already have
    /// moved the VMAs before the registered VMA, so both ranges become unknown.
    pub(super) fn passes_over_move(&mut self, space: u32, call: &Call) -> bool {
        let recorded = self.userfaultfds.recorded;
        let doubted =
            |space: &&mut Box<Space>| space.doubts_userfaultfd || space.has_userfaultfd && !recorded;
        let refused = call.name == CallName::Mremap && call.returned == Returned::Error(EFAULT);
        let Some(space) = self.processes.spaces.get_mut(&space).filter(|_| refused).filter(doubted) else {
            return false;
        };
        let [at, old, new, flags, to, _] = call.args;
        if flags & MREMAP_FIXED != 0 {
            space.mark_unknown(&span(at, old));
            space.mark_unknown(&span(to, new));
        }
        true
    }

    /// Ends the userfaultfds whose last descriptor `task` has closed.
    pub(super) fn end_userfaultfds(&mut self, line: u32, task: u32) {
        for userfaultfd in self.files.descriptors.ended() {
            let number = self.userfaultfds.spaces.remove(&userfaultfd);
            let Some(number) = number.filter(|number| self.processes.spaces.contains_key(number)) else {
                continue;
            };
            self.gather_whole(number, task);
            let stamp = self.stamp(task);
            let Some(space) = self.processes.spaces.get_mut(&number) else { continue };
            space.order.note_whole(stamp);
            space.doubts_userfaultfd = true;
            space.unregister(&(0..u64::MAX), Some(userfaultfd), stamp);
            space.features.remove(&userfaultfd);
            let Some(member) = space.members.first().copied() else { continue };
            self.push(task, line, StepKind::EndUserfaultfd { userfaultfd, task: member });
        }
    }
}

#[cfg(test)]
#[path = "userfaultfds_tests.rs"]
mod tests;
