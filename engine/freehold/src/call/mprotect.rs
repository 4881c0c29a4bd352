//! mprotect: other access rights for what is mapped.
//!
//! VMAs change from left to right, and a failure leaves what was done before it done. Entries of the page
//! tables change in place: they are never empty in between, so that a DONTNEED or a fault that comes by sees
//! a page where there is one. Rights that are taken away are gone from every TLB before the lock is let go;
//! rights that are given need no flush, for a processor that still has the old ones faults once and looks
//! again.

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
    range: UserRange,
    /// The new rights.
    access: VmFlags,
    grows: Option<Grows>,
}

/// The whole of what grows is meant, on one side of the range.
#[derive(Clone, Copy, Debug)]
enum Grows {
    Down,
    Up,
}

impl ProtectRequest {
    /// Checks the arguments in Linux's order. Where the range is empty there is nothing to do.
    #[inline(always)]
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
    /// Gives `len` bytes at `addr` other access rights. Pages stay, even where nothing may be accessed any
    /// more.
    ///
    /// # Errors
    ///
    /// What lies left of the cause has the new rights already. See [`MprotectError`].
    ///
    /// # Locks
    ///
    /// Those of a [range writer](crate::space::locking#writers), killably. Then, where locked private memory
    /// became writable, the locks of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
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

    /// As [`mprotect`](Self::mprotect), and gives the pages the protection key `pkey`.
    ///
    /// # Errors
    ///
    /// As `mprotect`; also `Invalid` if the key is not [allocated](Self::pkey_alloc).
    ///
    /// # Locks
    ///
    /// As `mprotect`.
    pub fn pkey_mprotect(&self, addr: u64, len: u64, prot: Prot, pkey: u8) -> Result<(), MprotectError> {
        self.protect(addr, len, prot, Some(pkey))
    }

    fn protect(&self, addr: u64, len: u64, prot: Prot, pkey: Option<u8>) -> Result<(), MprotectError> {
        let ProtectRequest { range, access, grows } = ProtectRequest::new(addr, len, prot)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut protection = Protection { space: self, gather: None, access, pkey, opened: ArrayVec::new() };
        let done = match grows {
            None => {
                let needs = || LimitDemand::cuts_and_pages(range.pages());
                self.with_write_range(range, needs, |guard| protection.apply(guard, range))
            }
            Some(grows) => self.protect_growing(&mut protection, range, grows),
        };
        for opened in &protection.opened {
            // Copies in advance, so that locked memory does not fault later; what fails shows at the next
            // access.
            self.populate_locked(*opened);
        }
        done
    }

    /// From the start of a VMA, which is known when it is found: it is more than the range, and joins what
    /// touches it there.
    #[cold]
    #[inline(never)]
    fn protect_growing(
        &self,
        protection: &mut Protection<'_, P>,
        range: UserRange,
        grows: Grows,
    ) -> Result<(), MprotectError> {
        let guard = self.write_exclusive_range(range)?;
        // Asked first, as of every range.
        if !protection.has_key(&guard) {
            return Err(MprotectError::Invalid);
        }
        let start = |(vma, part): (&Vma<P>, UserRange)| match grows {
            Grows::Down if vma.flags().contains(VmFlags::GROWSDOWN) => Ok(vma.start()),
            Grows::Up if part.start() > range.start() => Err(MprotectError::NotMapped),
            // Nothing grows upwards on this machine.
            Grows::Down | Grows::Up => Err(MprotectError::Invalid),
        };
        let start = guard.first_range(range).ok_or(MprotectError::NotMapped).and_then(start)?;
        protection.apply(&guard, range.with_start(start))
    }
}

/// One call under way.
struct Protection<'s, P: Platform> {
    space: &'s AddressSpace<P>,
    /// Where rights were taken. No frames go, so it need not hold any.
    gather: Option<VmGather<'s, P, 1>>,
    access: VmFlags,
    /// The protection key that was asked for.
    pkey: Option<u8>,
    /// Locked private memory that became writable; when there are more pieces, the last covers them all.
    opened: ArrayVec<UserRange, 16>,
}

impl<P: Platform> Protection<'_, P> {
    /// Whether the key that was asked for is allocated.
    fn has_key(&self, guard: &WriteGuard<'_, P>) -> bool {
        self.pkey.is_none_or(|pkey| self.space.pkeys.is_allocated(guard, pkey))
    }

    /// What is done with the right to change the range.
    #[inline(never)]
    fn apply(&mut self, guard: &WriteGuard<'_, P>, range: UserRange) -> Result<(), MprotectError> {
        if !self.has_key(guard) {
            return Err(MprotectError::Invalid);
        }
        let done = guard
            .for_each_vma_range(range, HolePolicy::Stop, |vma, part| self.protect_part(guard, vma, part));
        if let Some(gather) = &mut self.gather {
            gather.finish();
        }
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(MprotectError::NotMapped),
            Err(error) => Err(error),
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
        Ok(())
    }

    /// Gives `vma`, which is of huge pages and covers `part`, and its entries the rights of `new`.
    #[cold]
    fn change_huge(&mut self, guard: &WriteGuard<'_, P>, vma: &Vma<P>, part: UserRange, new: VmFlags) {
        let right = guard.lock_vma(vma);
        // Nobody shares a table while its entries and the flags disagree.
        let _alone = vma.unshare_tables(&self.space.vm, part);
        let old = vma.flags();
        right.set_flags(new);
        self.change_entries(part, old, new);
    }

    /// The limits on writable memory, and whether the part counts towards committed memory from now on.
    ///
    /// Private memory counts once it may have been written, and keeps counting when it becomes read-only;
    /// only anonymous memory that no page was ever made for stops counting. The flag decides merges, so
    /// this is visible in maps.
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

    /// Gives the entries of `part` the rights of `new`.
    fn change_entries(&mut self, part: UserRange, old: VmFlags, new: VmFlags) {
        let space = self.space;
        let (write, shared) = (new.contains(VmFlags::WRITE), new.contains(VmFlags::SHARED));
        let change = Protect { rights: vma_pte_flags(new), write, shared };
        let only_given = (new & VmFlags::ACCESS).contains(old & VmFlags::ACCESS);
        let taken = !only_given || new.pkey() != old.pkey();
        let gather = taken.then(|| self.gather.get_or_insert_with(|| space.vm.gather()));
        space.vm.protect(part, change, gather);
    }

    /// Locked private memory became writable. Its pages are brought in once the lock is gone, but their
    /// anon_vma is chosen now, while its neighbours are as they are.
    #[cold]
    fn add_opened(&mut self, guard: &WriteGuard<'_, P>, vma: &Vma<P>, part: UserRange) {
        let space = self.space;
        let (first, level) = space.vm.peek(VirtAddr::new(part.start()));
        // A guard right at the start keeps everything away.
        if !matches!(first.kind(level), Kind::Marker { .. }) {
            // Without memory the first write will choose.
            let _ = space.prepare_anon_exclusive(guard, vma);
        }
        // Each part is populated by itself, as on Linux: what stops it in one does not in the next.
        let full = self.opened.is_full();
        match self.opened.last_mut() {
            Some(last) if full => *last = last.with_end(part.end()),
            _ => self.opened.push(part),
        }
    }
}
