//! Registration of listeners, which hear about every change of the translations of an address space (Linux:
//! MMU notifiers). The documentation of [`Listener`] is the contract of a listener; `notify/mod.rs` of
//! `freehold-vmspace` has the protocol.
//!
//! A change that began before a listener was published may not notify it. Registration therefore publishes
//! the listener, and then takes each lock once under which entries of this space are changed:
//!
//! | changes under | are waited for by |
//! | --- | --- |
//! | the mmap lock, a claim, a closing range | the mmap lock for writing, once no range is closing; held from before the listener is published |
//! | a VMA's lock | that lock for writing |
//! | an rmap lock | that lock for writing, of each tree that links a VMA of this space |
//!
//! Each of these tasks takes its gather after its lock, and stores its entries before it releases the lock.
//! So a task that takes its lock after registration had it finds the listener. The set of VMAs does not
//! change during registration. `shuttle_engine/listeners.rs` explores registration concurrent with changes;
//! mutation `listener-registration` omits the locks.

use super::AddressSpace;
use crate::{platform::Platform, rmap::edit::RmapEdit, wait::Rounds};
use alloc::sync::Arc;
use freehold_vmspace::{ListenError, Listener, ListenerId, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Registers a listener, which hears about every change of translations that begins after this call. A
    /// space may have several listeners. The space keeps the listener until
    /// [`unregister_listener`](Self::unregister_listener) or until the space ends; at its end the space calls
    /// [`Listener::release`]. A listener that has a counted reference to the space keeps the space alive.
    ///
    /// # Errors
    ///
    /// Fails if the space has the maximum number of listeners, or if a fatal signal arrives. The listener may
    /// have been called, but is not called afterwards.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, once no range is closing; under it, the lock of each VMA, and the rmap
    /// locks of each VMA, one VMA at a time. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, UserRange, fault::Access, space::*};
    /// use freehold::space::{Listener, Refused};
    /// use std::sync::{Arc, Mutex};
    ///
    /// /// Records the ranges that change.
    /// #[derive(Default)]
    /// struct Changes(Mutex<Vec<UserRange>>);
    ///
    /// impl Listener for Changes {
    ///     fn range_start(&self, range: UserRange) {
    ///         self.0.lock().unwrap().push(range);
    ///     }
    ///     fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
    ///         Ok(self.range_start(range))
    ///     }
    ///     fn range_end(&self, _: UserRange) {}
    ///     fn release(&self) {}
    /// }
    ///
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let changes = Arc::new(Changes::default());
    /// let id = space.register_listener(changes.clone()).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// assert_eq!(*changes.0.lock().unwrap(), [UserRange::new(at, at + PAGE_SIZE)]);
    /// space.unregister_listener(id);
    /// ```
    pub fn register_listener(&self, listener: Arc<dyn Listener>) -> Result<ListenerId, ListenError> {
        let guard = self.write_exclusive_range(UserRange::ALL)?;
        // Published with the mmap lock held: no change without a claim may be in progress, because such a
        // change must not wait for a listener.
        let id = self.vm.add_listener(listener)?;
        let mut rounds = Rounds::new();
        let waited = guard.vmas(UserRange::ALL).try_for_each(|vma| {
            rounds.again::<P>()?;
            guard.lock_vma_killable(vma)?;
            drop(RmapEdit::of(vma));
            Ok(())
        });
        drop(guard);
        if waited.is_err() {
            self.vm.remove_listener(id);
        }
        waited.map(|()| id)
    }

    /// Unregisters a listener, and waits until it is not called any more. Does nothing if the listener is not
    /// registered.
    ///
    /// # Locks
    ///
    /// None. Waits for the changes that have notified the listener. The caller holds no lock that such a
    /// change or the listener waits for.
    ///
    /// # Examples
    ///
    /// See [`register_listener`](Self::register_listener).
    pub fn unregister_listener(&self, id: ListenerId) {
        self.vm.remove_listener(id);
    }
}
