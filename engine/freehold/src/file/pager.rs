//! Where the contents of a file's pages come from and go to.

use super::ForeignFrames;
use crate::{Pfn, platform::Platform};
use core::fmt;
use freehold_vmspace::{PageIndex, PageRange};

/// Reading or writing the backing store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError;

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("input or output failed")
    }
}

impl core::error::Error for IoError {}

/// The backing store of a file: called without any lock of an address space, with the file's own locks held.
///
/// So it must not call an address space: its locks come before those of files. With debug assertions the
/// order of locks is checked, and doing it panics (hazard C-6). Dropping it is different: no lock is held,
/// and anything may be called.
pub trait Pager<P: Platform>: Send + Sync + 'static {
    /// Fills `frame` with the page `index`; what lies beyond the end of the file need not be written, the
    /// engine zeroes it.
    ///
    /// # Errors
    ///
    /// The page could not be read; `frame` may hold anything.
    fn read_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError>;

    /// Keeps the contents of `frame` as the page `index`. Of a [direct](crate::file::Mapping::direct) file,
    /// whose frame is the storage's: makes what was stored there last, whatever happens to the machine.
    ///
    /// # Errors
    ///
    /// The page could not be written; it stays dirty.
    fn write_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let _ = (platform, index, frame);
        Ok(())
    }

    /// The frames in which these pages lie one behind the other, where the store is memory that programs may
    /// read in place, such as a ROM. Asked for mappings without an MMU that do not write; others get
    /// copies of [`read_page`](Self::read_page). The frames stay where they are as long as the pager
    /// lives, and the file is not written.
    fn in_memory(&self, pages: PageRange) -> Option<ForeignFrames> {
        let _ = pages;
        None
    }

    /// The frame of the storage that *is* the page `index` (DAX), for a
    /// [direct](crate::file::Mapping::direct) file; a page that the storage does not have yet gets one,
    /// filled with zeroes. May be called twice for one page at the same time, and again after
    /// [`discard`](Self::discard).
    ///
    /// The frame is the first of those named, one that [`Platform::frame`] has a record of, and no other
    /// page's. It stays the page's until `discard`, or until the pager is dropped. Its record is the
    /// engine's meanwhile, and is all zero again then.
    ///
    /// # Errors
    ///
    /// The storage failed, or is full.
    fn direct_access(&self, platform: &P, index: PageIndex) -> Result<ForeignFrames, IoError> {
        let _ = (platform, index);
        Err(IoError)
    }

    /// These whole pages were cut off or punched out: from now on they read as zeroes. Of a direct file, no
    /// page table, TLB or transfer has any of their frames any more, so the storage may use them for
    /// something else.
    fn discard(&self, pages: PageRange) {
        let _ = pages;
    }

    /// Whether every page that it reads is zeroes. Then a page that is absent from shared memory need not
    /// come for a part of it to become zeroes.
    fn reads_zeroes(&self) -> bool {
        false
    }
}

/// The backing store of shared memory: nothing is behind it, and every page starts as zeroes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zeroes;

impl<P: Platform> Pager<P> for Zeroes {
    fn read_page(&self, platform: &P, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        Ok(())
    }

    fn reads_zeroes(&self) -> bool {
        true
    }
}
