//! Tests the VMAs for readers that do not plan (`vmas.rs`): calls, growth of stacks, forks and snapshots.
//!
//! A test applies calls, and compares the VMAs as pages from `AT`, with rights and purpose.

use super::*;
use crate::{CallName, Returned};

const AT: u64 = 0x7f00_0000_0000;

fn call(vmas: &mut Vmas, name: CallName, args: [u64; 6], returned: u64) -> [Range<u64>; 2] {
    let returned = Returned::Value(returned);
    vmas.call(&Call { name, args, returned, file: None, transfer: None, beside: Vec::new() }, 0x3000)
}

/// Returns the VMAs: start and end in pages from `AT`, rights, purpose.
fn shown(vmas: &Vmas) -> Vec<(i64, i64, u8, Purpose)> {
    let pages = |addr: u64| (addr as i64 - AT as i64) / 4096;
    let all = vmas.within(&(0..1 << 47));
    all.map(|vma| (pages(vma.range.start), pages(vma.range.end), vma.prot, vma.purpose)).collect()
}

#[test]
fn calls_return_the_ranges_that_they_change() {
    let mut vmas = Vmas::default();
    let changed = call(&mut vmas, CallName::Mmap, [0, 0x4000, 3, 0x2_0022, 0, 0], AT);
    assert_eq!(changed[0], AT..AT + 0x4000);
    assert_eq!(shown(&vmas), [(0, 4, 3, Purpose::Stack)]);
    // The range has a hole, but the mprotect succeeded on Linux: the hole is memory that the recording does
    // not show.
    call(&mut vmas, CallName::Munmap, [AT + 0x1000, 0x1000, 0, 0, 0, 0], 0);
    call(&mut vmas, CallName::Mprotect, [AT, 0x4000, 1, 0, 0, 0], 0);
    assert_eq!(shown(&vmas), [(0, 1, 1, Purpose::Stack), (2, 4, 1, Purpose::Stack)]);
    let changed = call(&mut vmas, CallName::Mremap, [AT + 0x2000, 0x2000, 0x1000, 1, 0, 0], AT + 0x8000);
    assert_eq!(changed, [AT + 0x2000..AT + 0x4000, AT + 0x8000..AT + 0x9000]);
    assert_eq!(shown(&vmas), [(0, 1, 1, Purpose::Stack), (8, 9, 1, Purpose::Stack)]);
    let changed = call(&mut vmas, CallName::Shmat, [7, 0, 0, 0, 0, 0], AT + 0x10000);
    assert_eq!(changed[0], AT + 0x10000..AT + 0x13000);
    assert!(vmas.within(&changed[0]).all(|vma| vma.shared && vma.file));
    let changed = call(&mut vmas, CallName::Shmdt, [AT + 0x10000, 0, 0, 0, 0, 0], 0);
    assert_eq!(changed[0], AT + 0x10000..AT + 0x13000);
    assert_eq!(vmas.within(&changed[0]).count(), 0);
}

#[test]
fn stack_grows_and_child_lacks_dontfork_memory() {
    let mut vmas = Vmas::default();
    call(&mut vmas, CallName::Mmap, [AT, 0x1000, 3, 0x132, 0, 0], AT);
    assert_eq!(vmas.touch(AT - 8), AT - 0x1000..AT);
    assert_eq!(vmas.touch(AT - 8), 0..0);
    assert_eq!(vmas.touch(AT - (9 << 20)), 0..0);
    call(&mut vmas, CallName::Mmap, [AT, 0x1000, 3, 0x32, 0, 0], AT + 0x4000);
    call(&mut vmas, CallName::Madvise, [AT + 0x4000, 0x1000, 10, 0, 0, 0], 0);
    assert_eq!(shown(&vmas.fork()), [(-1, 1, 3, Purpose::Stack)]);
}

#[test]
fn stacks_are_kept_when_the_list_does_not_show_them() {
    let area = |start, end, name: &str| crate::Area {
        start,
        end,
        prot: 3,
        shared: false,
        offset: 0,
        name: name.to_owned(),
        sizes: None,
        flags: None,
        thp_eligible: false,
    };
    let snapshot = Snapshot {
        id: 0,
        line: 1,
        why: crate::Why::Freeze,
        process: 1,
        taken: (0, 0),
        threads: 1,
        comm: String::new(),
        exe: String::new(),
        status: Vec::new(),
        areas: vec![
            area(AT, AT + 0x3000, ""),
            area(AT + 0x4000, AT + 0x5000, "[vdso]"),
            area(AT + 0x6000, AT + 0x7000, "/lib"),
            area(AT + 0x10000, AT + 0x12000, "/SYSV00000000 (deleted)"),
        ],
        pages: Vec::new(),
    };
    let mut vmas = Vmas::default();
    call(&mut vmas, CallName::Mmap, [AT, 0x1000, 3, 0x2_0022, 0, 0], AT + 0x1000);
    call(&mut vmas, CallName::Mmap, [AT, 0x1000, 3, 0x22, 0, 0], AT + 0x9000);
    vmas.show(&snapshot);
    let any = |start, end| (start, end, 3, Purpose::Any);
    let (stack, special) = ((1, 2, 3, Purpose::Stack), (4, 5, 3, Purpose::Special));
    assert_eq!(shown(&vmas), [any(0, 1), stack, any(2, 3), special, any(6, 7), any(16, 18)]);
    assert!(vmas.within(&(AT + 0x6000..AT + 0x7000)).all(|vma| vma.file));
    let changed = call(&mut vmas, CallName::Shmdt, [AT + 0x10000, 0, 0, 0, 0, 0], 0);
    assert_eq!(changed[0], AT + 0x10000..AT + 0x12000);
    assert_eq!(vmas.within(&changed[0]).count(), 0);
}
