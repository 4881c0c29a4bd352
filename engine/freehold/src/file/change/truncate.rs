//! Taking pages away from under page tables: truncation and hole punching.
//!
//! ```text
//! publish   the new size is stored; pages to go are marked: a look from now on does not find them
//! zap       under the i_mmap lock, shared: every entry that maps one goes, and is flushed
//! count     does anybody but the cache still have a reference? Then zap once more
//! drop      the cache gives up its references
//! ```
//!
//! A page that a fault wants meanwhile cannot come back: filling waits for the invalidate lock. A fault that
//! had found one looks again once it has the lock of the table, and a reference (`mapping.rs`). If the zap
//! has that lock later, it finds the entry; if earlier, the fault finds the mark.
//!
//! The zap takes the lock of every table that it finds. A fault may use a table that was not there yet when
//! the zap looked, and not find the mark, on a machine that lets a load pass an earlier store. So those are
//! counted that have a reference: a fault that has raised the count before that is found by the second zap,
//! with its table, which was there before; one that raises it later finds the mark. What maps no page of the
//! file, and so raises no count, asks by [`is_inside`](Mapping::is_inside) under the lock of its table
//! whether the file still goes that far; a fence there, and one before the zap, are as good.

use crate::file::{
    cache::{lookup::CachedPage, radix::Stay},
    mapping::{FillError, Mapping, zero},
};
use crate::{PAGE_SHIFT, PAGE_SIZE, platform::Platform, vma::Vma};
use core::ops::Range;
use freehold_pagetable::VirtAddr;
use freehold_sync::{
    RwSemWriteGuard,
    atomic::{Ordering::SeqCst, fence},
};
use freehold_vmspace::{PageIndex, PageRange, Zap};

/// What a cut takes besides pages of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Private copies too: beyond the end of a file nothing may be mapped.
    Go,
    /// Private copies stay: they have nothing to do with the file any more.
    Stay,
}

impl<P: Platform> Mapping<P> {
    /// Gives the file a new size. What lies beyond is gone, from page tables too, private copies included; an
    /// access there is a bus error from now on. What a longer file gains reads as zeroes.
    ///
    /// # Errors
    ///
    /// The page in which the file will end could not be read, or a shared mapping without an MMU has a page
    /// of which the file would lose bytes, or a seal forbids it; nothing happened.
    ///
    /// # Locks
    ///
    /// The file's content and invalidate locks for writing, its i_mmap lock for reading, the tables' locks
    /// one at a time. The caller holds no lock of an address space.
    pub fn truncate(&self, size: u64) -> Result<(), FillError> {
        if size > crate::file::open_file::MAX_BYTES {
            return Err(FillError::BeyondEnd);
        }
        let unit = self.page_bytes();
        if self.huge.is_some() && !size.is_multiple_of(unit) {
            return Err(FillError::Invalid);
        }
        let _content = self.content.write();
        self.may_resize(size)?;
        let old = self.size();
        if self.is_zeroes() || (self.is_secret() && old != 0) {
            return Err(FillError::Invalid);
        }
        if size >= old {
            let charge = self.charge_growth(old, size)?;
            self.zero_behind(old, size)?;
            self.publish_size(size);
            charge.keep();
            return Ok(());
        }
        let gone = PageRange::from(size.div_ceil(unit)..old.div_ceil(unit));
        let cut_within = (!size.is_multiple_of(PAGE_SIZE)).then(|| PageIndex::of_byte(size));
        let (last, pages_go) = loop {
            // The part of the last page that is cut off must be zeroes when the file grows again.
            let Some(index) = cut_within else { break (None, self.invalidate.write()) };
            let last = self.page_to_zero(index)?;
            let pages_go = self.invalidate.write();
            // One may have come meanwhile; or its memory have failed, and another page have come.
            let is_still = match &last {
                Some(last) => self.word_of(&pages_go, index, **last).is_some(),
                None => self.is_absent(Stay::locked(&pages_go), PageRange::one(index)),
            };
            if is_still {
                break (last, pages_go);
            }
        };
        self.regions.may_lose(PageRange::new(PageIndex::new(size / unit), gone.end))?;
        self.prepare_cut()?;
        self.publish_size(size);
        self.uncharge_cut(old, size);
        self.split_blocks(&pages_go, (size / PAGE_SIZE..old.div_ceil(PAGE_SIZE)).into());
        self.cut(&pages_go, gone, Copies::Go);
        if let Some(last) = last {
            let platform = self.files().platform();
            zero(platform, *last, size % PAGE_SIZE..PAGE_SIZE);
            platform.frame(*last).set_dirty();
        }
        Ok(())
    }

