//! What a VMA maps: anonymous memory, a file, or frames that somebody else owns.
//!
//! Reading order: this file, `mapping.rs` (the pages of a file and the rules by which they come and go), `truncate.rs` (the
//! one operation that takes pages away from under page tables), `i_mmap.rs` (who maps the file), `in_place.rs` (the pages for
//! those who have no page tables).

mod contents;
mod file;
pub(crate) mod i_mmap;
pub(crate) mod in_place;
mod mapping;
mod pager;
mod radix;
mod special;
mod truncate;

pub use file::{File, FileAccess};
pub use mapping::{FillError, Mapping};
pub use pager::{IoError, Pager, Zeroes};
pub use special::Special;

use crate::{
    counted::{Counted, Shared},
    platform::Platform,
    vma::Vma,
};
use core::ops::Range;
use i_mmap::Edit;

/// What lies behind the addresses of a VMA.
pub enum Object<P: Platform> {
    /// Private memory that starts as zeroes.
    Anonymous,
    /// An open file, or shared memory, which is a file without a name.
    File(Counted<File<P>>),
    /// A fixed list of frames that the engine does not own (the vdso).
    Special(Counted<Special>),
}

impl<P: Platform> Shared for File<P> {}
impl<P: Platform> Shared for Mapping<P> {}
impl Shared for Special {}

impl<P: Platform> Clone for Object<P> {
    fn clone(&self) -> Self {
        match self {
            Object::Anonymous => Object::Anonymous,
            Object::File(file) => Object::File(file.clone()),
            Object::Special(special) => Object::Special(special.clone()),
        }
    }
}

impl<P: Platform> Object<P> {
    /// Whether neighbours that map these two may be one VMA: both anonymous, or the same open file. A special mapping is
    /// never part of another.
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Object::Anonymous, Object::Anonymous) => true,
            (Object::File(a), Object::File(b)) => Counted::same(a, b),
            _ => false,
        }
    }

    /// Whether `vma`, which maps this, may be cut at `at`. At its ends there is nothing to cut.
    pub fn may_split(&self, vma: &Vma<P>, at: u64) -> bool {
        match self {
            Object::Anonymous | Object::File(_) => true,
            Object::Special(_) => at <= vma.start() || vma.end() <= at,
        }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&Counted<File<P>>> {
        match self {
            Object::File(file) => Some(file),
            Object::Anonymous | Object::Special(_) => None,
        }
    }

    /// The right to change which VMAs map this and where, several of them in one step for whoever walks over a file's VMAs.
    ///
    /// # Locks
    ///
    /// For a file, its i_mmap lock for writing.
    pub(crate) fn edit(&self) -> ObjectEdit<'_, P> {
        ObjectEdit { tree: self.file().map(|file| file.mapping().edit()) }
    }

    /// How reports call it; empty for anonymous memory.
    pub fn name(&self) -> &str {
        match self {
            Object::Anonymous => "",
            Object::File(file) => file.name(),
            Object::Special(special) => special.name(),
        }
    }
}

/// The i_mmap lock of a file held for writing; of anything else, nothing.
pub(crate) struct ObjectEdit<'o, P: Platform> {
    tree: Option<Edit<'o, P>>,
}

impl<P: Platform> ObjectEdit<'_, P> {
    /// Links a VMA that maps this object.
    pub fn insert(&mut self, vma: &Vma<P>) {
        if let Some(tree) = &mut self.tree {
            tree.insert(vma);
        }
    }

    /// Unlinks a VMA that maps this object, if it is linked.
    pub fn remove(&mut self, vma: &Vma<P>) {
        if let Some(tree) = &mut self.tree {
            tree.remove(vma);
        }
    }

    /// Changes the bounds of a VMA that maps this object; it stays linked if it was.
    pub fn rekey(&mut self, vma: &Vma<P>, range: Range<u64>, pgoff: u64) {
        match &mut self.tree {
            Some(tree) => tree.rekey(vma, range, pgoff),
            None => vma.set_bounds(range, pgoff),
        }
    }
}
