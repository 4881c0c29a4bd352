//! PR_SET_MEMORY_MERGE (`src/call/ksm.rs`): a program allows pages with equal contents to be merged (KSM,
//! kernel samepage merging). The engine only records this permission, as the flag MERGEABLE of VMAs, and
//! merges no pages. The tests check which VMAs get the flag, when they get it, and that a child inherits the
//! setting. The merging of VMAs in general is tested with the calls that cause it.
//!
//! The expected answers are those of Linux 6.18; `recordings/causes/memory-merge` and the case
//! `lab/freehold-model/cases/memory-merge.txt` record the same calls there.

use crate::support::{ANON, BASE, MapFlags, PAGE, Process, R, RW, World, anon, everywhere, layout};
use freehold::{
    call::{Advice, LockAllFlags},
    space::SpaceConfig,
    vma::flags::VmFlags,
};

/// Returns true if the VMA at the address is marked as mergeable (MADV_MERGEABLE).
fn is_marked(process: &Process, at: u64) -> bool {
    process.find_vma(at).unwrap().flags().contains(VmFlags::MERGEABLE)
}

#[test]
fn memory_merge_marks_all_mergeable_vmas() {
    everywhere(|world, process, _| {
        let file = world.file(4);
        let map = |flags, file| process.mmap(0, PAGE, R, flags, file, 0).unwrap();
        let kinds = [
            (map(ANON, None), true),
            (map(MapFlags::PRIVATE, Some(&file)), true),
            (map(MapFlags::SHARED, Some(&file)), false),
            (map(MapFlags::SHARED | MapFlags::ANONYMOUS, None), false),
            (map(MapFlags::DROPPABLE | MapFlags::ANONYMOUS, None), false),
        ];
        process.set_memory_merge(true).unwrap();
        assert!(process.memory_merge());
        for (at, marked) in kinds {
            assert_eq!(is_marked(process, at), marked);
        }
        // New VMAs are marked, too.
        for (flags, file, marked) in [
            (ANON, None, true),
            (MapFlags::PRIVATE, Some(&file), true),
            (MapFlags::SHARED, Some(&file), false),
            (MapFlags::SHARED | MapFlags::ANONYMOUS, None, false),
            (MapFlags::DROPPABLE | MapFlags::ANONYMOUS, None, false),
        ] {
            assert_eq!(is_marked(process, map(flags, file)), marked, "{flags:?}");
        }
        let heap = process.brk(0).unwrap();
        process.brk(heap + PAGE).unwrap();
        assert!(is_marked(process, heap));
        // Clearing the setting clears the mark of every VMA that has it.
        process.set_memory_merge(false).unwrap();
        assert!(!kinds.iter().any(|(at, _)| is_marked(process, *at)) && !is_marked(process, heap));
        process.madvise(heap, PAGE, Advice::Mergeable).unwrap();
        process.set_memory_merge(false).unwrap();
        assert!(is_marked(process, heap), "clearing the setting twice keeps the marks of madvise");
    });
}

#[test]
fn memory_merge_does_not_merge_vmas_that_become_equal() {
    everywhere(|_, process, _| {
        anon(process, BASE, 4);
        process.madvise(BASE, PAGE, Advice::Mergeable).unwrap();
        process.set_memory_merge(true).unwrap();
        assert_eq!(layout(process).len(), 2);
        // A new adjacent mapping does merge.
        anon(process, BASE + 4 * PAGE, 1);
        assert_eq!(layout(process), [(0, 1), (1, 5)]);
    });
}

#[test]
fn mlockall_and_munlockall_keep_memory_merge() {
    everywhere(|_, process, _| {
        process.set_memory_merge(true).unwrap();
        process.mlockall(LockAllFlags::FUTURE).unwrap();
        anon(process, BASE, 1);
        assert!(process.find_vma(BASE).unwrap().flags().contains(VmFlags::MERGEABLE | VmFlags::LOCKED));
        process.munlockall().unwrap();
        anon(process, BASE + 2 * PAGE, 1);
        assert!(process.memory_merge() && is_marked(process, BASE + 2 * PAGE));
    });
}

#[test]
fn child_inherits_memory_merge_but_no_future_locks() {
    let world = World::new();
    let config = SpaceConfig::new().memory_merge(true);
    let process = Process::new(world.engine(), &config).unwrap();
    process.mlockall(LockAllFlags::FUTURE).unwrap();
    process.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let child = Process::of(process.fork().unwrap());
    assert!(child.memory_merge() && is_marked(&child, BASE));
    anon(&child, BASE + 2 * PAGE, 1);
    let flags = child.find_vma(BASE + 2 * PAGE).unwrap().flags();
    assert_eq!(flags & (VmFlags::MERGEABLE | VmFlags::LOCKED), VmFlags::MERGEABLE);
    drop((process, child));
    world.end();
}
