//! Taking mappings away, in the five steps of every change; each step is a type that the next one consumes.
//!
//! ```text
//! decode    UnmapRange arguments checked, nothing touched
//! prepare   Gathered   under the write lock: edges split, VMAs locked and listed, everything allocated; may fail
//! commit    Detached   out of the tree, detached, accounted; cannot fail
//! settle    Unmapped   zapped, flushed, tables freed; with whatever lock the design still holds, or none
//! retire               files dropped, VMAs back to the slab, userfaultfds told; after the locks
//! ```
//!
//! The designs differ only in what is held during *settle*:
//!
//! | design | held | others wait for |
//! | --- | --- | --- |
//! | `Exclusive` | write lock | all of it |
//! | `Sectioned` | write lock, section by section, all five steps each | a section |
//! | `Downgraded` | read lock | writers: all of it |
//! | `Released` | nothing; the range is a *closing* reservation in the tree | only tasks that need that very range |
//!
//! With `Released` the tables at the two edges are shared with neighbours that map and fault meanwhile. Those
//! tables are left alone until the end, and then unlinked under the write lock if by then nothing else lies
//! in their span: at most two tables a level.
//!
//! Contract of [`WriteGuard::unmap_unlocking`]: on success the lock is gone; on failure the caller still
//! holds it, every VMA is attached and mapped as before (splits excepted).
#![expect(unsafe_code, reason = "unlinks page tables")]

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

/// A range so small, on a space that no other processor runs, that zapping it at once is cheaper than a
/// second hold of the lock; a constant, so the hold stays independent of sizes.
const SMALL_UNMAP_BYTES: u64 = 64 * PAGE_SIZE;

/// A section where the design names none.
const DEFAULT_SECTION_BYTES: u64 = 1 << 30;

impl From<SplitMergeError> for MunmapError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MunmapError::TooManyVmas,
            SplitMergeError::NoMemory => MunmapError::OutOfMemory,
            SplitMergeError::NotSplittable => MunmapError::NotSplittable,
        }
    }
}

/// Step 1: a range that munmap accepts: whole pages, not empty, inside user space.
#[derive(Clone, Debug)]
pub(crate) struct UnmapRange(UserRange);

impl UnmapRange {
    /// Checks the arguments of munmap; the length is rounded up to whole pages.
    pub fn new<P: Platform>(addr: u64, len: u64) -> Result<Self, MunmapError> {
        let range = UserRange::decode(addr, len).ok_or(MunmapError::Invalid)?;
        let fits = !range.is_empty() && range.end() <= AddressSpace::<P>::TASK_SIZE;
        if fits { Ok(UnmapRange(range)) } else { Err(MunmapError::Invalid) }
    }

    /// A range known to be good.
    pub fn trusted<P: Platform>(range: UserRange) -> Self {
        let inside = range.start() < range.end() && range.end() <= AddressSpace::<P>::TASK_SIZE;
        debug_assert!(inside && range.start().is_multiple_of(PAGE_SIZE));
        UnmapRange(range)
    }

    /// The range.
    pub fn range(&self) -> UserRange {
        self.0
    }
}

/// Pages and VMAs in a gathered range.
#[derive(Clone, Copy, Default)]
struct Totals {
    vmas: i64,
    pages: PageCount,
    locked: PageCount,
    /// Pages that are committed.
    committed: PageCount,
    /// How many are zapped with the lock held for writing.
    special: u64,
    /// How many a file knows.
    files: u64,
}

/// Step 2: the VMAs of a range, split off at its edges, write-locked, and still in the tree.
#[must_use = "gathered VMAs are committed or abandoned"]
pub(crate) struct Gathered<'g, 's, P: Platform> {
    guard: &'g WriteGuard<'s, P>,
    range: UserRange,
    list: VmaList<P>,
    totals: Totals,
    /// What userfaultfds are told in the end.
    notices: Notices<P>,
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Step 2. Nothing in the range may be closing.
    pub(crate) fn gather(&self, range: &UnmapRange) -> Result<Gathered<'_, 's, P>, MunmapError> {
        let mut gathered = self.gather_nothing(range.range());
        gathered.fill()?;
        Ok(gathered)
    }

