//! The side of the host kernel in the bench of userfaultfd.
//!
//! Implements [`Side`] with system calls: a userfaultfd of this process and areas of its memory. `engine.rs`
//! implements [`Side`] for the engine; `main.rs` runs both in alternating rounds. Needs the right to create a
//! userfaultfd: [`Host::new`] fails without it, and the bench then measures only the engine. Huge pages are
//! off for all areas, so that each fault is for one page. Sizes and calls must be those of `engine.rs`.
#![expect(unsafe_code, reason = "system calls")]

use super::{Call, FAULTING, FAULTS, PAGE, PAGES, Side};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_COPY: libc::Ioctl = 0xc028_aa03_u32 as libc::Ioctl;
const UFFDIO_ZEROPAGE: libc::Ioctl = 0xc020_aa04_u32 as libc::Ioctl;
const UFFDIO_MOVE: libc::Ioctl = 0xc028_aa05_u32 as libc::Ioctl;
/// The version of the userfaultfd API.
const API: u64 = 0xaa;

/// The contents that COPY writes.
static CONTENTS: [u8; (PAGES * PAGE) as usize] = [7; (PAGES * PAGE) as usize];

/// Areas of private anonymous memory: two that threads fill, two that threads move pages from, and one for
/// faults.
pub struct Host {
    /// The userfaultfd.
    uffd: OwnedFd,
    /// Address of the areas that threads fill.
    target: u64,
    /// Address of the areas from which pages are moved.
    source: u64,
    /// Address of the area for faults.
    faulted: u64,
}

/// Maps private anonymous memory.
fn map(bytes: u64) -> Result<u64, Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: requests new memory at an address that the kernel chooses.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if at == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(at.expose_provenance() as u64) }
}

/// Calls madvise for a range.
fn advise(at: u64, bytes: u64, advice: i32) {
    // SAFETY: the memory was mapped by this program, and no reference to it exists.
    let done =
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(at as usize), bytes as usize, advice) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

impl Host {
    /// Creates a userfaultfd and registers the areas.
    pub fn new() -> Result<Self, Error> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (area, faults) = (2 * PAGES * PAGE, FAULTING * FAULTS * PAGE);
        let host = Host { uffd, target: map(2 * area)?, source: map(2 * area)?, faulted: map(faults)? };
        for (at, bytes) in [(host.target, 2 * area), (host.source, 2 * area), (host.faulted, faults)] {
            advise(at, bytes, libc::MADV_NOHUGEPAGE);
        }
        host.ioctl(UFFDIO_API, &mut [API, 0, 0])?;
        host.ioctl(UFFDIO_REGISTER, &mut [host.target, 2 * area, 1, 0])?;
        host.ioctl(UFFDIO_REGISTER, &mut [host.faulted, faults, 1, 0])?;
        Ok(host)
    }

    /// Makes an ioctl of the userfaultfd.
    fn ioctl<const N: usize>(&self, request: libc::Ioctl, words: &mut [u64; N]) -> Result<(), Error> {
        // SAFETY: the record has the size that the request number encodes. The record points only to areas of
        // this program and to constants.
        match unsafe { libc::ioctl(self.uffd.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Fills a range with UFFDIO_COPY.
    fn copy(&self, at: u64, bytes: u64) -> Result<(), Error> {
        self.ioctl(UFFDIO_COPY, &mut [at, CONTENTS.as_ptr().expose_provenance() as u64, bytes, 0, 0])
    }
}

/// Returns the start of a thread's part of an area.
fn area(start: u64, thread: u64) -> u64 {
    start + thread * 2 * PAGES * PAGE
}

/// Writes to each of `pages` pages.
fn touch(at: u64, pages: u64) {
    for page in 0..pages {
        let word = std::ptr::with_exposed_provenance_mut::<u64>((at + page * PAGE) as usize);
        // SAFETY: the memory was mapped by this program, and no reference to it exists.
        unsafe { word.write_volatile(1) };
    }
}

impl Side for Host {
    const NAME: &'static str = "host";

    fn call(&self, call: Call, thread: u64, first: u64, pages: u64) {
        let (at, len) = (area(self.target, thread) + first * PAGE, pages * PAGE);
        let done = match call {
            Call::Copy => self.copy(at, len),
            Call::ZeroPage => self.ioctl(UFFDIO_ZEROPAGE, &mut [at, len, 0, 0]),
            Call::Move => {
                let from = area(self.source, thread) + first * PAGE;
                self.ioctl(UFFDIO_MOVE, &mut [at, from, len, 0, 0])
            }
        };
        done.unwrap_or_else(|error| panic!("{call:?}: {error}"));
    }

    fn reset(&self, call: Call, thread: u64) {
        advise(area(self.target, thread), PAGES * PAGE, libc::MADV_DONTNEED);
        if call == Call::Move {
            touch(area(self.source, thread), PAGES);
        }
    }

    fn map_unmap(&self) {
        let at = map(PAGE).expect("room");
        // SAFETY: mapped just now, and no reference to the memory exists.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at as usize), PAGE as usize) };
    }

    fn faults(&self) -> Duration {
        let pages = FAULTING * FAULTS;
        advise(self.faulted, pages * PAGE, libc::MADV_DONTNEED);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..pages {
                    let mut message = [0u64; 4];
                    // SAFETY: the buffer has 32 bytes, the size of a message.
                    let read = unsafe {
                        libc::read(self.uffd.as_raw_fd(), message.as_mut_ptr().cast(), size_of_val(&message))
                    };
                    assert_eq!(read, 32, "{}", Error::last_os_error());
                    // The words of a message are: event and padding, flags, address.
                    self.copy(message[2] & !(PAGE - 1), PAGE).expect("the page is not mapped");
                }
            });
            let began = Instant::now();
            let threads: Vec<_> = (0..FAULTING)
                .map(|thread| scope.spawn(move || touch(self.faulted + thread * FAULTS * PAGE, FAULTS)))
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no fault fails"));
            began.elapsed()
        })
    }
}
