//! The running kernel as a subject of the comparison of huge pages.
//!
//! The mappings are in this process, not in a child. The kernel itself makes the accesses, through a pipe, so
//! that a failing access returns an errno and raises no signal. [`Linux::new`] returns `None` if userfaultfd
//! is not permitted or too few huge pages are free; the test then compares nothing. The numbers are those of
//! Linux's headers. A call must change only memory of these mappings, because all other memory belongs to the
//! test. `model.rs` lists where the kernel differs from the engine ([`Like`](super::Like)).
#![expect(unsafe_code, reason = "raw system calls")]

use super::{Answer, Area, HUGE, Op, PAGES, Part, Subject};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

const API: u64 = 0xaa;
const FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;
const COPY: u64 = 0xc028_aa03;
const ZEROPAGE: u64 = 0xc020_aa04;
const WRITEPROTECT: u64 = 0xc018_aa06;
const CONTINUE: u64 = 0xc020_aa07;
const POISON: u64 = 0xc020_aa08;

/// The mappings, in this process.
#[derive(Debug)]
pub struct Linux {
    base: u64,
    uffd: OwnedFd,
    file: File,
    pipe: [OwnedFd; 2],
}

/// Takes ownership of a descriptor that a system call returned.
fn owned(fd: i64) -> Option<OwnedFd> {
    // SAFETY: the kernel has just created the descriptor for this process.
    RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

impl Linux {
    /// Creates mappings without pages. Returns `None` if this process may not use userfaultfd, or if there
    /// are too few free huge pages (`/proc/sys/vm/nr_hugepages`).
    pub fn new() -> Option<Self> {
        // SAFETY: the call only creates a descriptor.
        let uffd = owned(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
        // SAFETY: the call only creates a descriptor, and the name is a string.
        let memfd = unsafe { libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB | libc::MFD_CLOEXEC) };
        let file = File::from(owned(memfd.into())?);
        let mut pipe = [0; 2];
        // SAFETY: the array has room for two descriptors.
        unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
        let pipe = [owned(pipe[0].into())?, owned(pipe[1].into())?];
        file.set_len(PAGES * HUGE).ok()?;
        let len = (4 * super::APART) as usize;
        let (none, anonymous) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the call creates a new mapping at an address that the kernel chooses.
        let all =
            unsafe { libc::mmap(core::ptr::null_mut(), len, none, anonymous | libc::MAP_NORESERVE, -1, 0) };
        let base = (all as u64).next_multiple_of(HUGE);
        let linux = Linux { base, uffd, file, pipe };
        for area in Area::ALL {
            let kind = if area.is_private() { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
            let (flags, fd) = match area {
                Area::Anonymous => (kind | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB, -1),
                _ => (kind, linux.file.as_raw_fd()),
            };
            let at = (base + area.offset()) as *mut libc::c_void;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is inside the mapping created above, which no other code uses.
            let mapped =
                unsafe { libc::mmap(at, (PAGES * HUGE) as usize, rights, flags | libc::MAP_FIXED, fd, 0) };
            if mapped != at {
                return None;
            }
        }
        let asked = linux.ioctl(UFFDIO_API, &mut [API, FEATURE_SIGBUS, 0]);
        (asked == Answer::Done(0)).then_some(linux)
    }

    /// Makes a call on the userfaultfd. `words` is the argument of the ioctl.
    fn ioctl<const N: usize>(&self, call: u64, words: &mut [u64; N]) -> Answer {
        // SAFETY: each of these calls reads and writes `N` words. The call changes only the memory of this
        // subject's mappings.
        match unsafe { libc::ioctl(self.uffd.as_raw_fd(), call, words.as_mut_ptr()) } {
            0 => Answer::Done(0),
            _ => Answer::Failed(errno()),
        }
    }

    /// Makes a call that fills pages. The last word receives the number of bytes that were filled.
    fn fill<const N: usize>(&self, call: u64, mut words: [u64; N]) -> Answer {
        let answer = self.ioctl(call, &mut words);
        let bytes = words[N - 1].cast_signed();
        match answer {
            Answer::Failed(_) if bytes <= 0 => answer,
            _ => Answer::Done(bytes.cast_unsigned() / HUGE),
        }
    }

    /// Returns the address of a part.
    fn at(&self, part: Part) -> u64 {
        self.base + part.area.offset() + part.page * HUGE
    }

    /// Returns the range of a part, cut at the end of the mapping.
    fn within(&self, part: Part) -> (u64, u64) {
        (self.at(part), part.pages.min(PAGES - part.page) * HUGE)
    }

    /// Loads a word: the kernel writes it to the pipe.
    fn load(&self, at: u64) -> Answer {
        let mut word = 0u64;
        let [from, to] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: the first call reads at the address, and returns an error if the address cannot be read.
        // The second call writes only to `word`.
        unsafe {
            if libc::write(to, at as *const libc::c_void, 8) != 8 {
                return Answer::Fault;
            }
            libc::read(from, (&raw mut word).cast(), 8);
        }
        Answer::Value(word)
    }

    /// Stores a word: the kernel reads it from the pipe.
    fn store(&self, at: u64, value: u64) -> Answer {
        let mut value = value;
        let [from, to] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: the kernel writes at the address, in memory of this subject, and returns an error if the
        // address cannot be written. After such an error, the word is still in the pipe.
        unsafe {
            libc::write(to, (&raw const value).cast(), 8);
            if libc::read(from, at as *mut libc::c_void, 8) != 8 {
                libc::read(from, (&raw mut value).cast(), 8);
                return Answer::Fault;
            }
        }
        Answer::Done(0)
    }
}

fn done(result: libc::c_int) -> Answer {
    if result == 0 { Answer::Done(0) } else { Answer::Failed(errno()) }
}

impl Subject for Linux {
    fn call(&mut self, op: Op) -> Answer {
        let wp = |wp: bool| if wp { 2 } else { 0 };
        match op {
            Op::Register(part, mode) => {
                let (at, len) = self.within(part);
                self.ioctl(REGISTER, &mut [at, len, mode, 0])
            }
            Op::Unregister(part) => {
                let (at, len) = self.within(part);
                self.ioctl(UNREGISTER, &mut [at, len])
            }
            Op::Copy(part, protected, number) => {
                let bytes = super::contents(part.pages, number);
                let from = bytes.as_ptr() as u64;
                self.fill(COPY, [self.at(part), from, part.pages * HUGE, wp(protected), 0])
            }
            Op::Zeropage(part) => self.fill(ZEROPAGE, [self.at(part), part.pages * HUGE, 0, 0]),
            Op::Continue(part, protected) => {
                self.fill(CONTINUE, [self.at(part), part.pages * HUGE, wp(protected), 0])
            }
            Op::Poison(part) => self.fill(POISON, [self.at(part), part.pages * HUGE, 0, 0]),
            Op::Protect(part, on) => {
                let (at, len) = self.within(part);
                self.ioctl(WRITEPROTECT, &mut [at, len, u64::from(on)])
            }
            Op::Load(area, page) => self.load(self.at(Part { area, page, pages: 1 })),
            Op::Store(area, page, value) => self.store(self.at(Part { area, page, pages: 1 }), value),
            Op::DontNeed(part) => {
                let (at, len) = self.within(part);
                // SAFETY: the range is memory of this subject.
                done(unsafe { libc::madvise(at as *mut _, len as usize, libc::MADV_DONTNEED) })
            }
            Op::Punch(page, pages) => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let (at, end) = (page * HUGE, PAGES.min(page + pages) * HUGE);
                // SAFETY: the file belongs to this subject.
                done(unsafe {
                    libc::fallocate(self.file.as_raw_fd(), mode, at.cast_signed(), (end - at).cast_signed())
                })
            }
            Op::Truncate(page) => {
                let cut = self.file.set_len(page * HUGE).and_then(|()| self.file.set_len(PAGES * HUGE));
                if cut.is_ok() { Answer::Done(0) } else { Answer::Failed(errno()) }
            }
            Op::Mprotect(part, writable) => {
                let (at, len) = self.within(part);
                let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
                // SAFETY: the range is memory of this subject.
                done(unsafe { libc::mprotect(at as *mut _, len as usize, rights) })
            }
        }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // SAFETY: the whole range belongs to this subject.
        unsafe { libc::munmap(self.base as *mut _, (3 * super::APART + PAGES * HUGE) as usize) };
    }
}
