//! Tests `freehold record` with the kernel's tracing if this machine supports it, otherwise with strace.
//! Without tracing and strace, the tests check only the error message.
//!
//! A test records a command ([`record`]) or a *program* ([`record_program`]). A program is an ignored test
//! function of this file or of the modules below; this test program runs it in a new process under the
//! recorder. Most tests then replay the recording ([`replay`]): the replay must find no difference. Tests
//! that need the kernel's tracing return early without it, so a run without root checks less. To add a case,
//! write an ignored function that makes the calls, and a test that records it and searches the recording for
//! the expected lines.

mod accesses;
mod mounts;
mod names;
mod structures;
mod untold;

use assert_cmd::Command;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// A shell script that forks, execs, fails an exec, ends a child by a signal, and leaves another child
/// running.
const SCRIPT: &str = "cat /dev/null; /nowhere 2>/dev/null; sleep 0.03 & sh -c 'kill -SEGV $$'; exit 7";

/// Runs `freehold` with these arguments in `folder`.
fn freehold(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("freehold").expect("built");
    command.current_dir(folder).args(args).output().expect("run")
}

/// Records a command under the name `t`, with further arguments. Returns the output, and the recording's file
/// if the machine can record.
fn record(folder: &TempDir, args: &[&str], command: &[&str]) -> (Output, Option<PathBuf>) {
    let all: Vec<&str> = ["record", "-o", "t"]
        .into_iter()
        .chain(args.iter().copied())
        .chain(["--"])
        .chain(command.iter().copied())
        .collect();
    let output = freehold(folder.path(), &all);
    let made = ["t.trace.zst", "t.strace.zst"]
        .map(|name| folder.path().join(name))
        .into_iter()
        .find(|path| path.exists());
    if made.is_none() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("strace is not installed") || said.contains("cannot run"), "{said}");
        assert_eq!(output.status.code(), Some(125), "{said}");
    }
    (output, made)
}

#[test]
fn report_about_a_recorded_command_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--report", "page.html"];
    let (output, Some(_)) = record(&folder, &args, &["sh", "-c", SCRIPT]) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "the command's own status: {said}");
    assert!(said.contains("page.html: a page about the recording"), "{said}");
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.contains("<section id=\"waits\">") && page.contains("all match Linux"), "{said}");
}

#[test]
fn recording_is_replayed_as_on_linux() {
    for args in [&[][..], &["--calls-only"], &["--snapshot-every", "20ms", "--snapshots", "3"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let (output, Some(made)) = record(&folder, args, &["sh", "-c", SCRIPT]) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "the command's own status: {said}");
        let replayed = freehold(folder.path(), &["replay", &made.to_string_lossy()]);
        let report = String::from_utf8_lossy(&replayed.stdout);
        assert_eq!(replayed.status.code(), Some(0), "{report}\n{said}");
        assert!(report.contains("all match Linux"), "{report}");
    }
}

#[test]
fn paths_are_renamed_in_trace_and_snapshots() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--rename", "/usr=/elsewhere", "--rename", "/lib=/elsewhere/lib"];
    let (_, Some(made)) = record(&folder, &args, &["sh", "-c", "exit"]) else { return };
    if made.ends_with("t.strace.zst") {
        return;
    }
    for file in [made, folder.path().join("t.snap.zst")] {
        let text = text_of(&file);
        assert!(text.contains(" /elsewhere/"), "{text}");
        assert!(!text.contains(" /usr/"), "{text}");
    }
}

