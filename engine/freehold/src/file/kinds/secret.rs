//! Secret memory (memfd_secret): a file that is there for its own program alone.

use crate::file::HasFiles;
use crate::file::{
    Zeroes,
    mapping::{Kind, Mapping},
};
use crate::{counted::Counted, error::NoMemory, platform::Platform};

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

    /// Whether it is [secret memory](Self::secret).
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Whether a read fault maps its page alone: of secret memory, and of storage.
    pub(crate) fn is_mapped_singly(&self) -> bool {
        self.is_direct() || self.is_secret()
    }
}
