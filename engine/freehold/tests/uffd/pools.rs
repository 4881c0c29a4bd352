//! userfaultfd on huge pages of pools (`src/uffd/fill_huge.rs`, `src/uffd/protect.rs`): the pages are
//! registered and supplied as a whole, and the counts of the pool are balanced afterwards.
//!
//! `in_pools` runs a scenario on every design and checks at the end that all pages of the pool are free.
//! `in_pool` maps and registers private or shared memory. `books` returns the counts of the pool. The order
//! of errors is that of Linux. `hugetlb/` tests such memory without a pager.

use super::*;
use freehold::{
    call::{Advice, RemapFlags},
    error::{MadviseError, UffdRegisterError},
    hugetlb::{HugePageSize, HugePoolCounts},
    space::HugetlbLock,
    uffd::{MoveMode, ProtectMode, RangeIoctls},
};

/// Bytes that one table of huge pages covers.
const SPAN: u64 = 1 << 30;
/// An address at the start of such a span.
pub const START: u64 = 0x80 * SPAN;
const ON: ProtectMode = ProtectMode::WP;
const OFF: ProtectMode = ProtectMode::empty();
const BOTH: [bool; 2] = [false, true];

/// Returns the address of a huge page.
pub fn huge(number: u64) -> u64 {
    START + number * HUGE
}

/// Returns huge pages whose first words are these numbers.
pub fn contents(numbers: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; ((numbers.end - numbers.start) * HUGE) as usize];
    for (page, number) in bytes.chunks_exact_mut(HUGE as usize).zip(numbers) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Returns a world with a pool of `pages` huge pages.
pub fn world_of(pages: u64) -> World {
    let world = World::with((pages + 4) * HUGE, Config::default());
    assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
    world
}

pub fn counts(world: &World) -> HugePoolCounts {
    world.engine().huge_pool(HugePageSize::Mib2).counts(None)
}

/// Returns the number of free pages, and the number of reserved pages.
fn books(world: &World) -> (u64, u64) {
    (counts(world).free, counts(world).reserved)
}

/// Runs `scenario` on every design, with a pool of `pages` pages. All pages must be free at the end.
fn in_pools(pages: u64, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for hugetlb in [HugetlbLock::FileLock, HugetlbLock::VmaLock] {
        for locking in Locking::ALL {
            let world = world_of(pages);
            let process = world.process(locking.hugetlb(hugetlb));
            let mut cpu = world.machine.cpu(0);
            scenario(&world, &process, &mut cpu);
            process.check();
            drop((process, cpu));
            let free = HugePoolCounts { total: pages, free: pages, reserved: 0, surplus: 0 };
            assert_eq!(counts(&world), free, "{locking:?}");
            world.end();
        }
    }
}

pub fn open(world: &World, pages: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, pages * HUGE, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap()
}

fn map(process: &Process, at: u64, pages: u64, flags: MapFlags, file: &Counted<File<Machine>>) {
    let mapped = process.mmap(at, pages * HUGE, RW, flags | MapFlags::FIXED, Some(file), 0);
    assert_eq!(mapped, Ok(at));
}

/// Maps huge pages, private or shared, in place of earlier mappings.
fn mapped(world: &World, process: &Process, pages: u64, private: bool) {
    process.munmap(START, pages * HUGE).unwrap();
    match private {
        true => {
            let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::HUGETLB | MapFlags::FIXED;
            assert_eq!(process.mmap(START, pages * HUGE, RW, flags, None, 0), Ok(START));
        }
        false => map(process, START, pages, MapFlags::SHARED, &open(world, pages)),
    }
}

/// Maps and registers huge pages of the pool.
fn in_pool(
    world: &World,
    process: &Process,
    (pages, private): (u64, bool),
    mode: RegisterMode,
    features: Features,
) -> Uffd {
    mapped(world, process, pages, private);
    let uffd = uffd(process, features);
    uffd.register(START, pages * HUGE, mode).unwrap();
    uffd
}