#[test]
fn command_that_cannot_be_run_leaves_no_files() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text"), "not a program").expect("written");
    for (command, status) in [("/nowhere/at/all", 127), ("no-such-command", 127), ("./text", 126), ("/", 126)]
    {
        for args in
            [&["record", "-o", "t", "--", command][..], &["record", "--calls-only", "-o", "t", "--", command]]
        {
            let output = freehold(folder.path(), args);
            assert_eq!(output.status.code(), Some(status), "{args:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("cannot run"), "{output:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "{command}");
    }
}

#[test]
fn unwritable_recording_exits_with_125() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = freehold(folder.path(), &["record", "-o", "no/such/folder/t", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
}

/// Returns true if the signal is ignored in this process, and so in its children. A shell cannot trap a
/// signal that was already ignored when the shell started.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a set of signals");
    u64::from_str_radix(set.trim(), 16).expect("hexadecimal") >> (signal - 1) & 1 != 0
}

/// The recorder forwards SIGTERM and SIGINT to the command, records the command to its end, and writes all
/// files.
#[test]
fn interrupted_recording_is_complete() {
    for signal in [libc::SIGTERM, libc::SIGINT].into_iter().filter(|signal| !is_ignored(*signal)) {
        let folder = tempfile::tempdir().expect("a folder");
        let (probe, Some(made)) = record(&folder, &["--force"], &["true"]) else { return };
        assert!(
            String::from_utf8_lossy(&probe.stderr).contains("freehold: replay with: freehold replay ./t."),
            "{probe:?}"
        );
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("freehold"))
            .current_dir(folder.path())
            .args([
                "record",
                "--force",
                "-o",
                "t",
                "--",
                "sh",
                "-c",
                "trap 'exit 3' TERM INT; touch on; while :; do sleep 0.05; done",
            ])
            .spawn()
            .expect("run");
        while !folder.path().join("on").exists() {
            assert!(child.try_wait().expect("asked").is_none(), "the command ended before the signal");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let told = rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::from_named_raw(signal).expect("a signal"),
        );
        assert!(told.is_ok());
        let ended = child.wait().expect("waited for");
        assert_eq!(ended.code(), Some(3), "the command's own status");
        let replayed = freehold(folder.path(), &["replay", &made.to_string_lossy()]);
        assert_eq!(replayed.status.code(), Some(0), "{}", String::from_utf8_lossy(&replayed.stdout));
    }
}

