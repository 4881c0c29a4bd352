//! Removal of mappings: the model of every change. A change has the steps decode, prepare, commit, settle and
//! retire. Each step returns a value that the next step consumes, so no step can be left out:
//!
//! ```text
//! decode    UnmapRange checks the arguments, touches nothing
//! prepare   Gathered   under the write lock: splits, locks and lists the VMAs, allocates; may fail
//! commit    Detached   removes the VMAs from the tree, detaches and accounts them; cannot fail
//! settle    Unmapped   zaps, flushes, frees tables; under the lock that the design still holds, if any
//! retire               drops files, frees VMAs to the slab, notifies userfaultfds; after the locks
//! ```
//!
//! The designs of munmap (`space/design.rs`) differ only in the lock that is held during *settle*:
//!
//! | design | held | other tasks wait for |
//! | --- | --- | --- |
//! | `Exclusive` | write lock | the whole step |
//! | `Sectioned` | write lock, section by section; prepare, commit and settle of one section in each hold | one section |
//! | `Downgraded` | read lock | the whole step, if they are writers |
//! | `Released` | no lock; the range is a *closing* reservation in the tree | the whole step, if they need the same range |
//!
//! With `Released`, neighbours that map and fault concurrently share the page tables at the two edges. These
//! tables, at most two per level, stay until the end of the munmap. The end of the closing reservation
//! (`closing.rs`) unlinks them if nothing else lies in the range that they span.
//!
//! munmap, brk, mremap, mmap over a range, exec and exit use this file. `docs/guide/munmap.md` lists the
//! callers and says which of them may release the lock during the call. Contract of
//! [`WriteGuard::unmap_unlocking`]: on success the lock is released. On failure the caller still holds the
//! lock, and every VMA is attached and mapped as before, except that VMAs may have been split. The tests of
//! `munmap` and `every_call::oom` (`engine/freehold/tests`) test this contract.
#![expect(unsafe_code, reason = "unlinks page tables")]

pub(crate) use super::unmap_range::UnmapRange;
use super::{
    split_merge::SplitMergeError,
    vma_list::{OwnedList, VmaList},
};
use crate::space::{
    AddressSpace,
    design::MmapHold,
    limits::ReplacedPages,
    locking::{WriteGuard, closing_entry},
};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::MunmapError,
    file::Object,
    platform::Platform,
    rmap::edit::RmapEdit,
    uffd::event::Notices,
    vma::{Vma, flags::VmFlags},
};
use alloc::vec::Vec;
use freehold_pagetable::VaRange;
use freehold_vmspace::{PageCount, PageRange, UserRange, VmGather};

/// Maximum size of a range that `Released` zaps under the write lock if no other processor runs the address
/// space. For such a range a second hold of the lock would cost more than the zap. The maximum is a constant,
/// so that the length of the hold does not depend on the size of the range.
const SMALL_UNMAP_BYTES: u64 = 64 * PAGE_SIZE;

/// Bytes of a section if the design does not specify a size.
const DEFAULT_SECTION_BYTES: u64 = 1 << 30;

/// Returns true if the pages of `span` may be zapped before the lock is released.
pub(super) fn is_small(span: UserRange) -> bool {
    span.end() - span.start() <= SMALL_UNMAP_BYTES
}

impl From<SplitMergeError> for MunmapError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MunmapError::TooManyVmas,
            SplitMergeError::NoMemory => MunmapError::OutOfMemory,
            SplitMergeError::NotSplittable => MunmapError::NotSplittable,
        }
    }
}

/// Numbers of pages and VMAs in a gathered range.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) vmas: i64,
    pages: PageCount,
    locked: PageCount,
    /// Committed pages.
    pub(super) committed: PageCount,
    /// Number of VMAs that are zapped with the lock held for writing.
    special: u64,
    /// Number of VMAs that are linked in a file's tree.
    pub(super) files: u64,
}

