//! Mapped files without an MMU (`src/nommu/region.rs`, `src/file/in_place.rs`): shared text, private copies,
//! and pages mapped in place. A mapping *in place* uses the frames of the file itself; without an MMU this
//! needs frames with consecutive numbers. The tests compare addresses, which show whether two mappings share
//! frames, and the number of frames in use.

use super::*;
use freehold::{
    PageIndex, PageRange,
    error::MunmapError,
    platform::{FramePurpose, FrameRequest},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

#[test]
fn text_is_shared_at_one_address() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let file = flat.file(8);
    let again = File::new(file.mapping(), FileAccess::READ, "/another/name").unwrap();
    let at = map_file(&one, &file, 2..7, X, PRIVATE);
    (0..5).for_each(|n| assert_eq!(flat.load(at + n * PAGE), Disk::number(n + 2)));
    assert_eq!(map_file(&other, &again, 2..7, R, PRIVATE), at, "the same pages through another descriptor");
    assert_eq!(map_file(&other, &file, 3..5, X, PRIVATE), at + PAGE, "some of the pages");
    assert_eq!(map_file(&one, &file, 2..7, X, PRIVATE), at, "by the same space");
    flat.assert_regions(1, 5);
    assert_eq!(flat.frames(), 5, "only the copy is in memory");
    assert_eq!((layout(&one), layout(&other)), (vec![(at, 5); 2], vec![(at, 5), (at + PAGE, 2)]));
    let line = other.find(at + PAGE).unwrap();
    assert!(Counted::ptr_eq(line.file.as_ref().unwrap(), &again));
    assert_eq!((line.offset, line.prot, line.shared), (2 * PAGE, R, false));
    drop(line);

    let stranger = flat.file(8);
    assert_ne!(map_file(&one, &stranger, 2..7, X, PRIVATE), at, "another file");
    flat.assert_regions(2, 10);
    drop(one);
    flat.assert_regions(1, 5);
    other.munmap(at, 5 * PAGE).unwrap();
    assert_eq!(flat.load(at + PAGE), Disk::number(3), "a part is still in use");
    flat.assert_regions(1, 5);
    other.munmap(at + PAGE, 2 * PAGE).unwrap();
    flat.assert_regions(0, 0);
    drop((other, file, again, stranger));
    flat.end();
}

#[test]
fn text_that_partly_overlaps_a_copy_is_refused() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.file(10);
    let at = map_file(&space, &file, 3..6, X, PRIVATE);
    for pages in [2..4, 5..7, 2..7, 0..10, 3..7, 2..6] {
        let refused = try_map_file(&space, &file, pages.clone(), X, PRIVATE);
        assert_eq!(refused, Err(MmapError::Invalid), "{pages:?}");
    }
    assert_eq!((space.map_count(), flat.frames()), (1, 3));
    // Ranges that do not overlap the copy become other regions. A writable mapping is always a separate copy.
    map_file(&space, &file, 0..3, X, PRIVATE);
    map_file(&space, &file, 6..10, X, PRIVATE);
    map_file(&space, &file, 2..7, RW, PRIVATE);
    flat.assert_regions(4, 15);
    space.munmap(at, 3 * PAGE).unwrap();
    assert_eq!(
        try_map_file(&space, &file, 2..4, X, PRIVATE),
        Err(MmapError::Invalid),
        "0..3 is still mapped"
    );
    map_file(&space, &file, 3..5, X, PRIVATE);
    drop((space, file));
    flat.end();
}

#[test]
fn shared_copy_does_not_follow_later_writes() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let file = flat.file(2);
    // The value in the cache is newer than the value on the disk.
    write_number(&file, PAGE, 11);
    let at = map_file(&one, &file, 0..2, X, PRIVATE);
    assert_eq!((flat.load(at), flat.load(at + PAGE)), (Disk::number(0), 11));
    write_number(&file, PAGE, 12);
    assert_eq!(map_file(&other, &file, 0..2, X, PRIVATE), at);
    assert_eq!(flat.load(at + PAGE), 11);
    one.clear();
    other.clear();
    let at = map_file(&one, &file, 0..2, X, PRIVATE);
    assert_eq!(flat.load(at + PAGE), 12);
    drop((one, other, file));
    flat.end();
}

#[test]
fn writable_private_mappings_are_separate_copies() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let file = flat.file(3);
    let text = map_file(&one, &file, 0..3, X, PRIVATE);
    let a = map_file(&one, &file, 0..3, RW, PRIVATE);
    let b = map_file(&other, &file, 0..3, RW, PRIVATE);
    flat.assert_regions(3, 9);
    flat.store(a + PAGE, 1);
    flat.store(b + PAGE, 2);
    let seen = [flat.load(a + PAGE), flat.load(b + PAGE), flat.load(text + PAGE), read_number(&file, PAGE)];
    assert_eq!(seen, [1, 2, Disk::number(1), Disk::number(1)]);
    drop((one, other, file));
    flat.end();
}

