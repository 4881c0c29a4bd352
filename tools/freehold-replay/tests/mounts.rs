//! Tests the huge page option of a tmpfs mount, which decides whether a store brings in a block of 2 MiB of
//! the file or a single page.
//!
//! The recording (`outcome`) has the option in its header, a store to the mapped file, and a final snapshot
//! in which Linux has 512 pages or one page. A case says whether the replay must find the same pages as
//! Linux. A new option needs cases with both numbers of pages.

use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use std::fs;

/// Replays a store to a file of 4 MiB. In the end Linux has `pages` pages: the block of 2 MiB around the
/// store, or only the page of the store.
fn outcome(tmpfs: &str, path: &str, pages: u64) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = format!(
        "# fhtrace 2 t
# machine thp-shmem never
# machine thp-shmem-2048kB inherit
# file 1 8192 /bin/t
# file 2 4194304 {path}
{tmpfs}5 0 1 E 0
6 0 1 openat ffffffffffffff9c 1000 2 0 = 3
7 0 1 mmap 10000000 400000 3 11 3 0 = 10000000 f2
8 0 1 F 10001000 6 x1
9 0 1 S 1 exit 1
"
    );
    let kilobytes = pages * 4;
    let first = if pages == 1 { 0x10001 } else { 0x10000 };
    let program = "10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme\n";
    let snap = format!(
        "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:0;RssAnon:0
{program}@ 1 exit 1 9 9 1 t | /bin/t | VmRSS:{kilobytes};RssAnon:0
{program}10000000-10400000 rw-s 0 {path} | {kilobytes},,,,{kilobytes},,,, | rdwrshmrmwmems
P {first:x} {pages:x} c
"
    );
    fs::write(folder.path().join("t.trace"), trace).expect("written");
    fs::write(folder.path().join("t.snap"), snap).expect("written");
    let path = folder.path().join("t.trace");
    replay(&path, &Options { cpus: 1, ..Options::default() }, &()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn blocks_of_files_follow_the_mount_option() {
    for (tmpfs, path, pages, same) in [
        ("", "/dev/shm/x", 1, true),
        ("# tmpfs 2 never\n", "/dev/shm/x", 1, true),
        ("# tmpfs 2 always\n", "/dev/shm/x", 512, true),
        ("# tmpfs 2 always\n", "/dev/shm/x", 1, false),
        ("# tmpfs 2 within_size\n", "/dev/shm/x", 512, true),
        ("# tmpfs 2 advise\n", "/dev/shm/x", 1, true),
        ("# tmpfs 2 never\n", "/mnt/x", 1, true),
        ("# tmpfs 2 always\n", "/mnt/x", 512, true),
        ("# tmpfs 2 always\n", "/mnt/x", 1, false),
    ] {
        let outcome = outcome(tmpfs, path, pages);
        let found = outcome.difference_count == 0 && outcome.file_vmas.as_linux == outcome.file_vmas.all;
        assert_eq!(found, same, "{tmpfs}{path} {pages}: {:#?} {:?}", outcome.differences, outcome.set_aside);
    }
}
