//! System calls of the host kernel, for the same work as the engine's.
//!
//! Experiments measure the host beside the designs of the engine, so that a reader can judge the engine's
//! absolute times. [`Area`] is a mapping with the operations that experiments time. The functions measure
//! only the system call itself, and return its duration. An area unmaps itself when dropped. Unsafe code of
//! this crate is only here and in `interrupt.rs`.

#![expect(unsafe_code, reason = "calls the host kernel")]

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Memory of the host in pages of 4 KiB. Unmapped when dropped.
pub struct Area {
    /// The address.
    at: usize,
    /// The length in bytes.
    bytes: usize,
    /// True if the area is a separate VMA between two inaccessible pages.
    apart: bool,
}

impl Area {
    /// Maps readable and writable memory at any address. The kernel may merge it with a neighbouring VMA.
    ///
    /// # Errors
    ///
    /// Fails with the error of the host.
    pub fn map(bytes: u64) -> io::Result<Area> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let at = mmap(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Area { at, bytes, apart: false })
    }

    /// Maps memory as a separate VMA that has only pages of 4 KiB, like the engine's memory in the
    /// comparison.
    ///
    /// # Errors
    ///
    /// Fails with the error of the host.
    pub fn apart(bytes: u64) -> io::Result<Area> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let at = mmap(bytes + 2 * PAGE, libc::PROT_NONE)? + PAGE;
        let area = Area { at, bytes, apart: true };
        // SAFETY: the range is the inner part of a new mapping, and no other reference to the mapping exists.
        let opened = unsafe { libc::mprotect(area.pointer(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `area` owns the memory. A kernel without huge pages refuses the advice, but does not need
        // it either.
        unsafe { libc::madvise(area.pointer(), area.bytes, libc::MADV_NOHUGEPAGE) };
        Ok(area)
    }

    /// Maps memory like [`apart`](Self::apart), and makes all pages present.
    ///
    /// # Errors
    ///
    /// Fails with the error of the host.
    pub fn populated(bytes: u64) -> io::Result<Area> {
        let area = Area::apart(bytes)?;
        (0..bytes / PAGE as u64).for_each(|page| area.touch(page));
        Ok(area)
    }

    /// Returns the address as a pointer for system calls.
    fn pointer(&self) -> *mut libc::c_void {
        ptr::with_exposed_provenance_mut(self.at)
    }

    /// Writes to a page.
    ///
    /// # Panics
    ///
    /// Panics if `page` lies beyond the end of the area.
    pub fn touch(&self, page: u64) {
        let offset = page as usize * PAGE;
        assert!(offset < self.bytes, "page {page} of an area of {} bytes", self.bytes);
        // SAFETY: the address is within the area, which is writable, and no reference to this memory exists.
        unsafe { self.pointer().cast::<u8>().add(offset).write_volatile(1) };
    }

    /// Reads a word of a page, or writes `word` to it.
    ///
    /// # Panics
    ///
    /// Panics if `page` lies beyond the end of the area.
    pub fn access(&self, page: u64, word: Option<u64>) {
        let offset = page as usize * PAGE;
        assert!(offset < self.bytes, "page {page} of an area of {} bytes", self.bytes);
        // SAFETY: as in `touch`; pages are aligned for words.
        let words = unsafe { self.pointer().byte_add(offset).cast::<u64>() };
        match word {
            // SAFETY: as in `touch`.
            Some(word) => unsafe { words.write_volatile(word) },
            // SAFETY: as in `touch`. The kernel has filled the page with zeroes, or the area has written it.
            None => _ = unsafe { words.read_volatile() },
        }
    }

    /// Returns for each page whether it is in memory.
    ///
    /// # Errors
    ///
    /// Fails with the error of the host.
    pub fn present(&self) -> io::Result<Vec<bool>> {
        let mut found = vec![0u8; self.bytes / PAGE];
        // SAFETY: the vector has a byte for each page of the area.
        if unsafe { libc::mincore(self.pointer(), self.bytes, found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found.into_iter().map(|byte| byte & 1 != 0).collect())
    }

    /// Frees all pages. The area stays mapped.
    pub fn discard(&self) {
        // SAFETY: `self` owns the area, and no code relies on its contents.
        unsafe { libc::madvise(self.pointer(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Makes a page read-only, and then writable again.
    ///
    /// # Panics
    ///
    /// Panics if `page` lies beyond the end of the area.
    pub fn protect_and_back(&self, page: u64) {
        let offset = page as usize * PAGE;
        assert!(offset < self.bytes, "page {page} of an area of {} bytes", self.bytes);
        for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: the page is within the area. No thread writes to the page between the calls, because
            // one thread calls all `&self` methods of an area.
            unsafe { libc::mprotect(self.pointer().byte_add(offset), PAGE, prot) };
        }
    }

    /// Unmaps the area. Returns the time that the call took.
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
        // SAFETY: `mmap` created this mapping, and no reference to it remains.
        unsafe { libc::munmap(start, self.bytes + 2 * around) };
    }
}

/// Maps new memory at any address. Returns the address.
fn mmap(bytes: usize, rights: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the call requests new memory at any address, so it changes no existing mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.expose_provenance()) }
}

/// Returns the number of faults of this process that read a page, and of all other faults.
pub fn faults() -> (u64, u64) {
    // SAFETY: a structure of integers may be all zeroes.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `usage` is a valid destination, and every Linux has this call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    (usage.ru_majflt as u64, usage.ru_minflt as u64)
}

/// Returns the processor time that the calling thread has used.
#[cfg(not(sim))]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid destination, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Forks. Returns the time of the call in the parent. The child exits immediately.
///
/// # Errors
///
/// Fails with the error of the host.
pub fn fork() -> io::Result<Duration> {
    let started = Instant::now();
    // SAFETY: the child calls only `_exit`, which is safe after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    let took = started.elapsed();
    match child {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: `_exit` is safe after a fork of a process with threads.
        0 => unsafe { libc::_exit(0) },
        child => {
            // SAFETY: `child` is a child of this process, and the null pointer means that its status is not
            // stored.
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
    fn areas_apart_are_separate_vmas() {
        let areas: Vec<Area> = (0..3).map(|_| Area::apart(8 << 20).expect("room")).collect();
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        for area in &areas {
            area.touch(0);
            let line = format!("{:x}-{:x} rw-p", area.at, area.at + area.bytes);
            assert!(maps.contains(&line), "missing line {line} in\n{maps}");
        }
    }
}