    /// Replaces the bytes of `range` by zeroes: whole pages leave the cache and all page tables, private
    /// copies excepted; parts of pages are overwritten. The size stays.
    ///
    /// # Errors
    ///
    /// A page at the edge could not be read, a shared mapping without an MMU has one of the whole pages, a
    /// seal forbids it, or no memory; nothing happened. Only a page at the edge whose memory fails
    /// meanwhile leaves the hole there in part.
    ///
    /// # Locks
    ///
    /// As [`truncate`](Self::truncate).
    pub fn punch(&self, range: Range<u64>) -> Result<(), FillError> {
        if self.is_secret() || self.is_zeroes() {
            return Err(FillError::Unsupported);
        }
        let _content = self.content.write();
        self.may_change()?;
        let unit = self.page_bytes();
        let (start, end) = (range.start, range.end.min(self.size().next_multiple_of(PAGE_SIZE)));
        if start >= end {
            return Ok(());
        }
        let inner = start.next_multiple_of(unit)..end - end % unit;
        if inner.start > inner.end {
            self.split_at_bytes(&(start..end));
            return self.zero_part(start..end);
        }
        let edges = [start..inner.start, inner.end..end];
        let mut edges = edges.into_iter().filter(|edge| !edge.is_empty());
        // Whatever can be refused is asked before a byte changes.
        if self.huge.is_none() {
            edges.clone().try_for_each(|edge| self.page_to_zero(PageIndex::of_byte(edge.start)).map(drop))?;
        }
        let pages_go = self.invalidate.write();
        let gone = PageRange::from(inner.start / unit..inner.end / unit);
        self.regions.may_lose(gone)?;
        self.prepare_cut()?;
        self.split_blocks(&pages_go, (start / PAGE_SIZE..end.div_ceil(PAGE_SIZE)).into());
        self.cut(&pages_go, gone, Copies::Stay);
        drop(pages_go);
        edges.try_for_each(|edge| self.zero_part(edge))
    }

