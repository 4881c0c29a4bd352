//! userfaultfd: page faults that are served by a program of the embedder's, and word of what becomes of the
//! memory.
//!
//! Reading order: this file, `state/` (the context, its waiters, what has not been read), `event.rs` (what
//! the pager is told), `uffd/fault.rs` (the fault's side), `register.rs`, `fill.rs`, `fill_huge.rs`,
//! `protect.rs`, `move_pages.rs` (what the pager does).
//!
//! # The protocol
//!
//! A *context* is known to the VMAs that are registered with it, each by a counted reference, and to the
//! pager by its handle, [`Userfaultfd`]. It knows its address space by a reference that does not keep the
//! space alive.
//!
//! | of a context | states | leaves it by |
//! | --- | --- | --- |
//! | itself | open | closed: the handle's end, under the mmap lock held for writing, in the hold that takes it from every VMA |
//! | a waiter | pending: not read yet | delivered: read. An event is over then, and its sender goes on |
//! | | delivered | woken: [`wake`](Userfaultfd::wake), or a call that filled its page |
//! | | either | woken: the context is closed. Gone: a signal, of a program's own fault; else a fatal one |
//! | `changing` | above 0: what is mapped is about to change, and the pager has not read of it; it fills nothing | reading; else the sender, which goes on |
//!
//! **A fault waits** as `FaultOutcome::Userfault`: all locks are dropped. It is queued first; then it looks
//! at VMA and entry again, under the VMA's lock; then it sleeps, if it still has to. A filler installs first,
//! and looks at the queue then. Both take the queue's lock in between, so one comes second: either the filler
//! finds the waiter, or the waiter finds the entry. Closing is the same: VMAs are cleared first, waiters
//! woken then, and a fault that is queued later finds its VMA cleared. A woken fault is told no more than to
//! look again. Nothing borrowed from the address space survives the drop of its locks (hazard C-25): a waiter
//! has an address.
//!
//! **A change** (fork, mremap, munmap, MADV_DONTNEED) raises `changing` with the VMA's write lock in hand,
//! which keeps fills out; the one that has only a lock for reading, MADV_DONTNEED and its like, then waits
//! for a grace period: a fill asks for `changing` and installs within one RCU guard. The message is sent, and
//! waited for, after the locks are let go of. So a fill before the change is part of what changes, one after
//! it is refused until the message was read, and no fill takes a lock that all fills share.
//!
//! **`UFFD_WP`** of an entry, and markers that stand for it where nothing is mapped, exist only in VMAs with
//! the flag of that name: a call that takes the flag away clears them in the same hold of the write locks.
//!
//! # Huge pages of pools
//!
//! The same, a huge page at a time. A fault asks the pager inside its fault mutex and the hugetlb VMA lock,
//! and drops both to wait.
//!
//! | what is at a page | is filled by | against |
//! | --- | --- | --- |
//! | nothing; a marker | a fault, where the pager is not to be asked: a page of zeroes, or the file's; a marker of protection stays in the entry | a fill of the same page: the fault mutex for a page of one's own, the file's word for a shared one; else the table's lock. The second finds it taken |
//! | | COPY, CONTINUE, POISON | a change: within one RCU guard with the look at `changing`. DONTNEED: the hugetlb VMA lock, so that a reservation is used up, or renewed, once |
//! | an entry | WRITEPROTECT: a flag of it | a store's fault, which looks at the flag under the table's lock before it gives the right to write |
//!
//! A page that COPY has taken from the pool, and cannot put, goes back with its reservation before the fault
//! mutex ends. While a VMA is registered its tables are its space's own: registering leaves shared ones with
//! i_mmap held exclusively, and a fault that shares looks at the flags with i_mmap held
//! (`hugetlb/sharing.rs`).

pub(crate) mod event;
pub(crate) mod fault;
mod fill;
mod fill_huge;
mod move_pages;
mod protect;
mod register;
pub(crate) mod state;

pub(crate) use state::{Context, decode};

use crate::platform::Platform;
pub use fill::FillMode;
pub use move_pages::MoveMode;
pub use protect::ProtectMode;
pub use register::{RangeIoctls, RegisterMode};
pub use state::{FaultReason, Features, Message, Poll, UffdConfig, Userfaultfd};

impl<P: Platform> Userfaultfd<P> {
    /// Takes the context from all memory; tasks that wait for a page, for a message, or for one to be read go
    /// on.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, if the address space still lives; the caller holds none.
    pub fn close(&self) {
        if let Some(space) = self.context.space.upgrade() {
            let guard = space.write();
            guard.clear_uffd(&self.context);
            // In the same hold: nobody registers with it afterwards.
            self.context.queue.close();
        } else {
            self.context.queue.close();
        }
        self.context.queue.wake_everybody();
    }
}

impl<P: Platform> Drop for Userfaultfd<P> {
    fn drop(&mut self) {
        if !self.context.queue.is_closed() {
            self.close();
        }
    }
}