#[test]
fn existing_files_are_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["t.trace.zst", "t.snap.zst", "t.strace.zst"] {
        let there = folder.path().join(name);
        std::fs::write(&there, "mine").expect("written");
        let output = freehold(folder.path(), &["record", "-o", "t", "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("{name} exists already")), "{said}");
        assert_eq!(output.status.code(), Some(125));
        assert_eq!(std::fs::read(&there).expect("still there"), b"mine");
        std::fs::remove_file(there).expect("removed");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for args in [
        &["record"][..],
        &["record", "--buffer-kb", "1", "--", "true"],
        &["record", "--rename", "nothing", "--", "true"],
        &["record", "--snapshot-every", "soon", "--", "true"],
    ] {
        assert_eq!(freehold(folder.path(), args).status.code(), Some(2), "{args:?}");
    }
}

/// Records a program: an ignored test function that only the recorder runs.
fn record_program(folder: &TempDir, args: &[&str], program: &str) -> (Output, Option<PathBuf>) {
    let own = std::env::current_exe().expect("there");
    let own = own.to_str().expect("UTF-8");
    record(folder, args, &[own, "--exact", program, "--ignored", "--nocapture", "--test-threads=1"])
}

/// Replays a recording without differences, and returns the report.
fn replay(folder: &TempDir, made: &Path) -> String {
    let replayed = freehold(folder.path(), &["replay", "-q", &made.to_string_lossy()]);
    let report = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert_eq!(replayed.status.code(), Some(0), "{report}{}", String::from_utf8_lossy(&replayed.stderr));
    // Line breaks in the report depend on its numbers.
    report.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns true if the kernel's tracing made the recording, and false if strace made it.
fn is_by_the_kernel(made: &Path) -> bool {
    made.to_string_lossy().ends_with(".trace.zst")
}

#[test]
#[ignore = "a program that another test records"]
fn wait_once_for_each_child() {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
    for _ in 0..50 {
        #[expect(clippy::zombie_processes, reason = "waited for by its number")]
        let child = std::process::Command::new("true").spawn().expect("run");
        let pid = Pid::from_child(&child);
        let gone = pidfd_open(pid, PidfdFlags::empty()).expect("a descriptor");
        poll(&mut [PollFd::new(&gone, PollFlags::IN)], None).expect("cannot poll");
        let found = waitpid(Some(pid), WaitOptions::NOHANG).expect("a child");
        assert!(found.is_some(), "the exited child cannot be waited for");
    }
}

/// The recorder does not delay the exit of a child: a parent that is notified of the exit can wait for the
/// child at once.
#[test]
fn parent_can_wait_for_an_exited_child_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (output, Some(made)) = record_program(&folder, &[], "wait_once_for_each_child") else { return };
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    replay(&folder, &made);
}

#[test]
#[ignore = "a program that another test records"]
fn change_files() {
    use rustix::fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    };
    use rustix::io::dup;
    use rustix::mm::{MapFlags, ProtFlags, mmap, mprotect, munmap};
    const PAGE: usize = 4096;
    let map = |file: &std::os::fd::OwnedFd, prot, flags| {
        #[expect(unsafe_code, reason = "a new mapping")]
        // SAFETY: the kernel chooses the place.
        unsafe {
            mmap(std::ptr::null_mut(), 4 * PAGE, prot, flags, file, 0)
        }
    };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // Create two files with the same name, and use one of the files through a copy of its descriptor.
    let [one, other] = [0, 1].map(|_| memfd_create("same", MemfdFlags::ALLOW_SEALING).expect("a memfd"));
    ftruncate(&one, 4 * PAGE as u64).expect("longer");
    let copy = dup(&one).expect("a copy");
    drop(one);
    let at = map(&copy, both, MapFlags::SHARED).expect("mapped");
    #[expect(unsafe_code, reason = "stores into memory of its own")]
    // SAFETY: the mapping has four pages. The truncated pages exist again before they are touched.
    unsafe {
        at.cast::<u8>().add(3 * PAGE).write_volatile(1);
        ftruncate(&copy, PAGE as u64).expect("shorter");
        ftruncate(&copy, 4 * PAGE as u64).expect("longer");
        at.cast::<u8>().write_volatile(1);
        fallocate(&copy, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, PAGE as u64)
            .expect("a hole");
    }
    assert!(fcntl_add_seals(&copy, SealFlags::WRITE).is_err(), "it is mapped for writing");
    #[expect(unsafe_code, reason = "the mapping is not used any more")]
    // SAFETY: unmaps the mapping created above.
    unsafe { munmap(at, 4 * PAGE) }.expect("unmapped");
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK).expect("sealed");
    assert!(map(&copy, both, MapFlags::SHARED).is_err(), "sealed");
    assert!(ftruncate(&copy, 0).is_err(), "sealed");
    map(&other, both, MapFlags::PRIVATE).expect("mapped beyond the end of the file");
    // A file that is open only for reading.
    let text: std::os::fd::OwnedFd = std::fs::File::open("/etc/passwd").expect("there").into();
    assert!(map(&text, both, MapFlags::SHARED).is_err(), "not open for writing");
    let at = map(&text, ProtFlags::READ, MapFlags::SHARED).expect("mapped");
    #[expect(unsafe_code, reason = "changes the rights of its own memory")]
    // SAFETY: changes only the mapping created above.
    let refused =
        unsafe { mprotect(at, PAGE, rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE) };
    assert!(refused.is_err(), "not open for writing");
}

