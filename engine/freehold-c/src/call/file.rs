//! Files: the page cache of the engine above a file system of the kernel.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use super::space::{bytes, bytes_mut};
use crate::{
    handle::{EngineHandle, FileHandle, give, lend, take},
    host::Kernel,
    result::{failure, status, value},
    setup::WithSize,
};
use core::ffi::{CStr, c_char, c_int, c_void};
use freehold::PageRange;
use freehold::counted::{Counted, Shared};
use freehold::error::{Errno, NoMemory};
use freehold::file::IoError;
use freehold::platform::atomic::{AtomicBool, Ordering::Relaxed};
use freehold::prelude::{File, FileAccess, Mapping, PageIndex, Pager, Pfn};

/// Bit of the access of a file: opened for reading.
pub const FILE_READ: u32 = 1;
/// Bit of the access of a file: opened for writing.
pub const FILE_WRITE: u32 = 2;

/// The functions of a file system, for one file. A field that is not marked as optional must not be NULL.
///
/// data is the pointer that fh_file_new has received. Functions may be called at the same time, for different
/// pages, and hold no lock of the library if the description does not say so.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PagerOps {
    /// Size of this structure in bytes: sizeof(struct fh_pager_ops).
    pub size: usize,
    /// Fills the memory at page, 4096 bytes, with the page of this number. Bytes beyond the end of the file
    /// may be anything. Returns 0, or another number if the page cannot be read. May sleep.
    pub read_page: Option<unsafe extern "C" fn(data: *mut c_void, index: u64, page: *mut c_void) -> c_int>,
    /// Optional. Stores the memory at page as the page of this number. A program may store to the page during
    /// the call; the page is then written again. Returns 0, or another number if the page cannot be written;
    /// it then stays dirty. May sleep. By default, dirty pages count as written.
    pub write_page: Option<unsafe extern "C" fn(data: *mut c_void, index: u64, page: *const c_void) -> c_int>,
    /// Optional. Records a new size of the file in bytes. Called with a lock of the file held, so it must not
    /// sleep and must not call the library.
    pub resized: Option<unsafe extern "C" fn(data: *mut c_void, size: u64)>,
    /// Optional. Frees pages that a truncation has cut off: count pages from the page first on. Later reads
    /// return zeroes for them. May sleep.
    pub discard: Option<unsafe extern "C" fn(data: *mut c_void, first: u64, count: u64)>,
    /// Optional. Ends the use of data, after the last reference and the last mapping of the file. May sleep.
    pub release: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

// SAFETY: the first field is `size`, and zeroes are absent functions.
unsafe impl WithSize for PagerOps {
    const SMALLEST: usize = size_of::<PagerOps>();
}

/// A file of the kernel.
struct Store {
    ops: PagerOps,
    data: *mut c_void,
    /// True if the file owns `data`: the call that creates the file has succeeded. Atomic, without a lock.
    owns_data: AtomicBool,
}

// SAFETY: by the rules of the header, the functions may be called on any thread, also at the same time.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Shared for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // Relaxed: `fh_file_new` stores before it drops its reference. The last reference is dropped here.
        if let Some(release) = self.ops.release.filter(|_| self.owns_data.load(Relaxed)) {
            // SAFETY: the file is the last user of `data`, which the kernel has given to it.
            unsafe { release(self.data) };
        }
    }
}

/// The pager of a file, which is shared with the call that creates the file.
struct StorePager(Counted<Store>);

impl Pager<Kernel> for StorePager {
    fn read_page(&self, _: &Kernel, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let read = self.0.ops.read_page.ok_or(IoError)?;
        // SAFETY: the functions keep the contract of the header. The engine owns the frame.
        match unsafe { read(self.0.data, index.get(), Kernel::address(frame)) } {
            0 => Ok(()),
            _ => Err(IoError),
        }
    }

    fn write_page(&self, _: &Kernel, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let Some(write) = self.0.ops.write_page else { return Ok(()) };
        // SAFETY: as in `read_page`.
        match unsafe { write(self.0.data, index.get(), Kernel::address(frame)) } {
            0 => Ok(()),
            _ => Err(IoError),
        }
    }

    fn resized(&self, size: u64) {
        if let Some(resized) = self.0.ops.resized {
            // SAFETY: the functions keep the contract of the header.
            unsafe { resized(self.0.data, size) };
        }
    }

