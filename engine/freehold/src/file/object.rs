//! [`Object`]: what lies behind the addresses of a VMA.

use super::{kinds::special::Special, mapping::Mapping, open_file::File};
use crate::{counted::Counted, platform::Platform, vma::flags::VmFlags};

/// What lies behind the addresses of a VMA.
pub enum Object<P: Platform> {
    /// Private memory that starts as zeroes.
    Anonymous,
    /// The same by an open file, which is [a device of zeroes](Mapping::zeroes).
    Zeroes(Counted<File<P>>),
    /// An open file, or shared memory, which is a file without a name.
    File(Counted<File<P>>),
    /// Frames that the engine does not own, by an embedder's hooks.
    Special(Counted<Special<P>>),
}

impl<P: Platform> Clone for Object<P> {
    fn clone(&self) -> Self {
        match self {
            Object::Anonymous => Object::Anonymous,
            Object::Zeroes(file) => Object::Zeroes(file.clone()),
            Object::File(file) => Object::File(file.clone()),
            Object::Special(special) => Object::Special(special.clone()),
        }
    }
}

impl<P: Platform> Object<P> {
    /// Whether neighbours that map these two may be one VMA: both anonymous, by the same open file if by one,
    /// the same open file, or special with the same private data.
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Object::Anonymous, Object::Anonymous) => true,
            (Object::File(a), Object::File(b)) | (Object::Zeroes(a), Object::Zeroes(b)) => {
                Counted::ptr_eq(a, b)
            }
            (Object::Special(a), Object::Special(b)) => Counted::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Whose reverse map lists the VMAs that map this.
    pub(crate) fn listed_by(&self) -> Option<&Counted<Mapping<P>>> {
        match self {
            Object::Anonymous | Object::Zeroes(_) => None,
            Object::File(file) => Some(file.mapping()),
            Object::Special(special) => special.mapping(),
        }
    }

    /// The file, if it is one with pages.
    pub fn file(&self) -> Option<&Counted<File<P>>> {
        match self {
            Object::File(file) => Some(file),
            Object::Anonymous | Object::Zeroes(_) | Object::Special(_) => None,
        }
    }

    /// The open file, also if it is a device of zeroes.
    pub fn open_file(&self) -> Option<&Counted<File<P>>> {
        match self {
            Object::Zeroes(file) | Object::File(file) => Some(file),
            Object::Anonymous | Object::Special(_) => None,
        }
    }

    /// Whether VMAs that map this are counted, so that a merge may let one grow and not make one go: what
    /// Linux says by a VMA's close hook.
    pub(crate) fn counts_vmas(&self) -> bool {
        match self {
            Object::Anonymous | Object::Zeroes(_) => false,
            Object::File(file) => file.segment().is_some(),
            Object::Special(_) => true,
        }
    }

    /// A VMA with these flags maps this from now on.
    pub(crate) fn opened(&self, flags: VmFlags) {
        if let Some(file) = self.file() {
            file.mapping().opened(flags);
            file.segment().inspect(|segment| segment.opened());
        }
    }

    /// A VMA with these flags, which are those that it was opened with as far as sharing goes, is over.
    pub(crate) fn closed(&self, flags: VmFlags) {
        if let Some(file) = self.file() {
            file.mapping().closed(flags);
            file.segment().inspect(|segment| segment.closed());
        }
    }

    /// Whether it is a file whose pages are the storage itself: those can be neither locked nor read ahead.
    pub fn is_direct(&self) -> bool {
        self.file().is_some_and(|file| file.mapping().is_direct())
    }

    /// Whether mlock has a say about its pages: storage never goes, and secret memory is locked from the
    /// start.
    pub(crate) fn may_lock(&self) -> bool {
        self.file().is_none_or(|file| !file.mapping().is_mapped_singly())
    }

    /// Whether it is [secret memory](Mapping::secret).
    pub(crate) fn is_secret(&self) -> bool {
        self.file().is_some_and(|file| file.mapping().is_secret())
    }

    /// How reports call it; empty for anonymous memory without a file.
    pub fn name(&self) -> &str {
        match self {
            Object::Anonymous => "",
            Object::Zeroes(file) | Object::File(file) => file.name(),
            Object::Special(special) => special.ops().name(),
        }
    }

    /// Whether it is anonymous memory, of a device of zeroes or not.
    pub fn is_anonymous(&self) -> bool {
        matches!(self, Object::Anonymous | Object::Zeroes(_))
    }

    /// Whether mappings of it go where huge pages may begin, by their offsets. Of a device of zeroes only
    /// private ones do.
    pub(crate) fn aligns(&self, shared: bool) -> bool {
        match self {
            Object::Zeroes(file) => !shared && file.mapping().aligns_to_huge_pages(),
            Object::File(file) => file.mapping().aligns_to_huge_pages(),
            Object::Anonymous | Object::Special(_) => false,
        }
    }
}
