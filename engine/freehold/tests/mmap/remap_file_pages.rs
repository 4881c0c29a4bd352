//! remap_file_pages (`src/call/remap_file_pages.rs`) maps other pages of a shared file at the same addresses,
//! with the arguments and errors of the emulation in Linux. `with_file` maps a file whose pages contain their
//! numbers; the tests compare the numbers that a program loads, the VMAs and the errors. `shm.rs` tests the
//! call on attached segments.

use crate::support::{
    BASE, Counted, File, FileAccess, Machine, MapFlags, PAGE, Process, Prot, R, RW, Vcpu, World, anon,
    everywhere, layout,
};
use freehold::error::RemapFilePagesError as E;

const PAGES: u64 = 8;
const NONE: Prot = Prot::empty();
const NOT_YET: MapFlags = MapFlags::NONBLOCK;

/// Runs `scenario` on every design, with a numbered file that is mapped shared at `BASE`.
fn with_file(scenario: impl Fn(&World, &Process, &mut Vcpu, &Counted<File<Machine>>)) {
    everywhere(|world, process, cpu| {
        let file = world.file(PAGES);
        map(process, &file, BASE, PAGES, 0);
        scenario(world, process, cpu, &file);
    });
}

fn map(process: &Process, file: &Counted<File<Machine>>, at: u64, pages: u64, first: u64) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    process.mmap(at, pages * PAGE, RW, flags, Some(file), first * PAGE).unwrap();
}

fn numbers(process: &Process, cpu: &mut Vcpu) -> Vec<u64> {
    (0..PAGES).map(|page| process.load::<u64>(cpu, BASE + page * PAGE).unwrap() / 1000).collect()
}

#[test]
fn remap_file_pages_reorders_pages() {
    with_file(|_, process, cpu, file| {
        process.store(cpu, BASE + 8, 77u64).unwrap();
        // Maps the pages in reverse order. Addresses and lengths are rounded down to pages.
        for page in 0..PAGES {
            let at = BASE + page * PAGE + 5;
            process.remap_file_pages(at, PAGE + 9, NONE, PAGES - 1 - page, MapFlags::empty()).unwrap();
        }
        assert_eq!(process.rss().file, PAGES as i64, "all pages were populated");
        assert_eq!(numbers(process, cpu), [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(process.load(cpu, BASE + 7 * PAGE + 8), Ok(77u64));
        assert_eq!(process.counts().map_count, PAGES);
        process.store(cpu, BASE, 5u64).unwrap();
        let mut bytes = [0; 8];
        file.mapping().read_at(7 * PAGE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 5, "the mapping is shared as before");
        // The pages are in order again and their VMAs merge: consecutive VMAs may be remapped by one call.
        process.remap_file_pages(BASE, PAGES * PAGE, NONE, 0, NOT_YET).unwrap();
        assert_eq!((layout(process), process.rss().file), (vec![(0, PAGES)], 0));
        file.mapping().check();
    });
}

#[test]
fn invalid_arguments_and_mappings_are_refused() {
    with_file(|_, process, _, file| {
        let remap = |at, len, pgoff| process.remap_file_pages(at, len, NONE, pgoff, NOT_YET);
        assert_eq!(remap(BASE, PAGE - 1, 0), Err(E::Invalid), "empty");
        assert_eq!(remap(u64::MAX - PAGE, 2 * PAGE, 0), Err(E::Invalid), "a range that wraps");
        assert_eq!(remap(BASE, PAGE, u64::MAX), Err(E::Invalid), "an offset that wraps");
        assert_eq!(remap(BASE, PAGE, u64::MAX - 1), Err(E::OffsetOverflow), "beyond the largest file size");
        assert_eq!(process.remap_file_pages(BASE, PAGE, R, 0, NOT_YET), Err(E::Invalid), "rights");
        assert_eq!(remap(BASE - PAGE, PAGE, 0), Err(E::Invalid), "nothing is mapped there");
        assert_eq!(remap(BASE, (PAGES + 1) * PAGE, 0), Err(E::Invalid), "a hole after the mapping");
        assert_eq!(remap(1 << 62, PAGE, 0), Err(E::Invalid), "beyond user space");
        // The range must not extend into a different mapping: anonymous memory, another open file of the same
        // name, or other rights.
        anon(process, BASE + PAGES * PAGE, 1);
        assert_eq!(remap(BASE, (PAGES + 1) * PAGE, 0), Err(E::Invalid));
        assert_eq!(remap(BASE + PAGES * PAGE, PAGE, 0), Err(E::Invalid), "no file");
        let again = File::new(file.mapping(), FileAccess::READ_WRITE, "/a/file").unwrap();
        map(process, &again, BASE + PAGES * PAGE, 1, PAGES);
        assert_eq!(remap(BASE, (PAGES + 1) * PAGE, 0), Err(E::Invalid));
        process.mprotect(BASE + PAGE, PAGE, R).unwrap();
        assert_eq!(remap(BASE, 2 * PAGE, 0), Err(E::Invalid));
        // The call refuses a private mapping. It also refuses a shared mapping of a read-only descriptor,
        // because Linux does not treat such a mapping as shared.
        let read_only = File::new(file.mapping(), FileAccess::READ, "/a/file").unwrap();
        for (flags, file) in [(MapFlags::PRIVATE, file), (MapFlags::SHARED, &read_only)] {
            let at = process.mmap(0, PAGE, R, flags, Some(file), 0).unwrap();
            assert_eq!(remap(at, PAGE, 1), Err(E::Invalid));
        }
        // A sealed mapping stays unchanged.
        let before = layout_of(process);
        process.mseal(BASE, PAGE, 0).unwrap();
        assert_eq!(remap(BASE, PAGE, 1), Err(E::NotPermitted));
        assert_eq!(layout_of(process), before);
    });
}

fn layout_of(process: &Process) -> Vec<(u64, u64, u64)> {
    process.maps(0).map(|line| (line.start, line.end, line.offset)).collect()
}

#[test]
fn remap_file_pages_keeps_rights_and_locks() {
    with_file(|_, process, cpu, _| {
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mlock(BASE, PAGE).unwrap();
        process.remap_file_pages(BASE, PAGE, NONE, 5, MapFlags::empty()).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE).unwrap() / 1000, 5);
        assert!(process.store(cpu, BASE, 1u64).is_err());
        assert_eq!(process.counts().locked_vm, 1);
        // Anonymous shared memory is a file, too.
        let at = BASE + 100 * PAGE;
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(at, 2 * PAGE, RW, flags, None, 0).unwrap();
        process.store(cpu, at + PAGE, 9u64).unwrap();
        process.remap_file_pages(at, PAGE, NONE, 1, MapFlags::empty()).unwrap();
        assert_eq!(process.load(cpu, at), Ok(9u64));
    });
}
