//! C-2 (Dirty COW): a forced store to read-only memory, as a debugger makes it, concurrent with DONTNEED.
//!
//! The forced store (`AccessMode::Forced`) may find a page that must be copied, and its fault may then find
//! no page. The page that the fault installs must be a private copy, and the program must not be able to
//! write to it. Each scenario prepares other memory and calls `forced_beside_dontneed`. This function makes
//! the store and the DONTNEED. Afterwards it checks that a store by the program fails, and that each word has
//! one of the allowed values.

use crate::{
    explore::{explore, thread},
    files::file,
    huge::{HUGE, filled},
    scene::{PAGE, R, Scene, denied, page, unmap},
};
use freehold::{call::Advice, remote::AccessMode, space::MapFlags};
use std::ops::Range;

/// Makes a forced store to page 0 while another task discards the pages. The pages are read-only, and page 0
/// is not marked exclusive. Page 0 holds `before` until the discard, and `after` afterwards.
fn forced_beside_dontneed(scene: &Scene, pages: Range<u64>, before: u64, after: u64) {
    let len = (pages.end - pages.start) * PAGE;
    thread::scope(|scope| {
        scope.spawn(|| scene.process.madvise(page(pages.start), len, Advice::DontNeed).unwrap());
        scope.spawn(|| {
            let wrote = scene.process.write_memory(page(0) + 8, &7u64.to_le_bytes(), AccessMode::Forced);
            assert_eq!(wrote, Ok(8));
        });
    });
    let mut cpu = scene.machine.cpu(0);
    assert_eq!(scene.process.store(&mut cpu, page(0), 9u64), denied(page(0)));
    let found = [page(0), page(0) + 8].map(|at| scene.process.load::<u64>(&mut cpu, at).unwrap());
    assert!([[before, 7], [after, 7], [after, 0]].contains(&found), "{found:?}");
    drop(cpu);
    unmap(&scene.process, pages);
    scene.assert_empty();
}

/// Runs [`forced_beside_dontneed`] on anonymous pages that a fork has shared. The child has exited since.
fn anonymous(scene: Scene, pages: Range<u64>) {
    let child = scene.process.fork().unwrap();
    scene.process.mprotect(page(pages.start), (pages.end - pages.start) * PAGE, R).unwrap();
    let before = scene.process.load(&mut scene.machine.cpu(1), page(0)).unwrap();
    drop(child);
    forced_beside_dontneed(&scene, pages, before, 0);
    scene.end();
}

#[test]
fn c02_forced_store_concurrent_with_dontneed() {
    explore("a forced store concurrent with DONTNEED", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        anonymous(scene, 0..2);
    });
}

#[test]
fn c02_forced_store_concurrent_with_dontneed_of_a_huge_page() {
    explore("a forced store concurrent with DONTNEED of a huge page", 10, |locking| {
        anonymous(filled(locking), HUGE);
    });
}

#[test]
fn c02_forced_store_concurrent_with_dontneed_of_a_private_file() {
    explore("a forced store concurrent with DONTNEED of a private file", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        assert_eq!(scene.process.mmap(page(0), 2 * PAGE, R, flags, Some(&file), 0), Ok(page(0)));
        assert_eq!(scene.process.load(&mut scene.machine.cpu(1), page(0)), Ok(0u64));
        forced_beside_dontneed(&scene, 0..2, 0, 0);
        drop(file);
        scene.end();
    });
}