#[test]
fn bytes_beyond_the_end_of_a_file_are_zeroes() {
    let flat = Flat::new();
    let space = flat.space();
    let mapping = Mapping::new(flat.world.engine(), Full, PAGE + 100, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "full").unwrap();
    for prot in [R, RW] {
        let at = map_file(&space, &file, 0..4, prot, PRIVATE);
        assert_eq!(flat.load(at + PAGE + 88), u64::MAX);
        assert_eq!(flat.load(at + PAGE + 96), u64::from(u32::MAX), "the file ends inside these bytes");
        (PAGE + 104..4 * PAGE).step_by(8).for_each(|n| assert_eq!(flat.load(at + n), 0));
        let at = map_file(&space, &file, 7..9, prot, PRIVATE);
        assert_eq!((flat.load(at), flat.load(at + 2 * PAGE - 8)), (0, 0));
    }
    // The copy from the cache is equal to the copy from the disk.
    read_number(&file, PAGE);
    let at = map_file(&space, &file, 1..2, RW, PRIVATE);
    assert_eq!((flat.load(at + 88), flat.load(at + 104)), (u64::MAX, 0));
    drop((space, file, mapping));
    flat.end();
}

/// A disk whose bytes are all ones.
struct Full;

impl Pager<Machine> for Full {
    fn read_page(&self, platform: &Machine, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.write_frame(frame, 0, &[0xff; PAGE as usize]);
        Ok(())
    }
}

#[test]
fn shared_mappings_use_the_frames_of_the_file() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let file = flat.shm(4 * PAGE);
    let at = map_file(&one, &file, 1..3, RW, SHARED);
    assert_eq!(flat.frames(), 4, "one set of frames for the whole file");
    assert_eq!(map_file(&other, &file, 0..4, RW, SHARED), at - PAGE, "more pages than the other mapping");
    assert_eq!(map_file(&other, &file, 2..4, R, SHARED), at + PAGE, "across the end of the other mapping");
    assert_eq!(map_file(&one, &file, 0..2, R, PRIVATE), at - PAGE, "a read-only mapping");
    assert_eq!(flat.frames(), 4);
    assert!(one.find(at).is_some_and(|line| line.range.start == at - PAGE && !line.shared));
    flat.store(at, 5);
    assert_eq!(read_number(&file, PAGE), 5);
    write_number(&file, 2 * PAGE, 6);
    assert_eq!(flat.load(at + PAGE), 6);
    let copy = map_file(&one, &file, 1..3, RW, PRIVATE);
    flat.store(copy, 7);
    assert_eq!((flat.load(at), flat.load(copy + PAGE), flat.frames()), (5, 6, 6));
    drop((one, other));
    assert_eq!((flat.frames(), read_number(&file, PAGE)), (4, 5), "the file keeps its pages");
    drop(file);
    flat.end();
}

#[test]
fn mapping_outlives_a_closed_file() {
    let flat = Flat::new();
    let space = flat.space();
    let (shm, disk) = (flat.shm(PAGE), flat.file(1));
    let at = map_file(&space, &shm, 0..1, RW, SHARED);
    map_file(&space, &disk, 0..1, X, PRIVATE);
    drop((shm, disk));
    flat.store(at, 3);
    assert_eq!(flat.load(at), 3);
    drop(space);
    flat.end();
}

#[test]
fn shared_mapping_needs_contiguous_frames() {
    let flat = Flat::new();
    let space = flat.space();
    let disk = flat.file(2);
    assert_eq!(
        try_map_file(&space, &disk, 0..1, R, SHARED),
        Err(MmapError::NotMappable),
        "the file is not in memory"
    );
    let shm = flat.shm(2 * PAGE);
    for pages in [2..3, 0..3, 9..10] {
        assert_eq!(
            try_map_file(&space, &shm, pages, RW, SHARED),
            Err(MmapError::NotMappable),
            "beyond its end"
        );
    }
    // The store allocates a single page at an arbitrary frame.
    write_number(&shm, PAGE, 9);
    assert_eq!(try_map_file(&space, &shm, 0..2, RW, SHARED), Err(MmapError::NotMappable));
    let own = map_file(&space, &shm, 1..2, RW, SHARED);
    assert_eq!(flat.load(own), 9);
    // Private copies are always possible. The copies may even overlap here, because the file cannot be mapped
    // in place.
    let copy = map_file(&space, &shm, 0..2, R, PRIVATE);
    assert_eq!((flat.load(copy), flat.load(copy + PAGE)), (0, 9));
    assert_ne!(copy + PAGE, own);
    let more = map_file(&space, &shm, 0..3, R, PRIVATE);
    assert_ne!(more, copy);
    assert_eq!(map_file(&space, &shm, 0..3, R, PRIVATE), more);
    drop((space, disk, shm));
    flat.end();
}