/// The result of prepare: the VMAs of a range, split at its edges, write-locked, and still in the tree.
/// Dropping it abandons the removal.
#[must_use = "gathered VMAs are committed or abandoned"]
pub(crate) struct Gathered<'g, 's, P: Platform> {
    pub(super) guard: &'g WriteGuard<'s, P>,
    range: UserRange,
    pub(super) list: VmaList<P>,
    pub(super) totals: Totals,
    /// Notifications for userfaultfds, which the retire step sends.
    notices: Notices<P>,
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Performs prepare. No part of the range may be closing.
    pub(crate) fn gather(&self, range: &UnmapRange) -> Result<Gathered<'_, 's, P>, MunmapError> {
        let mut gathered = self.gather_nothing(range.range());
        gathered.fill()?;
        Ok(gathered)
    }

    /// Performs prepare without collecting VMAs: the range is known to be free, or the caller adds the VMAs.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn gather_nothing(&self, range: UserRange) -> Gathered<'_, 's, P> {
        Gathered {
            guard: self,
            range,
            list: VmaList::new(),
            totals: Totals::default(),
            notices: Notices::new(),
        }
    }

    /// Splits off the parts of `vma` outside `range`.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn clip<'g>(&'g self, vma: &'g Vma<P>, range: UserRange) -> Result<&'g Vma<P>, MunmapError> {
        let inside = range.start() <= vma.start() && vma.end() <= range.end();
        match inside && !vma.flags().contains(VmFlags::SEALED) {
            true => Ok(vma),
            false => self.clip_outside(vma, range),
        }
    }

    #[inline(never)]
    fn clip_outside<'g>(&'g self, mut vma: &'g Vma<P>, range: UserRange) -> Result<&'g Vma<P>, MunmapError> {
        let (inside_start, inside_end) = (vma.start() < range.start(), range.end() < vma.end());
        if inside_start && inside_end && !self.may_have_vmas(1) {
            return Err(MunmapError::TooManyVmas);
        }
        if vma.flags().contains(VmFlags::SEALED) {
            return Err(MunmapError::Sealed);
        }
        // Both ends are checked before a split, so that a rejected call leaves the VMA whole (hazard C-30).
        for (cut, at) in [(inside_start, range.start()), (inside_end, range.end())] {
            if cut && !vma.may_split(at) {
                return Err(MunmapError::NotSplittable);
            }
        }
        if inside_start {
            vma = self.split(vma, range.start())?;
        }
        if inside_end {
            self.split(vma, range.end())?;
        }
        Ok(vma)
    }

    /// Unmaps a range and releases the lock, early if the design allows it.
    ///
    /// # Errors
    ///
    /// The caller still holds the lock, and everything is mapped as before.
    pub(crate) fn unmap_unlocking(self, range: &UnmapRange) -> Result<(), (Self, MunmapError)> {
        let (detached, settle_mode) = match self.gather(range) {
            Ok(gathered) => self.detach_gathered(gathered),
            Err(error) => return Err((self, error)),
        };
        self.settle_unlocking(detached, settle_mode);
        Ok(())
    }

    /// Unmaps a range like [`unmap_unlocking`](Self::unmap_unlocking), or section by section if the design
    /// requires it. Other tasks may take the lock between two sections.
    ///
    /// # Errors
    ///
    /// The lock is released. If the design uses sections, some sections may be unmapped, and `range` is then
    /// the rest.
    #[inline(never)]
    pub(crate) fn unmap_by_design(self, range: &mut UnmapRange) -> Result<(), MunmapError> {
        self.unmap_by_design_inline(range)
    }

    /// Unmaps a range like [`unmap_by_design`](Self::unmap_by_design), but inlined, because moving a guard is
    /// expensive. This function and the functions of the steps are inlined only in optimised builds. Without
    /// optimisation their stack frames would add up (`tests/stack_depth.rs`).
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn unmap_by_design_inline(self, range: &mut UnmapRange) -> Result<(), MunmapError> {
        let space = self.space;
        if let Some(bytes) = space.locking.unmap.policy().sections {
            return space.unmap_sections(self, range, bytes);
        }
        let mut gathered = self.gather_nothing(range.range());
        gathered.fill()?;
        if gathered.totals.special != 0 {
            // `Downgraded` unmaps special VMAs section by section. The gathered VMAs are still in place.
            drop(gathered);
            return space.unmap_sections(self, range, DEFAULT_SECTION_BYTES);
        }
        let (detached, settle_mode) = self.detach_gathered(gathered);
        self.settle_unlocking(detached, settle_mode);
        Ok(())
    }

    /// Performs commit for [`unmap_unlocking`](Self::unmap_unlocking). Also returns the way to settle.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn detach_gathered(&self, gathered: Gathered<'_, 's, P>) -> (Detached<'s, P>, SettleMode) {
        let settle_mode = self.settle_mode(&gathered);
        let closing = matches!(settle_mode, SettleMode::Released);
        (gathered.commit(closing), settle_mode)
    }

    /// Performs settle and retire for [`unmap_unlocking`](Self::unmap_unlocking).
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn settle_unlocking(self, detached: Detached<'s, P>, settle_mode: SettleMode) {
        match settle_mode {
            SettleMode::Exclusive(free) => {
                let unmapped = detached.settle(free);
                drop(self);
                unmapped.retire();
            }
            SettleMode::Downgraded(free) => {
                let guard = self.downgrade();
                let unmapped = detached.settle(free);
                drop(guard);
                unmapped.retire();
            }
            SettleMode::Nothing => {
                // Another task may map at these addresses as soon as the lock is released.
                RmapEdit::unlink(detached.owned.list.iter());
                drop(self);
                detached.without_pages().retire();
            }
            SettleMode::Released => {
                drop(self);
                detached.settle_released().retire();
            }
        }
    }

    /// Returns the way to settle, according to the design.
    ///
    /// The lock is never released before a VMA of a file is unlinked from the file's tree. Until then, walks
    /// from the file visit the VMA's addresses, so no other mapping may be there. Such a walk may also still
    /// have to flush an entry that it has cleared.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn settle_mode(&self, gathered: &Gathered<'_, 's, P>) -> SettleMode {
        let (space, totals, span) = (self.space, &gathered.totals, gathered.span());
        let small = is_small(span);
        let mut known = None;
        let mut free = || *known.get_or_insert_with(|| self.free_span(span));
        if totals.files == 0 && space.vm.is_settled(span, small, &mut free) {
            return SettleMode::Nothing;
        }
        let free = free();
        match space.locking.unmap.policy().held {
            MmapHold::Nothing
                if small && totals.files == 0 && !space.platform().runs_elsewhere(space.vm.mmu()) =>
            {
                SettleMode::Exclusive(free)
            }
            MmapHold::Nothing => SettleMode::Released,
            MmapHold::Read if totals.special == 0 => SettleMode::Downgraded(free),
            _ => SettleMode::Exclusive(free),
        }
    }

    /// Unmaps a range in one piece without releasing the lock. The caller retires the result after releasing
    /// the lock.
    pub(crate) fn unmap(&self, range: &UnmapRange) -> Result<Unmapped<'s, P>, MunmapError> {
        Ok(self.gather(range)?.unmap())
    }
}

