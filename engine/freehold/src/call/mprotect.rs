//! mprotect: changes the access rights of mappings.
//!
//! VMAs change in ascending order. After a failure, the VMAs below the one that failed keep their new rights.
//! Page table entries change in place and are never empty during the change, so that a concurrent
//! MADV_DONTNEED or fault finds each page that is mapped. Revoked rights are flushed from every TLB before
//! the lock is released. Granted rights need no flush: a CPU with a stale TLB entry takes one fault and reads
//! the entry again.
//!
//! The sequence for each VMA is: check, charge, split or merge (`modify` in `space/change/split_merge.rs`),
//! change the entries. `vm.protect` of `freehold-vmspace` changes the entries and puts revoked rights into a
//! gather, which `flush` flushes. Mutation `mprotect-flush` removes this flush, and
//! `no_cached_translation_is_left_when_a_call_returns` then fails. The model's `mprotect.rs` has the rules;
//! `shuttle_engine/mprotect.rs` changes rights concurrently with faults.

use crate::{
    PAGE_SIZE, VirtAddr,
    committed::Charge,
    error::MprotectError,
    platform::Platform,
    space::{
        AddressSpace, Prot,
        change::{
            split_merge::{SplitMergeError, VmaChange},
            vma_ranges::{HolePolicy, VmaRanges},
        },
        limits::ReplacedPages,
        locking::WriteGuard,
        map_flags::access_flags,
        state::counters::LimitDemand,
    },
    uprobe::state as probe_state,
    vma::{
        Vma,
        flags::{VmFlags, pte_flags::vma_pte_flags},
    },
};
use arrayvec::ArrayVec;
use freehold_pagetable::Kind;
use freehold_vmspace::{PageCount, Protect, UserRange, VmGather};

impl From<SplitMergeError> for MprotectError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MprotectError::TooManyVmas,
            SplitMergeError::NoMemory => MprotectError::OutOfMemory,
            SplitMergeError::NotSplittable => MprotectError::Invalid,
        }
    }
}

/// Decoded arguments.
struct ProtectRequest {
    /// The whole pages to change. Empty if there is nothing to do.
    range: UserRange,
    /// New access rights.
    access: VmFlags,
    /// The requested extension to the end of a VMA that grows.
    grows: Option<Grows>,
}

/// The flag PROT_GROWSDOWN or PROT_GROWSUP: the change extends to the lower or to the upper end of a VMA that
/// grows.
#[derive(Clone, Copy, Debug)]
enum Grows {
    Down,
    Up,
}

impl ProtectRequest {
    /// Checks the arguments in Linux's order. An empty range means that there is nothing to do.
    #[cfg_attr(feature = "inline", inline(always))]
    fn new(addr: u64, len: u64, prot: Prot) -> Result<Self, MprotectError> {
        let grows = match (prot.contains(Prot::GROWSDOWN), prot.contains(Prot::GROWSUP)) {
            (false, false) => None,
            (true, false) => Some(Grows::Down),
            (false, true) => Some(Grows::Up),
            (true, true) => return Err(MprotectError::Invalid),
        };
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(MprotectError::Invalid);
        }
        let range = match len {
            0 => UserRange::EMPTY,
            _ => UserRange::decode(addr, len).ok_or(MprotectError::NotMapped)?,
        };
        if !range.is_empty() && !Prot::all().contains(prot) {
            return Err(MprotectError::Invalid);
        }
        Ok(ProtectRequest { range, access: access_flags(prot), grows })
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Changes the access rights of `len` bytes at `addr`. Pages stay mapped even if no access is allowed any
    /// more.
    ///
    /// # Errors
    ///
    /// See [`MprotectError`]. After an error, the part below the address that caused the error has the new
    /// rights.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. Afterwards, if locked private
    /// memory became writable, the locks of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
    /// let mut maps = String::new();
    /// space.write_maps(&mut maps).unwrap();
    /// assert!(maps.lines().next().unwrap().contains(" r--p "));
    /// ```
    pub fn mprotect(&self, addr: u64, len: u64, prot: Prot) -> Result<(), MprotectError> {
        self.protect(addr, len, prot, None)
    }

    /// Changes the access rights like [`mprotect`](Self::mprotect), and sets the protection key to `pkey`.
    ///
    /// # Errors
    ///
    /// The errors of [`mprotect`](Self::mprotect). Also fails with `Invalid` if the key is not
    /// [allocated](Self::pkey_alloc).
    ///
    /// # Locks
    ///
    /// The locks of [`mprotect`](Self::mprotect).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, platform::PkeyRights, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20).pkeys()).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let key = space.pkey_alloc(PkeyRights::DISABLE_WRITE).unwrap();
    /// space.pkey_mprotect(at, PAGE_SIZE, Prot::READ, key).unwrap();
    /// assert_eq!(space.vma_info(at).unwrap().flags.pkey(), key);
    /// ```
    pub fn pkey_mprotect(&self, addr: u64, len: u64, prot: Prot, pkey: u8) -> Result<(), MprotectError> {
        self.protect(addr, len, prot, Some(pkey))
    }

