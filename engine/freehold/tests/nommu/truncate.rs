//! Truncation and hole punching of files that are mapped without an MMU, where the engine cannot revoke
//! access to a mapped page. A call that would remove a page of a shared mapping fails with `FillError::Busy`
//! and changes nothing. A private mapping keeps its frames although the file loses the pages. The tests list
//! the pages in the cache after each call.

use super::*;
use freehold::{PageIndex, error::Errno, file::FillError};

/// Returns the numbers of the pages in the cache.
fn cached(file: &Opened) -> Vec<u64> {
    (0..file.mapping().pages()).filter(|index| file.mapping().has_page(PageIndex::new(*index))).collect()
}

#[test]
fn truncation_refuses_to_remove_mapped_pages() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.shm(8 * PAGE);
    // |0  1  2  3  4  5  6  7|
    //       |-----|
    let at = map_file(&space, &file, 2..4, RW, SHARED);
    (0..8).for_each(|n| write_number(&file, n * PAGE + 8, n));
    let truncate = |bytes| file.mapping().truncate(bytes);
    for bytes in [0, PAGE, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE, 4 * PAGE - 1] {
        assert_eq!(truncate(bytes), Err(FillError::Busy), "{bytes} bytes");
        assert_eq!(FillError::Busy.errno(), Errno::ETXTBSY);
        assert_eq!(file.mapping().size(), 8 * PAGE);
    }
    (0..8).for_each(|n| assert_eq!(read_number(&file, n * PAGE + 8), n));
    // Bytes in pages that are not mapped can be cut off, up to any byte of a page.
    assert_eq!(truncate(7 * PAGE + 10), Ok(()));
    assert_eq!(truncate(4 * PAGE), Ok(()));
    assert_eq!((cached(&file), flat.load(at + 8), flat.load(at + PAGE + 8)), (vec![0, 1, 2, 3], 2, 3));
    // The new pages of the grown file read as zeroes, and may be in other frames than before.
    assert_eq!(truncate(8 * PAGE), Ok(()));
    (4..8).for_each(|n| assert_eq!(read_number(&file, n * PAGE + 8), 0));
    assert_eq!(truncate(4 * PAGE), Ok(()));
    space.munmap(at, 2 * PAGE).unwrap();
    assert_eq!(truncate(0), Ok(()));
    // The file is empty again: it can be grown, gets contiguous frames, and can be mapped.
    assert_eq!(truncate(3 * PAGE), Ok(()));
    let at = map_file(&space, &file, 0..3, RW, SHARED);
    assert_eq!(flat.load(at + 2 * PAGE), 0);
    drop((space, file));
    flat.end();
}

#[test]
fn only_current_mappings_prevent_truncation() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let file = flat.shm(4 * PAGE);
    let all = map_file(&one, &file, 0..4, R, SHARED);
    let front = map_file(&other, &file, 0..1, RW, SHARED);
    assert_eq!(file.mapping().truncate(3 * PAGE), Err(FillError::Busy));
    // The larger mapping is unmapped first. Then the pages that only this mapping contained may be removed.
    one.munmap(all, 4 * PAGE).unwrap();
    assert_eq!(file.mapping().truncate(PAGE - 1), Err(FillError::Busy));
    assert_eq!(file.mapping().truncate(PAGE), Ok(()));
    assert_eq!(try_map_file(&one, &file, 0..4, R, SHARED), Err(MmapError::NotMappable));
    flat.store(front, 1);
    drop(other);
    assert_eq!(file.mapping().truncate(0), Ok(()));
    drop((one, file));
    flat.end();
}

#[test]
fn private_mappings_keep_removed_pages() {
    let flat = Flat::new();
    let space = flat.space();
    let (disk, shm) = (flat.file(3), flat.shm(3 * PAGE));
    let text = map_file(&space, &disk, 0..3, X, PRIVATE);
    let data = map_file(&space, &disk, 0..3, RW, PRIVATE);
    // This private mapping uses the frames of the file, but does not prevent a truncation: the frames stay
    // until the mapping is unmapped.
    let own = map_file(&space, &shm, 0..3, R, PRIVATE);
    (0..3).for_each(|n| write_number(&shm, n * PAGE + 2000, n + 1));
    assert_eq!(flat.load(own + 2 * PAGE + 2000), 3);
    assert_eq!(disk.mapping().truncate(0), Ok(()));
    assert_eq!([text, data].map(|at| flat.load(at + PAGE)), [Disk::number(1); 2]);

    assert_eq!(shm.mapping().truncate(PAGE + 1000), Ok(()));
    assert_eq!(flat.load(own + 2000), 1);
    assert_eq!(flat.load(own + PAGE + 2000), 0, "the part of the last page beyond the end is zero");
    assert_eq!(flat.load(own + 2 * PAGE + 2000), 3, "the frame does not belong to the file any more");
    shm.mapping().truncate(3 * PAGE).unwrap();
    assert_eq!((read_number(&shm, 2 * PAGE + 2000), flat.load(own + 2 * PAGE + 2000)), (0, 3));
    drop((space, disk, shm));
    flat.end();
}

#[test]
fn truncation_zeroes_the_rest_of_the_last_page() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.shm(2 * PAGE);
    let at = map_file(&space, &file, 0..1, RW, SHARED);
    write_number(&file, PAGE, 1);
    write_number(&file, PAGE + 104, 2);
    // The page in which the file will end is not mapped.
    assert_eq!(file.mapping().truncate(PAGE + 100), Ok(()));
    file.mapping().truncate(2 * PAGE).unwrap();
    assert_eq!((read_number(&file, PAGE), read_number(&file, PAGE + 104)), (1, 0));
    // The file is still at the same address.
    assert_eq!(map_file(&space, &file, 0..2, RW, SHARED), at);
    drop((space, file));
    flat.end();
}

#[test]
fn hole_punching_refuses_to_remove_mapped_pages() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.shm(6 * PAGE);
    let at = map_file(&space, &file, 2..4, RW, SHARED);
    (0..6).for_each(|n| write_number(&file, n * PAGE, n + 1));
    for range in [2..3, 3..4, 0..6, 1..3, 3..5] {
        let bytes = range.start * PAGE..range.end * PAGE;
        assert_eq!(file.mapping().punch(bytes), Err(FillError::Busy), "{range:?}");
    }
    (0..6).for_each(|n| assert_eq!(read_number(&file, n * PAGE), n + 1));
    for range in [0..2, 4..6] {
        file.mapping().punch(range.start * PAGE..range.end * PAGE).unwrap();
    }
    // Punching a part of a page only zeroes the part.
    file.mapping().punch(2 * PAGE..2 * PAGE + 8).unwrap();
    let found: Vec<u64> = (0..6).map(|n| read_number(&file, n * PAGE)).collect();
    assert_eq!((found, flat.load(at), flat.load(at + PAGE)), (vec![0, 0, 0, 4, 0, 0], 0, 4));
    drop((space, file));
    flat.end();
}

#[test]
fn growing_a_file_clears_stores_behind_its_end() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.shm(PAGE + 10);
    let at = map_file(&space, &file, 0..2, RW, SHARED);
    // A store beyond the end of the file is not visible when the file grows.
    flat.store(at + PAGE + 16, 5);
    assert_eq!(file.mapping().truncate(PAGE + 9), Err(FillError::Busy));
    assert_eq!(file.mapping().truncate(PAGE + 10), Ok(()), "truncation to the current size");
    file.mapping().truncate(2 * PAGE).unwrap();
    assert_eq!((read_number(&file, PAGE + 16), flat.load(at + PAGE + 16)), (0, 0));
    drop((space, file));
    flat.end();
}
