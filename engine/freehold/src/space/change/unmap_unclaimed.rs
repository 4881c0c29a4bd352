//! Removal of whole mappings by a range writer without a claim: prepare and commit are one step, in one
//! latched leaf of the tree.
//!
//! This is the most frequent munmap of a program with several threads. It does the work of `unmap.rs`, whose
//! types it uses, with two differences:
//!
//! - The VMAs are write-locked with the leaf latched, so the lock must not wait: a VMA with readers needs a
//!   claim. The VMAs are detached after they have left the tree. A lookup that has found one of these VMAs
//!   earlier sees that the VMA is write-locked, and looks again.
//! - The step stores the closing reservation if anything is mapped. A small range is then zapped inside the
//!   gate, and one flush covers its pages and its page tables.
//!
//! An end of a VMA is cut off in one step if nothing is mapped there and the VMA is simple (`latched.rs`).
//! The general way is needed for other cuts, for sealed VMAs, and for VMAs that a userfaultfd watches:
//! notices of a userfaultfd need memory. Code that runs with the leaf latched must not allocate, wait or call
//! a driver.
//!
//! | the VMAs | the tree has afterwards | settled |
//! | --- | --- | --- |
//! | leave nothing behind: no page, no table that must be freed, no file and no anon_vma; at most 1 GiB | a hole | not necessary |
//! | are small and have no file | a closing reservation | inside the gate, except the flush if it interrupts other processors |
//! | all others | a closing reservation | outside the gate |
//!
//! With the design `Exclusive`, everything is settled inside the gate.
//!
//! munmap (`call/munmap.rs`) calls the two methods of `WriteGuard` here. `tests/munmap` and `ranges`
//! (`shuttle_engine`) test it with all designs.
#![expect(unsafe_code, reason = "unlinks page tables")]

use super::unmap::{Detached, Gathered, Unmapped, is_small};
use crate::{
    platform::Platform,
    space::{
        design::MmapHold,
        locking::{TreeEntry, WriteGuard, closing_entry},
    },
    vma::{Vma, flags::VmFlags},
};
use core::cell::RefCell;
use freehold_pagetable::VaRange;
use freehold_range::{ClaimError, Entry};
use freehold_vmspace::{PageCount, UserRange};