impl<'g, 's, P: Platform> Gathered<'g, 's, P> {
    /// Gathers the VMAs in the range.
    // Inlined, and fills the value in place, because returning the large value would be expensive.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn fill(&mut self) -> Result<(), MunmapError> {
        let (guard, range) = (self.guard, self.range);
        let mut at = range.start();
        while let Some(vma) = guard.first_in(at..range.end()) {
            P::cond_resched();
            let vma = guard.clip(vma, range)?;
            self.add(vma);
            at = vma.end();
            // The message is prepared after the VMA is write-locked: from then on no fault fills pages of the
            // VMA.
            self.notices.note_unmap(vma, range)?;
        }
        guard.reserve(1)?;
        Ok(())
    }

    /// Write-locks a VMA and adds it to the list and the totals. Cannot fail.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn add(&mut self, vma: &Vma<P>) {
        let _ = self.guard.lock_vma(vma);
        self.add_locked(vma);
    }

    /// Adds a write-locked VMA to the list and the totals. Cannot fail.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn add_locked(&mut self, vma: &Vma<P>) {
        let flags = vma.flags();
        self.totals.vmas += 1;
        self.totals.pages += vma.pages();
        if flags.contains(VmFlags::LOCKED) {
            self.totals.locked += vma.pages();
        }
        if flags.contains(VmFlags::ACCOUNT) {
            self.totals.committed += vma.pages();
        }
        self.totals.special += u64::from(self.guard.space.is_special(vma));
        self.totals.files += u64::from(vma.object().listed_by().is_some());
        self.list.push(vma);
    }

    /// Returns the number of pages that will be unmapped, for the limits of the mapping that replaces them.
    pub fn replaced(&self) -> ReplacedPages {
        ReplacedPages { total: self.totals.pages, committed: self.totals.committed }
    }

    /// Returns true if `object` is a System V segment that was removed, and only the gathered VMAs map it.
    /// Unmapping these VMAs then destroys the segment, so the caller cannot map `object` again.
    pub fn ends_segment(&self, object: &Object<P>) -> bool {
        let segment = |object: &Object<P>| object.file().and_then(|file| file.segment()).cloned();
        let Some(ending) = segment(object) else { return false };
        let of_it =
            |vma: &&Vma<P>| segment(vma.object()).is_some_and(|other| Counted::ptr_eq(&other, &ending));
        ending.ends_with(self.list.iter().filter(of_it).count() as u64)
    }

    /// Performs commit and settle without releasing the lock. The range is free afterwards.
    pub fn unmap(self) -> Unmapped<'s, P> {
        let free = self.guard.free_span(self.span());
        self.commit(false).settle(free)
    }

    /// Returns the range from the start of the first VMA to the end of the last one.
    pub(super) fn span(&self) -> UserRange {
        match (self.list.iter().next(), self.list.iter().last()) {
            (Some(first), Some(last)) => UserRange::new(first.start(), last.end()),
            _ => self.range.with_end(self.range.start()),
        }
    }

    /// Performs commit: removes the VMAs from the tree, or replaces them by a closing reservation over their
    /// span.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn commit(self, closing: bool) -> Detached<'s, P> {
        let span = self.span();
        if closing {
            return self.close(span);
        }
        if self.totals.vmas != 0 {
            self.guard.remove(span);
        }
        self.detach(span)
    }

    /// Performs commit: replaces the VMAs, of which there is at least one, by a closing reservation over
    /// `span`. The caller has reserved the nodes.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn close(self, span: UserRange) -> Detached<'s, P> {
        let guard = self.guard;
        debug_assert!(!span.is_empty(), "nothing is unmapped");
        guard.replace(span, &[closing_entry(span)]);
        match guard.range_writer() {
            None => guard.space.closings.begin(guard),
            Some(_) => guard.space.closings.begin_uncounted(),
        }
        self.detach(span)
    }

    /// Zaps the VMAs while they are still in the tree and locked, for a caller that then stores other
    /// mappings in their place.
    pub fn zap_in_place(&self) {
        if self.totals.vmas != 0 {
            let span = self.span();
            let free = self.guard.free_span(span);
            settle(self.guard.space, &self.list, self.totals.files != 0, span, free);
        }
    }

    /// Performs commit after the caller has stored other mappings over the VMAs, which were zapped in place.
    pub fn commit_replaced(self) -> Unmapped<'s, P> {
        let span = self.span();
        self.detach(span).without_pages()
    }

    /// Detaches the VMAs and adjusts the sizes: the part of commit that does not touch the tree.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn detach(self, span: UserRange) -> Detached<'s, P> {
        let Gathered { guard, list, totals, notices, .. } = self;
        for vma in list.iter() {
            P::cond_resched();
            guard.detach(vma);
            guard.space.counters.count_removed(guard, vma.flags(), vma.pages());
        }
        guard.space.counters.count_unlocked(guard, totals.locked);
        if totals.committed != PageCount::ZERO {
            guard.space.engine.committed().uncharge(totals.committed);
        }
        let (owned, exclusive) = (OwnedList { space: guard.space, list }, guard.range_writer().is_none());
        Detached { owned, notices, span, files: totals.files != 0, exclusive }
    }
}

