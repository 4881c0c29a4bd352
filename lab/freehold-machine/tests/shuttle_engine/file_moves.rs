//! Pages of one file are migrated while other tasks store to them, write them back and truncate them.
//!
//! A migration (`rmap/migrate.rs` in `freehold`) replaces the frame of a page in the cache and in every
//! mapping. Each concurrent operation must find the page with its contents, in the old or in the new frame.
//! The disk ([`Store`]) and the helpers are those of `drop_clean.rs`. The scenarios check the words on the
//! disk and in the file. Migrations of anonymous pages are in `rmap.rs`.

use crate::{
    drop_clean::{Store, map_file, open, open_on, words},
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, page, unmap},
};
use freehold::{PageIndex, PageRange, rmap::MigrateError};

/// Migrates a page of the file that the process of `scene` maps from page 0 on. Does nothing if the page is
/// not mapped. A page in use is not migrated.
fn migrate(scene: &Scene, number: u64) {
    let Some(frame) = scene.process.frame_at(page(number)) else { return };
    match scene.engine.migrate(frame) {
        Ok(_) | Err(MigrateError::NoPage | MigrateError::Busy) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Ends a scenario. Checks that nothing leaked.
fn end(scene: Scene, file: Opened) {
    unmap(&scene.process, 0..2);
    file.mapping().check();
    drop(file);
    scene.assert_empty();
    scene.end();
}

#[test]
fn migrations_concurrent_with_stores_and_write_back() {
    explore("migrations of two pages of a file concurrent with stores and write-back", 60, |locking| {
        let scene = Scene::new(locking);
        let store = Store::default();
        let file = open_on(&scene, store.clone());
        map_file(&scene.process, &file);
        let mut cpu = scene.machine.cpu(2);
        (0..2).for_each(|number| scene.process.store(&mut cpu, page(number), 1u64).unwrap());
        drop(cpu);
        thread::scope(|scope| {
            scope.spawn(|| (0..2).for_each(|number| migrate(&scene, number)));
            scope.spawn(|| (0..2).rev().for_each(|number| migrate(&scene, number)));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0), 5u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(5u64));
                file.mapping().write_at(PAGE, &7u64.to_le_bytes()).unwrap();
                file.mapping().write_back(PageRange::ALL).unwrap();
                assert_eq!(
                    [store.first(0), store.first(1)],
                    [Some(5), Some(7)],
                    "a store is not on the disk"
                );
            });
        });
        // The disk has all stores, so the pages can be dropped.
        unmap(&scene.process, 0..2);
        file.mapping().write_back(PageRange::ALL).unwrap();
        assert_eq!(file.drop_clean(PageRange::ALL), 2);
        assert_eq!((words(&file, 0), words(&file, 1)), ([5, 0], [7, 0]));
        end(scene, file);
    });
}

/// C-26, C-27: one task migrates the page, one truncates the file, and one reads the page.
#[test]
fn c26_c27_migration_concurrent_with_truncation_and_faults() {
    explore("a migration of a file's page concurrent with truncation and a fault", 60, |locking| {
        let scene = Scene::new(locking);
        let file = open(&scene);
        map_file(&scene.process, &file);
        let mut cpu = scene.machine.cpu(2);
        scene.process.store(&mut cpu, page(1), 1u64).unwrap();
        drop(cpu);
        thread::scope(|scope| {
            scope.spawn(|| migrate(&scene, 1));
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                assert!(!file.mapping().has_page(PageIndex::new(1)));
                assert_eq!(scene.process.frame_at(page(1)), None, "a page is mapped beyond the end");
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                let found = scene.process.load::<u64>(&mut cpu, page(1));
                assert!(found.is_err() || found == Ok(1), "{found:?}");
            });
        });
        file.mapping().truncate(2 * PAGE).unwrap();
        assert_eq!(words(&file, 1), [0, 0]);
        end(scene, file);
    });
}