#[test]
fn lay_out_gives_a_file_contiguous_frames() {
    let flat = Flat::new();
    let space = flat.space();
    let (file, disk) = (flat.shm(0), flat.file(2));
    assert_eq!(file.mapping().lay_out(), Ok(()), "the file is empty");
    file.mapping().truncate(4 * PAGE).unwrap();
    assert_eq!(file.mapping().lay_out(), Ok(()));
    assert_eq!(flat.frames(), 4);
    write_number(&file, 3 * PAGE, 3);
    write_number(&file, PAGE, 1);
    assert_eq!(file.mapping().lay_out(), Ok(()), "the frames are already contiguous");
    let at = map_file(&space, &file, 0..4, RW, SHARED);
    let found: Vec<u64> = (0..4).map(|n| flat.load(at + n * PAGE)).collect();
    assert_eq!((found, flat.frames()), (vec![0, 1, 0, 3], 4));
    assert_eq!(disk.mapping().lay_out(), Ok(()), "lay_out changes only shared memory");
    assert!(!disk.mapping().has_page(PageIndex::new(0)));
    file.mapping().truncate(1 << 40).unwrap();
    assert_eq!(file.mapping().lay_out(), Ok(()), "the file already has pages");
    let huge = flat.shm(1 << 40);
    assert_eq!(huge.mapping().lay_out(), Err(freehold::file::FillError::NoMemory));
    drop((space, file, disk, huge));
    flat.end();
}

/// A ROM with frames of its own, which programs may read in place.
struct Rom {
    machine: Machine,
    first: Pfn,
    pages: u64,
    asked: Arc<AtomicU64>,
}

impl Pager<Machine> for Rom {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.copy_frame(frame, self.first.add(index.get()));
        Ok(())
    }

    fn in_memory(&self, pages: PageRange) -> Option<ForeignFrames> {
        self.asked.fetch_add(1, SeqCst);
        assert!(!pages.is_empty() && pages.end.get() <= self.pages);
        Some(foreign(self.first.add(pages.start.get()), pages.len().get()))
    }
}

impl Drop for Rom {
    #[expect(unsafe_code, reason = "the machine checks that all frames are freed")]
    fn drop(&mut self) {
        let frames: Vec<Pfn> = (0..self.pages).map(|n| self.first.add(n)).collect();
        // SAFETY: the frames come from `alloc_run`, and the file that led to them is gone.
        unsafe { self.machine.free_frames(&frames) };
    }
}

#[test]
fn storage_in_memory_is_mapped_in_place() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let machine = flat.world.machine.clone();
    let first = machine.alloc_run(&FrameRequest::pages(FramePurpose::NoMmu), 4).unwrap();
    (0..4u64).for_each(|n| machine.write_frame(first.add(n), 0, &(50 + n).to_le_bytes()));
    let asked = Arc::new(AtomicU64::new(0));
    let rom = Rom { machine, first, pages: 4, asked: asked.clone() };
    let mapping = Mapping::new(flat.world.engine(), rom, 4 * PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ, "/rom/sh").unwrap();
    let there = first.get() * PAGE;
    assert_eq!(map_file(&one, &file, 0..4, X, PRIVATE), there);
    assert_eq!(map_file(&other, &file, 1..3, X, PRIVATE), there + PAGE);
    assert_eq!(map_file(&other, &file, 2..4, R, SHARED), there + 2 * PAGE);
    assert_eq!(flat.frames(), 4, "only the ROM is in memory");
    assert_eq!(asked.load(SeqCst), 3);
    // A writable mapping, and a mapping that extends beyond the end of the file, are copies.
    let data = map_file(&one, &file, 0..4, RW, PRIVATE);
    let beyond = map_file(&one, &file, 0..5, R, PRIVATE);
    assert_ne!(data, there);
    assert_eq!([data, beyond].map(|at| flat.load(at + 3 * PAGE)), [53; 2]);
    assert_eq!((asked.load(SeqCst), flat.frames()), (3, 13));
    assert_eq!(try_map_file(&one, &file, 0..4, RW, SHARED), Err(MmapError::AccessDenied));
    drop((one, other));
    assert_eq!(flat.frames(), 4);
    drop((file, mapping));
    flat.end();
}

