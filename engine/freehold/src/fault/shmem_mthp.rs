//! Faults on shared memory with blocks of several pages (multi-size THP): the sizes of blocks that are
//! allowed, and the pages that a fault maps together.
//!
//! ```text
//! not cached   the largest block that lies in the VMA and has no cached page enters the cache,
//!              otherwise the single page
//! cached       read  -> maps each block around the page that lies in the VMA and the table, at free entries
//!              write -> maps the whole block if it lies in the VMA and the table and all entries are free,
//!                       otherwise the single page
//! ```
//!
//! Linux 6.18 does the same. `file.rs` calls this file in an RCU read section, while a lock keeps the VMA
//! unchanged. `file/cache/mthp.rs` adds blocks to the cache, and `file/kinds/shmem_huge.rs` has the settings.
//! `tests/huge/shared.rs` tests which pages an access allocates and maps.

use super::file::access_order;
use crate::{
    PAGE_SIZE,
    file::kinds::shmem_huge::{Sizes, largest_first},
    file::{File, Object, Wanted, block_around},
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::PteTable;
use freehold_vmspace::{PageCount, PageIndex, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Returns the request of a fault that does not find `page` in the cache of `file`.
    pub(super) fn wanted(&self, vma: &Vma<P>, file: &File<P>, page: u64) -> Wanted {
        let (index, sizes) = (vma.pgoff_of(page), self.shared_sizes(vma, file));
        let fitting = largest_first(sizes.all())
            .filter(|bytes| lies_in(vma, index, page, *bytes))
            .fold(0, |sum, bytes| sum | bytes);
        let Sizes { always, within, within_huge } = sizes;
        let sizes =
            Sizes { always: always & fitting, within: within & fitting, within_huge: within_huge & fitting };
        Wanted { order: access_order(vma.flags()), policy: vma.policy(), ..Wanted::new(index, sizes) }
    }

    /// Returns true if `vma` may contain a block, as smaps reports it.
    pub(super) fn may_hold_shared_block(&self, vma: &Vma<P>) -> bool {
        let Object::File(file) = vma.object() else { return false };
        let Sizes { always, within, within_huge } = self.shared_sizes(vma, file);
        // If a block fits anywhere in the VMA, one fits at its end.
        let fitting = largest_first(always | within | within_huge).filter(|bytes| {
            let last = vma.end().checked_sub(*bytes).filter(|last| *last >= vma.start());
            last.is_some_and(|last| lies_in(vma, vma.pgoff_of(last), last, *bytes))
        });
        // The first page of the VMA decides whether the block fits into the file.
        let sum = fitting.fold(0, |sum, bytes| sum | bytes);
        let sizes = Sizes { always: always & sum, within: within & sum, within_huge: within_huge & sum };
        let first = Wanted::new(vma.pgoff_of(vma.start()), sizes);
        first.blocks(file.mapping().end()).next().is_some()
    }

    /// Returns the sizes of blocks that are allowed in `vma`, which maps `file`.
    fn shared_sizes(&self, vma: &Vma<P>, file: &File<P>) -> Sizes {
        let (mapping, flags) = (file.mapping(), vma.flags());
        if !mapping.is_shmem()
            || flags.intersects(VmFlags::NOHUGEPAGE | VmFlags::HUGETLB)
            || self.disables_thp(vma)
        {
            return Sizes::default();
        }
        let (blocks, advised) = (self.engine.shared_blocks(), flags.contains(VmFlags::HUGEPAGE));
        match mapping.mount_huge() {
            None if file.segment().is_none() => blocks.nameless(advised),
            mount => blocks.named(mount, advised),
        }
    }
}

/// Returns true if the block of `bytes` bytes around `page` lies in `vma` at a multiple of its size. `page`
/// maps the page `index` of the file.
fn lies_in<P: Platform>(vma: &Vma<P>, index: PageIndex, page: u64, bytes: u64) -> bool {
    let before = (index - block_around(index, PageCount::of_bytes(bytes)).start).bytes();
    page.checked_sub(before).is_some_and(|first| {
        first.is_multiple_of(bytes) && first >= vma.start() && first < vma.end() && vma.end() - first >= bytes
    })
}

/// Returns the addresses of the block that `page` is part of, if the page is cached and the whole block lies
/// in `vma` and in the table. Returns `None` for a single page, and if a userfaultfd watches the VMA, because
/// each page then needs its own fault.
pub(super) fn whole_block<P: Platform>(
    vma: &Vma<P>,
    file: &File<P>,
    rcu: &P::RcuGuard,
    page: u64,
    table: &PteTable<'_, P::Format, P>,
) -> Option<UserRange> {
    let (index, mapping) = (vma.pgoff_of(page), file.mapping());
    if !mapping.is_shmem() || vma.flags().intersects(VmFlags::UFFD) {
        return None;
    }
    let block = mapping.block_of(rcu, index).filter(|block| block.len() > PageCount::ONE)?;
    let first = page.checked_sub((index - block.start).bytes())?;
    let (span, end) = (table.span(), first + block.len().bytes());
    let lies = first >= vma.start().max(span.start().get()) && end <= vma.end().min(span.end().get());
    lies.then_some(UserRange::new(first, end))
}

/// Extends `window`, the range that a read fault maps, to the [whole blocks](whole_block) at its start and
/// its end.
pub(super) fn with_blocks<P: Platform>(
    vma: &Vma<P>,
    file: &File<P>,
    rcu: &P::RcuGuard,
    window: UserRange,
    table: &PteTable<'_, P::Format, P>,
) -> UserRange {
    let block = |page| whole_block(vma, file, rcu, page, table).unwrap_or(window);
    let (first, last) = (block(window.start()), block(window.end() - PAGE_SIZE));
    UserRange::new(first.start().min(window.start()), last.end().max(window.end()))
}