/// Both kinds of recording contain the lengths and seals of files, and the way in which each file was opened,
/// so every answer is checked.
#[test]
fn opens_lengths_and_seals_of_files_are_replayed() {
    for args in [&[][..], &["--calls-only"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let (output, Some(made)) = record_program(&folder, args, "change_files") else { return };
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report = replay(&folder, &made);
        for reason in [
            "which are not recorded",
            "the file's length and the size of the pool",
            "the file is not recorded",
        ] {
            assert!(!report.contains(reason), "{report}");
        }
    }
}

#[test]
#[ignore = "a program that another test records"]
fn make_many_faults_and_exec() {
    use std::os::unix::process::CommandExt;
    for _ in 0..20 {
        std::hint::black_box(vec![1_u8; 16 << 20]);
    }
    let error = std::process::Command::new("true").exec();
    panic!("{error}");
}

/// Lost events are reported, are marked at their place in the recording, and cause no differences.
#[test]
fn processes_with_lost_events_are_unchecked_until_exec() {
    let folder = tempfile::tempdir().expect("a folder");
    let (output, Some(made)) = record_program(&folder, &["--buffer-kb", "64"], "make_many_faults_and_exec")
    else {
        return;
    };
    if !is_by_the_kernel(&made) || output.status.code() != Some(125) {
        // No event was lost in this run.
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("try --buffer-kb 256"), "{said}");
    let report = replay(&folder, &made);
    assert!(report.contains("places where events were lost"), "{report}");
    assert!(report.contains("until their next exec"), "{report}");
}

/// The recorder refuses to run in a PID namespace, where it would trace unrelated processes. The recorded
/// command may create a PID namespace.
#[test]
fn pid_namespace_is_recorded_from_outside_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::process::Command::new("unshare").args(["-pf", "--mount-proc", "true"]).output();
    if !own.is_ok_and(|output| output.status.success()) {
        return;
    }
    let (output, Some(made)) = record(&folder, &[], &["unshare", "-pf", "--mount-proc", "sh", "-c", SCRIPT])
    else {
        return;
    };
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let report = replay(&folder, &made);
    assert!(!is_by_the_kernel(&made) || !report.contains(" calls, 0 faults,"), "{report}");
    let program = assert_cmd::cargo::cargo_bin("freehold");
    let program = program.to_str().expect("UTF-8");
    let inside = std::process::Command::new("unshare")
        .current_dir(folder.path())
        .args(["-pf", "--mount-proc", program, "record", "-o", "inside", "--", "true"])
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&inside.stderr);
    assert!(!folder.path().join("inside.trace.zst").exists(), "{said}");
    if is_by_the_kernel(&made) {
        assert!(said.contains("PID namespace"), "{said}");
    }
}

/// A recording of a program that printed its descriptor and the address of its memory.
struct Watched {
    /// The recording's file.
    made: PathBuf,
    /// Its lines.
    text: String,
    /// The address of the program's memory.
    start: u64,
    /// The program's descriptor, as hexadecimal digits.
    fd: String,
}

/// Records a program of this file with the kernel's tracing. Returns `None` if the recorder may not read the
/// program's memory, or if the program printed nothing because the kernel does not support its calls.
fn watch(folder: &TempDir, program: &str) -> Option<Watched> {
    let (output, made) = record_program(folder, &[], program);
    let made = made.filter(|made| is_by_the_kernel(made))?;
    if String::from_utf8_lossy(&output.stderr).contains("are not recorded: ") {
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, said) = said.split_once("at ")?;
    let (start, fd) = said.lines().next()?.split_once(" by ")?;
    let start = u64::from_str_radix(start, 16).expect("hexadecimal");
    Some(Watched { text: text_of(&made), made, start, fd: fd.to_owned() })
}

/// Returns the uncompressed contents of a recording's file.
fn text_of(recording: &Path) -> String {
    let text = zstd::decode_all(std::fs::File::open(recording).expect("there")).expect("zstd");
    String::from_utf8(text).expect("text")
}

#[test]
#[ignore = "a program that another test records"]
fn register_with_userfaultfd() {
    use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};
    use std::os::fd::AsRawFd;
    const PAGE: u64 = 4096;
    #[expect(unsafe_code, reason = "no library wraps a userfaultfd's ioctls")]
    // SAFETY: the calls use only memory that belongs to this function. The structures have the sizes encoded
    // in the ioctl numbers.
    unsafe {
        let Ok(fd) = userfaultfd(UserfaultfdFlags::CLOEXEC) else { return };
        let ioctl = |command: u64, words: [u64; 4]| libc::ioctl(fd.as_raw_fd(), command, &words);
        assert_eq!(ioctl(API, [0xaa, 0, 0, 0]), 0);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let at = mmap_anonymous(std::ptr::null_mut(), 4 * PAGE as usize, prot, MapFlags::PRIVATE);
        let at = at.expect("mapped");
        let start = at as u64;
        assert_eq!(ioctl(REGISTER, [start + PAGE, 2 * PAGE, 1, 0]), 0);
        assert_eq!(ioctl(UNREGISTER, [start + 2 * PAGE, PAGE, 9, 9]), 0);
        assert_eq!(ioctl(REGISTER, [start + 1, PAGE, 1, 0]), -1);
        munmap(at, 4 * PAGE as usize).expect("unmapped");
        println!("at {start:x} by {:x}", fd.as_raw_fd());
    }
}

