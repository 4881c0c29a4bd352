//! Why pages cannot be had.

use super::NoMemory;
use freehold_sync::Killed;

/// Why a page could not be brought into the cache, or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FillError {
    /// The page lies beyond the end of the file (or of the largest file there can be).
    BeyondEnd,
    /// The backing store failed.
    Io,
    /// No memory.
    NoMemory,
    /// The file is sealed against it.
    Sealed,
    /// The memory that held the page failed, and there is no other copy.
    Lost,
    /// More memory would be committed than [allowed](crate::engine::Engine::set_overcommit).
    NoSpace,
    /// There is no free page in the pool of huge ones, or not as many as were asked for.
    NoHugePages,
    /// An offset or a size inside a huge page, or a write, where a file of huge pages has none; of secret
    /// memory a read, a write, or a size where it has one.
    Invalid,
    /// Secret memory has no holes, and no pages before somebody touches them.
    Unsupported,
    /// A fatal signal arrived while waiting for other tasks that work on the file's pages.
    Killed,
    /// Pages would go that a shared mapping without an MMU has, which nothing could stop from using them.
    Busy,
}

impl core::fmt::Display for FillError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            FillError::BeyondEnd => "beyond the end of the file",
            FillError::Io => "input or output failed",
            FillError::NoMemory => "out of memory",
            FillError::Sealed => "sealed",
            FillError::Lost => "lost with the memory that held it",
            FillError::NoSpace => "more memory would be committed than allowed",
            FillError::NoHugePages => "the pool has not enough huge pages",
            FillError::Invalid => "not possible for this kind of file",
            FillError::Unsupported => "not possible for secret memory",
            FillError::Killed => "a fatal signal is pending",
            FillError::Busy => "mapped where nothing could stop its use",
        })
    }
}

impl core::error::Error for FillError {}

impl From<Killed> for FillError {
    fn from(_: Killed) -> Self {
        FillError::Killed
    }
}

impl From<NoMemory> for FillError {
    fn from(_: NoMemory) -> Self {
        FillError::NoMemory
    }
}
