//! The host kernel's own calls, for the same work beside the engine's.
#![expect(unsafe_code, reason = "calls the host kernel")]

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

/// Bytes of a page.
const PAGE: usize = 4096;
/// What is smaller cannot hold a huge page, and is spared the call that forbids them.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of the host, of pages of 4 KiB; unmapped when dropped.
pub struct Area {
    at: usize,
    bytes: usize,
}

impl Area {
    /// Maps so many bytes that can be read and written, for pages of 4 KiB: what is compared with them has no others.
    ///
    /// # Errors
    ///
    /// The host's.
    pub fn map(bytes: u64) -> io::Result<Area> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: asks for fresh memory, anywhere.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let area = Area { at: at.expose_provenance(), bytes };
        if bytes >= HUGE_PAGE {
            // SAFETY: the area is ours. A kernel without huge pages refuses, and then there is nothing to avoid.
            unsafe { libc::madvise(area.pointer(), area.bytes, libc::MADV_NOHUGEPAGE) };
        }
        Ok(area)
    }

    /// The same, all there already.
    ///
    /// # Errors
    ///
    /// The host's.
    pub fn populated(bytes: u64) -> io::Result<Area> {
        let area = Area::map(bytes)?;
        (0..bytes / PAGE as u64).for_each(|page| area.touch(page));
        Ok(area)
    }

    fn pointer(&self) -> *mut libc::c_void {
        ptr::with_exposed_provenance_mut(self.at)
    }

    /// Writes to a page.
    ///
    /// # Panics
    ///
    /// Beyond the end.
    pub fn touch(&self, page: u64) {
        let offset = page as usize * PAGE;
        assert!(offset < self.bytes, "page {page} of an area of {} bytes", self.bytes);
        // SAFETY: within the area, which is writable; no reference to it exists.
        unsafe { self.pointer().cast::<u8>().add(offset).write_volatile(1) };
    }

    /// Gives all pages back; the area stays.
    pub fn discard(&self) {
        // SAFETY: the area is ours, and nobody relies on what it holds.
        unsafe { libc::madvise(self.pointer(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Makes a page read-only and writable again.
    ///
    /// # Panics
    ///
    /// Beyond the end.
    pub fn protect_and_back(&self, page: u64) {
        let offset = page as usize * PAGE;
        assert!(offset < self.bytes, "page {page} of an area of {} bytes", self.bytes);
        for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: within the area; nobody writes to it in between, since `&self` methods of one area are called by one thread.
            unsafe { libc::mprotect(self.pointer().byte_add(offset), PAGE, prot) };
        }
    }

    /// Unmaps it; how long that took.
    pub fn unmap(self) -> Duration {
        let started = Instant::now();
        drop(self);
        started.elapsed()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `mmap`, and nobody can refer to it any more.
        unsafe { libc::munmap(self.pointer(), self.bytes) };
    }
}

/// Forks; how long the call took its parent. The child ends at once.
///
/// # Errors
///
/// The host's.
pub fn fork() -> io::Result<Duration> {
    let started = Instant::now();
    // SAFETY: the child calls nothing but `_exit`, which is safe after a fork of threads.
    let child = unsafe { libc::fork() };
    let took = started.elapsed();
    match child {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        child => {
            // SAFETY: our own child; its status is nothing to us.
            unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
            Ok(took)
        }
    }
}
