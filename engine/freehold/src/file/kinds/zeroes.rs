//! A device of zeroes, such as /dev/zero. A mapping of the device is new memory.
//!
//! A private mapping is anonymous memory, but the open file is visible in two ways. Reports show its name and
//! the offset. Adjacent VMAs merge only if they have the same file and consecutive offsets. A shared mapping
//! of a file that was not opened for writing is treated in the same way, because no task can store to such a
//! mapping. Every other shared mapping is its own shared memory, as if there were no file.
//!
//! This file only creates the device. mmap chooses the object of the mapping (`resolve_kind` in
//! `call/mmap/mod.rs`), and `Object::Zeroes` in `object.rs` marks the private memory. `tests/mmap/zeroes.rs`
//! has the tests.

use crate::{
    counted::Counted,
    error::NoMemory,
    file::{
        HasFiles, Zeroes,
        mapping::{Kind, Mapping, NewFile},
    },
    platform::Platform,
};

impl<P: Platform> Mapping<P> {
    /// Creates a device of zeroes, such as /dev/zero, to be opened by [`File::new`](crate::file::File::new).
    /// The device has neither pages nor a size. Reads return zeroes at any offset, and writes have no effect.
    /// Mappings of the device [are aligned](Self::align_to_huge_pages) for huge pages, as on Linux.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let device = Mapping::zeroes(&engine).unwrap();
    /// let zero = File::new(&device, FileAccess::READ_WRITE, "/dev/zero").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::READ, MapFlags::PRIVATE, Some(&zero), 0).unwrap();
    /// assert!(space.maps(at).next().unwrap().to_string().ends_with(" /dev/zero"));
    /// let mut found = [1; 4];
    /// device.read_at(1 << 40, &mut found).unwrap();
    /// assert_eq!(found, [0; 4]);
    /// ```
    pub fn zeroes(files: &impl HasFiles<P>) -> Result<Counted<Self>, NoMemory> {
        let device = Self::make(files.files(), Zeroes, NewFile::new(0, Kind::Zeroes))?;
        device.align_to_huge_pages(true);
        Ok(device)
    }
}
