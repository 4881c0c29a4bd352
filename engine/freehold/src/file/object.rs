//! [`Object`]: the memory that a VMA maps.
//!
//! A VMA holds its object by a counted reference, and the object never changes while the VMA is attached.
//! This file answers questions that depend on the kind of memory, such as merging or locking.
//! [`Object::opened`] and [`Object::closed`] report the beginning and the end of a VMA to the mapped file.
//! The files themselves are in `open_file.rs`, `mapping.rs` and `kinds/`. No function of this file examines a
//! page table.
//!
//! The code of VMAs calls `opened` and `closed` once for each VMA. The counts of writable mappings
//! (`seals.rs`) and of attachments (`kinds/segment.rs`) depend on them. `tests/files/seals.rs` and
//! `tests/shm.rs` test the counts. A new kind of object needs an arm in each function, which the compiler
//! checks.

use super::{kinds::special::Special, mapping::Mapping, open_file::File};
use crate::{counted::Counted, platform::Platform, vma::flags::VmFlags};

/// The memory that a VMA maps.
pub enum Object<P: Platform> {
    /// Private memory that starts as zeroes.
    Anonymous,
    /// Private memory that starts as zeroes and was mapped through [a device of zeroes](Mapping::zeroes).
    Zeroes(Counted<File<P>>),
    /// An open file. Shared memory is a file without a name.
    File(Counted<File<P>>),
    /// Frames that the engine does not own, supplied by an embedder's hooks.
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
    /// Returns true if adjacent VMAs that map these two objects can merge. The VMAs can merge if both are
    /// anonymous without a file, if both map the same open file, or if both have the same private data.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Object}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// // Two open files of one file.
    /// let [a, b] = [(); 2].map(|()| File::new(&memory, FileAccess::READ, "/it").unwrap());
    /// let object = Object::File(a.clone());
    /// assert!(object.same(&Object::File(a)) && !object.same(&Object::File(b)));
    /// ```
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

    /// Returns the file whose reverse map lists the VMAs that map this object.
    pub(crate) fn listed_by(&self) -> Option<&Counted<Mapping<P>>> {
        match self {
            Object::Anonymous | Object::Zeroes(_) => None,
            Object::File(file) => Some(file.mapping()),
            Object::Special(special) => special.mapping(),
        }
    }

    /// Returns the open file, if the object is a file with pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let file = File::new(&Mapping::memfd(&engine, PAGE_SIZE).unwrap(), FileAccess::READ, "/it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert!(Counted::ptr_eq(vma.object().file().unwrap(), &file));
    /// ```
    pub fn file(&self) -> Option<&Counted<File<P>>> {
        match self {
            Object::File(file) => Some(file),
            Object::Anonymous | Object::Zeroes(_) | Object::Special(_) => None,
        }
    }

    /// Returns the open file, including a device of zeroes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # use freehold::report::maps::MapName;
    /// let file = File::new(&Mapping::memfd(&engine, PAGE_SIZE).unwrap(), FileAccess::READ, "/it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// let MapName::Object(object) = space.maps(at).next().unwrap().name else { unreachable!() };
    /// assert!(Counted::ptr_eq(object.open_file().unwrap(), &file) && object.name() == "/it");
    /// ```
    pub fn open_file(&self) -> Option<&Counted<File<P>>> {
        match self {
            Object::Zeroes(file) | Object::File(file) => Some(file),
            Object::Anonymous | Object::Special(_) => None,
        }
    }

    /// Returns true if the object counts the VMAs that map it. A merge may then enlarge a VMA but must not
    /// remove one. Linux makes the same restriction for a VMA with a close hook.
    pub(crate) fn counts_vmas(&self) -> bool {
        match self {
            Object::Anonymous | Object::Zeroes(_) => false,
            Object::File(file) => file.segment().is_some(),
            Object::Special(_) => true,
        }
    }

    /// Records a new VMA with these flags.
    pub(crate) fn opened(&self, flags: VmFlags) {
        if let Some(file) = self.file() {
            file.mapping().opened(flags);
            file.segment().inspect(|segment| segment.opened());
        }
    }

    /// Records the end of a VMA. `SHARED` and `MAYWRITE` have the same values in `flags` as in the call of
    /// `opened` for this VMA.
    pub(crate) fn closed(&self, flags: VmFlags) {
        if let Some(file) = self.file() {
            file.mapping().closed(flags);
            file.segment().inspect(|segment| segment.closed());
        }
    }

    /// Returns true for a file whose pages are the storage itself. Such pages can be neither locked nor read
    /// ahead.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Object, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// // A file system passes a pager that names the frames of its storage.
    /// let direct = Mapping::direct(&engine, Zeroes, PAGE_SIZE).unwrap();
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let files = [direct, memory].map(|mapping| File::new(&mapping, FileAccess::READ, "/it").unwrap());
    /// assert_eq!(files.map(|file| Object::File(file).is_direct()), [true, false]);
    /// ```
    pub fn is_direct(&self) -> bool {
        self.file().is_some_and(|file| file.mapping().is_direct())
    }

    /// Returns true if mlock applies to the object's pages. mlock does not apply to direct files, whose pages
    /// are always present, or to secret memory, which is always locked.
    pub(crate) fn may_lock(&self) -> bool {
        self.file().is_none_or(|file| !file.mapping().is_mapped_singly())
    }

    /// Returns true if the object is [secret memory](Mapping::secret).
    pub(crate) fn is_secret(&self) -> bool {
        self.file().is_some_and(|file| file.mapping().is_secret())
    }

    /// Returns the name for reports. Empty for anonymous memory without a file.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let file = File::new(&Mapping::memfd(&engine, PAGE_SIZE).unwrap(), FileAccess::READ, "/it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.object().name(), "/it");
    /// ```
    pub fn name(&self) -> &str {
        match self {
            Object::Anonymous => "",
            Object::Zeroes(file) | Object::File(file) => file.name(),
            Object::Special(special) => special.ops().name(),
        }
    }

    /// Returns true for anonymous memory, with or without a device of zeroes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # use freehold::report::maps::MapName;
    /// let device = Mapping::zeroes(&engine).unwrap();
    /// let zero = File::new(&device, FileAccess::READ, "/dev/zero").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::PRIVATE, Some(&zero), 0).unwrap();
    /// let MapName::Object(object) = space.maps(at).next().unwrap().name else { unreachable!() };
    /// assert!(object.is_anonymous() && object.file().is_none());
    /// ```
    pub fn is_anonymous(&self) -> bool {
        matches!(self, Object::Anonymous | Object::Zeroes(_))
    }

    /// Returns true if mappings of the object are placed so that huge pages can map them: address and offset
    /// agree modulo the huge page size. Shared mappings of a device of zeroes are not placed in this way.
    pub(crate) fn aligns(&self, shared: bool) -> bool {
        match self {
            Object::Zeroes(file) => !shared && file.mapping().aligns_to_huge_pages(),
            Object::File(file) => file.mapping().aligns_to_huge_pages(),
            Object::Anonymous | Object::Special(_) => false,
        }
    }
}
