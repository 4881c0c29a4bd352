//! Tests the recording of structures that system calls read from pages that are not present.
//!
//! The recorder reads the structures with BPF programs (`freehold-record/src/pointed.rs`). The tests record
//! small programs that pass structures in absent pages. They then search each recording for the contents of
//! the structures, and replay the recording. The fixtures are in `record.rs`. Without the right to trace the
//! kernel, the tests pass and check nothing. A new structure of `pointed.rs` needs a program that passes the
//! structure in an absent page, and its expected line.

use super::{API, REGISTER, UNREGISTER, is_by_the_kernel, record_program, replay};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use tempfile::TempDir;

const PAGE: u64 = 4096;

/// A page of shared memory, in which a program passes structures.
struct Shared(*mut u64);

impl Shared {
    fn new() -> Self {
        Shared(map(1, MapFlags::SHARED) as *mut u64)
    }

    /// Stores the words in the page and unmaps the page. The words are still readable, but the kernel must
    /// first take a fault.
    fn absent(&self, words: &[u64]) -> *const u64 {
        #[expect(unsafe_code, reason = "memory of its own")]
        // SAFETY: the page has room for the words. Shared memory keeps its contents when its page is
        // unmapped.
        unsafe {
            self.0.copy_from(words.as_ptr(), words.len());
            assert_eq!(libc::madvise(self.0.cast(), PAGE as usize, libc::MADV_DONTNEED), 0);
        }
        self.0
    }
}

/// Maps anonymous memory of this size, and returns its address.
fn map(pages: u64, flags: MapFlags) -> u64 {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    #[expect(unsafe_code, reason = "maps its own memory")]
    // SAFETY: the kernel chooses the place.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), (pages * PAGE) as usize, prot, flags) };
    at.expect("mapped") as u64
}

#[test]
#[ignore = "a program that another test records"]
fn pass_absent_structures() {
    let shared = Shared::new();
    let start = map(4, MapFlags::PRIVATE);
    let own = std::process::id();
    #[expect(unsafe_code, reason = "no library takes an address for these calls")]
    // SAFETY: the memory is the program's own, and the structures are as long as the calls read.
    unsafe {
        let Ok(fd) = userfaultfd(UserfaultfdFlags::CLOEXEC) else { return };
        let ioctl = |command: u64, words: *const u64| libc::ioctl(fd.as_raw_fd(), command, words);
        // The kernel writes to this structure, so the structure must be in a present page.
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(ioctl(API, api.as_mut_ptr()), 0);
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
        // The call fails if the process lacks the capability; the result does not matter.
        libc::syscall(libc::SYS_capset, &header, sets);
        println!("at {start:x}");
        // The call overwrites the new limits with the old limits, so the recorder cannot read the new limits
        // after the call.
        let both = shared.absent(&[0x1000, 0x4000]);
        assert_eq!(limit(both, both as u64), 0);
    }
}

/// Records a program that prints the address of its memory. Returns the recording's file, the address, and
/// the lines of the recording. Returns `None` if the machine cannot record the structures.
fn recorded(folder: &TempDir, args: &[&str], program: &str) -> Option<(PathBuf, u64, String)> {
    let (output, made) = record_program(folder, args, program);
    let (said, told) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let made = made.filter(|_| !said.contains("are not recorded: "))?;
    if args.is_empty() && !is_by_the_kernel(&made) {
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let start = told.split_once("at ").and_then(|(_, rest)| rest.lines().next())?;
    let text = zstd::decode_all(std::fs::File::open(&made).expect("there")).expect("zstd");
    let start = u64::from_str_radix(start, 16).expect("hexadecimal");
    Some((made, start, String::from_utf8(text).expect("text")))
}

/// Structures in absent pages are recorded. If the call itself overwrites its structure, the structure cannot
/// be read, and the call is recorded as a loss of events.
#[test]
fn structures_in_absent_pages_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((made, start, text)) = recorded(&folder, &[], "structures::pass_absent_structures") else {
        return;
    };
    let at = |pages: u64| start + pages * PAGE;
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

#[test]
#[ignore = "a program that another test records"]
fn register_with_a_userfaultfd_of_the_device() {
    const NEW: u64 = 0xaa00;
    let Ok(device) = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd") else { return };
    let start = map(4, MapFlags::PRIVATE);
    let (page, to) = (PAGE as usize, map(8, MapFlags::PRIVATE));
    #[expect(unsafe_code, reason = "no library wraps these calls")]
    // SAFETY: the memory is the program's own, and the structures are as long as the calls read and write.
    unsafe {
        let fd = libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC);
        assert!(fd >= 0);
        let fd = OwnedFd::from_raw_fd(fd);
        let ioctl = |command: u64, mut words: [u64; 4]| {
            libc::ioctl(fd.as_raw_fd(), command, std::hint::black_box(&mut words))
        };
        assert_eq!(ioctl(API, [0xaa, 0, 0, 0]), 0);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let several = |from: u64, to: u64| libc::mremap(from as _, 3 * page, 3 * page, flags, to as *mut u8);
        assert_eq!(ioctl(REGISTER, [start + PAGE, PAGE, 1, 0]), 0);
        // The first range is not page-aligned. The second range is memory that the mode does not support.
        assert_eq!(ioctl(REGISTER, [start + 1, PAGE, 1, 0]), -1);
        assert_eq!(ioctl(REGISTER, [start + 2 * PAGE, PAGE, 4, 0]), -1);
        // A move of several VMAs fails if one of them is registered. A call that moves only the registered
        // VMA succeeds, and the VMA loses its registration.
        assert_eq!(several(start, to), libc::MAP_FAILED);
        let alone = libc::mremap((start + PAGE) as _, page, page, flags, (to + 4 * PAGE) as *mut u8);
        assert_eq!(alone as u64, to + 4 * PAGE);
        several(to + 3 * PAGE, start);
    }
    println!("at {start:x}");
}

