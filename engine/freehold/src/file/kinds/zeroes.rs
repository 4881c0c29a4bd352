//! A device of zeroes, such as /dev/zero: what is mapped of it is new memory.
//!
//! A private mapping is anonymous memory of which the open file shows: by its name and offset, and because
//! neighbours are one VMA only over the same file, with offsets that continue. So is a shared mapping by a
//! file that was not opened for writing, since nobody ever stores there. Every other shared mapping is shared
//! memory of its own, as of no file at all.

use crate::{
    counted::Counted,
    error::NoMemory,
    file::{
        HasFiles, Zeroes,
        mapping::{Kind, Mapping},
    },
    platform::Platform,
};

impl<P: Platform> Mapping<P> {
    /// A device of zeroes, such as /dev/zero, to be opened by [`File::new`](crate::file::File::new). It has
    /// neither pages nor a size, and is read as zeroes at any offset; what is written to it is lost. Mappings
    /// of it [are aligned](Self::align_to_huge_pages) for huge pages, as on Linux.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn zeroes(files: &impl HasFiles<P>) -> Result<Counted<Self>, NoMemory> {
        let device = Self::of_kind(files.files(), Zeroes, 0, Kind::Zeroes, None, false)?;
        device.align_to_huge_pages(true);
        Ok(device)
    }
}