    /// Step 2 for a range that is known to be free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn gather_nothing(&self, range: UserRange) -> Gathered<'_, 's, P> {
        Gathered {
            guard: self,
            range,
            list: VmaList::new(),
            totals: Totals::default(),
            notices: Notices::new(),
        }
    }

    /// Splits off what of `vma` lies outside `range`.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
        // Both ends are asked before either is cut: a call that is refused leaves the VMA whole (hazard
        // C-30).
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

    /// Unmaps a range and lets go of the lock, early where the design allows it.
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

    /// As [`unmap_unlocking`](Self::unmap_unlocking), by sections where the design has them: then others may
    /// come in between.
    ///
    /// # Errors
    ///
    /// The lock is gone. Of a range that goes by sections, some may have gone.
    #[inline(never)]
    pub(crate) fn unmap_by_design(self, range: &UnmapRange) -> Result<(), MunmapError> {
        self.unmap_by_design_inline(range)
    }

    /// The same, inlined: a guard is large to pass on. Here and in the steps only where the build is
    /// optimised: else all that they have on the stack adds up (`tests/stack_depth.rs`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn unmap_by_design_inline(self, range: &UnmapRange) -> Result<(), MunmapError> {
        let space = self.space;
        if let Some(bytes) = space.locking.unmap.policy().sections {
            return space.unmap_sections(self, range, bytes);
        }
        let mut gathered = self.gather_nothing(range.range());
        gathered.fill()?;
        if gathered.totals.special != 0 {
            // Step 1 falls back to step 0 (docs/designs.md). What was gathered is in place still.
            drop(gathered);
            return space.unmap_sections(self, range, DEFAULT_SECTION_BYTES);
        }
        let (detached, settle_mode) = self.detach_gathered(gathered);
        self.settle_unlocking(detached, settle_mode);
        Ok(())
    }

    /// Step 3 of [`unmap_unlocking`](Self::unmap_unlocking), and how step 4 shall go.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn detach_gathered(&self, gathered: Gathered<'_, 's, P>) -> (Detached<'s, P>, SettleMode) {
        let settle_mode = self.settle_mode(&gathered);
        let closing = matches!(settle_mode, SettleMode::Released);
        (gathered.commit(closing), settle_mode)
    }

    /// Its last steps.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
                // The addresses may be somebody else's as soon as the lock is gone.
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

    /// How step 4 goes, by the design.
    ///
    /// A VMA of a file is never let go of before it is out of the file's tree: until then the file's walkers
    /// come to its addresses, which must not be anybody else's, and may still owe the flush of an entry
    /// that they cleared.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn settle_mode(&self, gathered: &Gathered<'_, 's, P>) -> SettleMode {
        let (space, totals, span) = (self.space, &gathered.totals, gathered.span());
        let small = span.end() - span.start() <= SMALL_UNMAP_BYTES;
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

    /// Unmaps a range in one piece without letting go of the lock. What it returns is retired after the lock.
    pub(crate) fn unmap(&self, range: &UnmapRange) -> Result<Unmapped<'s, P>, MunmapError> {
        Ok(self.gather(range)?.unmap())
    }

    /// Unmaps everything; needs no memory, so it cannot fail. Nothing may be closing.
    pub(crate) fn unmap_all(&self) -> Unmapped<'s, P> {
        let mut gathered = self.gather_nothing(UserRange::ALL);
        for vma in self.vmas(UserRange::ALL) {
            gathered.add(vma);
        }
        self.clear_tree();
        // Tables may be left where no VMA is any more: all of user space is swept.
        gathered.detach(UserRange::ALL).settle(UserRange::ALL.va())
    }
}

impl<'g, 's, P: Platform> Gathered<'g, 's, P> {
    /// Gathers what is in the range.
    // Inlined, and in place: it is large for a return value.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn fill(&mut self) -> Result<(), MunmapError> {
        let (guard, range) = (self.guard, self.range);
        let mut at = range.start();
        while let Some(vma) = guard.first_in(at..range.end()) {
            let vma = guard.clip(vma, range)?;
            self.add(vma);
            at = vma.end();
            // Once it is locked, so that nobody fills it any more.
            self.notices.note_unmap(vma, range)?;
        }
        guard.reserve(1)?;
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn add(&mut self, vma: &Vma<P>) {
        let _ = self.guard.lock_vma(vma);
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

    /// Pages that will go, for the limits of what comes in their place.
    pub fn replaced(&self) -> ReplacedPages {
        ReplacedPages { total: self.totals.pages, committed: self.totals.committed }
    }

    /// Whether `object` is a segment that was removed and ends with these VMAs. If so, they have to go.
    pub fn ends_segment(&self, object: &Object<P>) -> bool {
        let segment = |object: &Object<P>| object.file().and_then(|file| file.segment()).cloned();
        let Some(ending) = segment(object) else { return false };
        let of_it =
            |vma: &&Vma<P>| segment(vma.object()).is_some_and(|other| Counted::ptr_eq(&other, &ending));
        ending.ends_with(self.list.iter().filter(of_it).count() as u64)
    }

    /// Steps 3 and 4 without letting go of the lock: the range is free.
    pub fn unmap(self) -> Unmapped<'s, P> {
        let free = self.guard.free_span(self.span());
        self.commit(false).settle(free)
    }