#[test]
fn mmap_checks_the_access_of_the_descriptor() {
    let flat = Flat::new();
    let space = flat.space();
    let shm = flat.shm(PAGE);
    let read = FileAccess::READ;
    let open = |access| File::new(shm.mapping(), access, "it").unwrap();
    let cases = [
        (read.read(false).write(true), R, PRIVATE, Err(MmapError::AccessDenied)),
        (read.read(false).write(true), RW, SHARED, Err(MmapError::AccessDenied)),
        (read, RW, SHARED, Err(MmapError::AccessDenied)),
        (read, R, SHARED, Ok(())),
        (read, RW, PRIVATE, Ok(())),
        (FileAccess::READ_WRITE.append(true), R, SHARED, Err(MmapError::AccessDenied)),
        (FileAccess::READ_WRITE.append(true), RW, PRIVATE, Ok(())),
        (read.noexec(true), X, PRIVATE, Err(MmapError::NotPermitted)),
        (read.noexec(true), R, PRIVATE, Ok(())),
        (read.mappable(false), R, PRIVATE, Err(MmapError::NotMappable)),
    ];
    for (access, prot, flags, expected) in cases {
        let result = try_map_file(&space, &open(access), 0..1, prot, flags);
        assert_eq!(result.map(drop), expected, "{access:?} {prot:?} {flags:?}");
    }
    let elsewhere = World::new();
    let stranger = elsewhere.file(1);
    assert_eq!(try_map_file(&space, &stranger, 0..1, R, PRIVATE), Err(MmapError::OtherEngine));
    drop((space, shm, stranger));
    elsewhere.end();
    flat.end();
}

/// A disk whose reads fail on command.
struct Broken(Arc<AtomicBool>, Mutex<Vec<u64>>);

impl Pager<Machine> for Broken {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        self.1.lock().unwrap().push(index.get());
        if index.get() == 1 && self.0.load(SeqCst) {
            return Err(IoError);
        }
        Disk.read_page(platform, index, frame)
    }
}

#[test]
fn read_error_fails_mmap() {
    let flat = Flat::new();
    let space = flat.space();
    let broken = Arc::new(AtomicBool::new(true));
    for shmem in [false, true] {
        broken.store(true, SeqCst);
        let pager = Broken(broken.clone(), Mutex::default());
        let mapping = Mapping::new(flat.world.engine(), pager, 3 * PAGE, shmem).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "broken").unwrap();
        for prot in [R, RW] {
            assert_eq!(try_map_file(&space, &file, 0..3, prot, PRIVATE), Err(MmapError::Io), "{prot:?}");
        }
        let shared = try_map_file(&space, &file, 0..3, RW, SHARED);
        assert_eq!(shared, Err(if shmem { MmapError::Io } else { MmapError::NotMappable }));
        assert_eq!((flat.frames(), space.map_count()), (0, 0));
        broken.store(false, SeqCst);
        let at = map_file(&space, &file, 0..3, R, PRIVATE);
        assert_eq!(flat.load(at + PAGE), Disk::number(1));
        space.clear();
        drop((file, mapping));
    }
    drop(space);
    flat.end();
}

#[test]
fn file_mapping_is_only_unmapped_as_a_whole() {
    let flat = Flat::new();
    let space = flat.space();
    let (disk, shm) = (flat.file(4), flat.shm(4 * PAGE));
    for at in [
        map_file(&space, &disk, 0..4, RW, PRIVATE),
        map_file(&space, &disk, 0..4, X, PRIVATE),
        map_file(&space, &shm, 0..4, RW, SHARED),
    ] {
        for (first, pages) in [(0, 1), (3, 1), (1, 2), (0, 5)] {
            let refused = space.munmap(at + first * PAGE, pages * PAGE);
            assert_eq!(refused, Err(MunmapError::Invalid), "{pages} from {first} on");
        }
    }
    // The file is mapped three times at overlapping addresses. Each munmap removes one mapping.
    let at = map_file(&space, &shm, 0..4, R, SHARED);
    assert_eq!(map_file(&space, &shm, 1..3, R, SHARED), at + PAGE);
    assert_eq!(space.map_count(), 5);
    space.munmap(at, 4 * PAGE).unwrap();
    space.munmap(at + PAGE, 2 * PAGE).unwrap();
    assert_eq!(space.munmap(at + PAGE, 2 * PAGE), Err(MunmapError::Invalid));
    space.munmap(at, 4 * PAGE).unwrap();
    assert_eq!(space.munmap(at, 4 * PAGE), Err(MunmapError::Invalid));
    assert_eq!(space.map_count(), 2);
    drop((space, disk, shm));
    flat.end();
}
