//! The backing store of a file's pages: the trait [`Pager`], which the embedder implements, and [`Zeroes`],
//! the pager of shared memory.
//!
//! `fill.rs` reads pages, `change/write_back.rs` writes them, `kinds/direct.rs` gets frames of storage, and
//! `remove.rs` discards pages. All of them call the pager with the invalidate lock held, so a call of the
//! pager delays truncation of this file but no other file. A pager may sleep. A pager must not wait for an
//! access to the same file, because the access may need this lock. A new function of the trait needs a
//! default body, because embedders implement the trait. `tests/munmap/hooks.rs` tests pagers that call the
//! engine, and `tests/every_call/killed.rs` tests a pager that hangs.

use super::ForeignFrames;
use crate::{Pfn, platform::Platform};
use core::fmt;
use freehold_vmspace::{PageIndex, PageRange};

/// Error of a failed read or write of the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError;

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("input or output failed")
    }
}

impl core::error::Error for IoError {}

/// The backing store of a file. Called without any lock of an address space, with the file's own locks held.
///
/// A pager must not call an address space, whose locks come before those of files. With debug assertions the
/// lock order is checked and such a call panics (hazard C-6). Dropping a pager is different: no lock is held
/// then, and its `drop` may call anything.
///
/// # Examples
///
/// ```
/// # use freehold::{PAGE_SIZE, PageIndex, PageRange, Pfn, platform::Platform};
/// # use freehold::file::{IoError, Mapping, Pager};
/// # use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// /// The first byte of the only page of the disk.
/// static STORED: AtomicU8 = AtomicU8::new(7);
/// struct Disk;
/// impl<P: Platform> Pager<P> for Disk {
///     fn read_page(&self, platform: &P, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
///         platform.zero_frame(frame);
///         platform.write_frame(frame, 0, &[STORED.load(Relaxed)]);
///         Ok(())
///     }
///     fn write_page(&self, platform: &P, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
///         let mut byte = [0];
///         platform.read_frame(frame, 0, &mut byte);
///         STORED.store(byte[0], Relaxed);
///         Ok(())
///     }
/// }
/// let file = Mapping::new(&engine, Disk, PAGE_SIZE, false).unwrap();
/// file.write_at(0, &[8]).unwrap();
/// file.write_back(PageRange::one(PageIndex::new(0))).unwrap();
/// assert_eq!(STORED.load(Relaxed), 8);
/// ```
pub trait Pager<P: Platform>: Send + Sync + 'static {
    /// Fills `frame` with the page `index`. Bytes beyond the end of the file need not be written; the engine
    /// zeroes them.
    ///
    /// # Errors
    ///
    /// Fails if the page cannot be read; `frame` may then hold anything.
    fn read_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError>;

    /// Stores the contents of `frame` as the page `index`. For a [direct](crate::file::Mapping::direct) file,
    /// whose frame belongs to the storage: makes earlier stores to the frame durable.
    ///
    /// # Errors
    ///
    /// Fails if the page cannot be written; the page then stays dirty.
    fn write_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let _ = (platform, index, frame);
        Ok(())
    }

    /// Returns the contiguous frames that hold these pages, if the backing store is memory that programs can
    /// read in place, such as a ROM. Called for read-only mappings without an MMU; other mappings get copies
    /// made by [`read_page`](Self::read_page). The frames must stay valid as long as the pager lives, and the
    /// file must not be written.
    fn in_memory(&self, pages: PageRange) -> Option<ForeignFrames> {
        let _ = pages;
        None
    }

    /// Returns the storage frame that *is* the page `index` (DAX) of a [direct](crate::file::Mapping::direct)
    /// file. If the storage has no such page yet, allocates a page filled with zeroes. May be called
    /// concurrently for one page, and again after [`discard`](Self::discard).
    ///
    /// Only the first of the returned frames is used. [`Platform::frame`] must have a record of the frame,
    /// and no other page may use it. The frame belongs to the page until `discard`, or until the pager is
    /// dropped. The engine owns the frame's record during that time and leaves it all zero at the end.
    ///
    /// # Errors
    ///
    /// Fails if the storage fails or is full.
    fn direct_access(&self, platform: &P, index: PageIndex) -> Result<ForeignFrames, IoError> {
        let _ = (platform, index);
        Err(IoError)
    }

    /// Discards whole pages that were cut off or punched out. From now on the pages read as zeroes. For a
    /// direct file, no page table, TLB or transfer uses their frames any more, so the storage may reuse the
    /// frames.
    fn discard(&self, pages: PageRange) {
        let _ = pages;
    }

    /// Returns true if every page that is read from the backing store is zeroes. If so, the engine can zero a
    /// part of an absent page of shared memory without allocating the page.
    fn reads_zeroes(&self) -> bool {
        false
    }
}

/// The pager of shared memory. Stores nothing; every page starts as zeroes.
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
