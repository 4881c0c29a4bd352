//! The VMA as a node of the trees of the reverse map: implements the traits of `rmap/tree/` for `Vma`, once
//! for trees of files and once for trees of anonymous pages.
//!
//! `rmap/tree/` is a layer below VMAs and knows them only through these traits. Each kind of tree has its own
//! link in the VMA, so a VMA can be in one tree of each kind. The lock of the tree guards the link. A wrong
//! offset or a shared link corrupts the trees; `AddressSpace::check` and `IntervalTree::check` find that in
//! tests.
#![expect(unsafe_code, reason = "implements the unsafe traits that the trees rely on")]

use super::Vma;
use crate::{
    file::Mapping,
    platform::Platform,
    rmap::tree::{AnonPages, IMmap, RmapKind, RmapNode, lock::FileLock},
};
use core::mem::offset_of;
use freehold_sync::RwSem;
use freehold_vmspace::{PageCount, PageIndex};

// SAFETY: an address space exposes the address of its `VmSpace` to its VMAs, and unlinks them before that
// `VmSpace` is freed.
unsafe impl<P: Platform> RmapNode for Vma<P> {
    #[inline]
    fn start(&self) -> u64 {
        self.start()
    }

    #[inline]
    fn pgoff(&self) -> PageIndex {
        self.pgoff()
    }

    #[inline]
    fn pages(&self) -> PageCount {
        self.pages()
    }

    #[inline]
    fn owner_addr(&self) -> usize {
        self.owner_addr()
    }
}

// SAFETY: only trees of files use `link`.
unsafe impl RmapKind for IMmap {
    type Lock<P: Platform> = FileLock<P>;
    type Node<P: Platform> = Vma<P>;
    type Owner<P: Platform> = Mapping<P>;
    fn offset<P: Platform>() -> usize {
        offset_of!(Vma<P>, link)
    }
}

// SAFETY: only trees of anonymous pages use `anon_link`.
unsafe impl RmapKind for AnonPages {
    type Lock<P: Platform> = RwSem<P>;
    type Node<P: Platform> = Vma<P>;
    type Owner<P: Platform> = Mapping<P>;
    fn offset<P: Platform>() -> usize {
        offset_of!(Vma<P>, anon_link)
    }
}
