//! Lookups of VMAs without a lock, or with one VMA lock, concurrent with changes of the VMAs (C-70).
//!
//! The code under test is `space/speculate.rs`, `space/vma_lock.rs`, `report/query.rs` and `report/maps.rs`.
//! A lookup without a lock sees the state of one moment: it never combines fields from before and after a
//! change. Queries and the lines of maps, which look up one VMA after another, never show a gap that did not
//! exist. Lookups that meet a reused VMA are in `reuse.rs`.

use crate::{
    explore::{explore, thread},
    files::file,
    scene::{ANON, FIXED, PAGE, R, RW, Scene, map, page, unmap},
};
use freehold::{
    file::{FileAccess, Mapping, Zeroes},
    report::QueryFlags,
    space::{MapFlags, Prot},
    vma::flags::VmFlags,
};

const RX: Prot = Prot::READ.union(Prot::EXEC);

#[test]
fn c70_lock_free_lookup_sees_one_moment() {
    explore("lock-free lookups concurrent with changes of VMAs", 150, |locking| {
        let scene = Scene::new(locking);
        let (process, file) = (&scene.process, file(&scene));
        map(process, 0..2, ANON);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Another VMA, perhaps in the memory of a freed VMA, replaces a part of the VMA at the same
                // address. Then the remaining part changes its protection and is unmapped.
                process
                    .mmap(page(0), PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), PAGE)
                    .unwrap();
                process.mprotect(page(1), PAGE, R).unwrap();
                unmap(process, 1..2);
            });
            scope.spawn(|| {
                for _ in 0..3 {
                    let info = process.vma_info(page(0)).expect("the mapping is always present");
                    let write = info.flags.contains(VmFlags::WRITE);
                    let pages = (info.range.start() - page(0)) / PAGE..(info.range.end() - page(0)) / PAGE;
                    let anonymous = (write, info.pgoff.get()) == (true, page(0) / PAGE) && pages == (0..2);
                    let of_file = (write, info.pgoff.get()) == (false, 1) && pages == (0..1);
                    assert!(anonymous || of_file, "{info:?}");
                    if let Some(info) = process.vma_info(page(1)) {
                        let write = info.flags.contains(VmFlags::WRITE);
                        let start = (info.range.start() - page(0)) / PAGE;
                        assert_eq!(info.pgoff.get(), info.range.start() / PAGE);
                        assert!(start == 1 || start == 0 && write, "{info:?}");
                    }
                }
            });
        });
        drop(file);
        scene.end();
    });
}

/// A file is unmapped and freed while a task searches for a probe in it.
#[test]
fn probe_lookup_concurrent_with_the_end_of_its_file() {
    explore("a probe lookup concurrent with the end of its file", 100, |locking| {
        let scene = Scene::new(locking);
        let process = &scene.process;
        let mapping = Mapping::new(&scene.engine, Zeroes, 2 * PAGE, true).unwrap();
        let other = file(&scene);
        let text = freehold::file::File::new(&mapping, FileAccess::READ_WRITE, "text").unwrap();
        process.mmap(page(0), PAGE, RX, MapFlags::PRIVATE | MapFlags::FIXED, Some(&text), 0).unwrap();
        mapping.add_probe(40, &[0xcc]).unwrap();
        drop(text);
        let mapping = std::sync::Mutex::new(Some(mapping));
        thread::scope(|scope| {
            scope.spawn(|| {
                let place = MapFlags::PRIVATE | MapFlags::FIXED;
                process.mmap(page(0), PAGE, RX, place, Some(&other), 0).unwrap();
                drop(mapping.lock().unwrap().take());
            });
            scope.spawn(|| {
                for _ in 0..2 {
                    if let Some(hit) = process.probe_at(page(0) + 40) {
                        assert_eq!((hit.offset(), hit.original().len()), (40, 16));
                        assert!(!hit.is_of(other.mapping()));
                    }
                }
            });
        });
        assert!(process.probe_at(page(0) + 40).is_none());
        drop(other);
        scene.end();
    });
}

/// One task splits and merges a VMA. Every query finds the whole VMA or one of its parts.
#[test]
fn c70_query_always_finds_an_existing_mapping() {
    explore("queries concurrent with a VMA that is split and merged", 100, |locking| {
        let scene = Scene::new(locking);
        let process = &scene.process;
        map(process, 0..3, ANON);
        process.mmap(page(5), PAGE, R, FIXED, None, 0).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                process.mprotect(page(1), PAGE, R).unwrap();
                process.mprotect(page(1), PAGE, RW).unwrap();
            });
            scope.spawn(|| {
                map(process, 3..4, ANON);
                unmap(process, 3..4);
            });
            scope.spawn(|| {
                let mut at = page(0);
                while at < page(3) {
                    let line =
                        process.query_vma(at, QueryFlags::COVERING_OR_NEXT | QueryFlags::READABLE).unwrap();
                    assert!(line.start <= at, "a gap before {:#x} that never existed", line.start);
                    at = line.end;
                }
                let line = process.query_vma(page(2), QueryFlags::WRITABLE).unwrap();
                assert!(line.start <= page(2) && line.end >= page(3));
                let read_only = process.query_vma(page(4), QueryFlags::COVERING_OR_NEXT).unwrap();
                assert_eq!((read_only.start, read_only.end), (page(5), page(6)));
                let covered: Vec<_> = process.maps(page(0)).map(|line| line.start..line.end).collect();
                let mut at = page(0);
                for line in covered.iter().filter(|line| line.start < page(3)) {
                    assert_eq!(line.start, at, "a gap that never existed: {covered:x?}");
                    at = line.end;
                }
                assert!(at >= page(3));
            });
        });
        unmap(process, 0..6);
        scene.assert_empty();
        scene.end();
    });
}
