//! Secret memory (memfd_secret): a file that is there for its own program alone.

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
    /// Secret memory, still without a page (memfd_secret): only programs that map it, shared, come to what it
    /// holds. It counts as locked wherever it is mapped, is left out of core dumps, and can be neither pinned
    /// nor populated. Its size is given once, by [`truncate`](Self::truncate).
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn secret(files: &impl HasFiles<P>) -> Result<Counted<Self>, NoMemory> {
        Self::of_kind(files.files(), Zeroes, 0, Kind::Secret, None, false)
    }
}