#[test]
fn register_returns_the_ioctls_of_hugetlb_memory() {
    in_pools(4, |world, process, _| {
        let uffd = uffd(process, Features::empty());
        for private in BOTH {
            mapped(world, process, 4, private);
            let basic = RangeIoctls::WAKE | RangeIoctls::COPY | RangeIoctls::POISON;
            let answers = [
                (MISSING, basic),
                (WP, basic | RangeIoctls::WRITEPROTECT),
                (MINOR, basic | RangeIoctls::CONTINUE),
                (RegisterMode::all(), basic | RangeIoctls::WRITEPROTECT | RangeIoctls::CONTINUE),
            ];
            for (mode, ioctls) in answers {
                assert_eq!(uffd.register(START, 4 * HUGE, mode), Ok(ioctls), "{mode:?}");
                uffd.unregister(START, 4 * HUGE).unwrap();
            }
            // If small pages are adjacent, the call returns the ioctls that the whole range supports.
            anon(process, huge(4), 1);
            assert_eq!(uffd.register(START, 4 * HUGE + PAGE, MISSING), Ok(basic));
            assert_eq!(uffd.register(huge(4), PAGE, MISSING).map(|ioctls| ioctls - basic), {
                Ok(RangeIoctls::ZEROPAGE | RangeIoctls::MOVE)
            });
            uffd.unregister(START, 4 * HUGE + PAGE).unwrap();
            process.munmap(huge(4), PAGE).unwrap();
            // No end of the range may lie inside a page.
            let refused = Err(UffdRegisterError::Invalid);
            assert_eq!(uffd.register(START + PAGE, HUGE, MISSING), refused);
            assert_eq!(uffd.register(START - PAGE, HUGE + PAGE, MISSING), refused);
            assert_eq!(uffd.register(START, HUGE + PAGE, MISSING), refused);
            assert_eq!(
                uffd.register(START, 4 * HUGE + PAGE, MISSING),
                Ok(basic),
                "the end is rounded to the VMA"
            );
            assert_eq!(uffd.unregister(START + PAGE, HUGE), Err(UffdRegisterError::Invalid));
            assert_eq!(uffd.unregister(START, HUGE + PAGE), Err(UffdRegisterError::Invalid));
            uffd.unregister(huge(1), HUGE).unwrap();
            assert_eq!(process.maps(0).count(), 3, "the registered part was not split out");
            uffd.unregister(START, 4 * HUGE).unwrap();
        }
    });
}

/// A misaligned start is reported before a missing right to write, and a misaligned end is reported after it.
#[test]
fn register_of_pools_checks_errors_in_the_order_of_linux() {
    in_pools(4, |world, process, _| {
        use UffdRegisterError::*;
        let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 * HUGE, false).unwrap();
        let reader = File::new(&mapping, FileAccess::READ, "/huge/file").unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        assert_eq!(process.mmap(START, 2 * HUGE, R, flags, Some(&reader), 0), Ok(START));
        let (uffd, other) = (uffd(process, Features::empty()), uffd(process, Features::empty()));
        let register = |from, to| uffd.register(from, to - from, MISSING).map(drop);
        assert_eq!(register(START, huge(2)), Err(NotPermitted));
        assert_eq!(register(START + PAGE, huge(2)), Err(Invalid), "starts inside a page");
        assert_eq!(register(START - PAGE, huge(2)), Err(Invalid), "starts before the VMA");
        assert_eq!(register(START, huge(1) + PAGE), Err(NotPermitted));
        assert_eq!(register(START + PAGE, START + 2 * PAGE), Err(Invalid), "both ends");
        mapped(world, process, 2, false);
        other.register(START, 2 * HUGE, MISSING).unwrap();
        assert_eq!(register(START, huge(2)), Err(Busy));
        assert_eq!(register(START + PAGE, huge(2)), Err(Invalid));
        assert_eq!(register(START, huge(1) + PAGE), Err(Invalid));
        // If small pages precede the huge pages, the start is not checked, and the owner of the registration
        // is checked first.
        other.unregister(START, 2 * HUGE).unwrap();
        anon(process, START - 2 * PAGE, 2);
        other.register(START - 2 * PAGE, 2 * PAGE, MISSING).unwrap();
        assert_eq!(register(START - PAGE, huge(1) + PAGE), Err(Busy));
        drop((uffd, other));
        process.munmap(START - 2 * PAGE, 2 * PAGE).unwrap();
    });
}

