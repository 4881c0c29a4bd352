//! Secret memory (memfd_secret): a file whose contents only programs that map it can access.
//!
//! This file only creates the memory. Code that reads, copies or moves pages for anyone but the program that
//! maps them calls `is_secret` of the file, the object or the frame, and refuses: read and write
//! (`file/contents.rs`), pins and remote access (`remote/`), population (`fault/populate.rs`), migration
//! (`rmap/migrate.rs`), msync (`call/msync.rs`), and mappings without an MMU (`nommu/mmap.rs`). New code of
//! this kind does the same, and needs a test in `tests/secret.rs`. `file/change/truncate.rs` refuses to punch
//! holes in secret memory, and to change a size that is already set. `call/mmap/secret.rs` has the rules for
//! mappings. `tests/secret.rs` has the tests, with the answers of Linux.

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
    /// Creates secret memory without pages (memfd_secret). Only programs that map the file can access its
    /// contents, and only by shared mappings. The memory counts as locked wherever it is mapped, is left out
    /// of core dumps, and can be neither pinned nor populated. [`truncate`](Self::truncate) sets its size,
    /// once.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Asks the platform first ([`Platform::memory_short`]), so the caller
    /// holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::FillError, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let secret = Mapping::secret(&engine).unwrap();
    /// secret.truncate(PAGE_SIZE).unwrap();
    /// assert_eq!(secret.read_at(0, &mut [0; 8]), Err(FillError::Invalid));
    /// assert_eq!(secret.truncate(2 * PAGE_SIZE), Err(FillError::Invalid), "only once");
    /// ```
    pub fn secret(files: &impl HasFiles<P>) -> Result<Counted<Self>, NoMemory> {
        Self::make(files.files(), Zeroes, NewFile::new(0, Kind::Secret))
    }
}
