//! Four threads map and unmap memory without an MMU at the same time: a file that another thread truncates,
//! text that the threads share, and anonymous memory that they unmap in parts. The interleaving is that of
//! the host and differs between runs. The tests compare the contents of mapped pages, and at the end the
//! machine's memory must be free. `truncate.rs` tests the rules of truncation on one thread.

use super::*;
use freehold::file::FillError;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

const ROUNDS: u64 = 2000;

#[test]
fn shared_mappings_keep_their_pages_during_truncations() {
    let flat = Flat::new();
    let file = flat.shm(8 * PAGE);
    let (mapped, cut, start) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(5));
    thread::scope(|scope| {
        for number in 0..4u64 {
            let (flat, file, mapped, start) = (&flat, &file, &mapped, &start);
            scope.spawn(move || {
                start.wait();
                let space = flat.space();
                let word = 8 + number * 8;
                for round in 0..ROUNDS {
                    let (first, end) = (number % 2, 2 + (round + number) % 7);
                    let at = match try_map_file(&space, file, first..end, RW, SHARED) {
                        Ok(at) => at,
                        // The file was shorter, or has grown again with frames that are not contiguous.
                        Err(error) => {
                            assert_eq!(error, MmapError::NotMappable);
                            continue;
                        }
                    };
                    mapped.fetch_add(1, SeqCst);
                    thread::yield_now();
                    // The page belongs to the file as long as it is mapped: a store to the page is visible in
                    // the file.
                    let (page, value) = (first + round % (end - first), number * ROUNDS + round + 1);
                    flat.store(at + (page - first) * PAGE + word, value);
                    assert_eq!(read_number(file, page * PAGE + word), value);
                    if round % 3 == 0 {
                        space.clear();
                    } else {
                        space.munmap(at, (end - first) * PAGE).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            start.wait();
            for round in 0..2 * ROUNDS {
                match file.mapping().truncate((round % 8) * PAGE + round % 2 * 100) {
                    Ok(()) => cut.fetch_add(1, SeqCst),
                    Err(error) => {
                        assert_eq!(error, FillError::Busy);
                        continue;
                    }
                };
                file.mapping().truncate(0).ok();
                file.mapping().truncate(8 * PAGE).unwrap();
            }
        });
    });
    // No task has a page mapped any more, so the truncation succeeds.
    file.mapping().truncate(0).unwrap();
    file.mapping().truncate(8 * PAGE).unwrap();
    let space = flat.space();
    map_file(&space, &file, 0..8, RW, SHARED);
    println!("{} mapped, {} cut", mapped.load(SeqCst), cut.load(SeqCst));
    drop((space, file));
    flat.end();
}

#[test]
fn shared_text_lives_until_its_last_user_unmaps_it() {
    let flat = Flat::new();
    let file = flat.file(6);
    thread::scope(|scope| {
        for number in 0..4u64 {
            let (flat, file) = (&flat, &file);
            scope.spawn(move || {
                let space = flat.space();
                for round in 0..ROUNDS {
                    let pages = if (round + number).is_multiple_of(2) { 0..3 } else { 3..6 };
                    let at = map_file(&space, file, pages.clone(), X, PRIVATE);
                    let again = map_file(&space, file, pages.start + 1..pages.end, X, PRIVATE);
                    assert_eq!(again, at + PAGE, "the copy was freed before its last user unmapped it");
                    for n in 0..3 {
                        assert_eq!(flat.load(at + n * PAGE), Disk::number(pages.start + n));
                    }
                    space.munmap(at, 3 * PAGE).unwrap();
                    assert_eq!(flat.load(again), Disk::number(pages.start + 1));
                    space.munmap(again, 2 * PAGE).unwrap();
                }
            });
        }
    });
    assert_eq!(flat.frames(), 0);
    drop(file);
    flat.end();
}

#[test]
fn concurrent_partial_munmaps_keep_contents() {
    let flat = Flat::new();
    let space = flat.space();
    thread::scope(|scope| {
        for number in 0..4u64 {
            let (flat, space) = (&flat, &space);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let at = map(space, 5, RW, PRIVATE);
                    for n in 0..5 {
                        assert_eq!(flat.load(at + n * PAGE), 0);
                        flat.store(at + n * PAGE, number + round);
                    }
                    space.munmap(at + 2 * PAGE, PAGE).unwrap();
                    for n in [0, 1, 3, 4] {
                        assert_eq!(flat.load(at + n * PAGE), number + round);
                    }
                    space.munmap(at, 2 * PAGE).unwrap();
                    space.munmap(at + 3 * PAGE, 2 * PAGE).unwrap();
                }
            });
        }
    });
    assert_eq!((space.map_count(), flat.frames()), (0, 0));
    drop(space);
    flat.end();
}
