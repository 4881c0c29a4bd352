//! Changes to a program's memory that the kernel makes itself, and that no recorded call or fault shows.
//!
//! The test records a program that uses such changes, and replays the recording: the report must contain no
//! difference, and must name what it could not check. To add a change, extend `change_memory_without_calls`,
//! and expect the reason in the report. The fixtures are in `record.rs`.

use super::{is_by_the_kernel, record_program, replay, text_of};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_GROWSDOWN, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::null_mut;

const PAGE: usize = 4096;
/// With this personality, memory that a program maps as readable is also executable.
const READ_IMPLIES_EXEC: libc::c_ulong = 0x40_0000;

/// Returns an ELF file whose execve fails after the kernel has begun to map it: the second segment has more
/// bytes in the file than in memory.
fn late_program() -> Vec<u8> {
    let mut bytes = vec![0; 3 * PAGE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 62, 0, 1, 0, 0, 0]);
    put(24, &0x40_0800_u64.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0]);
    let segments =
        [(5_u32, 0_u64, 0x40_0000_u64, 0x1000_u64, 0x1000_u64), (6, 0x2000, 0x40_1000, 0x1000, 0x800)];
    for (number, (rights, offset, address, in_file, in_memory)) in segments.into_iter().enumerate() {
        let at = 64 + 56 * number;
        put(at, &1_u32.to_le_bytes());
        put(at + 4, &rights.to_le_bytes());
        for (word, value) in [offset, address, address, in_file, in_memory, 0x1000].into_iter().enumerate() {
            put(at + 8 + 8 * word, &value.to_le_bytes());
        }
    }
    bytes
}

#[test]
#[ignore = "a program that another test records"]
fn change_memory_without_calls() {
    let late = File::options().write(true).create_new(true).mode(0o755).open("late");
    late.and_then(|file| file.write_all_at(&late_program(), 0)).expect("written");
    let (late, memory) =
        (CString::new("./late").expect("a path"), File::options().write(true).open("/proc/self/mem"));
    let memory = memory.expect("Linux");
    #[expect(unsafe_code, reason = "memory of its own")]
    // SAFETY: every mapping belongs to this function, and every write is to a mapping.
    unsafe {
        let map = |at: usize, pages: usize, prot: i32, flags: i32| {
            let at = at as *mut libc::c_void;
            let at = libc::mmap(at, pages * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at as usize
        };
        assert!(libc::personality(READ_IMPLIES_EXEC) >= 0);
        map(0, 2, PROT_READ, 0);
        libc::personality(0);
        let taken = map(0, 1, PROT_READ, 0);
        let segment = libc::shmget(libc::getpid(), PAGE, libc::IPC_CREAT | 0o600);
        assert_eq!(libc::shmat(segment, taken as *const libc::c_void, 0), usize::MAX as *mut libc::c_void);
        assert_ne!(libc::shmat(segment, null_mut(), 0), usize::MAX as *mut libc::c_void);
        assert_eq!(libc::shmctl(segment, libc::IPC_RMID, null_mut()), 0);
        let room = map(0, 1024, PROT_NONE, 0);
        assert_eq!(libc::munmap(room as *mut libc::c_void, 1024 * PAGE), 0);
        let grows = map(room + 600 * PAGE, 1, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_GROWSDOWN);
        memory.write_all_at(&[1], (grows - 9 * PAGE) as u64).expect("it grows");
        assert_eq!(libc::mprotect((grows - 5 * PAGE) as *mut libc::c_void, PAGE, PROT_READ), 0);
        let child = libc::fork();
        if child == 0 {
            libc::execv(late.as_ptr(), [late.as_ptr(), null_mut()].as_ptr());
            libc::_exit(1);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFSIGNALED(status), "the kernel cannot restore the old image: {status}");
    }
    println!("done");
}

/// Changes that no line of a recording shows are replayed as on Linux, or are left unchecked for a stated
/// reason.
#[test]
fn unrecorded_changes_of_memory_cause_no_differences() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = "untold::change_memory_without_calls";
    let (output, Some(made)) = record_program(&folder, &[], program) else { return };
    assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
    if !is_by_the_kernel(&made) {
        return;
    }
    let text = text_of(&made);
    for part in [" personality 400000 = 0", " execve ", " = ? "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report = replay(&folder, &made);
    for part in ["processes that end inside an execve", "memory that grows downwards"] {
        assert!(report.contains(part), "{part}: {report}");
    }
}
