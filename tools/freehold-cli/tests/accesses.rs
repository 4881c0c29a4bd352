//! `freehold record --accesses`: samples of the accessed parts of VMAs.

use super::{freehold, is_by_the_kernel, record_program, replay};
use freehold_trace::{Kind, Recording, Why};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::ptr::null_mut;

const PAGE: usize = 4096;
/// Pages of the memory, and the part that is accessed later.
const PAGES: [usize; 2] = [96, 24];

/// Returns the size `Referenced` of the VMA that begins at this address, in kB.
fn referenced(address: usize) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("readable");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("{address:x}-")));
    let line = lines.find_map(|line| line.strip_prefix("Referenced:")).expect("a size");
    line.trim_end_matches("kB").trim().parse().expect("a number")
}

#[test]
#[ignore = "a program that another test records"]
fn access_parts_of_memory() {
    // A guard of no rights on each side, so that the VMA is not merged.
    #[expect(unsafe_code, reason = "a new mapping")]
    // SAFETY: the kernel chooses the place.
    let at = unsafe {
        let len = (PAGES[0] + 2) * PAGE;
        mmap_anonymous(null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)
            .expect("mmap")
            .cast::<u8>()
            .add(PAGE)
    };
    let protect = |rights| {
        #[expect(unsafe_code, reason = "changes the rights of the mapping")]
        // SAFETY: no other code uses the mapping.
        unsafe { mprotect(at.cast(), PAGES[0] * PAGE, rights) }.expect("mprotect");
    };
    for pages in PAGES {
        // The kernel clears accessed bits without a flush. This change flushes the TLB.
        protect(MprotectFlags::READ);
        protect(MprotectFlags::READ | MprotectFlags::WRITE);
        for page in 0..pages {
            #[expect(unsafe_code, reason = "a store to the mapping")]
            // SAFETY: the page belongs to the mapping, which no other code uses.
            unsafe {
                at.add(page * PAGE).write_volatile(1);
            }
        }
        // Until the recorder has taken a sample.
        while referenced(at.addr()) != 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn samples_show_the_accessed_part_of_each_vma() {
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = record_program(&folder, &["--accesses", "20ms"], "accesses::access_parts_of_memory");
    let (output, Some(made)) = recorded else { return };
    if !is_by_the_kernel(&made) {
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    replay(&folder, &made);
    let mut recording = Recording::open(&made).expect("a recording");
    let mut found = Vec::new();
    while let Some(event) = recording.next_event().expect("readable") {
        let Kind::Snapshot { id, why: Why::Freeze, .. } = event.kind else { continue };
        let snapshot = recording.snapshot(id).expect("readable").expect("there");
        let is_ours = |area: &&freehold_trace::Area| area.end - area.start == (PAGES[0] * PAGE) as u64;
        let sizes = snapshot.areas.iter().find(is_ours).and_then(|area| area.sizes);
        found.extend(sizes.map(|sizes| sizes[5] as usize / 4).filter(|pages| *pages > 0));
    }
    assert_eq!(recording.machine("accesses"), Some("20000000"));
    // A sample may come while the program accesses the pages.
    assert_eq!(
        found.iter().sum::<usize>(),
        PAGES[0] + PAGES[1],
        "pages accessed before each sample: {found:?}"
    );
    assert!(found.last().is_some_and(|last| *last <= PAGES[1]), "{found:?}");
}

#[test]
fn samples_replace_other_snapshots() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["record", "--accesses", "1s", "--snapshots", "3", "--", "true"];
    let output = freehold(folder.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot be used with"), "{said}");
}