const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;

/// The arguments of a registration with a userfaultfd are in the caller's memory. The recording contains
/// these arguments, in order with the surrounding calls.
#[test]
fn userfaultfd_registrations_are_recorded_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(Watched { made, text, start, fd }) = watch(&folder, "register_with_userfaultfd") else { return };
    let (first, second, odd) = (start + 0x1000, start + 0x2000, start + 1);
    let mut rest = text.as_str();
    for line in [
        format!(" ioctl {fd} {API:x} aa 0 0 = 0 "),
        format!(" mmap 0 4000 3 22 -1 0 = {start:x} "),
        format!(" ioctl {fd} {REGISTER:x} {first:x} 2000 1 = 0 "),
        format!(" ioctl {fd} {UNREGISTER:x} {second:x} 1000 0 = 0 "),
        format!(" ioctl {fd} {REGISTER:x} {odd:x} 1000 1 = -22 "),
        format!(" munmap {start:x} 4000 = 0 "),
    ] {
        let (_, behind) = rest.split_once(&line).unwrap_or_else(|| panic!("no{line}in\n{rest}"));
        rest = behind;
    }
    assert_eq!(text.matches(" ioctl ").count(), 4, "other ioctls are not recorded");
    replay(&folder, &made);
}

#[test]
#[ignore = "a program that another test records"]
fn advise_ranges() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    const PAGE: u64 = 4096;
    const DONTNEED: u64 = 4;
    const COLD: u64 = 20;
    let own = std::process::id();
    #[expect(unsafe_code, reason = "no library passes invalid ranges to process_madvise")]
    // SAFETY: the calls change only memory that this function maps, and no reference to it exists.
    unsafe {
        let at = mmap_anonymous(
            std::ptr::null_mut(),
            64 * PAGE as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        );
        let at = at.expect("mapped").cast::<u8>();
        (0..64).for_each(|page| at.add(page * PAGE as usize).write_volatile(1));
        let start = at as u64;
        let pidfd = libc::syscall(libc::SYS_pidfd_open, own, 0);
        let advise = |offsets: &[u64], advice: u64| {
            let ranges: Vec<[u64; 2]> = offsets.iter().map(|offset| [start + offset, PAGE]).collect();
            libc::syscall(libc::SYS_process_madvise, pidfd, ranges.as_ptr(), ranges.len(), advice, 0)
        };
        if advise(&[PAGE, 3 * PAGE], DONTNEED) != 2 * PAGE as i64 {
            // Older kernels accept only a few kinds of advice.
            return;
        }
        let every_other: Vec<u64> = (4..21).map(|page| 2 * page * PAGE).collect();
        assert_eq!(advise(&every_other[..16], DONTNEED), 16 * PAGE as i64);
        assert_eq!(advise(&every_other, COLD), 17 * PAGE as i64);
        // The second range is invalid.
        assert_eq!(advise(&[5 * PAGE, 1], DONTNEED), PAGE as i64);
        println!("at {start:x} by {pidfd:x}");
    }
}

