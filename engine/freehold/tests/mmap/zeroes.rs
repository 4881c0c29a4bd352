//! /dev/zero (`src/file/kinds/zeroes.rs`): a private mapping is anonymous memory that shows an open file, and
//! a shared mapping is new shared memory.
//!
//! `with_device` runs a scenario on every design with the device opened for reading and writing.
//! `assert_maps` compares VMAs, offsets and names as the maps report shows them. The expected answers are
//! those of Linux 6.18; `recordings/causes/dev-zero` records the same calls there.

use crate::support::{
    ANON, BASE, Counted, File, FileAccess, HUGE, Machine, MapFlags, Mapping, PAGE, Process, Prot, R, RW,
    Vcpu, World, anon, everywhere,
};
use freehold::{
    PageIndex,
    call::{
        Advice::{self, *},
        RemapFlags, SyncFlags,
    },
    error::{Errno, MadviseError, MmapError, MremapError, UffdError, UffdRegisterError},
    fault::FaultError,
    file::FillError,
    report::QueryFlags,
    uffd::{FillMode, MoveMode, RegisterMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};

const NAME: &str = "/dev/zero";
const SHARED_NAME: &str = "/dev/zero (deleted)";
const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const COPY: RemapFlags = MOVE.union(RemapFlags::DONTUNMAP);
const PRIVATE: MapFlags = MapFlags::PRIVATE;
const SHARED: MapFlags = MapFlags::SHARED;

/// An open /dev/zero.
type Device = Counted<File<Machine>>;

fn open(world: &World, access: FileAccess) -> Device {
    File::new(&Mapping::zeroes(world.engine()).unwrap(), access, NAME).unwrap()
}

/// Runs `scenario` on every design, with the device opened for reading and writing.
fn with_device(scenario: impl Fn(&World, &Process, &mut Vcpu, &Device)) {
    everywhere(|world, process, cpu| scenario(world, process, cpu, &open(world, FileAccess::READ_WRITE)));
}

/// Returns the address of a page.
fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

/// Maps `pages` pages at `page(at)`, from page `first` of the file on.
fn map(process: &Process, at: u64, pages: u64, flags: MapFlags, file: &Device, first: u64) {
    let prot = if file.access().write { RW } else { R };
    let mapped =
        process.mmap(page(at), pages * PAGE, prot, flags | MapFlags::FIXED, Some(file), first * PAGE);
    assert_eq!(mapped, Ok(page(at)));
}

fn advise(process: &Process, at: u64, pages: u64, advice: Advice) -> Result<(), MadviseError> {
    process.madvise(page(at), pages * PAGE, advice)
}

/// Moves pages without a change of size.
fn move_to(process: &Process, at: u64, pages: u64, to: u64, flags: RemapFlags) -> Result<u64, MremapError> {
    process.mremap(page(at), pages * PAGE, pages * PAGE, flags, page(to))
}

/// Checks the VMAs as the maps report shows them: first page, counted from `BASE`; number of pages; page
/// offset; and name. A VMA that was moved before it had a page shows the offset of its address
/// ([`by_place`]).
#[track_caller]
fn assert_maps(process: &Process, expected: &[(u64, u64, u64, &str)]) {
    let lines: Vec<_> = process.maps(BASE).collect();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            let pages = (line.end - line.start) / PAGE;
            ((line.start - BASE) / PAGE, pages, line.offset / PAGE, line.name.as_str())
        })
        .collect();
    assert_eq!(shown, expected);
}

/// Returns the page offset of a VMA that was moved to `page(at)` before it had a page.
fn by_place(at: u64) -> u64 {
    page(at) / PAGE
}