/// A userfaultfd created through /dev/userfaultfd is recorded with its features, so all registrations are
/// known.
#[test]
fn userfaultfd_of_the_device_is_recorded() {
    for args in [&[][..], &["--calls-only"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let program = "structures::register_with_a_userfaultfd_of_the_device";
        let Some((made, start, text)) = recorded(&folder, args, program) else { return };
        let expected = match is_by_the_kernel(&made) {
            true => [" aa00 80000 0 0 = ".to_owned(), format!("{:x} 1000 1 = 0", start + PAGE)],
            false => ["USERFAULTFD_IOC_NEW, ".to_owned(), format!("start={:#x}, ", start + PAGE)],
        };
        for part in expected {
            assert!(text.contains(&part), "no {part} in\n{text}");
        }
        let report = replay(&folder, &made);
        for reason in ["moves refused in processes", "registrations with a userfaultfd that Linux refused"] {
            assert!(!report.contains(reason), "{report}");
        }
    }
}

#[test]
#[ignore = "a program that another test records"]
fn register_shared_memory() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{mlock, mmap, munmap};
    use std::os::fd::{AsFd, BorrowedFd};
    const MISSING: u64 = 1;
    const WP: u64 = 2;
    const MINOR: u64 = 4;
    let Ok(file) = memfd_create("m", MemfdFlags::empty()) else { return };
    ftruncate(&file, 8 * PAGE).expect("longer");
    let Ok(text) = std::fs::File::open("/etc/passwd") else { return };
    let anonymous = map(8, MapFlags::SHARED);
    #[expect(unsafe_code, reason = "no library wraps these calls")]
    // SAFETY: the memory is the program's own, and the structures are as long as the calls read and write.
    unsafe {
        let Ok(fd) = userfaultfd(UserfaultfdFlags::CLOEXEC) else { return };
        let ioctl = |command: u64, mut words: [u64; 5]| {
            libc::ioctl(fd.as_raw_fd(), command, std::hint::black_box(&mut words))
        };
        let of = |fd: BorrowedFd<'_>, prot, flags| {
            mmap(std::ptr::null_mut(), 8 * PAGE as usize, prot, flags, fd, 0).expect("mapped") as u64
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let shared = of(file.as_fd(), both, MapFlags::SHARED);
        let private = of(file.as_fd(), both, MapFlags::PRIVATE);
        let ordinary = of(text.as_fd(), both, MapFlags::PRIVATE);
        let huge = libc::mmap(
            std::ptr::null_mut(),
            4 << 20,
            3,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE,
            -1,
            0,
        );
        assert_eq!(ioctl(API, [0xaa, 0, 0, 0, 0]), 0);
        for (at, mode, expected) in [
            (anonymous, MISSING | WP, 0),
            (anonymous + 4 * PAGE, MINOR, 0),
            (shared, MISSING, 0),
            (shared + 2 * PAGE, MINOR | WP, 0),
            (private, MISSING, 0),
            (private + 2 * PAGE, MINOR, 0),
            (ordinary, MISSING, -1),
        ] {
            assert_eq!(ioctl(REGISTER, [at, 2 * PAGE, mode, 0, 0]), expected, "{at:x} {mode}");
        }
        if huge != libc::MAP_FAILED {
            assert_eq!(ioctl(REGISTER, [huge as u64, 2 << 20, MISSING, 0, 0]), 0);
        }
        // With UFFD_FEATURE_WP_ASYNC the kernel resolves the faults itself and accepts any file. Old kernels
        // lack the feature.
        const WP_ASYNC: u64 = 1 << 15;
        let Ok(other) = userfaultfd(UserfaultfdFlags::CLOEXEC) else { return };
        let by_itself = |command: u64, mut words: [u64; 5]| {
            libc::ioctl(other.as_raw_fd(), command, std::hint::black_box(&mut words))
        };
        if by_itself(API, [0xaa, WP_ASYNC, 0, 0, 0]) == 0 {
            assert_eq!(by_itself(REGISTER, [ordinary + 2 * PAGE, 2 * PAGE, WP, 0, 0]), 0);
        }
        let zeroes = [0_u64; 512];
        let source = zeroes.as_ptr() as u64;
        assert_eq!(ioctl(0xc028_aa03, [shared + PAGE, source, PAGE, 0, 0]), 0);
        (shared as *mut u8).add(PAGE as usize).write_volatile(1);
        assert_eq!(ioctl(0xc028_aa03, [anonymous, source, PAGE, 0, 0]), 0);
        mlock(anonymous as _, PAGE as usize).expect("locked");
        assert_eq!(ioctl(UNREGISTER, [private, 2 * PAGE, 0, 0, 0]), 0);
        munmap(shared as _, PAGE as usize).expect("unmapped");
        println!("at {:x}", huge as u64);
        // The snapshot at the exit shows the registrations.
        libc::_exit(0);
    }
}