    /// What the VMAs take, from the first to the last.
    fn span(&self) -> UserRange {
        match (self.list.iter().next(), self.list.iter().last()) {
            (Some(first), Some(last)) => UserRange::new(first.start(), last.end()),
            _ => self.range.with_end(self.range.start()),
        }
    }

    /// Step 3: out of the tree, in favour of nothing or of a closing reservation over their span.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn commit(self, closing: bool) -> Detached<'s, P> {
        let (guard, span) = (self.guard, self.span());
        if self.totals.vmas != 0 {
            match closing {
                true => guard.replace(span, &[closing_entry(span)]),
                false => guard.remove(span),
            }
        }
        if closing {
            match guard.range_writer() {
                None => guard.space.closings.begin(guard),
                Some(_) => guard.space.closings.begin_uncounted(),
            }
        }
        self.detach(span)
    }

    /// Zaps the VMAs while they are still in the tree, locked: for a caller that then puts something in their
    /// place.
    pub fn zap_in_place(&self) {
        if self.totals.vmas != 0 {
            let span = self.span();
            let free = self.guard.free_span(span);
            settle(self.guard.space, &self.list, self.totals.files != 0, span, free);
        }
    }

    /// Step 3 after `store` has put something else over the VMAs, which were zapped in place.
    pub fn commit_replaced(self) -> Unmapped<'s, P> {
        let span = self.span();
        self.detach(span).without_pages()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn detach(self, span: UserRange) -> Detached<'s, P> {
        let Gathered { guard, list, totals, notices, .. } = self;
        for vma in list.iter() {
            guard.detach(vma);
            guard.space.counters.count_unmapped(guard, vma.flags(), vma.pages());
        }
        guard.space.counters.count_vmas(guard, -totals.vmas);
        guard.space.counters.count_unlocked(guard, totals.locked);
        if totals.committed != PageCount::ZERO {
            guard.space.engine.committed().uncharge(totals.committed);
        }
        let (owned, exclusive) = (OwnedList { space: guard.space, list }, guard.range_writer().is_none());
        Detached { owned, notices, span, files: totals.files != 0, exclusive }
    }
}

/// How step 4 goes.
enum SettleMode {
    /// Under the write lock; tables inside this span may go.
    Exclusive(VaRange),
    /// Under the downgraded lock; tables inside this span may go.
    Downgraded(VaRange),
    /// Nothing is mapped and no table may go.
    Nothing,
    /// Under no lock: the range is closing.
    Released,
}

/// Step 3 done: VMAs that nobody can find any more, their pages still mapped.
#[must_use = "detached VMAs must be settled, or their pages leak"]
pub(crate) struct Detached<'s, P: Platform> {
    owned: OwnedList<'s, P>,
    notices: Notices<P>,
    span: UserRange,
    /// Whether a file knows any of them.
    files: bool,
    /// Whether they were detached by an exclusive writer.
    exclusive: bool,
}

/// Step 4 done: VMAs without pages.
#[must_use = "retire unmapped VMAs after the locks"]
pub(crate) struct Unmapped<'s, P: Platform> {
    owned: OwnedList<'s, P>,
    notices: Notices<P>,
}

impl<'s, P: Platform> Detached<'s, P> {
    /// Step 4 in one go: `free` is known to stay free until this is done.
    fn settle(self, free: VaRange) -> Unmapped<'s, P> {
        settle(self.owned.space, &self.owned.list, self.files, self.span, free);
        self.without_pages()
    }

    /// Step 4 where nothing is mapped and the VMAs are unlinked, or all was settled in place.
    fn without_pages(self) -> Unmapped<'s, P> {
        Unmapped { owned: self.owned, notices: self.notices }
    }

    /// Step 4 without any lock of the address space, and the end of the closing reservation.
    fn settle_released(self) -> Unmapped<'s, P> {
        let space = self.owned.space;
        settle(space, &self.owned.list, self.files, self.span, self.span.va());
        space.end_closing(self.span, self.exclusive);
        self.without_pages()
    }
}

