//! The reports of written pages, soft-dirty pages and asynchronous write protection, concurrent with stores.
//!
//! Each scenario does what a program does that copies the memory of a running process: it marks all pages as
//! not written, and then copies them. In the end every page that does not count as written must have the
//! contents of its copy, whichever translations the CPUs had cached. `report/clear_refs.rs` and
//! `report/pagemap.rs` of `freehold` are under test, and `soft_dirty.rs` of `freehold-vmspace`.

use crate::{
    explore::{explore, thread},
    scene::{PAGE, Scene, page, unmap},
};
use freehold::{
    remote::AccessMode,
    report::pagemap::EntryRun,
    uffd::{Features, RegisterMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};
use freehold_machine::Process;
use std::ops::ControlFlow;

/// Number of pages of a scenario.
const PAGES: u64 = 3;

/// Returns the first words of the pages.
fn contents(process: &Process) -> Vec<u64> {
    let word = |number| {
        let mut bytes = [0; 8];
        assert_eq!(process.read_memory(page(number), &mut bytes, AccessMode::Plain), Ok(8));
        u64::from_le_bytes(bytes)
    };
    (0..PAGES).map(word).collect()
}

/// Returns the entries that count as written.
fn entries(process: &Process, is_written: impl Fn(&EntryRun) -> bool) -> Vec<EntryRun> {
    let mut runs = Vec::new();
    process.page_entries(page(0)..page(PAGES), |run| {
        runs.extend(is_written(&run).then_some(run));
        ControlFlow::Continue(())
    });
    runs
}

/// Runs `copy`, which marks the pages as not written and returns their contents after that. Concurrently, a
/// CPU with cached translations stores to two pages, and another task forks and writes to the third page by a
/// system call. Checks that every page that is not in `written` has the contents of its copy.
fn copy_concurrently(
    scene: &Scene,
    copy: impl FnOnce(&Process) -> Vec<u64> + Send,
    written: impl Fn(&Process) -> Vec<EntryRun>,
) {
    let mut cpu = scene.acquainted(0, 0..PAGES);
    let copies = thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&scene.process));
        scope.spawn(move || {
            scene.process.store(&mut cpu, page(0), 7u64).unwrap();
            scene.process.store(&mut cpu, page(1), 8u64).unwrap();
        });
        scope.spawn(|| {
            let child = scene.process.fork().unwrap();
            scene.process.write_memory(page(2), &9u64.to_le_bytes(), AccessMode::Plain).unwrap();
            drop(child);
        });
        copying.join().unwrap()
    });
    scene.process.check();
    assert_eq!(contents(&scene.process), [7, 8, 9]);
    let written = written(&scene.process);
    for (number, copy) in (0..PAGES).zip(copies) {
        let is_written = written.iter().any(|run| run.range.contains(page(number)));
        assert!(is_written || copy == 7 + number, "page {number} was copied as {copy} and is not written");
    }
}

#[test]
fn soft_dirty_pages_include_every_store_after_a_copy() {
    explore("clear_soft_dirty and copies concurrent with stores and fork", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..PAGES);
        let copy = |process: &Process| {
            process.clear_soft_dirty().unwrap();
            contents(process)
        };
        copy_concurrently(&scene, copy, |process| {
            let lines = process.maps(page(0)).take(1);
            assert!(lines.into_iter().all(|line| !line.flags.contains(VmFlags::SOFTDIRTY)));
            entries(process, |run| run.soft_dirty)
        });
        unmap(&scene.process, 0..PAGES);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn pages_without_protection_include_every_store_after_a_copy() {
    explore("PM_SCAN_WP_MATCHING and copies concurrent with stores and fork", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..PAGES);
        let config = UffdConfig::new().features(Features::WP_ASYNC);
        let uffd = Userfaultfd::new(scene.process.space(), config).unwrap();
        uffd.register(page(0), PAGES * PAGE, RegisterMode::WP).unwrap();
        let copy = |process: &Process| {
            process.protect_entries(&entries(process, |run| !run.write_protected)).unwrap();
            contents(process)
        };
        copy_concurrently(&scene, copy, |process| entries(process, |run| !run.write_protected));
        drop(uffd);
        unmap(&scene.process, 0..PAGES);
        scene.assert_empty();
        scene.end();
    });
}
