//! The VMA in the trees of the reverse map.

use super::Vma;
use crate::{
    file::Mapping,
    platform::Platform,
    rmap::tree::{AnonPages, IMmap, RmapKind, RmapNode, lock::FileLock},
};
use core::mem::offset_of;
use freehold_sync::RwSem;
use freehold_vmspace::{PageCount, PageIndex};

impl<P: Platform> RmapNode for Vma<P> {
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

impl RmapKind for IMmap {
    type Lock<P: Platform> = FileLock<P>;
    type Node<P: Platform> = Vma<P>;
    type Owner<P: Platform> = Mapping<P>;
    fn offset<P: Platform>() -> usize {
        offset_of!(Vma<P>, link)
    }
}

impl RmapKind for AnonPages {
    type Lock<P: Platform> = RwSem<P>;
    type Node<P: Platform> = Vma<P>;
    type Owner<P: Platform> = Mapping<P>;
    fn offset<P: Platform>() -> usize {
        offset_of!(Vma<P>, anon_link)
    }
}
