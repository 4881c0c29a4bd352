//! Changing where VMAs are linked: in the tree of the file that they map, in that of their anonymous pages,
//! or in both.

use super::tree::{AnonPages, IMmap, RmapWriteGuard, root::RmapRoot};
use crate::{file::Object, platform::Platform, vma::Vma};
use freehold_vmspace::{PageIndex, UserRange};

/// VMAs unlinked at a time: so many that a program's libraries take their files' locks once each, so few that
/// nobody waits long.
const BATCH: usize = 8;

/// The right to link, unlink and rekey VMAs that map one object and whose anonymous pages belong to one tree,
/// several of them in one step for walkers. Where there is no tree, nothing is locked.
pub(crate) struct RmapEdit<'e, P: Platform> {
    file: Option<RmapWriteGuard<'e, P, IMmap>>,
    pages: Option<RmapWriteGuard<'e, P, AnonPages>>,
}

impl<'e, P: Platform> RmapEdit<'e, P> {
    /// For VMAs that map `object` and have this tree or none.
    ///
    /// # Locks
    ///
    /// The file's i_mmap lock for writing, then the tree's.
    #[inline]
    pub fn new(object: &'e Object<P>, tree: Option<&'e RmapRoot<P, AnonPages>>) -> Self {
        RmapEdit {
            file: object.listed_by().map(|mapping| mapping.edit()),
            pages: tree.map(|tree| tree.edit()),
        }
    }

    /// For `vma` and what is like it.
    #[inline]
    pub fn of(vma: &'e Vma<P>) -> Self {
        Self::new(vma.object(), vma.tree())
    }

    /// Whether an edit for one of them serves for the other, too.
    pub fn serves_both(a: &Vma<P>, b: &Vma<P>) -> bool {
        let mapping = |vma: &Vma<P>| vma.object().listed_by().map(|mapping| core::ptr::from_ref(&**mapping));
        let tree = |vma: &Vma<P>| vma.tree().map(core::ptr::from_ref);
        mapping(a) == mapping(b) && (tree(a) == tree(b) || tree(b).is_none())
    }

    /// The part of the right that is about the file's tree.
    pub fn file(&self) -> Option<&RmapWriteGuard<'e, P, IMmap>> {
        self.file.as_ref()
    }

    /// Links a VMA.
    #[inline]
    pub fn insert(&mut self, vma: &Vma<P>) {
        if let Some(file) = &mut self.file {
            file.insert(vma);
        }
        self.insert_pages(vma);
    }

    /// Links a VMA, which has come to its tree later than to its file's.
    pub fn insert_pages(&mut self, vma: &Vma<P>) {
        if let Some(pages) = self.pages.as_mut().filter(|_| vma.tree().is_some()) {
            pages.insert(vma);
        }
    }

    /// Links a VMA that is not linked yet, where it belongs.
    ///
    /// # Locks
    ///
    /// As [`new`](Self::new).
    #[inline(always)]
    pub fn link(vma: &'e Vma<P>) {
        if vma.is_listed() {
            RmapEdit::of(vma).insert(vma);
        }
    }

    /// Links the copy that fork made of `parent`, behind it.
    pub fn insert_after(&mut self, parent: &Vma<P>, child: &Vma<P>) {
        if let Some(file) = &mut self.file {
            file.insert_after(parent, child);
        }
        if let Some(pages) = self.pages.as_mut().filter(|_| child.tree().is_some()) {
            pages.insert_after(parent, child);
        }
    }

    /// Unlinks a VMA, if it is linked.
    #[inline]
    pub fn remove(&mut self, vma: &Vma<P>) {
        if let Some(file) = &mut self.file {
            file.remove(vma);
        }
        self.remove_pages(vma);
    }

    /// Unlinks a VMA from the tree of its pages, if it is linked.
    pub fn remove_pages(&mut self, vma: &Vma<P>) {
        if let Some(pages) = self.pages.as_mut().filter(|_| vma.tree().is_some()) {
            pages.remove(vma);
        }
    }

    /// Unlinks VMAs from the trees that they are linked in, those that follow each other and share them under
    /// one hold.
    #[inline(always)]
    pub fn unlink(vmas: impl Iterator<Item = &'e Vma<P>>) {
        let mut rest = vmas.filter(|vma| vma.is_listed()).peekable();
        while let Some(first) = rest.next() {
            let mut edit = RmapEdit::of(first);
            edit.remove(first);
            for _ in 1..BATCH {
                let Some(vma) = rest.next_if(|vma| RmapEdit::serves_both(first, vma)) else { break };
                edit.remove(vma);
            }
        }
    }

    /// Changes the bounds of a VMA, which stays linked where it was.
    #[inline(always)]
    pub fn rekey(&mut self, vma: &Vma<P>, range: UserRange, pgoff: PageIndex) {
        vma.set_bounds(range, pgoff);
        if let Some(file) = &mut self.file {
            file.rekey(vma);
        }
        if let Some(pages) = self.pages.as_mut().filter(|_| vma.tree().is_some()) {
            pages.rekey(vma);
        }
    }
}