/// Maximum size of a range whose page tables are read with the leaf latched. The range overlaps at most two
/// tables of the second level, so the time for which the leaf is latched does not depend on the size of a
/// mapping.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// The result of [`WriteGuard::detach_or_claim`] if the VMAs were removed.
pub(crate) struct DetachedUnclaimed<'s, P: Platform> {
    detached: Detached<'s, P>,
    /// The hole that the VMAs will leave, if a closing reservation has replaced them.
    closing: Option<VaRange>,
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Performs prepare and commit as a range writer without claims, if `range` contains only whole VMAs that
    /// no other task uses. Otherwise claims the range like [`claim_range`](Self::claim_range) and returns
    /// `None`.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed then, and no VMA is removed.
    #[inline]
    pub(crate) fn detach_or_claim(
        &self,
        range: UserRange,
    ) -> Result<Option<DetachedUnclaimed<'s, P>>, ClaimError> {
        let gathered = RefCell::new(self.gather_nothing(range));
        let (mut closing, mut cut) = (None, None);
        let removed = self.claims().remove_or_claim(
            range.start(),
            range.end(),
            |entry| match self.slot(entry) {
                TreeEntry::Vma(vma) => gathered.borrow_mut().try_add(vma),
                TreeEntry::Closing(_) | TreeEntry::Boundary(_) => false,
            },
            |before, behind| {
                let (gathered, hole) = (gathered.borrow(), VaRange::of(before, behind));
                closing = (!gathered.leave_nothing(hole)).then_some(hole);
                closing.map(|_| {
                    self.space.closings.begin_uncounted();
                    closing_entry(gathered.span()).value
                })
            },
            |rest, before, behind| {
                let vma = self.slot(rest).vma();
                cut = vma.and_then(|vma| self.cut_latched(vma, rest, VaRange::of(before, behind)));
                cut.is_some()
            },
        );
        if removed != Ok(true) {
            debug_assert!(self.locked.is_empty(), "a VMA without a claim is still write-locked");
            removed?;
            self.reserve_cuts()?;
            return Ok(None);
        }
        let mut gathered = gathered.into_inner();
        if let Some((flags, pages)) = cut {
            self.space.counters.count_cut(flags, pages);
            if flags.contains(VmFlags::ACCOUNT) {
                gathered.totals.committed = pages;
            }
        }
        let span = gathered.span();
        Ok(Some(DetachedUnclaimed { detached: gathered.detach(span), closing }))
    }

    /// Returns true if nothing is mapped in `span`, and no page table must be freed when `span` becomes a
    /// part of `hole`.
    #[inline]
    fn has_nothing_mapped(&self, span: UserRange, hole: VaRange) -> bool {
        let checked = span.end() - span.start() <= MAX_CHECKED_BYTES;
        checked && self.space.vm.is_settled(span, is_small(span), || hole)
    }

    /// Cuts an end off a VMA with its leaf latched, if that is simple and leaves nothing to settle in `hole`,
    /// the hole at the rest. Returns the flags of the VMA and the number of pages of the end.
    #[inline]
    fn cut_latched(&self, vma: &Vma<P>, rest: &Entry, hole: VaRange) -> Option<(VmFlags, PageCount)> {
        let (flags, whole, rest) = (vma.flags(), vma.range(), UserRange::new(rest.start, rest.end));
        let gone = match rest.start() > whole.start() {
            true => whole.with_end(rest.start()),
            false => whole.with_start(rest.end()),
        };
        let bounds = (rest, vma.pgoff_of(rest.start()));
        let unmapped = || self.has_nothing_mapped(gone, hole);
        self.resize_latched(vma, bounds, VmFlags::empty(), unmapped).then(|| (flags, gone.pages()))
    }

    /// Performs settle and retire after [`detach_or_claim`](Self::detach_or_claim), and releases the lock.
    pub(crate) fn settle_unclaimed(self, removed: DetachedUnclaimed<'s, P>) {
        let DetachedUnclaimed { detached, closing } = removed;
        let space = self.space;
        let exclusive = !matches!(space.locking.unmap.policy().held, MmapHold::Nothing);
        let unmapped = match closing {
            None => {
                drop(self);
                detached.without_pages()
            }
            Some(hole) if is_small(detached.span) && !detached.files && !exclusive => {
                self.settle_small(detached, hole)
            }
            Some(_) if exclusive => {
                let span = detached.span;
                let unmapped = detached.settle(span.va());
                space.remove_closing(self.claims(), span);
                drop(self);
                unmapped
            }
            Some(_) => {
                drop(self);
                detached.settle_released()
            }
        };
        unmapped.retire();
    }

    /// Performs settle for a small range without files. `hole` is the hole that the range will leave. Zaps
    /// and unlinks all page tables inside the gate, so that one flush suffices, and flushes outside the gate
    /// if the flush interrupts other processors, because an exclusive writer must not wait for such a flush.
    fn settle_small(self, detached: Detached<'s, P>, hole: VaRange) -> Unmapped<'s, P> {
        let (space, span) = (self.space, detached.span);
        let mut gather = space.vm.exclusive_gather(span.va());
        detached.zap_unlinked(&mut gather);
        if space.has_empty_edge_tables(span, hole) {
            self.claims().with_hole_around(span.start(), span.end(), |before, behind| {
                // SAFETY: the pages in `span` are zapped and its VMAs unlinked. Nothing is mapped in the
                // hole, and no entry can be inserted there while this function runs. The gather has room for
                // the few tables of a small range, so it does not flush here.
                unsafe { space.vm.unlink_tables(span.va(), VaRange::of(before, behind), &mut gather) };
            });
        }
        if space.platform().runs_elsewhere(space.vm.mmu()) {
            drop(self);
            gather.finish();
            space.end_closing_as_range_writer(span, false);
        } else {
            gather.finish();
            space.remove_closing(self.claims(), span);
        }
        detached.without_pages()
    }
}

impl<P: Platform> Gathered<'_, '_, P> {
    /// Write-locks a VMA and adds it, if it can be removed without a claim. Otherwise unlocks all VMAs: they
    /// belong to no writer, so the next owner of the latch may claim them. Never waits.
    #[inline]
    fn try_add(&mut self, vma: &Vma<P>) -> bool {
        let (locked, right) = (&self.guard.locked, &self.guard.right);
        let removable = !vma.flags().contains(VmFlags::SEALED) && vma.uffd().is_none();
        if !removable || !locked.try_lock_unread(vma, right) {
            locked.unlock_all();
            return false;
        }
        self.add_locked(vma);
        true
    }

    /// Returns true if the VMAs leave nothing behind that must be settled. `hole` is the hole that their
    /// removal makes, and no other task changes it.
    #[inline]
    fn leave_nothing(&self, hole: VaRange) -> bool {
        // Another task may map at these addresses at once, so no tree of the reverse map may have the VMAs.
        let unlinked = self.totals.files == 0 && self.list.iter().all(|vma| !vma.anon().is_some());
        unlinked && self.guard.has_nothing_mapped(self.span(), hole)
    }
}