    /// Implements mprotect and, with `pkey`, pkey_mprotect.
    fn protect(&self, addr: u64, len: u64, prot: Prot, pkey: Option<u8>) -> Result<(), MprotectError> {
        let ProtectRequest { range, access, grows } = ProtectRequest::new(addr, len, prot)?;
        if range.is_empty() {
            return Ok(());
        }
        let opened = ArrayVec::new();
        let mut protection =
            Protection { space: self, range, gather: None, access, pkey, opened, done_to: None };
        let done = match self.try_protect(&mut protection, range, grows) {
            Err(error) => self.retry_after(error, || self.try_protect(&mut protection, range, grows)),
            done => done,
        };
        for opened in &protection.opened {
            // Copies pages in advance, so that locked memory does not fault later. The next access reports
            // failures.
            self.populate_locked(*opened);
        }
        done
    }

    /// Makes one attempt to change the part of `range` that does not have the new rights.
    #[cfg_attr(feature = "inline", inline(always))]
    fn try_protect(
        &self,
        protection: &mut Protection<'_, P>,
        range: UserRange,
        grows: Option<Grows>,
    ) -> Result<(), MprotectError> {
        // Another task may have changed the part that an earlier attempt has completed.
        let range = protection.done_to.map_or(range, |at| range.with_start(at));
        match grows.filter(|_| protection.done_to.is_none()) {
            None => {
                let needs = || LimitDemand::cuts_and_pages(range.pages());
                self.with_write_range(
                    range,
                    needs,
                    protection,
                    |protection, guard| protection.apply(guard, range),
                    Protection::flush,
                )
            }
            Some(grows) => self.protect_growing(protection, range, grows),
        }
    }

    /// Changes the rights from the start of a VMA that grows. The start is known only after the VMA is found.
    /// The start may lie below the range, and the VMA may merge with a neighbour there. A range writer would
    /// not have claimed the addresses below the range, so the change needs the exclusive writer.
    #[cold]
    #[inline(never)]
    fn protect_growing(
        &self,
        protection: &mut Protection<'_, P>,
        range: UserRange,
        grows: Grows,
    ) -> Result<(), MprotectError> {
        let guard = self.write_exclusive_range(range)?;
        // The key is checked before the VMAs, as in `apply`.
        if !protection.has_key(&guard) {
            return Err(MprotectError::Invalid);
        }
        let start = |(vma, part): (&Vma<P>, UserRange)| match grows {
            Grows::Down if vma.flags().contains(VmFlags::GROWSDOWN) => Ok(vma.start()),
            Grows::Up if part.start() > range.start() => Err(MprotectError::NotMapped),
            // No VMA grows upwards on this machine.
            Grows::Down | Grows::Up => Err(MprotectError::Invalid),
        };
        let start = guard.first_range(range).ok_or(MprotectError::NotMapped).and_then(start)?;
        let done = protection.apply(&guard, range.with_start(start));
        protection.flush();
        done
    }
}

/// The arguments and the state of one call.
struct Protection<'s, P: Platform> {
    /// The address space of the call.
    space: &'s AddressSpace<P>,
    /// The range of the current attempt.
    range: UserRange,
    /// Pending flushes of revoked rights. The gather has minimal capacity, because no frame is freed.
    gather: Option<VmGather<'s, P, 1>>,
    /// New access rights.
    access: VmFlags,
    /// The requested protection key.
    pkey: Option<u8>,
    /// Ranges of locked private memory that became writable, in ascending order. If the list is full, its
    /// last element covers all further ranges.
    opened: ArrayVec<UserRange, 16>,
    /// End of the part that has the new rights, if the call has changed any part.
    done_to: Option<u64>,
}

