//! Changes of the trees in which VMAs are linked: the tree of the mapped file, the tree of the VMA's
//! anonymous pages, or both.
//!
//! An edit holds the locks of both trees for writing, the file's first. Walks of the reverse map therefore
//! see a split or a merge of VMAs as one step. `tree/` has the trees and their locks, and `walk.rs` has the
//! walks. An edit changes only links and keys; the caller changes the VMA tree (`space/change/`).
//!
//! Splits, merges, moves, forks and unmaps of VMAs use an edit. One change of VMAs must change all its links
//! and bounds within one edit. With two edits, a walk in between can miss a page that passes from one VMA to
//! another (hazards C-34, C-35, C-37; tested in `tests/mremap/moves.rs`, `tests/fork/children.rs` and
//! `lab/freehold-machine/tests/shuttle_files.rs`).

use super::tree::{AnonPages, IMmap, RmapWriteGuard, root::RmapRoot};
use crate::{
    file::{Mapping, Object},
    platform::Platform,
    vma::Vma,
};
use freehold_vmspace::{PageIndex, UserRange};

/// Maximum number of VMAs that are unlinked under one hold of the locks. A mapped library has fewer VMAs, so
/// the lock of its file is taken only once. The number is small enough that no task waits long.
const BATCH: usize = 8;

/// The right to link, unlink and rekey VMAs that map one object and whose anonymous pages belong to one tree.
/// Walkers see all changes of one edit as one step. If a tree does not exist, nothing is locked for it.
pub(crate) struct RmapEdit<'e, P: Platform> {
    file: Option<RmapWriteGuard<'e, P, IMmap>>,
    pages: Option<RmapWriteGuard<'e, P, AnonPages>>,
}

impl<'e, P: Platform> RmapEdit<'e, P> {
    /// Locks the trees in which VMAs that map `object` are linked: the tree of the file, and `tree`, the tree
    /// of anonymous pages, if there is one.
    ///
    /// # Locks
    ///
    /// The file's i_mmap lock for writing, then the tree's lock for writing.
    // Inlined, because moving an edit is slow and most edits of anonymous memory have no tree.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn new(object: &'e Object<P>, tree: Option<&'e RmapRoot<P, AnonPages>>) -> Self {
        match (object.listed_by(), tree) {
            (None, None) => RmapEdit { file: None, pages: None },
            (file, tree) => Self::lock(file.map(|file| &**file), tree),
        }
    }

    /// Locks the trees.
    #[inline(never)]
    fn lock(file: Option<&'e Mapping<P>>, tree: Option<&'e RmapRoot<P, AnonPages>>) -> Self {
        RmapEdit { file: file.map(|mapping| mapping.edit()), pages: tree.map(|tree| tree.edit()) }
    }

    /// Locks the trees of `vma`, for changes of `vma` and of VMAs with the same object and tree.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn of(vma: &'e Vma<P>) -> Self {
        Self::new(vma.object(), vma.tree())
    }

    /// Returns true if an edit for `a` also covers `b`: both have the same file tree and the same anonymous
    /// tree, or `b` has no anonymous tree.
    pub fn serves_both(a: &Vma<P>, b: &Vma<P>) -> bool {
        let mapping = |vma: &Vma<P>| vma.object().listed_by().map(|mapping| core::ptr::from_ref(&**mapping));
        let tree = |vma: &Vma<P>| vma.tree().map(core::ptr::from_ref);
        mapping(a) == mapping(b) && (tree(a) == tree(b) || tree(b).is_none())
    }

    /// Returns the part of the right that covers the file's tree.
    pub fn file(&self) -> Option<&RmapWriteGuard<'e, P, IMmap>> {
        self.file.as_ref()
    }

    /// Links a VMA in both trees.
    #[inline]
    pub fn insert(&mut self, vma: &Vma<P>) {
        if let Some(file) = &mut self.file {
            file.insert(vma);
        }
        self.insert_pages(vma);
    }

    /// Links a VMA in the tree of its anonymous pages, if there is such a tree. The VMA is linked in its
    /// file's tree already, or maps no file.
    pub fn insert_pages(&mut self, vma: &Vma<P>) {
        if let Some(pages) = self.pages.as_mut().filter(|_| vma.tree().is_some()) {
            pages.insert(vma);
        }
    }

    /// Links a VMA in its trees. The VMA is not linked yet.
    ///
    /// # Locks
    ///
    /// The locks of [`new`](Self::new).
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn link(vma: &'e Vma<P>) {
        if vma.is_listed() {
            RmapEdit::of(vma).insert(vma);
        }
    }

    /// Links the copy that fork made of `parent`, directly behind `parent`.
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

    /// Unlinks a VMA from the tree of its anonymous pages, if it is linked there.
    pub fn remove_pages(&mut self, vma: &Vma<P>) {
        if let Some(pages) = self.pages.as_mut().filter(|_| vma.tree().is_some()) {
            pages.remove(vma);
        }
    }

    /// Unlinks VMAs from their trees. Consecutive VMAs with the same trees are unlinked under one hold of the
    /// locks.
    #[cfg_attr(feature = "inline", inline(always))]
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

    /// Changes the bounds of a VMA, which stays linked in its trees.
    #[cfg_attr(feature = "inline", inline(always))]
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
