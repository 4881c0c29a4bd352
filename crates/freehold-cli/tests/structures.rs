//! Structures to which calls point and whose pages nobody has touched before.

use super::{REGISTER, UNREGISTER, is_by_the_kernel, record_program, replay};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// A page of shared memory.
struct Shared(*mut u64);

impl Shared {
    fn new() -> Self {
        Shared(map(1, MapFlags::SHARED) as *mut u64)
    }

    /// Where these words lie, of which nothing is mapped.
    fn absent(&self, words: &[u64]) -> *const u64 {
        #[expect(unsafe_code, reason = "memory of its own")]
        // SAFETY: a page of shared memory, and fewer words; what it holds stays when it is unmapped.
        unsafe {
            self.0.copy_from(words.as_ptr(), words.len());
            assert_eq!(libc::madvise(self.0.cast(), PAGE as usize, libc::MADV_DONTNEED), 0);
        }
        self.0
    }
}

fn map(pages: u64, flags: MapFlags) -> u64 {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    #[expect(unsafe_code, reason = "memory of nobody else's")]
    // SAFETY: the kernel chooses the place.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), (pages * PAGE) as usize, prot, flags) };
    at.expect("mapped") as u64
}

#[test]
#[ignore = "a program that others record"]
fn structures_that_are_not_there() {
    let shared = Shared::new();
    let start = map(4, MapFlags::PRIVATE);
    let own = std::process::id();
    #[expect(unsafe_code, reason = "calls of which no library takes an address")]
    // SAFETY: memory of its own, and structures as long as the calls read.
    unsafe {
        let Ok(fd) = userfaultfd(UserfaultfdFlags::CLOEXEC) else { return };
        let ioctl = |command: u64, words: *const u64| libc::ioctl(fd.as_raw_fd(), command, words);
        // The kernel writes to it.
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(ioctl(0xc018_aa3f, api.as_mut_ptr()), 0);
        assert_eq!(ioctl(REGISTER, shared.absent(&[start + PAGE, 2 * PAGE, 1, 0])), 0);
        assert_eq!(ioctl(UNREGISTER, shared.absent(&[start + 2 * PAGE, PAGE])), 0);
        let pidfd = libc::syscall(libc::SYS_pidfd_open, own, 0);
        let ranges = shared.absent(&[start, PAGE]);
        libc::syscall(libc::SYS_process_madvise, pidfd, ranges, 1, libc::MADV_COLD, 0);
        let limit =
            |at: *const u64, old: u64| libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_MEMLOCK, at, old);
        assert_eq!(limit(shared.absent(&[0x3000, 0x4000]), 0), 0);
        let lower = shared.absent(&[0x2000, 0x4000]);
        assert_eq!(libc::syscall(libc::SYS_setrlimit, libc::RLIMIT_MEMLOCK, lower), 0);
        let header = [0x2008_0522_u32, 0];
        let sets = shared.absent(&[1 << 14, 0, 0]);
        // What it may not have it does not get.
        libc::syscall(libc::SYS_capset, &header, sets);
        println!("at {start:x}");
        // The old limits come where the new ones are: what those were cannot be told afterwards.
        let both = shared.absent(&[0x1000, 0x4000]);
        assert_eq!(limit(both, both as u64), 0);
    }
}

/// They are recorded all the same, and only what the call itself writes over is a place where events were lost.
#[test]
fn structures_in_pages_that_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = "structures::structures_that_are_not_there";
    let (output, Some(made)) = record_program(&folder, &[], program) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    if !is_by_the_kernel(&made) || said.contains("are not recorded: ") {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    let Some(start) = told.split_once("at ").and_then(|(_, rest)| rest.lines().next()) else { return };
    let at = |pages: u64| u64::from_str_radix(start, 16).expect("hexadecimal") + pages * PAGE;
    let text = zstd::decode_all(std::fs::File::open(&made).expect("there")).expect("zstd");
    let text = String::from_utf8(text).expect("text");
    let mut rest = text.as_str();
    for part in [
        format!(" {REGISTER:x} {:x} 2000 1 = 0 ", at(1)),
        format!(" {UNREGISTER:x} {:x} 1000 0 = 0 ", at(2)),
        format!(" v{:x}+1000", at(0)),
        " prlimit64 0 8 3000 4000 = 0 ".to_owned(),
        " setrlimit 8 2000 4000 = 0 ".to_owned(),
    ] {
        let (_, behind) = rest.split_once(&part).unwrap_or_else(|| panic!("no{part}in\n{text}"));
        rest = behind;
    }
    let losses = |text: &str| text.lines().filter(|line| line.split(' ').nth(3) == Some("L")).count();
    assert_eq!((losses(&text), losses(rest)), (1, 1), "{text}");
    replay(&folder, &made);
}