impl<P: Platform> Protection<'_, P> {
    /// Returns true if no key is requested or the requested key is allocated.
    fn has_key(&self, guard: &WriteGuard<'_, P>) -> bool {
        self.pkey.is_none_or(|pkey| self.space.pkeys.is_allocated(guard, pkey))
    }

    /// Changes the range, except for the flush. `guard` is the right to change the range.
    #[inline(never)]
    fn apply(&mut self, guard: &WriteGuard<'_, P>, range: UserRange) -> Result<(), MprotectError> {
        if !self.has_key(guard) {
            return Err(MprotectError::Invalid);
        }
        // Each attempt announces its change.
        self.gather = None;
        self.range = range;
        let done = guard
            .for_each_vma_range(range, HolePolicy::Stop, |vma, part| self.protect_part(guard, vma, part));
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(MprotectError::NotMapped),
            Err(error) => Err(error),
        }
    }

    /// Flushes revoked rights from the TLBs. If another task zaps pages at the same time, this includes
    /// pages that this call has not found mapped.
    fn flush(&mut self) {
        if let Some(gather) = &mut self.gather {
            gather.finish();
        }
    }

    /// Changes `part`, which lies in `vma`.
    fn protect_part<'g>(
        &mut self,
        guard: &'g WriteGuard<'_, P>,
        vma: &'g Vma<P>,
        part: UserRange,
    ) -> Result<(), MprotectError> {
        let (old, policy) = (vma.flags(), vma.policy());
        let pkey = guard.key_for(old, self.access, self.pkey);
        let wanted = ((old - VmFlags::ACCESS) | self.access).with_pkey(pkey);
        if !wanted.allows_its_rights() || self.space.denies_exec(old, wanted) {
            return Err(MprotectError::AccessDenied);
        }
        if old.contains(VmFlags::SEALED) {
            return Err(MprotectError::Sealed);
        }
        if wanted == old {
            self.done_to = Some(part.end());
            return Ok(());
        }
        let pages = part.pages();
        let (new, charge) = self.charge_part(guard, vma, wanted, pages)?;
        let space = self.space;
        let huge = old.contains(VmFlags::HUGETLB);
        let vma = guard.modify(vma, part, VmaChange { flags: if huge { old } else { new }, policy })?;
        match huge {
            true => self.change_huge(guard, vma, part, new),
            false => self.change_entries(part, old, new),
        }
        charge.keep();
        space.counters.count_changed(guard, old, new, pages);
        if !probe_state::are_put(old) && probe_state::are_put(new) {
            space.settle_text(vma, part);
        }
        let was = old & (VmFlags::WRITE | VmFlags::SHARED | VmFlags::LOCK_MASK);
        if was == VmFlags::LOCKED && new.contains(VmFlags::WRITE) {
            self.add_opened(guard, vma, part);
        }
        self.done_to = Some(part.end());
        Ok(())
    }

    /// Changes the rights of `vma` and of its entries in `part`. `vma` contains huge pages and covers `part`.
    #[cold]
    fn change_huge(&mut self, guard: &WriteGuard<'_, P>, vma: &Vma<P>, part: UserRange, new: VmFlags) {
        let right = guard.lock_vma(vma);
        // The tables must not be shared while their entries and the flags of the VMA differ.
        let _alone = vma.unshare_tables(&self.space.vm, part);
        let old = vma.flags();
        right.set_flags(new);
        self.change_entries(part, old, new);
    }

    /// Checks the limits on writable memory. Returns the new flags, in which `ACCOUNT` says whether the part
    /// counts as committed memory.
    ///
    /// Private memory counts as committed from the time at which it becomes writable, and still counts when
    /// it becomes read-only. There is one exception: anonymous memory that never had a page stops counting.
    /// VMAs merge only if their flags agree, so a program can see the decision in /proc/PID/maps.
    fn charge_part<'g>(
        &self,
        guard: &WriteGuard<'g, P>,
        vma: &Vma<P>,
        mut new: VmFlags,
        pages: PageCount,
    ) -> Result<(VmFlags, Charge<'g, P>), MprotectError> {
        let old = vma.flags();
        let mut charge = guard.space.engine.committed().no_charge();
        if new.contains(VmFlags::WRITE) {
            let fits = |flags| guard.may_expand(flags, pages, ReplacedPages::default());
            if !fits(new) && fits(old) {
                return Err(MprotectError::Limit);
            }
            let counted =
                VmFlags::ACCOUNT | VmFlags::WRITE | VmFlags::HUGETLB | VmFlags::SHARED | VmFlags::NORESERVE;
            if !old.intersects(counted) {
                new |= VmFlags::ACCOUNT;
                charge =
                    guard.charge(new, pages, ReplacedPages::default()).map_err(|_| MprotectError::Limit)?;
            }
        } else if vma.is_anonymous() {
            let _ = guard.pin_anon_vma(vma);
            if !vma.anon().is_some() {
                new -= VmFlags::ACCOUNT;
            }
        }
        Ok((new, charge))
    }

    /// Changes the rights of the entries of `part` to those of `new`.
    fn change_entries(&mut self, part: UserRange, old: VmFlags, new: VmFlags) {
        let space = self.space;
        let (write, shared) = (new.contains(VmFlags::WRITE), new.contains(VmFlags::SHARED));
        let change = Protect { rights: vma_pte_flags(new), write, shared };
        let only_given = (new & VmFlags::ACCESS).contains(old & VmFlags::ACCESS);
        let taken = !only_given || new.pkey() != old.pkey();
        let gather = taken.then(|| self.gather.get_or_insert_with(|| space.vm.gather(self.range.va())));
        space.vm.protect(part, change, gather);
    }

    /// Records locked private memory that became writable. Its pages are populated after the lock is
    /// released, but its anon_vma is chosen here, while the neighbours cannot change.
    #[cold]
    fn add_opened(&mut self, guard: &WriteGuard<'_, P>, vma: &Vma<P>, part: UserRange) {
        let space = self.space;
        let (first, level) = space.vm.peek(VirtAddr::new(part.start()));
        // A guard at the start prevents population.
        if !matches!(first.kind(level), Kind::Marker { .. }) {
            // If there is no memory, the first write chooses the anon_vma.
            let _ = space.prepare_anon_exclusive(guard, vma);
        }
        // Each part is populated separately, as on Linux: an error in one part does not stop the next.
        let full = self.opened.is_full();
        match self.opened.last_mut() {
            Some(last) if full => *last = last.with_end(part.end()),
            _ => self.opened.push(part),
        }
    }
}
