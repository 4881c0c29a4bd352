//! VMAs that the steps of one call have unmapped, and the notifications to send after the lock is released.

use super::unmap::Unmapped;
use crate::{platform::Platform, uffd::event::Notice};

/// The work that a call does after it has released the lock.
pub(crate) struct DeferredRetire<'s, P: Platform> {
    /// VMAs unmapped to make room.
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

    /// Adds unmapped VMAs.
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

    /// Retires everything (step 5), and sends the notice of the move after the first VMAs and before the
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
