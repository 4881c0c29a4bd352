//! Why a page stays in its frame.

/// Why a page stayed where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateError {
    /// The frame holds no page of a program or file, or it is just changing.
    NoPage,
    /// Somebody besides page tables and caches has the page.
    Busy,
    /// No frame to move it to.
    OutOfMemory,
}

impl core::fmt::Display for MigrateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            MigrateError::NoPage => "no page that could move",
            MigrateError::Busy => "the page is in use",
            MigrateError::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for MigrateError {}
