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

use crate::{
    PAGE_SIZE,
    file::{
        Copies, MAX_BYTES,
        cache::radix::Stay,
        mapping::{FillError, Mapping, zero},
    },
    platform::Platform,
};
use core::ops::Range;
use freehold_sync::RwSemWriteGuard;
use freehold_vmspace::{PageCount, PageIndex, PageRange};

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
        if size > MAX_BYTES {
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
        self.cut(&pages_go, gone, Copies::Go, |pages| self.unmap(pages, Copies::Go));
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
        self.cut(&pages_go, gone, Copies::Stay, |pages| self.unmap(pages, Copies::Stay));
        drop(pages_go);
        edges.try_for_each(|edge| self.zero_part(edge))
    }

    /// Pages of `cut` go, in whole or in part: of the blocks of which others stay smaller ones are left, and
    /// nobody maps these any more, as on Linux. Copies stay.
    pub(crate) fn split_blocks(&self, pages_go: &RwSemWriteGuard<'_, P>, cut: PageRange) {
        if !self.is_shmem() || cut.is_empty() {
            return;
        }
        for edge in [cut.start, cut.end - 1] {
            if let Some(block) = self.split_block(pages_go, edge, cut) {
                self.unmap(block, Copies::Stay);
            }
        }
    }

    /// Bytes of one page are about to become zeroes: a block that it is part of is split.
    pub(in crate::file) fn split_at_bytes(&self, bytes: &Range<u64>) {
        let index = PageIndex::of_byte(bytes.start);
        let alone = |block: PageRange| block.len() == PageCount::ONE;
        if !self.block_of(&P::rcu_read(), index).is_none_or(alone) {
            self.split_blocks(&self.invalidate.write(), PageRange::one(index));
        }
    }
}