/// process_madvise reads its ranges from the caller's memory. The recording contains the ranges if there are
/// at most 16.
#[test]
fn ranges_of_process_madvise_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(Watched { made, text, start, fd }) = watch(&folder, "advise_ranges") else { return };
    let at = |page: u64| start + page * 0x1000;
    let ranges = |pages: &[u64]| {
        let words: Vec<_> = pages.iter().map(|page| format!("{:x}+1000", at(*page))).collect();
        words.join(",")
    };
    let mut rest = text.as_str();
    for (count, advice, result, shown) in [
        (2, 4, "2000", format!(" v{} ", ranges(&[1, 3]))),
        (16, 4, "10000", format!(" v{} ", ranges(&(4..20).map(|page| 2 * page).collect::<Vec<_>>()))),
        (17, 20, "11000", " x".to_owned()),
        (2, 4, "1000", format!(" v{},{:x}+1000 ", ranges(&[5]), at(0) + 1)),
    ] {
        let (_, behind) = rest.split_once(&format!(" process_madvise {fd} ")).expect("another call");
        let (line, behind) = behind.split_once('\n').expect("a line");
        let expected = format!(" {count:x} {advice:x} 0 = {result}");
        assert!(line.contains(&expected), "{line}: {expected}");
        let (_, costs) = line.split_once(&expected).expect("in it");
        assert!(format!("{costs} ").starts_with(&shown), "{line}: {shown}");
        rest = behind;
    }
    let report = replay(&folder, &made);
    assert!(!report.contains("its ranges are not recorded"), "{report}");
}

#[test]
#[ignore = "a program that another test records"]
fn change_limits() {
    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous};
    use rustix::process::{Pid, Resource, Rlimit, prlimit, setrlimit};
    const PAGE: u64 = 4096;
    let soft = |soft: Option<u64>| Rlimit { current: soft, maximum: Some(1 << 40) };
    #[expect(unsafe_code, reason = "its own memory; a capability set of the required size")]
    // SAFETY: the calls map and lock only memory of this function. The capability set has the size that the
    // kernel reads.
    unsafe {
        let map = |pages: u64| {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(std::ptr::null_mut(), (pages * PAGE) as usize, prot, MapFlags::PRIVATE)
        };
        let at = map(4).expect("mapped");
        setrlimit(Resource::Memlock, Rlimit { current: Some(PAGE), maximum: Some(PAGE) }).expect("lowered");
        let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        assert_eq!(libc::syscall(libc::SYS_capset, &header, &none), 0);
        assert!(mlock(at, PAGE as usize).is_ok() && mlock(at, 2 * PAGE as usize).is_err());
        prlimit(None, Resource::As, soft(Some(PAGE))).expect("lowered");
        assert!(map(1).is_err());
        // Each process waits for the other, because the recording has no order for calls that overlap in
        // time.
        let [mut refused, mut lifted] = [[0; 2]; 2];
        assert_eq!((libc::pipe(refused.as_mut_ptr()), libc::pipe(lifted.as_mut_ptr())), (0, 0));
        let send = |pipe: [i32; 2]| libc::write(pipe[1], [1_u8].as_ptr().cast(), 1) == 1;
        let receive = |pipe: [i32; 2]| libc::read(pipe[0], [0_u8].as_mut_ptr().cast(), 1) == 1;
        let child = libc::fork();
        if child == 0 {
            let is_right = map(1).is_err() && send(refused) && receive(lifted) && map(1).is_ok();
            libc::_exit(i32::from(!is_right));
        }
        // Close the parent's write end, so that the read fails if the child exits early.
        assert_eq!(libc::close(refused[1]), 0);
        assert!(receive(refused), "the child ended early");
        prlimit(Pid::from_raw(child), Resource::As, soft(Some(1 << 40))).expect("lifted");
        assert!(send(lifted));
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0));
        assert!(map(1).is_err());
        setrlimit(Resource::As, soft(Some(1 << 40))).expect("lifted");
    }
    println!("done");
}

/// Both kinds of recording contain the initial limits and the calls that change them. Calls that Linux
/// refused because of limits are compared.
#[test]
fn limits_and_their_changes_are_recorded() {
    for args in [&[][..], &["--calls-only"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let (output, Some(made)) = record_program(&folder, args, "change_limits") else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("are not recorded: ") || said.contains("is not installed") {
            return;
        }
        assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
        let text = text_of(&made);
        let expected = match is_by_the_kernel(&made) {
            true => [" R ", "rlimit64 0 8 1000 1000 = 0", " capset 0 = 0 ", "rlimit64 0 9 1000 "],
            false => {
                ["# limits ", "RLIMIT_MEMLOCK, {rlim_cur=4*1024,", " capset(", "RLIMIT_AS, {rlim_cur=4*1024,"]
            }
        };
        for part in expected {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        replay(&folder, &made);
    }
}