#[test]
fn fills_of_pools_check_errors_in_the_order_of_linux() {
    in_pools(4, |world, process, _| {
        use UffdError::*;
        for private in BOTH {
            mapped(world, process, 4, private);
            let uffd = uffd(process, Features::empty());
            let one = contents(0..1);
            assert_eq!(uffd.copy(START, &one, WAKE), Err(NotRegistered));
            uffd.register(START, 4 * HUGE, MISSING).unwrap();
            assert_eq!(uffd.copy(START, &one[..PAGE as usize], WAKE), Err(Invalid), "only a part of a page");
            assert_eq!(uffd.copy(START + PAGE, &one, WAKE), Err(Invalid), "inside a page");
            assert_eq!(
                uffd.copy(huge(3), &contents(0..2), WAKE),
                Err(NotRegistered),
                "beyond the registered range"
            );
            assert_eq!(
                uffd.copy(START, &one, FillMode::WP),
                Err(Invalid),
                "not registered for write protection"
            );
            assert_eq!(uffd.zeropage(START, HUGE, WAKE), Err(Invalid));
            assert_eq!(uffd.move_pages(START, huge(1), HUGE, MoveMode::empty()), Err(Invalid));
            assert_eq!(uffd.continue_with(START, PAGE, WAKE), Err(Invalid));
            assert_eq!(uffd.continue_with(START, HUGE, WAKE), Err(BadAddress), "the file has no page");
            assert_eq!(uffd.poison(START, PAGE, WAKE), Err(Invalid));
            assert_eq!(uffd.write_protect(START, HUGE, ON), Err(NotRegistered));
            uffd.register(START, 4 * HUGE, MISSING | WP).unwrap();
            assert_eq!(uffd.write_protect(START, PAGE, ON), Err(Invalid));
            assert_eq!(uffd.write_protect(START + PAGE, HUGE, ON), Err(Invalid));
            assert_eq!(uffd.write_protect(START, HUGE + PAGE, ON), Err(Invalid));
            assert_eq!(books(world), (4, 4), "no page was allocated");
            assert_eq!(uffd.copy(huge(1), &contents(7..8), WAKE), Ok(HUGE));
            assert_eq!(uffd.copy(huge(1), &one, WAKE), Err(Present));
            assert_eq!(uffd.copy(START, &contents(0..2), WAKE), Ok(HUGE), "only a part was filled");
            assert_eq!(uffd.poison(huge(1), HUGE, WAKE), Err(Present));
            assert_eq!(books(world), (2, 2));
        }
    });
}

#[test]
fn copy_resolves_missing_faults_on_pools() {
    in_pools(4, |world, process, cpu| {
        for private in BOTH {
            let uffd = in_pool(world, process, (4, private), MISSING, Features::empty());
            let program = |cpu: &mut Vcpu| {
                assert_eq!(process.load(cpu, huge(1) + 5 * PAGE + 8), Ok(0u64));
                process.store(cpu, huge(2) + 8, 5u64).unwrap();
            };
            with_pager(world, program, || {
                assert_fault(&uffd, huge(1), FaultReason::Missing, false);
                assert_eq!(books(world), (4, 4), "no page is allocated before the pager fills it");
                assert_eq!(uffd.copy(huge(1), &contents(71..72), WAKE), Ok(HUGE));
                assert_fault(&uffd, huge(2), FaultReason::Missing, true);
                assert_eq!(uffd.copy(huge(2), &contents(72..73), WAKE), Ok(HUGE));
            });
            assert_eq!(books(world), (2, 2), "the pages use their reservations");
            assert_eq!([1, 2].map(|n| process.load(cpu, huge(n))), [Ok(71u64), Ok(72)]);
            // After DONTNEED, a private page is missing and reserved again. A shared page is still in the
            // file.
            process.madvise(huge(1), HUGE, Advice::DontNeed).unwrap();
            match private {
                true => {
                    assert_eq!(books(world), (3, 3));
                    assert_eq!(uffd.copy(huge(1), &contents(73..74), WAKE), Ok(HUGE));
                }
                false => assert_eq!(uffd.copy(huge(1), &contents(73..74), WAKE), Err(UffdError::Present)),
            }
            assert_eq!(process.load(cpu, huge(1)), Ok(if private { 73u64 } else { 71 }));
            assert_eq!(books(world), (2, 2));
        }
    });
}

