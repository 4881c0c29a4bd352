//! Splitting, merging and adding VMAs: every change of the set of VMAs except removal.
//!
//! ```text
//! split       |------ v ------|            ->  |-- v --|- new -|
//! modify      |- p -|--- v ---|- n -|      ->  one of these, depending on what may merge:
//!                   |---------|                |----- p -----|- n -|     the whole of v, left
//!                   |----|                     |--- p ---|-- v --|- n -| a beginning of v, left
//!                        |----|                |- p -|-- v --|--- n ---| an end of v, right
//!                   |---------|                |---------- p ----------| the whole of v, both
//!                     |----|                   |- p -|v|-new-|v'|- n -|  nothing merges: v is cut
//! ```
//!
//! Each change replaces entries of the tree in one step, after all operations that can fail. A failed change
//! leaves everything unchanged. Bounds change only under the VMA's write lock: a reader that still finds an
//! old entry cannot lock the VMA, and looks again.
//!
//! mmap, mprotect, mremap, madvise, mlock, mseal and the registration of a userfaultfd call these functions
//! under a `WriteGuard`. `vma/merge.rs` decides which VMAs may merge. The result must be the set of VMAs that
//! Linux would have: `lab/freehold-model/tests/merges.rs` compares all small layouts, and the random calls of
//! the model compare larger ones. `ranges::merges_concurrent_with_first_faults` (`shuttle_engine`) tests
//! anon_vmas that appear during a merge.

use crate::space::locking::{VmaWrite, WriteGuard, entry, entry_at};
use crate::{
    counted::Counted,
    error::NoMemory,
    file::Object,
    platform::Platform,
    rmap::edit::RmapEdit,
    uffd::state::Context,
    vma::{
        Vma,
        flags::VmFlags,
        merge::{Attrs, anon_compatible, can_append, can_prepend},
        owned::{OwnedVma, VmaInit},
    },
};
use arrayvec::ArrayVec;
use freehold_pagetable::Level;
use freehold_range::Entry;
use freehold_vmspace::{PageIndex, UserRange};

/// Bytes of a huge page of anonymous memory.
const HUGE: u64 = Level::Pmd.span();

/// The reason why the set of VMAs could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitMergeError {
    /// The limit on the number of VMAs is reached.
    TooManyVmas,
    /// There is no memory for records.
    NoMemory,
    /// The mapped object does not allow a split at this address.
    NotSplittable,
}

impl From<NoMemory> for SplitMergeError {
    fn from(_: NoMemory) -> Self {
        SplitMergeError::NoMemory
    }
}

/// New attributes for a part of a VMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VmaChange {
    /// The new flags, all of them.
    pub flags: VmFlags,
    /// The new NUMA policy tag.
    pub policy: u64,
}

