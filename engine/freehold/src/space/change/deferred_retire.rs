//! The retire step of a call that removes mappings in several parts, as mmap over old mappings and mremap do.
//! Until the call has released its locks, it collects here the VMAs that its parts have unmapped, and the
//! notice that memory has moved.
//!
//! `retire` must be called without a lock, because it may drop files and waits for the pagers of
//! userfaultfds. The order of its parts is the order in which a pager must get the messages: unmapped
//! targets, the move, unmapped sources. If the value is dropped instead, the VMAs are freed, but no pager
//! gets a message.

use super::unmap::Unmapped;
use crate::{platform::Platform, uffd::event::Notice};

/// The work that a call does after it has released the lock.
pub(crate) struct DeferredRetire<'s, P: Platform> {
    /// VMAs unmapped to make room for the new mapping.
    before: Option<Unmapped<'s, P>>,
    /// Notice of a move for a userfaultfd.
    pub moved: Option<Notice<P>>,
    /// Source VMAs whose pages have moved away.
    after: Option<Unmapped<'s, P>>,
}

impl<'s, P: Platform> DeferredRetire<'s, P> {
    /// Creates a list without any work.
    pub fn new() -> Self {
        DeferredRetire { before: None, moved: None, after: None }
    }

    /// Adds VMAs that were unmapped to make room.
    pub fn add(&mut self, unmapped: Unmapped<'s, P>) {
        Self::join(&mut self.before, unmapped);
    }

    /// Adds source VMAs whose pages have moved away.
    pub fn add_source(&mut self, unmapped: Unmapped<'s, P>) {
        Self::join(&mut self.after, unmapped);
    }

    fn join(place: &mut Option<Unmapped<'s, P>>, unmapped: Unmapped<'s, P>) {
        *place = Some(match place.take() {
            Some(before) => before.join(unmapped),
            None => unmapped,
        });
    }

    /// Returns true if any VMA was unmapped.
    pub fn has_vmas(&self) -> bool {
        [&self.before, &self.after].into_iter().flatten().any(|unmapped| !unmapped.is_empty())
    }

    /// Retires the VMAs that were unmapped to make room, then sends the notice of the move, then retires the
    /// sources.
    // Inlined, because there is usually nothing to do.
    #[inline]
    pub fn retire(&mut self) {
        if !matches!(self, DeferredRetire { before: None, moved: None, after: None }) {
            self.retire_all();
        }
    }

    #[inline(never)]
    fn retire_all(&mut self) {
        self.before.take().into_iter().for_each(Unmapped::retire);
        self.moved.take().into_iter().for_each(Notice::send);
        self.after.take().into_iter().for_each(Unmapped::retire);
    }
}
