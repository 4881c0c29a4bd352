//! Word of changes: prepared with the locks held, sent when they are gone.

use super::state::{Change, Context, Features, Message, Userfaultfd, queue::Waiter};
use crate::{
    counted::Counted, error::NoMemory, platform::Platform, space::AddressSpace, vma::Vma, wait::grace_period,
};
use allocator_api2::boxed::Box;
use freehold_vmspace::UserRange;

/// A message to come. Until it was read, or is not to be, its context's pager fills nothing.
#[must_use = "the pager is not told"]
pub(crate) struct Notice<P: Platform> {
    change: Change<P>,
    message: Message<P>,
}

impl<P: Platform> Notice<P> {
    /// About `vma`, which is locked: for writing, or, where pages go, for reading. `None`: the pager does not
    /// want to hear of it.
    fn about(vma: &Vma<P>, wanted: Features, message: impl FnOnce() -> Message<P>) -> Option<Self> {
        let context = vma.uffd().filter(|context| context.wants(wanted))?;
        Some(Self::to(context, message()))
    }

    fn to(context: &Counted<Context<P>>, message: Message<P>) -> Self {
        Notice { change: Change::begin(context), message }
    }

    /// Pages of `part` are about to go.
    pub fn remove(vma: &Vma<P>, part: UserRange) -> Option<Self> {
        Self::about(vma, Features::EVENT_REMOVE, || Message::Remove(part))
    }

    /// What is mapped at `from` is moved to `to`.
    pub fn remap(vma: &Vma<P>, from: u64, to: u64, len: u64) -> Option<Self> {
        Self::about(vma, Features::EVENT_REMAP, || Message::Remap { from, to, len })
    }

    /// Sends it, and waits until it was read, or is not to be: the context is closed, or a fatal signal has
    /// arrived.
    ///
    /// # Locks
    ///
    /// The caller holds none.
    pub fn send(self) {
        let Notice { change, message } = self;
        let context = change.context().clone();
        if matches!(message, Message::Remove(_)) {
            // Fills that began before `changing` was raised are over then. All other changes keep them out by
            // the VMA's lock.
            grace_period::<P>();
        }
        // The change ends with its message: a pager that has read it may fill at once.
        let waiter = Waiter::for_event(message, change);
        if let Some(queued) = context.queue.enter(&waiter) {
            // Killed: the pager will not hear of it. As on Linux nobody is told.
            let _ = queued.wait(P::wait_killable);
        }
        // A child's handle that nobody took goes with the waiter, and the child's memory is free of it.
    }
}

/// Several, in order. As many as there are VMAs, so none is looked for from the other end.
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

    /// `vma` is about to be unmapped, as far as it lies in `range`.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline(always)]
    pub fn note_unmap(&mut self, vma: &Vma<P>, range: UserRange) -> Result<(), NoMemory> {
        let part = || vma.range().intersection(range);
        match Notice::about(vma, Features::EVENT_UNMAP, || Message::Unmap(part())) {
            Some(notice) => self.push(notice),
            None => Ok(()),
        }
    }

    /// The context for `child`'s copy of `vma`, which is write-locked: each context of the parent's gets one
    /// for the child. `None`: the copy is not registered.
    ///
    /// # Errors
    ///
    /// No memory.
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
        // First: a handle cannot be dropped here, where locks are held.
        let room = Box::try_new_uninit()?;
        let handle = Userfaultfd::new(child, parent.config)?;
        let context = handle.context.clone();
        let link = Link { notice: Notice::to(parent, Message::Fork(handle)), before: None };
        self.put(Box::write(room, link));
        Ok(Some(context))
    }

    /// Both, these first. Takes as long as there are others.
    pub fn append(&mut self, other: Self) {
        let mut others = other.reversed();
        while let Some(link) = others.pop() {
            self.put(link);
        }
    }

    /// Sends all, one after the other.
    ///
    /// # Locks
    ///
    /// The caller holds none.
    #[inline]
    pub fn send(self) {
        if self.last.is_some() {
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

    /// The last first.
    fn reversed(mut self) -> Self {
        let mut reversed = Self::new();
        while let Some(link) = self.pop() {
            reversed.put(link);
        }
        reversed
    }

    /// One by one: a long list does not need a deep stack.
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