    fn discard(&self, pages: PageRange) {
        if let Some(discard) = self.0.ops.discard {
            let (first, end) = (pages.start.get(), pages.end.get());
            // SAFETY: the functions keep the contract of the header.
            unsafe { discard(self.0.data, first, end - first) };
        }
    }
}

/// Opens a file of the kernel with this size in bytes. access has bits FH_FILE_. name is a string in UTF-8,
/// which reports show. ops is copied.
///
/// Returns 0; -EINVAL if ops has no read_page, or if name is no string in UTF-8; or -ENOMEM. After a failure,
/// data still belongs to the caller, and release is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_new(
    engine: *const EngineHandle,
    ops: *const PagerOps,
    data: *mut c_void,
    size: u64,
    name: *const c_char,
    access: u32,
    file: *mut *mut FileHandle,
) -> c_int {
    // SAFETY: by the rules of the header, `ops` leads to a structure, and `name` to a string.
    let (ops, name) = unsafe { (PagerOps::copy(ops), CStr::from_ptr(name).to_str()) };
    let (Some(ops), Ok(name)) = (ops.filter(|ops| ops.read_page.is_some()), name) else {
        return failure(Errno::EINVAL);
    };
    let rights = FileAccess::READ_WRITE.read(access & FILE_READ != 0).write(access & FILE_WRITE != 0);
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let engine = unsafe { lend(engine) };
    let opened = Counted::try_new(Store { ops, data, owns_data: AtomicBool::new(false) })
        .map_err(|_| NoMemory)
        .and_then(|store| {
            let mapping = Mapping::new(&*engine, StorePager(store.clone()), size, false)?;
            let file = File::new(&mapping, rights, name)?;
            store.owns_data.store(true, Relaxed);
            Ok(file)
        });
    // SAFETY: by the rules of the header, `file` leads to a pointer.
    unsafe { give(opened, file) }
}

/// Creates shared memory of this size in bytes, whose pages begin as zeroes (memfd_create). Returns 0 or
/// -ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_memory_file_new(
    engine: *const EngineHandle,
    size: u64,
    file: *mut *mut FileHandle,
) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let engine = unsafe { lend(engine) };
    let opened = Mapping::memfd(&*engine, size)
        .and_then(|mapping| File::new(&mapping, FileAccess::READ_WRITE, "/memfd:"));
    // SAFETY: by the rules of the header, `file` leads to a pointer.
    unsafe { give(opened, file) }
}

/// Adds a reference, for example for a copy of a file descriptor. Returns file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_get(file: *mut FileHandle) -> *mut FileHandle {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    core::mem::forget(Counted::clone(&*unsafe { lend(file) }));
    file
}

/// Drops a reference. Mappings have references of their own. Dirty pages are lost at the end of the file, so
/// the kernel calls fh_file_sync before. May sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_put(file: *mut FileHandle) {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { take(file) };
}

/// Returns the size of the file in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_size(file: *const FileHandle) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { lend(file) }.mapping().size()
}

/// Reads bytes of the file through the page cache, as pread(2) does. Returns the number of bytes, which is 0
/// at the end of the file, or -EIO, -ENOMEM or -EINTR. The access of the file is not checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_read(
    file: *const FileHandle,
    offset: u64,
    out: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `out` has `length` bytes.
    let (file, out) = unsafe { (lend(file), bytes_mut(out, length)) };
    value(file.mapping().read_at(offset, out).map(|bytes| bytes as u64))
}

/// Writes bytes of the file through the page cache, as pwrite(2) does; the file grows if necessary. Returns
/// the number of bytes, or -EIO, -EFBIG, -ENOMEM or -EINTR. The access of the file is not checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_write(
    file: *const FileHandle,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> i64 {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `data` has `length` bytes.
    let (file, data) = unsafe { (lend(file), bytes(data, length)) };
    value(file.mapping().write_at(offset, data).map(|bytes| bytes as u64))
}

/// Changes the size of the file in bytes. Pages beyond the end leave all address spaces; accesses to them
/// raise SIGBUS. Returns 0, -EIO, -ENOMEM or -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_truncate(file: *const FileHandle, size: u64) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let file = unsafe { lend(file) };
    status(file.mapping().truncate(size))
}

/// Writes all dirty pages, as fsync(2) does, and waits for the writes. Returns 0, -EINTR, or -EIO if a write
/// has failed since the last call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_sync(file: *const FileHandle) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let file = unsafe { lend(file) };
    status(file.sync(PageRange::ALL))
}
