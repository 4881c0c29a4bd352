//! userfaultfd: a program, called the *pager*, serves page faults and gets messages about changes of the
//! memory.
//!
//! Reading order:
//!
//! 1. this file;
//! 2. `state/`: the context, its waiters, and its unread messages;
//! 3. `event.rs`: messages about changes;
//! 4. `uffd/fault.rs`: the faulting side;
//! 5. `register.rs`, `fill.rs`, `fill_huge.rs`, `protect.rs`, `move_pages.rs`: the operations of the pager. A
//!    new operation gets a file here, and a flag in [`RangeIoctls`], the set that registration returns.
//!
//! The tests are `uffd` (`engine/freehold/tests`) and `uffd` (`shuttle_engine`).
//!
//! # The protocol
//!
//! Each VMA that is registered with a *context* holds a counted reference to this context. The pager has a
//! handle, [`Userfaultfd`]. The context has a weak reference to its address space.
//!
//! | part of a context | state | leaves it by |
//! | --- | --- | --- |
//! | the context | open | closing: dropping the handle, under the mmap lock held for writing, in the hold that unregisters every VMA |
//! | a waiter | pending: not read yet | being read. A fault is then delivered. An event is complete, and its sender continues |
//! | | delivered | being woken: [`wake`](Userfaultfd::wake), or a call that filled its page |
//! | | either | being woken because the context is closed; or a signal: any signal for a program's own access, otherwise a fatal one |
//! | `changing` | above 0: the mappings are about to change and the pager has not read the message, so the pager cannot fill pages | reading the message; or the sender, when it stops waiting |
//!
//! **A fault waits** as `FaultOutcome::Userfault`, with all locks dropped. The fault first queues a waiter,
//! then checks VMA and entry again under the VMA's lock, and then sleeps if it still has to wait. A filler
//! first installs the entry and then searches the queue. Queueing a waiter and searching the queue both take
//! the queue's lock. So either the filler finds the waiter, or the waiter finds the entry.
//! Closing works in the same way: it first unregisters the VMAs and then wakes the waiters, so a fault that
//! is queued later finds its VMA unregistered. A woken fault only checks again. A waiting fault keeps no
//! reference into the address space (hazard C-25); its waiter only holds an address.
//!
//! **A change** (fork, mremap, munmap, MADV_DONTNEED) raises `changing` while it holds the VMA's write lock,
//! which excludes fills. MADV_DONTNEED and similar calls hold only a read lock, and therefore wait for a
//! grace period after raising `changing`: a fill reads `changing` and installs its entry within one RCU read
//! section. After its locks are released, the change sends its message and waits until the message is read. A
//! page that was filled before the change is therefore part of the changed memory, and later fills are
//! refused until the message is read. Fills therefore need no common lock.
//!
//! **The flag `UFFD_WP`** of an entry, and the markers that replace such entries where no page is mapped,
//! exist only in VMAs that have the VMA flag `UFFD_WP`. A call that clears the VMA flag clears the entries
//! and markers in the same hold of the write locks.
//!
//! With the feature `WP_ASYNC`, no store waits for write protection: its fault clears the flag `UFFD_WP` or
//! the marker of its page, and then goes on as in memory that is not registered. A page without the flag and
//! without a marker was therefore written, mapped or removed since it was last protected.
//!
//! # Huge pages of pools
//!
//! Huge pages of pools use the same protocol, for one huge page at a time. A fault checks whether it needs
//! the pager while it holds its fault mutex and the hugetlb VMA lock, and drops both before it waits.
//!
//! | entry of a page | task that changes it | excluded tasks |
//! | --- | --- | --- |
//! | empty, or a marker | a fault that the pager need not serve: maps a page of zeroes, or the file's page; the write protection of a marker stays in the entry | a fill of the same page: by the fault mutex for a private page, by the file's word for a shared page, otherwise by the table's lock. The second task finds the entry in use |
//! | | COPY, CONTINUE, POISON | a change: by checking `changing` within the same RCU read section. DONTNEED: by the hugetlb VMA lock, so that a reservation is used or renewed once |
//! | a page | WRITEPROTECT: changes a flag of the entry | the fault of a store, which checks the flag under the table's lock before it grants write permission |
//!
//! If COPY cannot map a page that it took from the pool, it frees the page and restores the reservation
//! before it releases the fault mutex. No other space shares the tables of a registered VMA. Registration
//! unshares these tables with i_mmap held exclusively. A fault that shares a table checks the VMA's flags
//! with i_mmap held (`hugetlb/sharing.rs`).

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
    /// Unregisters all memory of the context, and wakes the tasks that wait for a page, for a message, or for
    /// a message to be read.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, if the address space still exists. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::new().features(Features::SIGBUS)).unwrap();
    /// uffd.register(at, PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// assert!(space.handle_fault(at, Access::READ).is_err());
    /// uffd.close();
    /// assert!(space.handle_fault(at, Access::READ).is_ok());
    /// ```
    pub fn close(&self) {
        if let Some(space) = self.context.space.upgrade() {
            let guard = space.write();
            guard.clear_uffd(&self.context);
            // Closes the queue in the same hold of the mmap lock, so that no later call registers memory with
            // the context.
            self.context.queue.close();
        } else {
            self.context.queue.close();
        }
        self.context.queue.wake_all();
    }
}

impl<P: Platform> Drop for Userfaultfd<P> {
    fn drop(&mut self) {
        if cfg!(feature = "uffd") && !self.context.queue.is_closed() {
            self.close();
        }
    }
}