#[test]
fn fault_message_has_page_or_exact_address() {
    in_pools(1, |world, process, _| {
        for (features, address) in [(Features::empty(), START), (Features::EXACT_ADDRESS, START + 0x12348)] {
            let uffd = in_pool(world, process, (1, true), MISSING, features);
            let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, START + 0x12348).unwrap();
            with_pager(world, program, || {
                assert_fault(&uffd, address, FaultReason::Missing, false);
                assert_eq!(uffd.copy(START, &contents(1..2), WAKE), Ok(HUGE));
            });
        }
    });
}

/// A fill does not get a page that is reserved for another mapping.
#[test]
fn fill_fails_if_all_pages_are_reserved() {
    in_pools(3, |world, process, cpu| {
        for private in BOTH {
            let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::HUGETLB | MapFlags::FIXED;
            assert_eq!(process.mmap(huge(8), 2 * HUGE, RW, flags, None, 0), Ok(huge(8)));
            let kind = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
            map(process, START, 2, kind | MapFlags::NORESERVE, &open(world, 2));
            let uffd = uffd(process, Features::empty());
            uffd.register(START, 2 * HUGE, MISSING).unwrap();
            assert_eq!(uffd.copy(START, &contents(1..3), WAKE), Ok(HUGE), "only a part was filled");
            assert_eq!(uffd.copy(huge(1), &contents(2..3), WAKE), Err(UffdError::OutOfMemory));
            assert_eq!(books(world), (2, 2));
            // The fill gets the page after its owner has released the reservation.
            process.munmap(huge(9), HUGE).unwrap();
            assert_eq!(uffd.copy(huge(1), &contents(2..3), WAKE), Ok(HUGE));
            assert_eq!([0, 1].map(|n| process.load(cpu, huge(n))), [Ok(1u64), Ok(2)]);
            process.munmap(START, 16 * HUGE).unwrap();
        }
    });
}