/// The way to settle: the lock that is held, and the page tables that may be freed.
enum SettleMode {
    /// Under the write lock. Tables inside this span may be freed.
    Exclusive(VaRange),
    /// Under the downgraded lock. Tables inside this span may be freed.
    Downgraded(VaRange),
    /// No work: nothing is mapped, and no table may be freed.
    Nothing,
    /// Without a lock: the range is closing.
    Released,
}

/// The result of commit: VMAs that no lookup can find, with their pages still mapped.
#[must_use = "detached VMAs must be settled, or their pages leak"]
pub(crate) struct Detached<'s, P: Platform> {
    owned: OwnedList<'s, P>,
    notices: Notices<P>,
    pub(super) span: UserRange,
    /// True if any of the VMAs is linked in a file's tree.
    pub(super) files: bool,
    /// True if an exclusive writer has detached the VMAs.
    exclusive: bool,
}

/// The result of settle: VMAs without pages.
#[must_use = "retire unmapped VMAs after the locks"]
pub(crate) struct Unmapped<'s, P: Platform> {
    owned: OwnedList<'s, P>,
    notices: Notices<P>,
}

impl<'s, P: Platform> Detached<'s, P> {
    /// Performs settle at once. `free` stays free until this call returns.
    pub(super) fn settle(self, free: VaRange) -> Unmapped<'s, P> {
        settle(self.owned.space, &self.owned.list, self.files, self.span, free);
        self.without_pages()
    }

    /// Unlinks and zaps the VMAs, none of which is linked in a file's tree.
    pub(super) fn zap_unlinked(&self, gather: &mut VmGather<'s, P>) {
        RmapEdit::unlink(self.owned.list.iter());
        zap(self.owned.space, &self.owned.list, gather);
    }

    /// Skips settle, for VMAs that need none: nothing is mapped and the VMAs are unlinked, or everything was
    /// settled in place.
    pub(super) fn without_pages(self) -> Unmapped<'s, P> {
        Unmapped { owned: self.owned, notices: self.notices }
    }

    /// Performs settle without any lock of the address space, and ends the closing reservation.
    pub(super) fn settle_released(self) -> Unmapped<'s, P> {
        let space = self.owned.space;
        settle(space, &self.owned.list, self.files, self.span, self.span.va());
        space.end_closing(self.span, self.exclusive);
        self.without_pages()
    }
}

