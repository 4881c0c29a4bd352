//! Blocks of shared memory, as faults see them: which may come, and which are mapped at once.
//!
//! ```text
//! not in the cache   the largest block comes that lies in the VMA, of which nothing is in the cache yet; else the page alone
//! in the cache       read  -> mapped with it: each block around it that lies in the VMA and the table, as far as entries are free
//!                    write -> the whole block, if all its entries are free and it lies in the VMA and the table; else the page alone
//! ```
//!
//! So it is on Linux 6.18. The blocks themselves: [`object`](crate::file), `block.rs`.

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
    /// What a fault asks for that does not find `page` in the cache of `file`.
    pub(super) fn wanted(&self, vma: &Vma<P>, file: &File<P>, page: u64) -> Wanted {
        let (index, sizes) = (vma.pgoff_of(page), self.shared_sizes(vma, file));
        let fitting = largest_first(sizes.all())
            .filter(|bytes| lies_in(vma, index, page, *bytes))
            .fold(0, |sum, bytes| sum | bytes);
        let Sizes { always, within, within_huge } = sizes;
        let sizes =
            Sizes { always: always & fitting, within: within & fitting, within_huge: within_huge & fitting };
        Wanted { index, sizes }
    }

    /// Whether a block may come anywhere in `vma`, as smaps says it.
    pub(super) fn may_hold_shared_block(&self, vma: &Vma<P>) -> bool {
        let Object::File(file) = vma.object() else { return false };
        let Sizes { always, within, within_huge } = self.shared_sizes(vma, file);
        // If one fits anywhere, then at the end.
        let fitting = largest_first(always | within | within_huge).filter(|bytes| {
            let last = vma.end().checked_sub(*bytes).filter(|last| *last >= vma.start());
            last.is_some_and(|last| lies_in(vma, vma.pgoff_of(last), last, *bytes))
        });
        // Whether it fits into the file is asked of the VMA's first page.
        let sum = fitting.fold(0, |sum, bytes| sum | bytes);
        let sizes = Sizes { always: always & sum, within: within & sum, within_huge: within_huge & sum };
        let first = Wanted { index: vma.pgoff_of(vma.start()), sizes };
        first.blocks(file.mapping().end()).next().is_some()
    }

    /// The sizes of blocks that may come in `vma`, which maps `file`.
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

/// Whether the block of so many bytes around `page`, which is page `index` of the file, lies in `vma` at a
/// multiple of its size.
fn lies_in<P: Platform>(vma: &Vma<P>, index: PageIndex, page: u64, bytes: u64) -> bool {
    let before = (index - block_around(index, PageCount::of_bytes(bytes)).start).bytes();
    page.checked_sub(before).is_some_and(|first| {
        first.is_multiple_of(bytes) && first >= vma.start() && first < vma.end() && vma.end() - first >= bytes
    })
}

/// The addresses of the block that `page` is part of, if it is in the cache, and all of it lies in `vma` and
/// in the table. `None` where it is a page alone, and where a userfaultfd watches: each page is a fault of
/// its own then.
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

/// What a read fault maps that would map `window`: all of a [whole block](whole_block), too, that this begins
/// or ends in.
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
