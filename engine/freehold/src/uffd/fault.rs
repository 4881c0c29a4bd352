//! Faults that a userfaultfd's pager must serve: detecting them, and waiting for the pager.
//!
//! A fault calls `ask_pager` under the lock that keeps its VMA unchanged. If the pager must serve the fault,
//! the fault drops all locks, waits here, and starts over. The wait has a fixed order: the fault first enters
//! the queue, then checks VMA and entry again, then sleeps ([`uffd`](super), section *The protocol*). A fault
//! that checked before it queued could miss its wake-up. A waiting fault holds no lock and no reference into
//! the address space (hazard C-25).
//!
//! With the feature `WP_ASYNC`, a store to a write-protected page does not wait: `ask_pager` ends the
//! protection of the page, and the fault goes on.
//!
//! `state/queue.rs` has the queue and its lock. The pager's side is in `fill.rs` and `protect.rs`. The tests
//! are `uffd` (`engine/freehold/tests`) and `uffd` (`shuttle_engine`).

use super::state::{FaultReason, Features, Userfault, queue::Waiter};
use crate::{
    VirtAddr,
    counted::Counted,
    error::UffdError,
    fault::outcome::{FaultError, FaultOutcome},
    file::{Object, Wanted},
    platform::Platform,
    space::AddressSpace,
    uprobe::state as probe_state,
    vma::{
        Vma,
        flags::{VmFlags, pte_flags::vma_pte_flags},
    },
};
use freehold_pagetable::{Access, Kind, MarkerKind, Pte, PteFlags, PteTable};
use freehold_sync::{Interrupted, Killed, atomic::AtomicU32, check_killed};
use freehold_vmspace::{NoMemory, is_wp_marker};

impl<P: Platform> AddressSpace<P> {
    /// Returns the outcome of a fault in a registered VMA, or `None` if the engine serves the fault without
    /// the pager. `page` is the start of a small page, or of a huge page of a pool whose tables the caller
    /// keeps in place. After `None`, an entry that was read before this call may have changed.
    #[inline(never)]
    pub(crate) fn ask_pager(&self, vma: &Vma<P>, page: u64, access: Access) -> Option<FaultOutcome<P>> {
        let context = vma.uffd()?;
        let reason = self.fault_reason(vma, page, access.write)?;
        if reason == FaultReason::WriteProtect && context.wants(Features::WP_ASYNC) {
            self.vm.write_unprotect_page(VirtAddr::new(page));
            return None;
        }
        if context.wants(Features::SIGBUS) || (context.config.user_mode_only && !access.user) {
            return Some(FaultOutcome::Failed(FaultError::Bus { addr: page }));
        }
        let (context, feature) = (context.clone(), context.feature);
        Some(FaultOutcome::Userfault(Userfault {
            context,
            page,
            write: access.write,
            reason,
            _feature: feature,
        }))
    }

    /// Returns the reason for which the pager must serve an access to a page of a registered VMA, or `None`.
    /// The caller keeps the VMA unchanged. The table's lock is released before this function returns, so the
    /// result may be out of date. A task that changes the entry afterwards wakes the faults that are queued
    /// by then. A fault that queues before it calls this function therefore misses no change.
    fn fault_reason(&self, vma: &Vma<P>, page: u64, write: bool) -> Option<FaultReason> {
        let flags = vma.flags();
        let (pte, level) = self.vm.read_entry(VirtAddr::new(page));
        let (absent, protected) = match pte.kind(level) {
            Kind::None => (true, false),
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => (true, true),
            Kind::Leaf { flags, .. } => {
                (false, flags & (PteFlags::UFFD_WP | PteFlags::WRITE) == PteFlags::UFFD_WP)
            }
            Kind::Marker { .. } | Kind::Table { .. } => (false, false),
        };
        if absent && let Some(reason) = absent_reason(vma, page) {
            return Some(reason);
        }
        (protected && write && flags.contains(VmFlags::UFFD_WP)).then_some(FaultReason::WriteProtect)
    }

    /// Waits until the fault can be retried: the pager got the message and woke the fault, or the entry has
    /// changed already.
    ///
    /// # Errors
    ///
    /// Fails if a fatal signal arrives first.
    ///
    /// # Locks
    ///
    /// The VMA's lock or the mmap lock for reading, while it checks the entry; no lock while it sleeps. The
    /// caller holds no lock.
    pub(crate) fn wait_for_pager(&self, fault: &Userfault<P>, addr: u64) -> Result<(), Killed> {
        self.sleep_for_pager(fault, addr, P::wait_killable)
    }

    /// Waits like [`wait_for_pager`](Self::wait_for_pager), for an access of the program itself. The program
    /// retries the access after it has handled a signal, so any signal ends the wait.
    pub(crate) fn wait_for_pager_or_signal(&self, fault: &Userfault<P>, addr: u64) -> Result<(), FaultError> {
        self.sleep_for_pager(fault, addr, |word, seen| {
            P::wait_interruptible(word, seen).map_err(|Interrupted| match check_killed::<P>() {
                Ok(()) => FaultError::Interrupted,
                Err(killed) => killed.into(),
            })
        })
    }

