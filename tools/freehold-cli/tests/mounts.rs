//! Tests that a recording contains the huge-page policy of a tmpfs mount if the program maps a file of the
//! mount, and that the replay uses this policy (`freehold-record/src/mounts.rs`).
//!
//! The ignored test is a program. The other test records this program in a mount namespace of its own
//! (`unshare`). Without the right to mount, or without the kernel's tracing, the test passes and checks
//! nothing. The fixtures are in `record.rs`. `freehold-replay/tests/mounts.rs` tests the rule itself with
//! written recordings.

use super::{is_by_the_kernel, record, replay, text_of};
use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Environment variable that passes the folder to the program.
const FOLDER: &str = "FREEHOLD_MOUNT";
/// Size of the mapped file in bytes.
const BYTES: usize = 4 << 20;

#[test]
#[ignore = "a program that another test records"]
fn map_a_file_on_the_mount() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = Path::new(&folder).join("mapped");
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("made");
    ftruncate(&file, BYTES as u64).expect("longer");
    #[expect(unsafe_code, reason = "memory of its own")]
    // SAFETY: the kernel chooses the place, and the file is as long as the mapping.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let at = mmap(std::ptr::null_mut(), BYTES, both, MapFlags::SHARED, &file, 0).expect("mapped");
        at.cast::<u8>().add(BYTES / 8).write_volatile(1);
    }
}

/// The mount is visible only in the program's own mount namespace. If the mount option permits huge pages,
/// the files of the mount have huge pages, on Linux and in the replay.
#[test]
fn huge_pages_of_a_private_tmpfs_mount_are_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("mounted");
    std::fs::create_dir(&place).expect("made");
    let (place, own) = (place.display(), std::env::current_exe().expect("there"));
    for (option, huge) in
        [("huge=always", "always"), ("huge=within_size", "within_size"), ("size=8m", "never")]
    {
        let mount = format!("mount -t tmpfs -o {option} t {place}");
        let tried = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
        if !tried.is_ok_and(|tried| tried.status.success()) {
            return;
        }
        let program = "--exact mounts::map_a_file_on_the_mount --ignored --test-threads=1";
        let script = format!("{mount} && {FOLDER}={place} exec {} {program}", own.display());
        let command = ["unshare", "-m", "sh", "-c", &script];
        let (output, Some(made)) = record(&folder, &["--force"], &command) else { return };
        if !is_by_the_kernel(&made) {
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = text_of(&made);
        let file = text.lines().find(|line| line.starts_with("# file ") && line.ends_with("mounted/mapped"));
        let id = file.and_then(|line| line.split(' ').nth(2)).expect("the file");
        assert!(text.contains(&format!("\n# tmpfs {id} {huge}\n")), "{huge}: {file:?}");
        replay(&folder, &made);
    }
}