impl<P: Platform> Unmapped<'_, P> {
    /// Returns true if there are no VMAs.
    pub fn is_empty(&self) -> bool {
        self.owned.list.iter().next().is_none()
    }

    /// Joins two results into one.
    pub fn join(mut self, mut other: Self) -> Self {
        self.owned.list.append(core::mem::replace(&mut other.owned.list, VmaList::new()));
        self.notices.append(other.notices);
        self
    }

    /// Performs retire: drops the objects of the VMAs and frees the VMAs. Then waits until userfaultfds have
    /// received the notifications.
    ///
    /// # Locks
    ///
    /// The caller holds no lock.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub fn retire(self) {
        drop(self.owned);
        self.notices.send();
    }
}

/// Zaps the listed VMAs, flushes, and frees the page tables inside `free`. `files` is true if any of the VMAs
/// is linked in a file's tree.
///
/// VMAs of files stay linked until their entries are cleared and flushed. A truncation or revocation that has
/// finished has then processed every entry that a processor could use. Walks from the file may run
/// concurrently with this zap: the gather here is of the kind that may overlap other gathers. A walk flushes
/// the entries that it has cleared before it releases the i_mmap lock, and unlinking waits for that lock
/// (hazard C-58).
///
/// If none of the VMAs is linked in a file's tree, all are unlinked first, so that this gather is the only
/// one for the range. A walk for an anonymous page checks in the frame's record whether the page is mapped.
fn settle<P: Platform>(
    space: &AddressSpace<P>,
    list: &VmaList<P>,
    files: bool,
    span: UserRange,
    free: VaRange,
) {
    let mut room = Vec::new();
    let mut gather = if files {
        space.vm.gather(span.va())
    } else {
        RmapEdit::unlink(list.iter());
        space.vm.exclusive_gather(span.va())
    };
    // No processor runs an address space that is unmapped as a whole.
    if span != UserRange::ALL {
        space.vm.set_gather_buffer(&mut gather, &mut room, span);
    }
    zap(space, list, &mut gather);
    if files {
        // Frees frames before it waits for i_mmap, so that a task that moves a page finds no reference of
        // this munmap.
        gather.finish();
        RmapEdit::unlink(list.iter());
    }
    // SAFETY: the pages were just zapped, and nothing else in the tree lies within `free`. No entry can be
    // inserted there, because the caller holds the lock, `free` is the closing range itself, or no task has a
    // reference to the space. No walk of the reverse map reaches the VMAs any more.
    unsafe { space.vm.unlink_tables(span.va(), free, &mut gather) };
    gather.finish();
    // A finished gather has nothing to drop, but its drop would look for pending work. A build without
    // optimisation would copy the gather here, which needs 4 KiB of stack.
    #[cfg(not(debug_assertions))]
    core::mem::forget(gather);
}

