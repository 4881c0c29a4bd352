//! Collapsing small pages into a huge page. `fault/collapse.rs` of `freehold` calls the three steps in this
//! order: [`close_small`](VmSpace::close_small), [`copy_small`](VmSpace::copy_small) and
//! [`clear_small`](VmSpace::clear_small). It then finishes the gather of the last step, and maps the huge
//! page.
//!
//! The entries are closed and flushed before the copy, so that no program stores to a small page that was
//! already copied. The entries are removed after the copy, because the copy reads the frame numbers from
//! them. The caller excludes faults, changes of VMAs, and walks of the reverse map. Only a task that pins a
//! page without a lock may read the table during the steps. Such a task finds open entries, closed entries,
//! or no entries. `tests/huge/collapse.rs` of `freehold` tests the result, and `tests/huge/storm.rs` tests it
//! with concurrent tasks.
#![expect(unsafe_code, reason = "frees a table")]

use crate::{HugePage, PAGE_SIZE, Pfn, UserRange, VmGather, VmSpace, Zap, platform::Platform};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_pagetable::{Kind, Level, PteFlags, PteGuard, PteTable, VaRange};

/// Number of pages whose frames are looked up in one hold of the table's lock.
const BATCH: u64 = 64;

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Calls `look` with the locked table. If `look` returns `Ok`, closes all entries, so that no processor
    /// reads or writes through them, and flushes before it releases the lock.
    pub fn close_small<E>(
        &self,
        table: PteTable<'_, P::Format, P>,
        look: impl FnOnce(&mut PteGuard<'_, P::Format, P>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut gather = self.exclusive_gather::<1>(table.span());
        let mut table = table.lock();
        look(&mut table)?;
        table.change_each(table.span(), &mut gather, |_, pte| {
            let flags = pte.flags();
            pte.with_flags(Level::Pte, (flags - PteFlags::WRITE) | PteFlags::NO_ACCESS)
        });
        gather.flush();
        drop(table);
        gather.finish();
        Ok(())
    }

    /// Copies pages behind closed entries. Looks up a batch of frames with the table locked, and copies these
    /// frames without the lock. Skips frames of zeroes, because the huge page is already zeroed.
    pub fn copy_small(&self, table: PteTable<'_, P::Format, P>, new: &HugePage<'_, P>) {
        let span = table.span();
        for start in (span.start().get()..span.end().get()).step_by((BATCH * PAGE_SIZE) as usize) {
            let mut pages = ArrayVec::<(Pfn, Pfn), { BATCH as usize }>::new();
            let _ = table.lock().for_each(VaRange::of(start, start + BATCH * PAGE_SIZE), |address, pte| {
                if let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte)
                    && !flags.contains(PteFlags::SPECIAL)
                {
                    pages.push((new.first().add(address.index(Level::Pte) as u64), pfn));
                }
                ControlFlow::<()>::Continue(())
            });
            pages.iter().for_each(|&(to, from)| self.platform().copy_frame(to, from));
        }
    }

    /// Removes the small pages of `range`, and the one table that covers `range`. The caller finishes the
    /// returned gather before it maps the huge page: on a format with break-before-make, the table must be
    /// flushed from the walk caches before.
    ///
    /// # Safety
    ///
    /// Until the gather is finished, no task faults in the range, reads its entries, or reaches the range
    /// through the reverse map.
    pub unsafe fn clear_small(&self, range: UserRange, zap: Zap) -> VmGather<'_, P> {
        let span = range.va();
        let mut gather = self.exclusive_gather(span);
        self.zap(range, zap, &mut gather);
        // SAFETY: the range was zapped just now; the caller promises the other conditions. `gather` frees
        // tables to this space's platform.
        unsafe { self.unlink_tables(span, span, &mut gather) };
        gather
    }
}