#[test]
fn continue_maps_pages_of_pools() {
    in_pools(4, |world, process, cpu| {
        let file = open(world, 3);
        map(process, START, 3, MapFlags::SHARED, &file);
        map(process, huge(16), 3, MapFlags::SHARED, &file);
        map(process, huge(32), 3, MapFlags::PRIVATE | MapFlags::NORESERVE, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(START, 3 * HUGE, MINOR | WP).unwrap();
        for n in 0..2 {
            process.store(cpu, huge(16 + n), n + 1).unwrap();
        }
        let program = |cpu: &mut Vcpu| {
            assert_eq!(process.load(cpu, huge(0)), Ok(11u64));
            process.store(cpu, huge(1) + 8, 22u64).unwrap();
        };
        with_pager(world, program, || {
            assert_fault(&uffd, huge(0), FaultReason::Minor, false);
            assert_eq!(
                uffd.copy(huge(0), &contents(0..1), WAKE),
                Err(UffdError::Present),
                "the file has the page"
            );
            process.store(cpu, huge(16), 11u64).unwrap();
            assert_eq!(uffd.continue_with(huge(0), HUGE, WAKE), Ok(HUGE));
            assert_fault(&uffd, huge(1), FaultReason::Minor, true);
            assert_eq!(uffd.continue_with(huge(1), HUGE, FillMode::WP), Ok(HUGE));
            assert_fault(&uffd, huge(1), FaultReason::WriteProtect, true);
            uffd.write_protect(huge(1), HUGE, OFF).unwrap();
        });
        assert_eq!(uffd.continue_with(huge(0), HUGE, WAKE), Err(UffdError::Present));
        assert_eq!(process.load(cpu, huge(17) + 8), Ok(22u64), "the mapping shows the file's page");
        // C-29: CONTINUE in a private mapping maps the file's page for reading. A store copies the page.
        uffd.register(huge(32), 3 * HUGE, MINOR).unwrap();
        let program = |cpu: &mut Vcpu| process.store(cpu, huge(32) + 8, 33u64).unwrap();
        with_pager(world, program, || {
            assert_fault(&uffd, huge(32), FaultReason::Minor, true);
            assert_eq!(uffd.continue_with(huge(32), HUGE, WAKE), Ok(HUGE));
        });
        assert_eq!([0, 8].map(|at| process.load(cpu, huge(32) + at)), [Ok(11u64), Ok(33)]);
        assert_eq!(process.load(cpu, huge(16) + 8), Ok(0u64), "the file's page is unchanged");
        process.madvise(huge(32), HUGE, Advice::DontNeed).unwrap();
        assert_eq!(uffd.continue_with(huge(32), HUGE, WAKE), Ok(HUGE));
        assert_eq!(process.load(cpu, huge(32)), Ok(11u64));
    });
}

/// A store to a private mapping copies the page of the file, whether the page was read before or not.
#[test]
fn page_in_the_file_is_not_missing() {
    in_pools(3, |world, process, cpu| {
        let file = open(world, 2);
        map(process, huge(16), 2, MapFlags::SHARED, &file);
        process.store(cpu, huge(16), 5u64).unwrap();
        map(process, START, 2, MapFlags::PRIVATE | MapFlags::NORESERVE, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(START, 2 * HUGE, MISSING).unwrap();
        process.store(cpu, START + 8, 6u64).unwrap();
        assert_eq!([0, 8].map(|at| process.load(cpu, START + at)), [Ok(5u64), Ok(6)]);
        assert!(uffd.try_read().is_none());
        // Beyond the end of the file, no page can be filled, not even a private one.
        file.mapping().truncate(HUGE).unwrap();
        assert_eq!(uffd.copy(huge(1), &contents(0..1), WAKE), Err(UffdError::BadAddress));
        assert_eq!(uffd.poison(huge(1), HUGE, WAKE), Err(UffdError::BadAddress));
        assert_eq!(process.load::<u64>(cpu, huge(1)), Err(FaultError::Bus { addr: huge(1) }));
    });
}

#[test]
fn stores_to_protected_huge_pages_wait() {
    in_pools(3, |world, process, cpu| {
        for private in BOTH {
            let uffd = in_pool(world, process, (3, private), WP, Features::empty());
            process.store(cpu, START, 1u64).unwrap();
            uffd.write_protect(START, 2 * HUGE, ON).unwrap();
            let store = |at: u64, value: u64, address: u64| {
                let program = move |cpu: &mut Vcpu| process.store(cpu, at, value).unwrap();
                with_pager(world, program, || {
                    assert_fault(&uffd, address, FaultReason::WriteProtect, true);
                    uffd.write_protect(address, HUGE, OFF).unwrap();
                });
                assert_eq!(process.load(&mut world.machine.cpu(2), at), Ok(value));
            };
            store(START + 9 * PAGE, 2, START);
            // A page that is not present gets a marker. A load maps the page, which stays protected.
            assert_eq!(process.load(cpu, huge(1)), Ok(0u64));
            store(huge(1), 3, huge(1));
            // A protection that is removed before the first access has no effect.
            uffd.write_protect(huge(2), HUGE, ON).unwrap();
            store(huge(2), 4, huge(2));
            // A change of rights does not remove the protection, and a discarded page stays protected.
            uffd.write_protect(START, 3 * HUGE, ON).unwrap();
            process.mprotect(START, HUGE, R).unwrap();
            process.mprotect(START, HUGE, RW).unwrap();
            store(START, 5, START);
            process.madvise(huge(1), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(process.load(cpu, huge(1)), Ok(if private { 0u64 } else { 3 }));
            store(huge(1), 6, huge(1));
            process.check();
            // After unregistering, nothing is protected.
            uffd.unregister(START, 3 * HUGE).unwrap();
            process.check();
            process.store(cpu, huge(2), 7u64).unwrap();
            assert!(uffd.try_read().is_none());
        }
    });
}

#[test]
fn holes_keep_markers_and_truncation_removes_them() {
    in_pools(3, |world, process, cpu| {
        let file = open(world, 3);
        map(process, START, 3, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::SIGBUS);
        uffd.register(START, 3 * HUGE, WP).unwrap();
        process.store(cpu, START, 1u64).unwrap();
        uffd.write_protect(START, 3 * HUGE, ON).unwrap();
        let mapping = file.mapping();
        mapping.punch(0..2 * HUGE).unwrap();
        for n in 0..2 {
            assert_eq!(process.store(cpu, huge(n), 1u64), Err(FaultError::Bus { addr: huge(n) }));
        }
        mapping.truncate(HUGE).unwrap();
        mapping.truncate(3 * HUGE).unwrap();
        assert_eq!(process.store(cpu, huge(0), 1u64), Err(FaultError::Bus { addr: huge(0) }));
        process.store(cpu, huge(1), 1u64).unwrap();
        process.store(cpu, huge(2), 1u64).unwrap();
    });
}

#[test]
fn poisoned_huge_page_behaves_like_failed_memory() {
    in_pools(3, |world, process, cpu| {
        for private in BOTH {
            let uffd = in_pool(world, process, (2, private), MISSING | MINOR, Features::empty());
            assert_eq!(uffd.poison(START, HUGE, WAKE), Ok(HUGE));
            assert_eq!(uffd.poison(START, HUGE, WAKE), Err(UffdError::Present));
            let at = START + 3 * PAGE;
            assert_eq!(process.load::<u64>(cpu, at), Err(FaultError::MemoryFailed { addr: at }));
            assert_eq!(books(world), (3, 2), "the marker uses a page of the pool");
            // copy replaces the marker.
            assert_eq!(uffd.copy(START, &contents(4..5), WAKE), Ok(HUGE));
            assert_eq!(process.load(cpu, START), Ok(4u64));
        }
    });
}

/// Two processes share one page table for 1 GiB of a file. A process leaves the table when it registers the
/// memory, and shares it again after unregistering. Pages that a process poisoned are lost to that process
/// only.
#[test]
fn registered_memory_shares_no_page_tables() {
    in_pools(3, |world, process, cpu| {
        let (file, other) = (open(world, 512), world.process(process.locking()));
        for process in [process, &other] {
            map(process, START, 512, MapFlags::SHARED | MapFlags::NORESERVE, &file);
        }
        let tables = || world.machine.accounting().tables;
        other.store(cpu, START, 1u64).unwrap();
        let alone = tables();
        assert_eq!(process.load(cpu, START), Ok(1u64));
        // Only upper-level tables are added: those that lead to the shared table.
        assert_eq!(tables(), alone + LEVELS - 3);
        let uffd = uffd(process, Features::SIGBUS);
        uffd.register(START, SPAN, WP | MISSING).unwrap();
        process.check();
        // The process has a table of its own now: protection and fills apply to one process only.
        assert_eq!(process.load(cpu, START), Ok(1u64));
        uffd.write_protect(START, 2 * HUGE, ON).unwrap();
        assert_eq!(process.store(cpu, START, 2u64), Err(FaultError::Bus { addr: START }));
        // Another process with the same registration does not share the table either.
        let third = world.process(process.locking());
        map(&third, START, 512, MapFlags::SHARED | MapFlags::NORESERVE, &file);
        let its = self::uffd(&third, Features::SIGBUS);
        its.register(START, SPAN, WP | MISSING).unwrap();
        assert_eq!(third.load(cpu, START), Ok(1u64));
        third.store(cpu, START, 2u64).unwrap();
        third.check();
        other.store(cpu, START, 3u64).unwrap();
        other.store(cpu, huge(1), 3u64).unwrap();
        uffd.poison(huge(2), HUGE, WAKE).unwrap();
        assert_eq!(other.load(cpu, huge(2)), Ok(0u64));
        other.munmap(START, SPAN).unwrap();
        uffd.unregister(START, SPAN).unwrap();
        process.store(cpu, START, 4u64).unwrap();
        map(&other, START, 512, MapFlags::SHARED | MapFlags::NORESERVE, &file);
        assert_eq!(other.load(cpu, START), Ok(4u64));
        assert_eq!(other.load(cpu, huge(2)), Ok(0u64), "the table with the marker is not shared");
        assert_eq!(process.load::<u64>(cpu, huge(2)), Err(FaultError::MemoryFailed { addr: huge(2) }));
        process.check();
        other.check();
    });
}

#[test]
fn child_gets_hugetlb_registration_only_with_the_event() {
    in_pools(4, |world, process, cpu| {
        for private in BOTH {
            for has_event in BOTH {
                let features =
                    if has_event { Features::EVENT_FORK } else { Features::empty() } | Features::SIGBUS;
                let uffd = in_pool(world, process, (2, private), WP, features);
                process.store(cpu, START, 1u64).unwrap();
                uffd.write_protect(START, 2 * HUGE, ON).unwrap();
                let fork = |_: &mut Vcpu| Process::of(process.fork().unwrap());
                let (child, own) = with_pager(world, fork, || match has_event.then(|| uffd.read()) {
                    Some(Ok(Message::Fork(own))) => Some(own),
                    None => None,
                    other => panic!("{other:?}"),
                });
                child.check();
                for n in 0..2 {
                    let stored = child.store(cpu, huge(n), 2u64);
                    let refused = Err(FaultError::Bus { addr: huge(n) });
                    assert_eq!(stored, if has_event { refused } else { Ok(()) }, "{n}, private: {private}");
                    assert_eq!(process.store(cpu, huge(n), 2u64), refused);
                }
                if let Some(own) = own {
                    own.write_protect(START, 2 * HUGE, OFF).unwrap();
                    child.store(cpu, START, 3u64).unwrap();
                }
                assert_eq!(
                    process.load(cpu, START),
                    Ok(match (private, has_event) {
                        (true, _) => 1u64,
                        (false, has_event) => 2 + u64::from(has_event),
                    })
                );
                child.check();
            }
        }
    });
}

/// C-44: without the event, a moved mapping is neither registered nor write-protected. With the event, the
/// mapping stays registered and write-protected.
#[test]
fn c44_moved_hugetlb_mapping_keeps_protection_only_with_the_event() {
    const TO: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
    in_pools(2, |world, process, cpu| {
        for private in BOTH {
            for has_event in BOTH {
                let features =
                    if has_event { Features::EVENT_REMAP } else { Features::empty() } | Features::SIGBUS;
                let uffd = in_pool(world, process, (2, private), WP | MISSING, features);
                assert_eq!(uffd.copy(START, &contents(1..2), WAKE), Ok(HUGE));
                uffd.write_protect(START, 2 * HUGE, ON).unwrap();
                let remap = |_: &mut Vcpu| process.mremap(START, 2 * HUGE, 2 * HUGE, TO, huge(8));
                let (moved, ()) = with_pager(world, remap, || {
                    if has_event {
                        assert!(matches!(uffd.read(), Ok(Message::Remap { len, .. }) if len == 2 * HUGE));
                    }
                });
                assert_eq!(moved, Ok(huge(8)));
                process.check();
                assert_eq!(process.load(cpu, huge(8)), Ok(1u64));
                for n in 8..10 {
                    let refused = Err(FaultError::Bus { addr: huge(n) });
                    assert_eq!(process.store(cpu, huge(n), 2u64), if has_event { refused } else { Ok(()) });
                }
                process.munmap(huge(8), 2 * HUGE).unwrap();
            }
        }
    });
}

#[test]
fn dontneed_and_remove_of_pools_send_events() {
    in_pools(2, |world, process, cpu| {
        let features = Features::EVENT_REMOVE | Features::EVENT_UNMAP;
        for private in BOTH {
            let uffd = in_pool(world, process, (2, private), MISSING, features);
            assert_eq!(uffd.copy(START, &contents(1..3), WAKE), Ok(2 * HUGE));
            let advise = |advice| {
                let discard = move |_: &mut Vcpu| process.madvise(START, HUGE, advice);
                let pager = || {
                    // No page can be filled before the message is read.
                    until(|| uffd.copy(START, &[], WAKE) == Err(UffdError::Changing));
                    assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (START..huge(1))));
                };
                with_pager(world, discard, pager).0
            };
            assert_eq!(advise(Advice::DontNeed), Ok(()));
            if !private {
                assert_eq!(advise(Advice::Remove), Ok(()));
            } else {
                let refused = process.madvise(START, HUGE, Advice::Remove);
                assert_eq!(refused, Err(MadviseError::AccessDenied), "a private mapping cannot be punched");
            }
            assert_eq!(uffd.copy(START, &contents(3..4), WAKE), Ok(HUGE));
            assert_eq!(process.load(cpu, START), Ok(3u64));
            let unmap = |_: &mut Vcpu| process.munmap(START, 2 * HUGE).unwrap();
            with_pager(world, unmap, || {
                assert!(matches!(uffd.read(), Ok(Message::Unmap(range)) if range == (START..huge(2))));
            });
        }
    });
}