#[test]
fn private_mapping_is_anonymous_memory() {
    with_device(|_, process, cpu, file| {
        map(process, 0, 8, PRIVATE, file, 3);
        assert_maps(process, &[(0, 8, 3, NAME)]);
        assert_eq!(process.load::<u64>(cpu, page(2)), Ok(0));
        assert_eq!((process.rss().anon, process.rss().file, process.rss().shmem), (0, 0, 0));
        process.store(cpu, page(0), 7u64).unwrap();
        assert_eq!((process.rss().anon, process.rss().file), (1, 0));
        let mut present = [9; 8];
        process.mincore(page(0), 8 * PAGE, &mut present).unwrap();
        assert_eq!(present, [1, 0, 1, 0, 0, 0, 0, 0]);
        process.msync(page(0), 8 * PAGE, SyncFlags::SYNC).unwrap();
        assert!(process.find_vma(page(0)).unwrap().is_anonymous());
        let line = process.query_vma(page(0), QueryFlags::FILE_BACKED).unwrap();
        assert_eq!((line.start, line.offset), (page(0), 3 * PAGE));
        let child = Process::of(process.fork().unwrap());
        child.store(cpu, page(0), 8u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, page(0)), Ok(7));
        assert_maps(&child, &[(0, 8, 3, NAME)]);
    });
}

