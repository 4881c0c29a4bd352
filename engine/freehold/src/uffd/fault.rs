//! A fault that the pager is to serve: which those are, and waiting for it.

use super::state::{FaultReason, Features, Userfault, queue::Waiter};
use crate::{
    VirtAddr,
    counted::Counted,
    fault::outcome::{FaultError, FaultOutcome},
    file::{Object, Wanted},
    platform::Platform,
    space::AddressSpace,
    vma::{
        Vma,
        flags::{VmFlags, pte_flags::vma_pte_flags},
    },
};
use freehold_pagetable::{Access, Kind, MarkerKind, Pte, PteFlags, PteTable};
use freehold_sync::{Interrupted, Killed, atomic::AtomicU32, check_killed};
use freehold_vmspace::{NoMemory, is_wp_marker};

impl<P: Platform> AddressSpace<P> {
    /// Hands a fault in a registered VMA to the pager, if it is one for it. `page`: where the page of memory
    /// starts, a huge one of a pool whose tables the caller keeps, or a small one.
    #[inline(never)]
    pub(crate) fn ask_pager(&self, vma: &Vma<P>, page: u64, access: Access) -> Option<FaultOutcome<P>> {
        let context = vma.uffd()?;
        let reason = self.fault_reason(vma, page, access.write)?;
        if context.wants(Features::SIGBUS) || (context.config.user_mode_only && !access.user) {
            return Some(FaultOutcome::Failed(FaultError::Bus { addr: page }));
        }
        let context = context.clone();
        Some(FaultOutcome::Userfault(Userfault { context, page, write: access.write, reason }))
    }

    /// Why the pager is to deal with an access to a page of a registered VMA, as things are. The VMA is kept
    /// still; the table is unlocked when this returns. A fault that finds less there than there is now is in
    /// the queue already, and is woken.
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

    /// Waits until the fault is worth another try: the pager was told of it and has woken it, or something
    /// has changed already.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first.
    ///
    /// # Locks
    ///
    /// The VMA's lock or the mmap lock for reading, for a look; none while it sleeps. The caller holds none.
    pub(crate) fn wait_for_pager(&self, fault: &Userfault<P>, addr: u64) -> Result<(), Killed> {
        self.sleep_for_pager(fault, addr, P::wait_killable)
    }

    /// As [`wait_for_pager`](Self::wait_for_pager), for an access by the program itself: the program makes it
    /// again after a signal's handler, so any signal ends the wait.
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
        let waiter = Waiter::for_page(told, fault.reason, fault.write);
        let Some(queued) = context.queue.enter(&waiter) else { return Ok(()) };
        // Only now: a pager that fills the page, or a call that clears the VMA, from here on finds us in the
        // queue.
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

    /// A fault at the marker of a write-protected page that is not there, and that the pager has no business
    /// with: to read. The page comes, and stays write-protected. `table` is the one for `page`.
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

/// Why the pager is to deal with a page that is not mapped.
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
                // Beyond the end of the file, or what is lost, cannot be had from anybody.
                false => missing.filter(|_| index < mapping.end() && !mapping.is_lost(index)),
            }
        }
        Object::Special(_) => None,
    }
}