/// Zaps the listed VMAs.
fn zap<P: Platform>(space: &AddressSpace<P>, list: &VmaList<P>, gather: &mut VmGather<'_, P>) {
    for vma in list.iter() {
        match vma.flags().contains(VmFlags::HUGETLB) {
            true => space.zap_huge_pages(vma, gather),
            false => space.vm.zap(vma.range(), vma.zap(), gather),
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns true if a VMA must be zapped with the lock held for writing. Only the design `Downgraded` has
    /// this restriction. With the other designs, such a VMA can be zapped without a lock of the address
    /// space. The VMA must stay linked in its file's tree until its entries are cleared. Its driver is
    /// notified afterwards ([`VmOps::close`](crate::file::VmOps::close)).
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn is_special(&self, vma: &Vma<P>) -> bool {
        self.locking.unmap.policy().falls_back && self.needs_caution(vma)
    }

    /// Returns true if a VMA is special: frames that the engine does not own, huge pages of a pool, or a file
    /// with probes in the range.
    fn needs_caution(&self, vma: &Vma<P>) -> bool {
        let pages = || PageRange::new(vma.pgoff(), vma.pgoff_of(vma.end()));
        let probed = || vma.object().file().is_some_and(|file| file.mapping().probes().any::<P>(pages()));
        vma.flags().intersects(VmFlags::PFNMAP | VmFlags::HUGETLB) || probed()
    }

    /// Unlinks and frees the page tables of `range`, in which no entry is left. Earlier translations were
    /// flushed.
    pub(crate) fn drop_tables(&self, guard: &WriteGuard<'_, P>, range: UserRange) {
        let mut gather = self.vm.table_gather();
        let free = guard.free_span(range);
        // SAFETY: the tables are empty, and the write lock keeps the tree unchanged: nothing is mapped in
        // `free`.
        unsafe { self.vm.unlink_tables(range.va(), free, &mut gather) };
        gather.finish();
    }
}