/// Registrations of shared memory, of private mappings of shared files and of hugetlb pages are replayed and
/// compared. Registrations of ordinary files are neither replayed nor compared.
#[test]
fn registrations_of_shared_and_huge_memory_are_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = "structures::register_shared_memory";
    let Some((made, huge, text)) = recorded(&folder, &[], program) else { return };
    let registered: Vec<_> = text.lines().filter(|line| line.contains(&format!(" {REGISTER:x} "))).collect();
    let with = |what: String| registered.iter().filter(|line| line.contains(&what)).count();
    let (pools, ordinary) = (with(format!(" {huge:x} ")), with(" 2 = 0 ".into()));
    assert_eq!(registered.len(), 7 + pools + ordinary, "{text}");
    let report = replay(&folder, &made);
    assert_eq!(report.contains("userfaultfd of ordinary files"), ordinary > 0, "{report}");
    // The count includes the UFFDIO_UNREGISTER.
    assert!(report.contains(&format!("ioctl {} ", 8 + pools)), "{report}");
}

#[test]
#[ignore = "a program that another test records"]
fn drop_privileges() {
    use rustix::mm::mlock;
    use rustix::process::{Resource, Rlimit, setrlimit};
    let own = map(4, MapFlags::PRIVATE);
    #[expect(unsafe_code, reason = "its own memory; no library wraps these calls")]
    // SAFETY: the calls lock only memory of this process, and change only its user IDs.
    unsafe {
        let limit = Rlimit { current: Some(PAGE), maximum: Some(PAGE) };
        if setrlimit(Resource::Memlock, limit).is_err() || mlock(own as _, 2 * PAGE as usize).is_err() {
            return;
        }
        rustix::mm::munlock(own as _, 2 * PAGE as usize).expect("unlocked");
        // The raw call changes only this thread.
        if libc::syscall(libc::SYS_setresuid, 0, 65534, 0) != 0 {
            return;
        }
        assert!(mlock(own as _, 2 * PAGE as usize).is_err(), "the privilege is dropped");
        assert_eq!(libc::syscall(libc::SYS_setresuid, -1, 0, -1), 0);
        assert!(mlock(own as _, 2 * PAGE as usize).is_ok(), "the privilege is restored");
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
        assert!(mlock(own as _, 3 * PAGE as usize).is_err(), "the privilege is dropped permanently");
    }
    println!("at {own:x}");
}

/// A call that changes credentials is recorded as a capset, with the new state of CAP_IPC_LOCK.
#[test]
fn credential_changes_are_recorded_as_capset() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((made, _, text)) = recorded(&folder, &[], "structures::drop_privileges") else { return };
    if std::fs::metadata("/sys/kernel/btf/vmlinux").is_err() {
        return;
    }
    let set = |line: &str| {
        let (_, behind) = line.split_once(" capset ")?;
        u64::from_str_radix(behind.split(' ').next()?, 16).ok()
    };
    let may: Vec<bool> = text.lines().filter_map(set).map(|set| set >> 14 & 1 != 0).collect();
    assert_eq!(may, [false, true, false], "{text}");
    let report = replay(&folder, &made);
    assert!(!report.contains("refused for limits, credentials"), "{report}");
}