#[test]
fn private_mapping_takes_the_advice_of_anonymous_memory() {
    with_device(|_, process, cpu, file| {
        map(process, 0, 4, PRIVATE, file, 0);
        process.store(cpu, page(0), 7u64).unwrap();
        for advice in
            [Free, GuardInstall, GuardRemove, WillNeed, Cold, PageOut, Mergeable, HugePage, KeepOnFork]
        {
            assert_eq!(advise(process, 0, 4, advice), Ok(()), "{advice:?}");
        }
        let merges =
            |process: &Process, at| process.find_vma(page(at)).unwrap().flags().contains(VmFlags::MERGEABLE);
        assert!(merges(process, 0));
        assert_eq!(advise(process, 0, 4, Remove), Err(MadviseError::AccessDenied));
        for advice in [WipeOnFork, Collapse] {
            assert_eq!(advise(process, 0, 4, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        process.mlock(page(0), 4 * PAGE).unwrap();
        assert_eq!(process.rss().anon, 4);
        for advice in [Remove, Free] {
            assert_eq!(advise(process, 0, 4, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        // Sealed read-only memory refuses advice that would discard its contents.
        process.munlock(page(0), 4 * PAGE).unwrap();
        process.mprotect(page(0), 4 * PAGE, R).unwrap();
        process.mseal(page(0), 4 * PAGE, 0).unwrap();
        for advice in [DontNeed, Free, WipeOnFork] {
            assert_eq!(advise(process, 0, 4, advice), Err(MadviseError::Sealed), "{advice:?}");
        }
        // PR_SET_MEMORY_MERGE marks existing and new private mappings, but no shared mappings.
        process.set_memory_merge(true).unwrap();
        map(process, 8, 1, PRIVATE, file, 0);
        map(process, 10, 1, SHARED, file, 0);
        assert!(merges(process, 8) && !merges(process, 10));
    });
}

#[test]
fn vmas_merge_only_with_equal_file_and_adjacent_offset() {
    with_device(|world, process, cpu, file| {
        map(process, 0, 2, PRIVATE, file, 0);
        map(process, 2, 2, PRIVATE, file, 2);
        map(process, 4, 2, PRIVATE, file, 0);
        map(process, 6, 2, PRIVATE, &open(world, FileAccess::READ_WRITE), 2);
        anon(process, page(8), 2);
        map(process, 10, 2, PRIVATE, file, by_place(10));
        let apart = [(4, 2, 0, NAME), (6, 2, 2, NAME), (8, 2, 0, ""), (10, 2, by_place(10), NAME)];
        assert_maps(process, &[&[(0, 4, 0, NAME)], &apart[..]].concat());
        process.mprotect(page(1), PAGE, R).unwrap();
        assert_maps(process, &[&[(0, 1, 0, NAME), (1, 1, 1, NAME), (2, 2, 2, NAME)], &apart[..]].concat());
        // The VMAs have one anon_vma, because only their rights differ.
        process.store(cpu, page(0), 7u64).unwrap();
        process.store(cpu, page(2), 7u64).unwrap();
        process.mprotect(page(1), PAGE, RW).unwrap();
        assert_maps(process, &[&[(0, 2, 0, NAME), (2, 2, 2, NAME)], &apart[..]].concat());
    });
}

#[test]
fn unpopulated_vma_takes_the_offset_of_its_new_address() {
    with_device(|_, process, cpu, file| {
        map(process, 0, 4, PRIVATE, file, 5);
        assert_eq!(move_to(process, 1, 1, 16, MOVE), Ok(page(16)));
        assert_maps(process, &[(0, 1, 5, NAME), (2, 2, 7, NAME), (16, 1, by_place(16), NAME)]);
        // At the new address, the VMA merges with VMAs of the same offset.
        map(process, 17, 1, PRIVATE, file, by_place(17));
        assert_eq!(move_to(process, 0, 1, 15, MOVE), Ok(page(15)));
        assert_maps(process, &[(2, 2, 7, NAME), (15, 3, by_place(15), NAME)]);
        process.store(cpu, page(2), 7u64).unwrap();
        assert_eq!(move_to(process, 2, 2, 20, COPY), Ok(page(20)));
        assert_maps(process, &[(2, 2, 7, NAME), (15, 3, by_place(15), NAME), (20, 2, 7, NAME)]);
        assert_eq!(process.load::<u64>(cpu, page(20)), Ok(7));
        assert_eq!(process.load::<u64>(cpu, page(2)), Ok(0));
    });
}

#[test]
fn private_mapping_grows_like_anonymous_memory() {
    with_device(|_, process, cpu, file| {
        map(process, 0, 2, PRIVATE, file, 5);
        map(process, 4, 2, PRIVATE, file, 9);
        let grow = |at, old, new, flags| process.mremap(page(at), old * PAGE, new * PAGE, flags, 0);
        assert_eq!(grow(0, 2, 4, RemapFlags::empty()), Ok(page(0)));
        assert_maps(process, &[(0, 6, 5, NAME)]);
        process.store(cpu, page(5), 7u64).unwrap();
        assert_eq!(grow(0, 0, 2, RemapFlags::MAYMOVE), Err(MremapError::Invalid));
        // The mapping grows up to the largest page offset, beyond the largest size of a file.
        map(process, 8, 1, PRIVATE, file, (1 << 52) - 3);
        assert_eq!(grow(8, 1, 3, RemapFlags::empty()), Ok(page(8)));
        process.store(cpu, page(10), 8u64).unwrap();
        assert_eq!(move_to(process, 8, 3, 16, MOVE), Ok(page(16)));
        assert_eq!(process.load::<u64>(cpu, page(18)), Ok(8));
        assert_maps(process, &[(0, 6, 5, NAME), (16, 3, (1 << 52) - 3, NAME)]);
    });
}

#[test]
fn private_mapping_moves_only_by_itself() {
    with_device(|world, process, _, file| {
        let failed = Err(MremapError::NotMapped);
        assert_eq!(MremapError::NotMapped.errno(), Errno::EFAULT);
        map(process, 0, 2, PRIVATE, file, 5);
        anon(process, page(2), 2);
        assert_eq!(move_to(process, 0, 4, 16, MOVE), failed);
        assert_maps(process, &[(0, 2, 5, NAME), (2, 2, 0, "")]);
        // VMAs before the private mapping have been moved when the call reaches it.
        map(process, 4, 2, PRIVATE, file, 5);
        assert_eq!(move_to(process, 2, 4, 16, MOVE), failed);
        assert_maps(process, &[(0, 2, 5, NAME), (4, 2, 5, NAME), (16, 2, 0, "")]);
        assert_eq!(move_to(process, 4, 4, 20, MOVE), failed);
        assert_eq!(move_to(process, 4, 2, 20, MOVE), Ok(page(20)));
        // A shared mapping moves together with other mappings, unless its descriptor is read-only.
        map(process, 2, 2, SHARED, file, 0);
        assert_eq!(move_to(process, 2, 16, 32, MOVE), Ok(page(32)));
        map(process, 4, 2, SHARED, &open(world, FileAccess::READ), 0);
        anon(process, page(6), 2);
        assert_eq!(move_to(process, 4, 4, 64, MOVE), failed);
    });
}

#[test]
fn shared_mapping_is_new_shared_memory() {
    with_device(|_, process, cpu, file| {
        map(process, 0, 2, SHARED, file, 0);
        map(process, 2, 2, MapFlags::SHARED_VALIDATE, file, 2);
        assert_maps(process, &[(0, 2, 0, SHARED_NAME), (2, 2, 2, SHARED_NAME)]);
        process.store(cpu, page(0), 7u64).unwrap();
        assert_eq!((process.rss().shmem, process.rss().anon), (1, 0));
        // The second mapping begins at page offset 2, which is beyond the end of its new shared memory of two
        // pages.
        assert_eq!(process.load::<u64>(cpu, page(2)), Err(FaultError::Bus { addr: page(2) }));
        let child = Process::of(process.fork().unwrap());
        child.store(cpu, page(1), 8u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, page(1)), Ok(8));
        let again = process.mremap(page(0), 0, 2 * PAGE, MOVE, page(16));
        assert_eq!(again, Ok(page(16)));
        assert_eq!(process.load::<u64>(cpu, page(16)), Ok(7));
        for advice in [Free, WipeOnFork, Collapse] {
            assert_eq!(advise(process, 0, 2, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        for advice in [GuardInstall, GuardRemove, Mergeable, WillNeed, Remove] {
            assert_eq!(advise(process, 0, 1, advice), Ok(()), "{advice:?}");
        }
        assert_eq!(process.load::<u64>(cpu, page(16)), Ok(0));
        process.remap_file_pages(page(0), PAGE, Prot::empty(), 1, MapFlags::empty()).unwrap();
        assert_eq!(process.load::<u64>(cpu, page(0)), Ok(8));
    });
}

#[test]
fn shared_mapping_of_a_read_only_descriptor_is_anonymous() {
    everywhere(|world, process, cpu| {
        let file = &open(world, FileAccess::READ);
        let shared =
            |prot| process.mmap(page(0), 4 * PAGE, prot, SHARED | MapFlags::FIXED, Some(file), 5 * PAGE);
        assert_eq!(shared(RW), Err(MmapError::AccessDenied));
        assert_eq!(shared(R), Ok(page(0)));
        assert_maps(process, &[(0, 4, 5, NAME)]);
        let flags = process.find_vma(page(0)).unwrap().flags();
        assert_eq!(flags & (VmFlags::SHARED | VmFlags::MAYSHARE | VmFlags::MAYWRITE), VmFlags::MAYSHARE);
        assert_eq!(process.load::<u64>(cpu, page(1)), Ok(0));
        assert_eq!(process.rss().shmem, 0);
        for advice in [Free, GuardInstall, GuardRemove, PopulateRead, DontNeed, Mergeable] {
            assert_eq!(advise(process, 0, 4, advice), Ok(()), "{advice:?}");
        }
        for advice in [PopulateWrite, WipeOnFork] {
            assert_eq!(advise(process, 0, 4, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        assert_eq!(advise(process, 0, 4, Remove), Err(MadviseError::AccessDenied));
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        let registered = uffd.register(page(0), PAGE, RegisterMode::MISSING);
        assert_eq!(registered, Err(UffdRegisterError::NotPermitted));
        // mremap with an old length of zero makes another mapping of zeroes. The mapping gets the offset of
        // its address, unless the source has pages or guards.
        process.munmap(page(0), 4 * PAGE).unwrap();
        shared(R).unwrap();
        let again = |from, pages, to| process.mremap(page(from), 0, pages * PAGE, MOVE, page(to)).unwrap();
        again(0, 4, 16);
        advise(process, 0, 1, GuardInstall).unwrap();
        again(2, 1, 24);
        again(3, 1, 25);
        assert_maps(process, &[(0, 4, 5, NAME), (16, 4, by_place(16), NAME), (24, 2, 7, NAME)]);
        let child = Process::of(process.fork().unwrap());
        assert!(child.load::<u64>(cpu, page(0)).is_err(), "the child has no guard");
        assert_eq!(child.load::<u64>(cpu, page(24)), Ok(0));
    });
}

#[test]
fn mmap_checks_access_and_flags_of_the_device() {
    with_device(|world, process, _, file| {
        let at =
            |prot, flags, file, offset| process.mmap(0, 2 * PAGE, prot, flags, Some(file), offset).map(drop);
        let write_only = open(world, FileAccess::READ_WRITE.read(false));
        assert_eq!(at(RW, PRIVATE, &write_only, 0), Err(MmapError::AccessDenied));
        let read_only = open(world, FileAccess::READ);
        assert_eq!(at(RW, PRIVATE, &read_only, 0), Ok(()));
        assert_eq!(at(RW | Prot::EXEC, PRIVATE, file, 0), Ok(()));
        for flags in
            [PRIVATE | MapFlags::GROWSDOWN, SHARED | MapFlags::GROWSDOWN, PRIVATE | MapFlags::HUGETLB]
        {
            assert_eq!(at(RW, flags, file, 0), Err(MmapError::Invalid), "{flags:?}");
        }
        let unknown = MapFlags::SHARED_VALIDATE | MapFlags::from_bits_retain(1 << 19);
        assert_eq!(at(RW, unknown, file, 0), Err(MmapError::UnknownFlag));
        for (last, mapped) in [(0xd, Ok(())), (0xe, Err(MmapError::OffsetOverflow))] {
            for flags in [PRIVATE, SHARED] {
                let offset = 0xffff_ffff_ffff_0000 | last << 12;
                assert_eq!(at(RW, flags, file, offset), mapped, "{offset:#x}");
            }
        }
    });
}

#[test]
fn large_private_mappings_are_aligned_by_their_offset() {
    everywhere(|world, process, cpu| {
        let file = &open(world, FileAccess::READ_WRITE);
        let place =
            |len, flags, first: u64| process.mmap(0, len, RW, flags, Some(file), first * PAGE).unwrap();
        // With this page mapped, the next address is not aligned by chance.
        process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
        let at = place(2 * HUGE, PRIVATE, 1);
        assert_eq!(at % HUGE, PAGE);
        assert_ne!(place(HUGE, PRIVATE, 2) % HUGE, 2 * PAGE);
        assert_ne!(place(2 * HUGE, SHARED, 0) % HUGE, 0);
        // Huge pages are aligned by address.
        process.madvise(at, 2 * HUGE, HugePage).unwrap();
        process.store(cpu, at, 7u64).unwrap();
        assert_eq!(process.rss().anon, 1);
        process.store(cpu, at + HUGE, 7u64).unwrap();
        assert_eq!(process.rss().anon, 1 + 512);
        process.mmap(page(0), PAGE, RW, PRIVATE | MapFlags::FIXED, Some(file), 7 * PAGE).unwrap();
        process.mmap(page(1), PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        let grown = process.mremap(page(0), PAGE, 2 * HUGE, RemapFlags::MAYMOVE, 0).unwrap();
        assert_eq!(grown % HUGE, 7 * PAGE);
    });
}

#[test]
fn uffd_moves_pages_but_refuses_to_fill_them() {
    everywhere(|world, process, cpu| {
        let file = &open(world, FileAccess::READ_WRITE);
        map(process, 0, 8, PRIVATE, file, 0);
        process.store(cpu, page(0), 7u64).unwrap();
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        uffd.register(page(0), 8 * PAGE, RegisterMode::MISSING | RegisterMode::WP).unwrap();
        let none = FillMode::empty();
        for at in [page(0), page(1)] {
            let failed = |result: Result<u64, UffdError>| assert_eq!(result, Err(UffdError::BadAddress));
            failed(uffd.copy(at, &[1; PAGE as usize], none));
            failed(uffd.zeropage(at, PAGE, none));
            failed(uffd.poison(at, PAGE, none));
        }
        assert_eq!(uffd.continue_with(page(1), PAGE, none), Err(UffdError::Invalid));
        anon(process, page(16), 1);
        map(process, 17, 1, PRIVATE, file, 0);
        for from in [16, 17] {
            process.store(cpu, page(from), from).unwrap();
            uffd.move_pages(page(from - 12), page(from), PAGE, MoveMode::empty()).unwrap();
            assert_eq!(process.load::<u64>(cpu, page(from - 12)), Ok(from));
        }
    });
}

#[test]
fn device_reads_zeroes_and_ignores_writes() {
    everywhere(|world, _, _| {
        let device = Mapping::zeroes(world.engine()).unwrap();
        assert!(device.is_zeroes() && !device.is_shmem());
        let mut bytes = [7; 5];
        assert_eq!(device.write_at(u64::MAX, &bytes), Ok(5));
        assert_eq!(device.read_at(1 << 62, &mut bytes), Ok(5));
        assert_eq!((bytes, device.size()), ([0; 5], 0));
        assert_eq!(device.truncate(PAGE), Err(FillError::Invalid));
        assert_eq!(device.punch(0..PAGE), Err(FillError::Unsupported));
        assert_eq!(device.fill(PageIndex::new(0)), Err(FillError::BeyondEnd));
    });
}
