//! The error of bringing pages into the cache of a file and of removing them.
//!
//! The functions of `file/` return [`FillError`]. A fault converts the error to a signal (`fault/table.rs`),
//! and madvise converts it to an error of madvise (`call/madvise/file.rs`). Reads, writes and truncation of a
//! file use `FillError::errno` in `mod.rs`. A new variant needs an arm in each of these files.

use super::NoMemory;
use freehold_sync::Killed;

freehold_sync::error_enum! {
    /// Reason why a page could not be brought into the cache or removed.
    #[non_exhaustive]
    pub enum FillError {
        /// The page lies beyond the end of the file or beyond the largest file size.
        BeyondEnd,
        /// The backing store of the file could not be read or written.
        Io,
        /// There is no memory left.
        NoMemory,
        /// The file is sealed against this change.
        Sealed,
        /// The memory that held the page has failed, and there is no other copy.
        Lost,
        /// More memory would be committed than the policy on overcommit allows.
        ///
        /// See [`Engine::set_overcommit`](crate::engine::Engine::set_overcommit).
        NoSpace,
        /// The pool has not enough free huge pages.
        NoHugePages,
        /// This kind of file does not allow this operation.
        ///
        /// A file of huge pages has no offsets or sizes inside a page and cannot be written by a call. Secret
        /// memory cannot be read or written by a call, and its size can be set only once.
        Invalid,
        /// Secret memory has no holes, and its pages do not exist before the first access.
        Unsupported,
        /// A fatal signal arrived while waiting for other tasks that work on the file's pages.
        Killed,
        /// A shared mapping without an MMU uses the pages and cannot be stopped.
        Busy,
    }
}

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