    fn sleep_for_pager<E: From<Killed>>(
        &self,
        fault: &Userfault<P>,
        addr: u64,
        sleep: impl Fn(&AtomicU32, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let context = &fault.context;
        let told = if context.wants(Features::EXACT_ADDRESS) { addr } else { fault.page };
        let thread = if context.wants(Features::THREAD_ID) { self.platform().thread_id() } else { 0 };
        let waiter = Waiter::for_page(told, fault.reason, fault.write, thread);
        let Some(queued) = context.queue.enter(&waiter) else { return Ok(()) };
        // Checks only after queueing: from now on, a pager that fills the page and a call that unregisters
        // the VMA find this waiter in the queue.
        if self.still_waits(fault)? { queued.wait(sleep) } else { Ok(()) }
    }

    fn still_waits(&self, fault: &Userfault<P>) -> Result<bool, Killed> {
        let waits = |vma: &Vma<P>| {
            let _kept = self.keep_tables(vma);
            vma.uffd().is_some_and(|context| Counted::ptr_eq(context, &fault.context))
                && self.fault_reason(vma, fault.page, fault.write) == Some(fault.reason)
        };
        if self.tries_vma_lock()
            && let Ok(vma) = self.lock_vma(fault.page)
        {
            return Ok(waits(&vma));
        }
        let guard = self.read_killable()?;
        Ok(guard.find(fault.page).is_some_and(waits))
    }

    /// Brings the page of a file at `page` back if it is swapped out, so that a pager that failed with
    /// `error` can continue. Fails with `error` otherwise.
    pub(crate) fn bring_back_for_pager(&self, page: u64, error: UffdError) -> Result<(), UffdError> {
        if error != UffdError::BadAddress {
            return Err(error);
        }
        let swapped = |vma: &Vma<P>| {
            let (file, index) = (vma.object().file()?, vma.pgoff_of(page));
            file.mapping().swapped_at(index).map(|_| (file.clone(), index))
        };
        let (file, index) = self.in_vma(page, swapped)?.flatten().ok_or(error)?;
        Ok(file.mapping().try_fill(index)?)
    }

    /// Handles a read fault at the marker of a write-protected absent page, which the pager need not serve.
    /// Maps the page and keeps it write-protected. `table` is the table for `page`.
    #[inline(never)]
    pub(crate) fn marked_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let (address, rights) = (VirtAddr::new(page), vma_pte_flags(vma.flags()) | PteFlags::UFFD_WP);
        let Object::File(file) = vma.object() else {
            let Some(mut guard) = table.lock_linked() else { return FaultOutcome::Retry };
            if is_wp_marker(guard.get(address)) {
                guard.set(address, Pte::page(self.engine.memory().zero(), rights | PteFlags::SPECIAL));
            }
            return FaultOutcome::Done;
        };
        let (mapping, index) = (file.mapping(), vma.pgoff_of(page));
        if index >= mapping.end() {
            return FaultOutcome::Failed(FaultError::Bus { addr: page });
        }
        let rcu = P::rcu_read();
        if probe_state::are_put(vma.flags()) && mapping.probes().wants::<P>(index) {
            // The page needs a copy with breakpoints, which an ordinary fault makes.
            drop(rcu);
            self.vm.write_unprotect_page(address);
            return FaultOutcome::Retry;
        }
        let Some(found) = mapping.find(&rcu, index) else {
            return FaultOutcome::Fill(file.clone(), Wanted::alone(index));
        };
        let Some(mut fill) = self.vm.fill_cached(table) else { return FaultOutcome::Retry };
        let put = match is_wp_marker(fill.get(address)) {
            true => fill.put(address, found.pfn(), rights, || found.is_still()),
            false => Ok(true),
        };
        fill.finish(rcu);
        match put {
            Ok(true) => FaultOutcome::Done,
            Ok(false) => FaultOutcome::Retry,
            Err(NoMemory) => FaultOutcome::OUT_OF_MEMORY,
        }
    }
}

/// Returns the reason for which the pager must serve an access to a page that is not mapped, or `None`.
fn absent_reason<P: Platform>(vma: &Vma<P>, page: u64) -> Option<FaultReason> {
    let flags = vma.flags();
    let missing = flags.contains(VmFlags::UFFD_MISSING).then_some(FaultReason::Missing);
    match vma.object() {
        Object::Anonymous | Object::Zeroes(_) => missing,
        Object::File(file) => {
            let mapping = file.mapping();
            let index = mapping.index_of(vma.pgoff_of(page));
            match mapping.has_page(index) {
                true => flags.contains(VmFlags::UFFD_MINOR).then_some(FaultReason::Minor),
                // The pager cannot supply a page that the file has, such as one that is swapped out, a lost
                // page, or a page beyond the end of the file.
                false if mapping.has_data(index) || mapping.is_lost(index) => None,
                false => missing.filter(|_| index < mapping.end()),
            }
        }
        Object::Special(_) => None,
    }
}