impl<P: Platform> Unmapped<'_, P> {
    /// Both in one.
    pub fn join(mut self, mut other: Self) -> Self {
        self.owned.list.append(core::mem::replace(&mut other.owned.list, VmaList::new()));
        self.notices.append(other.notices);
        self
    }

    /// Step 5: drops what the VMAs held and gives them back; then waits until userfaultfds have heard of it.
    ///
    /// # Locks
    ///
    /// The caller holds none.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn retire(self) {
        drop(self.owned);
        self.notices.send();
    }
}

/// Zaps the listed VMAs, flushes, and frees the tables that lie inside `free`; `files`: a file knows any of
/// them.
///
/// VMAs of files stay linked until their entries are gone and flushed: a truncation or a revocation that is
/// over has met every entry that a processor could use. The file's walkers and this zap overlap, as gathers
/// may. Whatever a walker has cleared it flushes before it lets go of the i_mmap lock, which unlinking waits
/// for (hazard C-58).
///
/// If none is a file's, all are unlinked first, so that the gather has the range to itself: walks to
/// anonymous pages ask frames.
fn settle<P: Platform>(
    space: &AddressSpace<P>,
    list: &VmaList<P>,
    files: bool,
    span: UserRange,
    free: VaRange,
) {
    let mut room = Vec::new();
    let mut gather = if files {
        space.vm.gather()
    } else {
        RmapEdit::unlink(list.iter());
        space.vm.exclusive_gather()
    };
    // No processor runs what is unmapped as a whole.
    if span != UserRange::ALL {
        space.vm.set_gather_buffer(&mut gather, &mut room, span);
    }
    for vma in list.iter() {
        match vma.flags().contains(VmFlags::HUGETLB) {
            true => space.zap_huge_pages(vma, &mut gather),
            false => space.vm.zap(vma.range(), vma.zap(), &mut gather),
        }
    }
    if files {
        // Frames go before the wait for i_mmap: a task that moves a page meets no reference of ours.
        gather.finish();
        RmapEdit::unlink(list.iter());
    }
    // SAFETY: zapped just now; nothing else is in the tree within `free` and nothing can be put there: the
    // caller holds the lock, or `free` is the closing range itself; nobody comes through the reverse map.
    unsafe { space.vm.unlink_tables(span.va(), free, &mut gather) };
    gather.finish();
}

impl<P: Platform> AddressSpace<P> {
    /// Whether a VMA is zapped with the lock held for writing: step 1's caution, which is kept with its
    /// design. What such a VMA needs is to stay in its file's tree, and its driver to be told of its end
    /// ([`VmOps::close`](crate::file::VmOps::close)) when its entries are gone; no lock of the address
    /// space.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_special(&self, vma: &Vma<P>) -> bool {
        self.locking.unmap.policy().falls_back && self.needs_caution(vma)
    }

    fn needs_caution(&self, vma: &Vma<P>) -> bool {
        let pages = || PageRange::new(vma.pgoff(), vma.pgoff_of(vma.end()));
        let probed = || vma.object().file().is_some_and(|file| file.mapping().probes().any::<P>(pages()));
        vma.flags().intersects(VmFlags::PFNMAP | VmFlags::HUGETLB) || probed()
    }

    /// Returns true if a munmap may be a range writer. The designs that hold more than a range while pages go
    /// are for the exclusive writer.
    pub(crate) fn range_writers_unmap(&self) -> bool {
        let policy = self.locking.unmap.policy();
        policy.sections.is_none() && !matches!(policy.held, MmapHold::Read)
    }

    /// Whether others may come in between the parts of what one call unmaps.
    pub(crate) fn unmaps_by_sections(&self) -> bool {
        self.locking.unmap.policy().sections.is_some()
    }

    /// Unlinks and frees the tables of `range`, where nothing is mapped and nothing was.
    pub(crate) fn drop_tables(&self, guard: &WriteGuard<'_, P>, range: UserRange) {
        let mut gather: VmGather<'_, _, 1> = self.vm.gather();
        let free = guard.free_span(range);
        // SAFETY: the tables are empty; the write lock keeps everything in `free` as empty as the tree says.
        unsafe { self.vm.unlink_tables(range.va(), free, &mut gather) };
        gather.finish();
    }
}
