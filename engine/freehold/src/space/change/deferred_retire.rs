//! What the steps of one call have unmapped, and what is to be said and retired when the lock is gone.

use super::unmap::Unmapped;
use crate::{platform::Platform, uffd::event::Notice};

/// What goes once the lock is gone.
pub(crate) struct DeferredRetire<'s, P: Platform> {
    /// Unmapped to make room.
    before: Option<Unmapped<'s, P>>,
    /// A userfaultfd is to hear of a move.
    pub moved: Option<Notice<P>>,
    /// Sources that have moved away.
    after: Option<Unmapped<'s, P>>,
}

impl<'s, P: Platform> DeferredRetire<'s, P> {
    /// Nothing yet.
    pub fn new() -> Self {
        DeferredRetire { before: None, moved: None, after: None }
    }

    /// This, too.
    pub fn add(&mut self, unmapped: Unmapped<'s, P>) {
        Self::join(&mut self.before, unmapped);
    }

    /// This, too, which has moved away.
    pub fn add_source(&mut self, unmapped: Unmapped<'s, P>) {
        Self::join(&mut self.after, unmapped);
    }

    fn join(place: &mut Option<Unmapped<'s, P>>, unmapped: Unmapped<'s, P>) {
        *place = Some(match place.take() {
            Some(before) => before.join(unmapped),
            None => unmapped,
        });
    }

    /// Step 5 of all, and what is to be said in between.
    // In place: nearly always there is nothing.
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
