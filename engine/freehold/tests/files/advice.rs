//! Results and effects of mincore, msync and madvise on mapped files (`src/report/mincore.rs`,
//! `src/call/msync.rs`, `src/call/madvise/`). Most tests run in `with_file`, and assert the resident pages
//! that mincore reports, the loaded words and the errors. Tests of advice on anonymous memory are in
//! `guards.rs`, `huge/` and `reports/usage.rs`.

use crate::support::{
    Counted, Disk, File, FileAccess, Machine, MapFlags, PAGE, Process, R, RW, TASK_SIZE, Vcpu, World,
    everywhere,
};
use freehold::{
    PageIndex,
    call::{Advice, SyncFlags},
    error::{MadviseError, MsyncError},
    remote::IoVec,
};

const PAGES: u64 = 8;

/// Runs `scenario` on every design, with a numbered file that is mapped shared.
fn with_file(scenario: impl Fn(&World, &Process, &mut Vcpu, &Counted<File<Machine>>, u64)) {
    everywhere(|world, process, cpu| {
        let file = world.file(PAGES);
        let at = process.mmap(0, PAGES * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        scenario(world, process, cpu, &file, at);
    });
}

/// Returns the result of mincore, one byte for each page.
fn resident(process: &Process, at: u64) -> [u8; PAGES as usize] {
    let mut out = [9; PAGES as usize];
    process.mincore(at, PAGES * PAGE, &mut out).unwrap();
    out
}

#[test]
fn mincore_reports_the_page_cache() {
    with_file(|_, process, cpu, file, at| {
        assert_eq!(resident(process, at), [0; 8]);
        file.mapping().fill(PageIndex::new(2)).unwrap();
        process.madvise(at + 4 * PAGE, 2 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(resident(process, at), [0, 0, 1, 0, 1, 1, 0, 0]);
        assert_eq!(process.rss().file, 0, "mincore and WILLNEED map nothing");
        // A private copy is resident, and so is its source page in the cache. Pages beyond the end of the
        // file are not resident.
        let private = process.mmap(0, PAGES * PAGE, RW, MapFlags::PRIVATE, Some(file), 0).unwrap();
        process.store(cpu, private + 7 * PAGE, 1u64).unwrap();
        file.mapping().truncate(5 * PAGE).unwrap();
        assert_eq!(resident(process, private), [0, 0, 1, 0, 1, 0, 0, 0]);
        // A page that is unmapped stays in the cache.
        process.madvise(at, PAGES * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(resident(process, at), [0, 0, 1, 0, 1, 0, 0, 0]);
    });
}

#[test]
fn process_madvise_applies_advice_to_several_ranges() {
    use Advice::*;
    everywhere(|_, process, cpu| {
        let at = crate::support::anon(process, crate::support::BASE, 8);
        let part = |page: u64, len: u64| IoVec { base: at + page * PAGE, len };
        let advise = |parts: &[IoVec], advice| process.process_madvise(parts, advice, true);
        (0..8).for_each(|page| process.store(cpu, at + page * PAGE, 1u64).unwrap());
        // The result counts the requested bytes, although whole pages are discarded.
        assert_eq!(advise(&[part(0, PAGE), part(2, 100), part(4, 0)], DontNeed), Ok(PAGE + 100));
        let left: Vec<bool> = (0..8).map(|page| process.load(cpu, at + page * PAGE) == Ok(1u64)).collect();
        assert_eq!(left, [false, true, false, true, true, true, true, true]);
        // The call stops at the first range that fails. The part of that range that was already processed
        // does not count.
        process.munmap(at + 6 * PAGE, PAGE).unwrap();
        assert_eq!(advise(&[part(1, PAGE), part(5, 3 * PAGE), part(3, PAGE)], DontNeed), Ok(PAGE));
        assert_eq!(process.load(cpu, at + 5 * PAGE), Ok(0u64));
        assert_eq!(process.load(cpu, at + 3 * PAGE), Ok(1u64));
        assert_eq!(advise(&[part(5, 3 * PAGE), part(3, PAGE)], DontNeed), Err(MadviseError::NotMapped));
        let inside = IoVec { base: at + 1, len: 0 };
        assert_eq!(advise(&[inside, part(3, PAGE)], DontNeed), Err(MadviseError::Invalid));
        assert_eq!(advise(&[part(3, PAGE), inside], DontNeed), Ok(PAGE));
        // The ranges are validated before any advice is applied.
        process.store(cpu, at, 2u64).unwrap();
        let beyond = IoVec { base: TASK_SIZE - PAGE, len: PAGE + 1 };
        assert_eq!(advise(&[part(0, PAGE), beyond], DontNeed), Err(MadviseError::BadAccess));
        assert_eq!(advise(&[beyond, part(0, u64::MAX)], DontNeed), Err(MadviseError::Invalid));
        assert_eq!(advise(&[part(0, PAGE); 1025], DontNeed), Err(MadviseError::Invalid));
        assert_eq!(process.load(cpu, at), Ok(2u64));
        assert_eq!(advise(&[part(0, PAGE); 1024], DontNeed), Ok(1024 * PAGE));
        assert_eq!(advise(&[], DontNeed), Ok(0));
        // The result is capped at the number of bytes that a read can return.
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::NORESERVE;
        let large = process.mmap(0, 5 << 30, RW, flags, None, 0).unwrap();
        let giga = |len: u64| IoVec { base: large, len: len << 30 };
        assert_eq!(advise(&[giga(1), giga(3), giga(1)], DontNeed), Ok(0x7fff_f000));
        assert_eq!(advise(&[giga(1 << 32)], DontNeed), Ok(0x7fff_f000));
        // Advice for the memory of another process.
        for advice in Advice::ALL {
            let said = process.process_madvise(&[part(0, PAGE)], *advice, false);
            let allowed = matches!(advice, WillNeed | Cold | PageOut);
            assert_eq!(said, if allowed { Ok(PAGE) } else { Err(MadviseError::Invalid) }, "{advice:?}");
        }
    });
}

#[test]
fn willneed_stops_at_the_end_of_the_file() {
    with_file(|_, process, _, file, at| {
        file.mapping().truncate(3 * PAGE + 1).unwrap();
        process.madvise(at, PAGES * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(resident(process, at), [1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(process.madvise(at + 7 * PAGE, 2 * PAGE, Advice::WillNeed), Err(MadviseError::NotMapped));
    });
}

#[test]
fn remove_punches_a_hole_only_through_a_writable_shared_mapping() {
    with_file(|_, process, cpu, file, at| {
        let read_only = File::new(file.mapping(), FileAccess::READ, "/a/file").unwrap();
        for (flags, file) in [(MapFlags::PRIVATE, file), (MapFlags::SHARED, &read_only)] {
            let other = process.mmap(0, PAGE, R, flags, Some(file), 0).unwrap();
            assert_eq!(process.madvise(other, PAGE, Advice::Remove), Err(MadviseError::AccessDenied));
        }
        // A shared mapping that may become writable allows REMOVE, even if it is read-only now.
        process.mprotect(at, PAGES * PAGE, R).unwrap();
        let private = process.mmap(0, PAGES * PAGE, RW, MapFlags::PRIVATE, Some(file), 0).unwrap();
        process.store(cpu, private + PAGE, 1u64).unwrap();
        process.load::<u64>(cpu, at + PAGE).unwrap();
        process.madvise(at + PAGE, PAGE, Advice::Remove).unwrap();
        assert_eq!(resident(process, at)[1], 0);
        assert_eq!(process.load(cpu, private + PAGE), Ok(1u64), "a private copy stays");
        process.mlock(at + 2 * PAGE, PAGE).unwrap();
        assert_eq!(process.madvise(at + 2 * PAGE, PAGE, Advice::Remove), Err(MadviseError::Invalid));
        assert_eq!(process.load(cpu, at + 2 * PAGE), Ok(Disk::number(2)));
    });
}

#[test]
fn msync_reports_holes_and_locked_memory() {
    with_file(|_, process, cpu, _, at| {
        process.munmap(at + 2 * PAGE, PAGE).unwrap();
        process.store(cpu, at + 3 * PAGE, 1u64).unwrap();
        let msync = |flags| process.msync(at, PAGES * PAGE, flags);
        assert_eq!(msync(SyncFlags::SYNC), Err(MsyncError::NotMapped));
        assert_eq!(msync(SyncFlags::ASYNC), Err(MsyncError::NotMapped));
        assert_eq!(process.msync(at, 2 * PAGE, SyncFlags::ASYNC | SyncFlags::SYNC), Err(MsyncError::Invalid));
        assert_eq!(process.msync(at + 1, PAGE, SyncFlags::SYNC), Err(MsyncError::Invalid));
        assert_eq!(process.msync(at, 0, SyncFlags::SYNC), Ok(()));
        process.mlock(at, PAGE).unwrap();
        assert_eq!(process.msync(at, PAGE, SyncFlags::INVALIDATE), Err(MsyncError::Locked));
        assert_eq!(process.msync(at + PAGE, PAGE, SyncFlags::INVALIDATE), Ok(()));
    });
}