/// A new mapping that is ready to be stored: its neighbours are chosen and its memory is allocated.
#[must_use = "a prepared mapping must be inserted or dropped on purpose"]
pub(crate) enum NewMapping<'g, P: Platform> {
    /// Extends the VMA in front of it.
    Append(&'g Vma<P>),
    /// Extends the VMA behind it.
    Prepend(&'g Vma<P>),
    /// Fills the hole between two VMAs, and merges them.
    Bridge(&'g Vma<P>, &'g Vma<P>),
    /// Becomes a new VMA.
    Fresh(OwnedVma<'g, P>),
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the neighbours with which a range with `attrs` may merge.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn mergeable<'g>(
        &self,
        sides: (Option<&'g Vma<P>>, Option<&'g Vma<P>>),
        range: UserRange,
        attrs: &Attrs<'_, P>,
    ) -> (Option<&'g Vma<P>>, Option<&'g Vma<P>>) {
        match sides {
            (None, None) => sides,
            _ => self.mergeable_of(sides, range, attrs),
        }
    }

    /// Performs [`mergeable`](Self::mergeable) if there are neighbours.
    fn mergeable_of<'g>(
        &self,
        (prev, next): (Option<&'g Vma<P>>, Option<&'g Vma<P>>),
        range: UserRange,
        attrs: &Attrs<'_, P>,
    ) -> (Option<&'g Vma<P>>, Option<&'g Vma<P>>) {
        let appends = |prev: &&Vma<P>| can_append(prev, attrs);
        let prepends = |next: &&Vma<P>| can_prepend(attrs, range.end() - range.start(), next);
        // A neighbour that may merge keeps its anon_vma from here on. If a fault has attached the neighbour's
        // first anon_vma since the comparison, the attributes are compared again.
        let prev = prev.filter(|prev| appends(prev) && (self.pin_anon_vma(prev) || appends(prev)));
        let next = next.filter(|next| prepends(next) && (self.pin_anon_vma(next) || prepends(next)));
        match (prev, next) {
            // Each neighbour may merge with the range between them. Here the neighbours cannot merge with
            // each other: their anon_vmas differ, or the object counts its VMAs, so that no VMA may be merged
            // away.
            (Some(left), Some(right))
                if !anon_compatible(left.anon(), right.anon()) || attrs.object.counts_vmas() =>
            {
                (Some(left), None)
            }
            both => both,
        }
    }

    /// Returns true if a mapping of `range` would merge with `vma` now.
    pub(crate) fn would_join(&self, range: UserRange, attrs: &Attrs<'_, P>, vma: &Vma<P>) -> bool {
        let (prev, next) = self.mergeable(self.neighbours(range), range, attrs);
        [prev, next].into_iter().flatten().any(|side| core::ptr::eq(side, vma))
    }

    /// Chooses the neighbours with which a mapping of `range` merges, and allocates the memory for it.
    /// Present mappings in `range` are about to be removed.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn prepare_new<'g>(
        &'g self,
        range: UserRange,
        attrs: &Attrs<'_, P>,
    ) -> Result<NewMapping<'g, P>, NoMemory> {
        self.reserve(1)?;
        Ok(match self.mergeable(self.neighbours(range), range, attrs) {
            (Some(prev), Some(next)) => NewMapping::Bridge(prev, next),
            (Some(prev), None) => NewMapping::Append(prev),
            (None, Some(next)) => NewMapping::Prepend(next),
            (None, None) => NewMapping::Fresh(self.alloc(range, attrs)?),
        })
    }

    /// Allocates a detached VMA of this space.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn alloc<'g>(
        &'g self,
        range: UserRange,
        attrs: &Attrs<'_, P>,
    ) -> Result<OwnedVma<'g, P>, NoMemory> {
        self.alloc_piece(range, attrs.pgoff, attrs)
    }

    /// Allocates a detached VMA for a piece of a mapping with `attrs`. The piece starts at page offset
    /// `pgoff`.
    #[cfg_attr(feature = "inline", inline(always))]
    fn alloc_piece<'g>(
        &'g self,
        range: UserRange,
        pgoff: PageIndex,
        attrs: &Attrs<'_, P>,
    ) -> Result<OwnedVma<'g, P>, NoMemory> {
        let hugetlb = self.space.engine.hugetlb_part(attrs)?;
        let vma = self.space.engine.slab.alloc(VmaInit {
            range,
            pgoff,
            flags: attrs.flags,
            anon: attrs.anon,
            policy: attrs.policy,
            object: attrs.object,
            hugetlb,
            uffd: attrs.uffd,
            // The address is exposed, because the reverse map converts it to a reference to the space.
            owner: core::ptr::from_ref(&self.space.vm).expose_provenance(),
        })?;
        if self.space.mmap_lock.uses_rwsems() { vma.with_lock_beside() } else { Ok(vma) }
    }

    /// Stores a prepared mapping of `range` in the tree and replaces everything there. Cannot fail. Returns
    /// the VMA that now contains the range.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn insert<'g>(
        &'g self,
        range: UserRange,
        new: NewMapping<'g, P>,
        attrs: &Attrs<'_, P>,
    ) -> &'g Vma<P> {
        match new {
            NewMapping::Fresh(vma) => self.insert_fresh(vma),
            NewMapping::Append(prev) => {
                let whole = UserRange::new(prev.start(), range.end());
                self.absorb(prev, whole, prev.pgoff(), attrs, &[]).vma()
            }
            NewMapping::Prepend(next) => {
                let whole = UserRange::new(range.start(), next.end());
                self.absorb(next, whole, attrs.pgoff, attrs, &[]).vma()
            }
            NewMapping::Bridge(prev, next) => {
                let whole = UserRange::new(prev.start(), next.end());
                self.absorb(prev, whole, prev.pgoff(), attrs, &[self.lock_vma(next)]).vma()
            }
        }
    }

    /// Stores an allocated VMA in the tree. Uses up one call of `replace` that [`reserve`](Self::reserve)
    /// prepared.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(crate) fn insert_fresh<'g>(&'g self, vma: OwnedVma<'g, P>) -> &'g Vma<P> {
        let vma = vma.into_ref();
        // The VMA is attached and write-locked before any lookup can find it: a lookup sees a complete VMA or
        // none.
        self.attach(vma);
        RmapEdit::link(vma);
        self.replace(vma.range(), &[entry(vma)]);
        self.space.counters.count_vmas(self, 1);
        vma
    }

    /// Extends `survivor` to `range`, and merges all VMAs in `gone` into it. Uses up one call of `replace`
    /// that [`reserve`](Self::reserve) prepared.
    fn absorb<'g>(
        &'g self,
        survivor: &'g Vma<P>,
        range: UserRange,
        pgoff: PageIndex,
        attrs: &Attrs<'_, P>,
        gone: &[VmaWrite<'g, P>],
    ) -> VmaWrite<'g, P> {
        let right = self.lock_vma(survivor);
        let gone = || gone.iter().map(VmaWrite::vma);
        let mut flags = survivor.flags() | (attrs.flags & VmFlags::STICKY);
        let mut anon_vma = survivor.anon_vma().or(attrs.anon);
        for vma in gone() {
            flags |= vma.flags() & VmFlags::STICKY;
            anon_vma = anon_vma.or(vma.anon_vma());
        }
        right.set_flags(flags);
        // One edit contains all changes, here and below: a walk over the rmap tree must not miss a page that
        // passes from one VMA to another.
        let mut edit = RmapEdit::new(survivor.object(), anon_vma.tree);
        if !survivor.anon().is_some() {
            right.join_within(&mut edit, anon_vma);
        }
        gone().for_each(|vma| edit.remove(vma));
        right.set_bounds_within(&mut edit, range, pgoff);
        drop(edit);
        self.replace(range, &[entry(survivor)]);
        gone().for_each(|vma| self.discard(vma));
        self.space.counters.count_vmas(self, -(gone().len() as i64));
        right
    }

    /// Frees a VMA that was merged into another one and is not in the tree or the write set any more. A range
    /// writer frees it after the write set is published, because the detachment may wait.
    fn discard(&self, vma: &Vma<P>) {
        debug_assert!(!matches!(vma.object(), Object::Special(_)), "a VMA with hooks was merged away");
        self.locked.take_out(vma);
        match self.range_writer() {
            None => self.space.detach_and_free(vma, &self.right),
            Some(writer) => writer.discard(vma),
        }
    }

    /// Splits the huge pages of the write-locked `vma` that extend across an end of `part`, because a huge
    /// page must not belong to two VMAs. No huge page extends across the bounds of `vma` itself.
    #[cfg_attr(feature = "inline", inline(always))]
    fn split_huge_at(&self, vma: &Vma<P>, part: UserRange) -> Result<(), NoMemory> {
        match vma.end() - vma.start() < HUGE {
            true => Ok(()),
            false => self.split_huge_in_large(vma, part),
        }
    }

    /// Performs [`split_huge_at`](Self::split_huge_at) in a VMA that may have a huge page.
    #[inline(never)]
    fn split_huge_in_large(&self, vma: &Vma<P>, part: UserRange) -> Result<(), NoMemory> {
        for at in [part.start(), part.end()] {
            let first = at & !(HUGE - 1);
            let may_be = first < at && vma.start() <= first && first + HUGE <= vma.end();
            if may_be && vma.is_anonymous() && vma.anon().is_some() {
                self.space.vm.split_huge(at).map_err(|_| NoMemory)?;
            }
        }
        Ok(())
    }

    /// Splits `vma` at `at`, an address inside it. Returns the upper part. Does not check the limit on the
    /// number of VMAs.
    pub(crate) fn split<'g>(&'g self, vma: &'g Vma<P>, at: u64) -> Result<&'g Vma<P>, SplitMergeError> {
        Ok(self.cut(vma, vma.range().with_start(at))?.vma())
    }

    /// Turns `part` into a VMA of its own, and returns that VMA. `part` reaches at most one end of `vma`.
    fn cut<'g>(&'g self, vma: &'g Vma<P>, part: UserRange) -> Result<VmaWrite<'g, P>, SplitMergeError> {
        // Blocks readers before the flags are copied, because readers may add MAYBE_GUARD.
        let right = self.lock_vma(vma);
        let whole = vma.range();
        let attrs = vma.attrs();
        if !vma.may_split(part.start()) || !vma.may_split(part.end()) {
            return Err(SplitMergeError::NotSplittable);
        }
        self.split_huge_at(vma, part)?;
        // `vma` becomes the first piece. The pieces behind it are new VMAs.
        let (before, behind) = (whole.with_end(part.start()), whole.with_start(part.end()));
        let first = if before.is_empty() { part } else { before };
        self.reserve(1)?;
        let piece = |range: UserRange| self.alloc_piece(range, vma.pgoff_of(range.start()), &attrs);
        let middle = if before.is_empty() { None } else { Some(piece(part)?) };
        let last = if behind.is_empty() { None } else { Some(piece(behind)?) };
        // From here on nothing can fail.
        let attach = |piece: OwnedVma<'g, P>| self.attach(piece.into_ref());
        let (middle, last) = (middle.map(attach), last.map(attach));
        let fresh = || [&middle, &last].into_iter().flatten().map(VmaWrite::vma);
        let mut edit = RmapEdit::of(vma);
        for at in [part.start(), part.end()] {
            self.space.unshare_at(vma, at, edit.file());
        }
        right.set_bounds_within(&mut edit, first, attrs.pgoff);
        fresh().for_each(|piece| edit.insert(piece));
        drop(edit);
        let mut entries = ArrayVec::<_, 3>::new();
        entries.push(entry_at(vma, first));
        fresh().for_each(|piece| entries.push(entry(piece)));
        self.space.counters.count_vmas(self, entries.len() as i64 - 1);
        self.replace(whole, &entries);
        Ok(middle.unwrap_or(right))
    }

    /// Sets new attributes for `range`, a part of `vma`, and merges with neighbours or splits the VMA as
    /// needed. Returns the write-locked VMA that contains the range afterwards.
    pub(crate) fn modify<'g>(
        &'g self,
        vma: &'g Vma<P>,
        range: UserRange,
        change: VmaChange,
    ) -> Result<&'g Vma<P>, SplitMergeError> {
        self.modify_attrs(vma, range, change, vma.uffd())
    }

    /// Sets new flags and a new userfaultfd for `range`, like [`modify`](Self::modify).
    pub(crate) fn modify_uffd<'g>(
        &'g self,
        vma: &'g Vma<P>,
        range: UserRange,
        flags: VmFlags,
        uffd: Option<&Counted<Context<P>>>,
    ) -> Result<&'g Vma<P>, SplitMergeError> {
        let result = self.modify_attrs(vma, range, VmaChange { flags, policy: vma.policy() }, uffd)?;
        self.lock_vma(result).set_uffd(uffd.cloned());
        Ok(result)
    }

    /// Performs [`modify`](Self::modify) and [`modify_uffd`](Self::modify_uffd): gives `range` the new flags
    /// and policy. `uffd` is the userfaultfd of the range after the change, which a merge compares.
    fn modify_attrs<'g>(
        &'g self,
        vma: &'g Vma<P>,
        range: UserRange,
        VmaChange { flags, policy }: VmaChange,
        uffd: Option<&Counted<Context<P>>>,
    ) -> Result<&'g Vma<P>, SplitMergeError> {
        let _ = self.pin_anon_vma(vma);
        let merged = match self.neighbours_of_part(vma, range) {
            (None, None) => None,
            sides => {
                let attrs = Attrs { flags, policy, pgoff: vma.pgoff_of(range.start()), uffd, ..vma.attrs() };
                match self.mergeable_of(sides, range, &attrs) {
                    (None, None) => None,
                    sides => self.modify_merging(vma, range, &attrs, sides)?,
                }
            }
        };
        let right = match merged {
            Some(survivor) => survivor,
            None => self.carve(vma, range)?,
        };
        let result = right.vma();
        right.set_flags(flags | (result.flags() & VmFlags::STICKY));
        right.set_policy(policy);
        Ok(result)
    }

    /// Returns the VMAs before and after `range` with which the range may merge. `range` is a part of `vma`.
    /// A neighbour exists only at an end of `range` that is also an end of `vma`.
    #[cfg_attr(feature = "inline", inline(always))]
    fn neighbours_of_part<'g>(
        &'g self,
        vma: &Vma<P>,
        range: UserRange,
    ) -> (Option<&'g Vma<P>>, Option<&'g Vma<P>>) {
        let touching = |found: Entry| self.slot(&found).vma();
        match (range.start() == vma.start(), range.end() == vma.end()) {
            (false, false) => (None, None),
            (true, false) => (
                self.right.prev(range.start()).filter(|prev| prev.end == range.start()).and_then(touching),
                None,
            ),
            (false, true) => (
                None,
                self.right.next(range.end()).filter(|next| next.start == range.end()).and_then(touching),
            ),
            // The merge would remove the whole VMA. An object that counts its VMAs does not allow this
            // removal.
            (true, true) if vma.object().counts_vmas() => (None, None),
            (true, true) => self.neighbours(range),
        }
    }

    /// Splits `range` off `vma`, within the limit on the number of VMAs.
    fn carve<'g>(&'g self, vma: &'g Vma<P>, range: UserRange) -> Result<VmaWrite<'g, P>, SplitMergeError> {
        let cuts = u64::from(range.start() > vma.start()) + u64::from(range.end() < vma.end());
        if cuts == 0 {
            return Ok(self.lock_vma(vma));
        }
        if !self.may_have_vmas(cuts) {
            return Err(SplitMergeError::TooManyVmas);
        }
        self.cut(vma, range)
    }

    /// Performs [`modify`](Self::modify) by merging the range with one neighbour or with both neighbours.
    fn modify_merging<'g>(
        &'g self,
        vma: &'g Vma<P>,
        range: UserRange,
        attrs: &Attrs<'_, P>,
        sides: (Option<&'g Vma<P>>, Option<&'g Vma<P>>),
    ) -> Result<Option<VmaWrite<'g, P>>, SplitMergeError> {
        let whole = vma.range();
        self.reserve(1)?;
        let right = self.lock_vma(vma);
        self.split_huge_at(vma, range)?;
        Ok(Some(match sides {
            (None, None) => return Ok(None),
            (Some(prev), Some(next)) => {
                let union = UserRange::new(prev.start(), next.end());
                self.absorb(prev, union, prev.pgoff(), attrs, &[right, self.lock_vma(next)])
            }
            (Some(prev), None) if range.end() == whole.end() => {
                self.absorb(prev, UserRange::new(prev.start(), range.end()), prev.pgoff(), attrs, &[right])
            }
            (None, Some(next)) if range.start() == whole.start() => {
                self.absorb(next, UserRange::new(range.start(), next.end()), attrs.pgoff, attrs, &[right])
            }
            (Some(prev), None) => {
                let rest = whole.with_start(range.end());
                let pgoff = vma.pgoff_of(rest.start());
                self.shift(prev, range.with_start(prev.start()), prev.pgoff(), right, rest, pgoff)
            }
            (None, Some(next)) => {
                let rest = whole.with_end(range.start());
                self.shift(next, range.with_end(next.end()), attrs.pgoff, right, rest, vma.pgoff())
            }
        }))
    }

    /// Moves the border between two neighbours: `winner` grows by the addresses that `other` loses. Uses up
    /// one call of `replace` that [`reserve`](Self::reserve) prepared.
    fn shift<'g>(
        &'g self,
        winner: &'g Vma<P>,
        winner_range: UserRange,
        winner_pgoff: PageIndex,
        other: VmaWrite<'g, P>,
        loser_range: UserRange,
        loser_pgoff: PageIndex,
    ) -> VmaWrite<'g, P> {
        let (right, loser) = (self.lock_vma(winner), other.vma());
        right.set_flags(winner.flags() | (loser.flags() & VmFlags::STICKY));
        let anon_vma = winner.anon_vma().or(loser.anon_vma());
        let mut edit = RmapEdit::new(winner.object(), anon_vma.tree);
        if !winner.anon().is_some() {
            right.join_within(&mut edit, anon_vma);
        }
        other.set_bounds_within(&mut edit, loser_range, loser_pgoff);
        right.set_bounds_within(&mut edit, winner_range, winner_pgoff);
        drop(edit);
        let mut entries = [entry(winner), entry(loser)];
        entries.sort_unstable_by_key(|entry| entry.start);
        let first = winner_range.start().min(loser_range.start());
        let union = UserRange::new(first, winner_range.end().max(loser_range.end()));
        self.replace(union, &entries);
        right
    }

    /// Extends `vma` over free addresses, with all other attributes unchanged. Uses up one call of `replace`
    /// that [`reserve`](Self::reserve) prepared.
    pub(crate) fn extend(&self, vma: &Vma<P>, range: UserRange, pgoff: PageIndex) {
        self.lock_vma(vma).set_bounds(range, pgoff);
        self.replace(range, &[entry(vma)]);
    }
}
