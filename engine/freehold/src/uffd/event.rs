//! Messages of a userfaultfd about changes of registered memory: fork, mremap, munmap, MADV_DONTNEED and
//! MADV_REMOVE.
//!
//! A change creates its message while it holds the lock of the VMA. From then on the pager cannot fill pages
//! of the context. The change sends the message after it has released all its locks, because the sender waits
//! for the pager. A message of a fork contains a handle of the child's context. Dropping such a message
//! unregisters the child's memory, and is therefore not allowed with locks held.
//!
//! `uffd/mod.rs` describes the protocol, and `state/queue.rs` describes how the sender waits. A munmap
//! collects its messages in the gathered set (`space/change/unmap.rs`).
//!
//! A change first takes its notices, then changes the mappings, then calls `send` without locks. A new call
//! that moves or removes registered memory must do the same, with a constructor of [`Notice`] here. The tests
//! are `uffd::events` and `uffd::changes_during_fills` (`engine/freehold/tests`).

use super::state::{Change, Context, Features, Message, Userfaultfd, queue::Waiter};
use crate::{
    counted::Counted, error::NoMemory, features, platform::Platform, space::AddressSpace, vma::Vma,
    wait::grace_period,
};
use allocator_api2::boxed::Box;
use freehold_vmspace::UserRange;

/// A message to be sent. The pager of its context cannot fill pages until the message is read or dropped.
#[must_use = "the pager is not notified"]
pub(crate) struct Notice<P: Platform> {
    change: Change<P>,
    message: Message<P>,
    _feature: features::Uffd,
}

impl<P: Platform> Notice<P> {
    /// Prepares a message about `vma`. The VMA is write-locked; for a removal of pages a read lock suffices.
    /// Returns `None` if the pager did not request such messages.
    fn about(vma: &Vma<P>, wanted: Features, message: impl FnOnce() -> Message<P>) -> Option<Self> {
        let context = vma.uffd().filter(|context| context.wants(wanted))?;
        Some(Self::to(context, message()))
    }

    /// Begins a change of `context` and prepares its message.
    fn to(context: &Counted<Context<P>>, message: Message<P>) -> Self {
        Notice { change: Change::begin(context), message, _feature: context.feature }
    }

    /// Prepares the message that pages of `part` are about to be removed.
    pub fn remove(vma: &Vma<P>, part: UserRange) -> Option<Self> {
        Self::about(vma, Features::EVENT_REMOVE, || Message::Remove(part))
    }

    /// Prepares the message that the memory at `from` moves to `to`.
    pub fn remap(vma: &Vma<P>, from: u64, to: u64, len: u64) -> Option<Self> {
        Self::about(vma, Features::EVENT_REMAP, || Message::Remap { from, to, len })
    }

    /// Sends the message and waits until it is read. The wait also ends if the context is closed or a fatal
    /// signal arrives.
    ///
    /// # Locks
    ///
    /// The caller holds no lock.
    pub fn send(self) {
        let Notice { change, message, .. } = self;
        let context = change.context().clone();
        if matches!(message, Message::Remove(_)) {
            // Fills that began before `changing` was raised are complete after the grace period. All other
            // changes exclude fills by the VMA's lock.
            grace_period::<P>();
        }
        // The change ends when its message is read, so that the pager may fill pages at once.
        let waiter = Waiter::for_event(message, change);
        if let Some(queued) = context.queue.enter(&waiter) {
            // If the wait is killed, the pager does not get the message. As on Linux, no error is reported.
            let _ = queued.wait(P::wait_killable);
        }
        // If no reader took a child's handle, dropping the waiter closes the handle and unregisters the
        // child's memory.
    }
}

/// A list of messages in order. The list has at most one message per VMA, and is linked in one direction
/// only.
pub(crate) struct Notices<P: Platform> {
    last: Option<Box<Link<P>>>,
}

struct Link<P: Platform> {
    notice: Notice<P>,
    before: Option<Box<Link<P>>>,
}

impl<P: Platform> Notices<P> {
    pub const fn new() -> Self {
        Notices { last: None }
    }

    fn push(&mut self, notice: Notice<P>) -> Result<(), NoMemory> {
        let link = Box::try_new(Link { notice, before: None })?;
        self.put(link);
        Ok(())
    }

    fn put(&mut self, mut link: Box<Link<P>>) {
        link.before = self.last.take();
        self.last = Some(link);
    }

    /// If the pager of `vma` requested messages about munmap, adds the message that the part of `vma` in
    /// `range` is about to be unmapped.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn note_unmap(&mut self, vma: &Vma<P>, range: UserRange) -> Result<(), NoMemory> {
        let part = || vma.range().intersection(range);
        match Notice::about(vma, Features::EVENT_UNMAP, || Message::Unmap(part())) {
            Some(notice) => self.push(notice),
            None => Ok(()),
        }
    }

    /// Returns the context for `child`'s copy of `vma`, which is write-locked. VMAs that share a context in
    /// the parent also share a context in the child. Returns `None` if the copy is not registered.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn note_fork(
        &mut self,
        vma: &Vma<P>,
        child: &Counted<AddressSpace<P>>,
    ) -> Result<Option<Counted<Context<P>>>, NoMemory> {
        let Some(parent) = vma.uffd().filter(|context| context.wants(Features::EVENT_FORK)) else {
            return Ok(None);
        };
        let mut at = &self.last;
        while let Some(link) = at {
            if let Message::Fork(handle) = &link.notice.message
                && Counted::ptr_eq(link.notice.change.context(), parent)
            {
                return Ok(Some(handle.context.clone()));
            }
            at = &link.before;
        }
        // The link is allocated first, because a handle must not be dropped here, where locks are held.
        let room = Box::try_new_uninit()?;
        let handle = Userfaultfd::new(child, parent.config)?;
        let context = handle.context.clone();
        let link = Link { notice: Notice::to(parent, Message::Fork(handle)), before: None };
        self.put(Box::write(room, link));
        Ok(Some(context))
    }

    /// Appends the messages of `other`. Takes time proportional to the number of these messages.
    pub fn append(&mut self, other: Self) {
        let mut others = other.reversed();
        while let Some(link) = others.pop() {
            self.put(link);
        }
    }

    /// Sends all messages, one after the other.
    ///
    /// # Locks
    ///
    /// The caller holds no lock.
    #[inline]
    pub fn send(self) {
        if cfg!(feature = "uffd") && self.last.is_some() {
            self.send_all();
        }
    }

    #[inline(never)]
    fn send_all(self) {
        let mut all = self.reversed();
        while let Some(link) = all.pop() {
            Box::into_inner(link).notice.send();
        }
    }

    /// Returns the messages in reverse order.
    fn reversed(mut self) -> Self {
        let mut reversed = Self::new();
        while let Some(link) = self.pop() {
            reversed.put(link);
        }
        reversed
    }

    /// Drops the messages one by one, so that a long list does not need a deep stack.
    #[cold]
    fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    fn pop(&mut self) -> Option<Box<Link<P>>> {
        let mut link = self.last.take()?;
        self.last = link.before.take();
        Some(link)
    }
}

impl<P: Platform> Drop for Notices<P> {
    #[inline]
    fn drop(&mut self) {
        if self.last.is_some() {
            self.clear();
        }
    }
}
