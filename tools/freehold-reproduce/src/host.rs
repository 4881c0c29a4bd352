//! The host kernel's own calls, for the same work beside the engine's.
#![expect(unsafe_code, reason = "calls the host kernel")]

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Memory of the host, of pages of 4 KiB; unmapped when dropped.
pub struct Area {
    at: usize,
    bytes: usize,
    /// It is a VMA of its own, between two pages that nobody may touch.
    apart: bool,
}

impl Area {
    /// Maps so many bytes that can be read and written, wherever the kernel likes: it may make one VMA of it
    /// and a neighbour.
    ///
    /// # Errors
    ///
    /// The host's.
    pub fn map(bytes: u64) -> io::Result<Area> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let at = mmap(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Area { at, bytes, apart: false })
    }

    /// Maps so many bytes as a VMA of their own, for pages of 4 KiB: what is compared with them has no
    /// others.
    ///
    /// # Errors
    ///
    /// The host's.
    pub fn apart(bytes: u64) -> io::Result<Area> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let at = mmap(bytes + 2 * PAGE, libc::PROT_NONE)? + PAGE;
        let area = Area { at, bytes, apart: true };
        // SAFETY: the inner part of what was just mapped, which nobody knows.
        let opened = unsafe { libc::mprotect(area.pointer(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the area is ours. A kernel without huge pages refuses, and then there is nothing to avoid.
        unsafe { libc::madvise(area.pointer(), area.bytes, libc::MADV_NOHUGEPAGE) };
        Ok(area)
    }

    /// As [`apart`](Self::apart), all there already.
    ///
    /// # Errors
    ///
    /// The host's.
    pub fn populated(bytes: u64) -> io::Result<Area> {
        let area = Area::apart(bytes)?;
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
            // SAFETY: within the area; nobody writes to it in between, since `&self` methods of one area are
            // called by one thread.
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
        let around = if self.apart { PAGE } else { 0 };
        let start = ptr::with_exposed_provenance_mut(self.at - around);
        // SAFETY: mapped by `mmap`, and nobody can refer to it any more.
        unsafe { libc::munmap(start, self.bytes + 2 * around) };
    }
}

/// Maps fresh memory anywhere; its address.
fn mmap(bytes: usize, rights: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: asks for fresh memory, anywhere.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.expose_provenance()) }
}

/// The processor time that the calling thread has used.
#[cfg(not(sim))]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time to where it is told, and every Linux knows this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn areas_apart_are_vmas_of_their_own() {
        let areas: Vec<Area> = (0..3).map(|_| Area::apart(8 << 20).expect("room")).collect();
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        for area in &areas {
            area.touch(0);
            let line = format!("{:x}-{:x} rw-p", area.at, area.at + area.bytes);
            assert!(maps.contains(&line), "{line} is no line of\n{maps}");
        }
    }
}