    /// The page of which a part is to become zeroes. `None`: it is absent from shared memory that reads as
    /// zeroes already, and does not come for that.
    fn page_to_zero(&self, index: PageIndex) -> Result<Option<CachedPage<'_, P>>, FillError> {
        let zeroes = self.is_shmem() && self.pager().reads_zeroes();
        let absent = zeroes && self.is_absent(Stay::within::<P>(&P::rcu_read()), PageRange::one(index));
        if absent { Ok(None) } else { self.page(index).map(Some) }
    }

    /// Zeroes bytes within one page.
    fn zero_part(&self, bytes: Range<u64>) -> Result<(), FillError> {
        if self.huge.is_some() {
            self.zero_part_huge(bytes);
            return Ok(());
        }
        let Some(page) = self.page_to_zero(PageIndex::of_byte(bytes.start))? else { return Ok(()) };
        let platform = self.files().platform();
        let offset = bytes.start % PAGE_SIZE;
        zero(platform, *page, offset..offset + (bytes.end - bytes.start));
        platform.frame(*page).set_dirty();
        Ok(())
    }

    /// Before the file grows from `old` to `new` bytes: what stores through mappings left in its last page
    /// behind its end becomes zeroes.
    pub(in crate::file) fn zero_behind(&self, old: u64, new: u64) -> Result<(), FillError> {
        let end = new.min(old.next_multiple_of(PAGE_SIZE));
        if old < end { self.zero_part(old..end) } else { Ok(()) }
    }

    /// Takes whole pages away. Under `content` and `invalidate` held for writing, after the size was
    /// published.
    fn cut(&self, pages_go: &RwSemWriteGuard<'_, P>, pages: PageRange, copies: Copies) {
        if pages.is_empty() {
            return;
        }
        let cached = self.mark_leaving(pages_go, pages);
        // Pairs with the one in `is_inside`.
        fence(SeqCst);
        // A task that links a VMA after this sees the marks and the size: it takes the i_mmap lock after we
        // let go of it.
        if !self.mappers().is_empty() {
            self.unmap(pages, copies);
            if let Some(held) = self.marked_in_use(pages_go, pages) {
                self.unmap(held, copies);
            }
        }
        let gone = if cached { self.drop_leaving(pages_go, pages) } else { 0 };
        // Mappings may have reservations of pages beyond the end of the file, and the index may have room for
        // some.
        let end = if copies == Copies::Go { PageIndex::END } else { pages.end };
        let with_room = PageRange::new(pages.start, end);
        if let Some(huge) = &self.huge {
            huge.cut(self.files().memory(), with_room, gone);
        }
        self.prune(pages_go, with_room);
        self.pager().discard(pages);
    }

    /// A cut to come needs no memory. Under `content` and `invalidate` held for writing.
    fn prepare_cut(&self) -> Result<(), FillError> {
        Ok(self.huge.as_ref().map_or(Ok(()), |huge| huge.prepare_cut::<P>())?)
    }

    /// How entries of `vma` for pages that go are zapped.
    fn zap_of(&self, vma: &Vma<P>, copies: Copies) -> Zap {
        match copies {
            // Of huge pages of a pool Linux forgets it with the end of the file.
            Copies::Go => vma.zap().keep_guards().keep_wp(vma.keeps_wp() && self.huge.is_none()),
            Copies::Stay => vma.zap().file_pages_only().keep_wp(vma.keeps_wp()),
        }
    }

    /// As [`unmap`](Self::unmap) for the page `index`, whose copies stay; but an entry that comes meanwhile
    /// may be missed. The caller counts references, and so knows.
    pub(super) fn unmap_present(&self, index: PageIndex) {
        let page = PageRange::one(index);
        if self.huge.is_some() {
            return self.unmap(page, Copies::Stay);
        }
        self.home().each_mapper(page, |mapper| {
            if !mapper.vm.flush_unless(VirtAddr::new(mapper.range.start()), |_| true) {
                mapper.vm.discard(mapper.range, self.zap_of(mapper.vma, Copies::Stay));
            }
        });
    }

    /// Clears and flushes every entry that maps one of the pages. Guard markers stay.
    pub(crate) fn unmap(&self, pages: PageRange, copies: Copies) {
        let zap = |vma: &Vma<P>| self.zap_of(vma, copies);
        if self.huge.is_some() {
            let shift = self.page_shift() - PAGE_SHIFT;
            // No page behind this one is of 4 KiB pages that have numbers, and none is mapped.
            let last = PageIndex::END.block(shift);
            let first = |index: PageIndex| index.min(last).first_in_block(shift);
            return self.unmap_huge_pages(PageRange::new(first(pages.start), first(pages.end)), zap);
        }
        self.home().each_mapper(pages, |mapper| {
            let zap = zap(mapper.vma);
            // Each is flushed before the i_mmap lock is let go of: a munmap that waits to unlink its VMA then
            // knows that an entry it finds empty is in no TLB either (hazard C-58).
            mapper.vm.discard(mapper.range, zap);
        });
    }
}
