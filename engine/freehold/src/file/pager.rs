//! The backing store of a file's pages: the trait [`Pager`], which the embedder implements, and [`Zeroes`],
//! the pager of shared memory.
//!
//! `read.rs` makes requests to read pages, `write.rs` and `change/write_back.rs` make requests to write
//! pages, and pass them to the pager without a lock. `permit.rs` asks for permissions, `removal.rs` discards
//! pages, and `kinds/direct.rs` gets frames of storage, without a lock. Two functions are called with a lock
//! of the file held and must not sleep: `remove.rs` asks for the release of pages, and `mapping.rs` announces
//! a new size. A new function of the trait needs a default body, because embedders implement the trait.
//! `tests/munmap/hooks.rs` tests pagers that call the engine. `tests/files/reads.rs` and
//! `tests/files/writes.rs` test pagers that hang or complete their requests later.

use super::{ForeignFrames, ReadRequest, WriteRefused, WriteRequest};
pub use crate::error::IoError;
use crate::{Pfn, platform::Platform};
use freehold_vmspace::{PageIndex, PageRange};

/// The backing store of a file.
///
/// A pager implements [`read_page`](Self::read_page), or [`read`](Self::read) to get requests that it can
/// complete later. In the same way, it implements [`write_page`](Self::write_page) or [`write`](Self::write).
///
/// No lock of the engine is held when a pager is called or dropped, with two exceptions: during
/// [`release`](Self::release) the invalidate lock of the file is held, and during
/// [`resized`](Self::resized) its content lock. These two functions must not sleep, and must not call an
/// address space, whose locks come before those of files. With debug assertions the lock order is checked and
/// such a call panics (hazard C-6).
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
    /// Reads pages: fills the frames of the request and completes its pages, at once or later. A task that
    /// needs one of the pages waits with no lock held, and a fatal signal ends its wait. A read that never
    /// ends leaves all other pages of the file usable. Pages that are not complete when the request is
    /// dropped fail.
    ///
    /// The default implementation calls [`read_page`](Self::read_page) for each page.
    fn read(&self, mut request: ReadRequest<P>) {
        while let Some((index, frame)) = request.next_page() {
            let read = self.read_page(request.platform(), index, frame);
            request.complete(index, read);
        }
    }

    /// Returns the largest number of pages that the pager wants in one request, from 1, the default, to
    /// [`ReadRequest::MAX_PAGES`]. A power of two; other numbers are rounded down. A request has the page
    /// that a program needs, and pages around it that are inside the file and not in the cache.
    fn read_pages(&self) -> u64 {
        1
    }

    /// Fills `frame` with the page `index`. Bytes beyond the end of the file need not be written; the engine
    /// zeroes them. Not called if the pager implements [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// Fails if the page cannot be read; `frame` may then hold anything. The default implementation fails.
    fn read_page(&self, platform: &P, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let _ = (platform, index, frame);
        Err(IoError)
    }

    /// Writes pages: stores the frames of the request and completes its pages, at once or later. For a
    /// [direct](crate::file::Mapping::direct) file, whose frames belong to the storage: makes earlier stores
    /// to the frames durable. A task that waits for the write holds no lock, and a fatal signal ends its
    /// wait. A write that never ends delays only the removal of its pages. Pages that are not complete when
    /// the request is dropped fail.
    ///
    /// A truncation or a hole that waits for a write holds back new writes of all its pages. The completion
    /// of a write must therefore not depend on a [`write_back`](crate::file::Mapping::write_back) of other
    /// pages of the file.
    ///
    /// The default implementation calls [`write_page`](Self::write_page) for each page.
    fn write(&self, mut request: WriteRequest<P>) {
        while let Some((index, frame)) = request.next_page() {
            let written = self.write_page(request.platform(), index, frame);
            request.complete(index, written);
        }
    }

    /// Returns the largest number of pages that the pager wants in one request to write, from 1, the default,
    /// to [`WriteRequest::MAX_PAGES`]. A request has consecutive dirty pages.
    fn write_pages(&self) -> u64 {
        1
    }

    /// Stores the contents of `frame` as the page `index`. For a [direct](crate::file::Mapping::direct) file,
    /// whose frame belongs to the storage: makes earlier stores to the frame durable. Not called if the pager
    /// implements [`write`](Self::write).
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
    /// concurrently for one page, and again after [`discard`](Self::discard), but not during a discard of the
    /// page. If pages are discarded during the call, the result is not used, and the storage is asked again.
    ///
    /// No lock is held. The call may sleep; only the tasks that need this page wait.
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

    /// Returns true if [`make_writable`](Self::make_writable) must be called before clean pages change. The
    /// answer must not change during the life of the pager.
    fn guards_writes(&self) -> bool {
        false
    }

    /// Permits changes of these pages, which are clean or not in the cache: by [`write_at`], by zeroes of a
    /// truncation or a hole, or by stores through mappings. The permission of a page ends when a write of the
    /// page begins, and when the page is discarded. Each permitted page is then written, unless it is
    /// discarded first or [`not_changed`](Self::not_changed) names it. Only called if
    /// [`guards_writes`](Self::guards_writes) returns true.
    ///
    /// A page may be in several questions, also at the same time, and a new question about a page may come
    /// before the [`write`](Self::write) that ended its last permission. A page whose write failed is written
    /// again without a new question.
    ///
    /// No lock is held. The call may sleep, for example until space is reserved or until a journal has room;
    /// only the tasks that need these pages wait.
    ///
    /// # Errors
    ///
    /// Fails if the pages may not change. The store raises SIGBUS, or the call fails.
    ///
    /// [`write_at`]: crate::file::Mapping::write_at
    fn make_writable(&self, pages: PageRange) -> Result<(), WriteRefused> {
        let _ = pages;
        Ok(())
    }

    /// Ends the permission of a page that is not in the cache and was not changed, because the call that
    /// needed the permission has failed. Called by write-back, with no lock held.
    fn not_changed(&self, index: PageIndex) {
        let _ = index;
    }

    /// Releases a clean page that the engine wants to drop from the cache, because its memory is needed. With
    /// true, the default, the page leaves the cache; the pager forgets what it has stored about the page.
    /// With false, the page stays.
    ///
    /// No task can find the page during the call. The call must not sleep: other tasks wait for the
    /// invalidate lock, which is held for writing. Pages that are cut off or punched out are not released but
    /// [discarded](Self::discard).
    fn release(&self, index: PageIndex) -> bool {
        let _ = index;
        true
    }

    /// Records a new size of the file in bytes, before tasks can see it. Called for each change of the size
    /// by [`write_at`](crate::file::Mapping::write_at), [`truncate`](crate::file::Mapping::truncate) and
    /// allocation, in the order of the changes, so that the file system and the engine always agree on the
    /// last size. The pages that a smaller size cuts off are discarded afterwards. The file may have grown
    /// again by then.
    ///
    /// The call must not sleep: the content lock is held for writing.
    fn resized(&self, size: u64) {
        let _ = size;
    }

    /// Discards whole pages that were cut off or punched out. After the call the pages read as zeroes, also
    /// those that are part of the file again. Requests for the pages that were made earlier may be
    /// incomplete; their contents are ignored. For a direct file, no page table, TLB or transfer uses their
    /// frames any more, so the storage may reuse the frames.
    ///
    /// No lock is held, and the call may sleep. Until it returns, the truncation or the hole does not return,
    /// and none of the pages is read, written, permitted to change or asked for by
    /// [`direct_access`](Self::direct_access). All other pages of the file are usable. Another truncation of
    /// the file may call the function at the same time, also for some of the same pages.
    fn discard(&self, pages: PageRange) {
        let _ = pages;
    }

    /// Returns true if every page that is read from the backing store is zeroes. If so, the engine makes the
    /// pages itself and calls neither [`read`](Self::read) nor [`read_page`](Self::read_page), and it can
    /// zero a part of an absent page of shared memory without allocating the page.
    fn reads_zeroes(&self) -> bool {
        false
    }
}

/// The pager of shared memory. Stores nothing; every page starts as zeroes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zeroes;

impl<P: Platform> Pager<P> for Zeroes {
    fn reads_zeroes(&self) -> bool {
        true
    }
}
