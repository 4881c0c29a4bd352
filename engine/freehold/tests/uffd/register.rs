//! Registration (`src/uffd/register.rs`): which VMAs can be registered with which context, and the effect on
//! VMAs. A context is one userfaultfd. The errors and their order are those of Linux. The splits and merges
//! that registration causes are checked by the list of VMAs and the flags in smaps. A new kind of memory is
//! one more row of `c51_register_allows_modes_by_kind_of_memory`.

use super::*;
use freehold::{
    call::Advice,
    error::{Errno, UffdRegisterError},
    file::{Frames, Special},
    vma::flags::VmFlags,
};

/// Returns the VmFlags line of smaps for the VMA at the address.
fn flags_at(process: &Process, at: u64) -> String {
    let mut text = String::new();
    process.write_smaps(&mut text).unwrap();
    let line = text.split("VmFlags: ").nth(1 + position(process, at)).unwrap();
    line.lines().next().unwrap().trim().to_owned()
}

/// Returns the number of the VMA at the address, counted from the first VMA.
fn position(process: &Process, at: u64) -> usize {
    process.maps(0).position(|line| line.start <= at && at < line.end).unwrap()
}

#[test]
fn register_checks_errors_in_the_order_of_linux() {
    everywhere(|world, process, _| {
        let uffd = uffd(process, Features::empty());
        let other = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        anon(process, BASE, 4);
        let register = |start, len, mode| uffd.register(start, len, mode).map(drop);
        use UffdRegisterError::*;
        assert_eq!(register(BASE + 1, PAGE, RegisterMode::empty()), Err(Invalid), "no mode");
        assert_eq!(register(BASE, PAGE, RegisterMode::from_bits_retain(8)), Err(Invalid), "unknown mode");
        assert_eq!(register(BASE + 1, PAGE, MISSING), Err(Invalid), "unaligned");
        assert_eq!(register(BASE, PAGE + 1, MISSING), Err(Invalid), "unaligned length");
        assert_eq!(register(BASE, 0, MISSING), Err(Invalid), "no bytes");
        assert_eq!(register(u64::MAX - PAGE + 1, 2 * PAGE, MISSING), Err(Invalid), "wraps");
        assert_eq!(register(USER_END, PAGE, MISSING), Err(Invalid), "beyond user space");
        assert_eq!(register(BASE + 8 * PAGE, PAGE, MISSING), Err(Invalid), "nothing is mapped");
        assert_eq!(register(BASE, PAGE, MINOR), Err(Invalid), "anonymous memory has no minor faults");
        other.register(BASE, PAGE, MISSING).unwrap();
        assert_eq!(register(BASE, 4 * PAGE, MISSING), Err(Busy));
        assert_eq!(Busy.errno(), Errno::EBUSY);
        assert_eq!(
            uffd.unregister(BASE, 4 * PAGE),
            Err(Invalid),
            "a part is registered with another context"
        );
        assert_eq!(uffd.unregister(BASE + 8 * PAGE, PAGE), Err(Invalid), "nothing is mapped");
        assert_eq!(register(BASE + PAGE, 3 * PAGE, MISSING), Ok(()));
        // A shared mapping of a read-only descriptor can never become writable.
        let mapping = Mapping::new(world.engine(), Zeroes, PAGE, true).unwrap();
        let reader = File::new(&mapping, FileAccess::READ, "r").unwrap();
        let at = process.mmap(0, PAGE, R, MapFlags::SHARED, Some(&reader), 0).unwrap();
        assert_eq!(register(at, PAGE, MISSING), Err(NotPermitted));
        other.close();
        assert_eq!(other.register(BASE, PAGE, MISSING), Err(Closed));
        assert_eq!(register(BASE, PAGE, MISSING), Ok(()), "the range can be registered again");
    });
}

/// C-51: allowed modes for each kind of memory.
#[test]
fn c51_register_allows_modes_by_kind_of_memory() {
    everywhere(|world, process, _| {
        let uffd = uffd(process, Features::empty());
        let frames = Frames::new("[vdso]", &[foreign(Pfn::new(1), 1)]).unwrap();
        let vdso = Special::new(world.engine(), frames).unwrap();
        let rights = VmFlags::READ | VmFlags::MAYREAD | VmFlags::MAYWRITE;
        let at = process.install_special(page(100), PAGE, rights, &vdso).unwrap();
        let droppable = MapFlags::DROPPABLE | MapFlags::ANONYMOUS;
        let droppable = process.mmap(0, PAGE, RW, droppable, None, 0).unwrap();
        let file = world.file(1);
        let private_file = process.mmap(0, PAGE, RW, MapFlags::PRIVATE, Some(&file), 0).unwrap();
        let shared_file = process.mmap(0, PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let shm = shmem(world, 1);
        let private_shm = process.mmap(0, PAGE, RW, MapFlags::PRIVATE, Some(&shm), 0).unwrap();
        let shared_shm = process.mmap(0, PAGE, RW, MapFlags::SHARED, Some(&shm), 0).unwrap();
        let anon = anon(process, BASE, 1);
        for (at, modes) in [
            (at, ""),
            (droppable, ""),
            (private_file, ""),
            (shared_file, ""),
            (anon, "missing wp"),
            (private_shm, "missing wp minor"),
            (shared_shm, "missing wp minor"),
        ] {
            for (name, mode) in [("missing", MISSING), ("wp", WP), ("minor", MINOR)] {
                let wanted = if modes.contains(name) { Ok(()) } else { Err(UffdRegisterError::Invalid) };
                assert_eq!(uffd.register(at, PAGE, mode).map(drop), wanted, "{name} at {at:#x} with {modes}");
                assert_eq!(uffd.unregister(at, PAGE).is_ok(), !modes.is_empty());
            }
        }
    });
}

#[test]
fn register_splits_and_merges_vmas() {
    everywhere(|_, process, _| {
        let uffd = uffd(process, Features::empty());
        anon(process, BASE, 10);
        // |0   10|  ->  |0 2|2m 4|4 10|  ->  |0 2|2m 6|6 10|
        uffd.register(page(2), 2 * PAGE, MISSING).unwrap();
        assert_eq!(layout(process), [(0, 2), (2, 4), (4, 10)]);
        uffd.register(page(4), 2 * PAGE, MISSING).unwrap();
        assert_eq!(layout(process), [(0, 2), (2, 6), (6, 10)]);
        // VMAs with another context or another mode do not merge.
        let other = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        other.register(page(6), PAGE, MISSING).unwrap();
        uffd.register(page(1), PAGE, MISSING | WP).unwrap();
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 6), (6, 7), (7, 10)]);
        assert!(flags_at(process, page(1)).contains(" um uw"), "{}", flags_at(process, page(1)));
        assert!(flags_at(process, page(2)).contains(" um ") && !flags_at(process, page(2)).contains("uw"));
        // A VMA that is registered for more modes stays. New adjacent memory does not merge with this VMA.
        uffd.register(page(1), PAGE, MISSING).unwrap();
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 6), (6, 7), (7, 10)]);
        process.munmap(page(7), 3 * PAGE).unwrap();
        anon(process, page(7), 3);
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 6), (6, 7), (7, 10)]);
        // The first mprotect splits a registered VMA. The second restores the rights, and the parts merge
        // again.
        process.mprotect(page(3), PAGE, R).unwrap();
        process.mprotect(page(3), PAGE, RW).unwrap();
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 6), (6, 7), (7, 10)]);
        // The VMAs are unregistered in parts, together with VMAs that were never registered.
        other.close();
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 6), (6, 10)]);
        uffd.unregister(page(5), 3 * PAGE).unwrap();
        assert_eq!(layout(process), [(0, 1), (1, 2), (2, 5), (5, 10)]);
        uffd.unregister(page(0), 10 * PAGE).unwrap();
        assert_eq!(layout(process), [(0, 10)]);
        assert!(!flags_at(process, page(0)).contains('u'), "{}", flags_at(process, page(0)));
        // Holes are skipped.
        process.munmap(page(3), PAGE).unwrap();
        uffd.register(page(2), 4 * PAGE, MISSING).unwrap();
        assert_eq!(layout(process), [(0, 2), (2, 3), (4, 6), (6, 10)]);
        drop(uffd);
        assert_eq!(layout(process), [(0, 3), (4, 10)]);
    });
}

#[test]
fn context_outlives_its_address_space() {
    everywhere(|world, _, _| {
        let process = world.process(Locking::default());
        let uffd = registered(&process, 2, MISSING, Features::empty());
        drop(process);
        assert_eq!(uffd.copy(BASE, &bytes(1), WAKE), Err(UffdError::SpaceGone));
        assert_eq!(UffdError::SpaceGone.errno(), Errno::ESRCH);
        assert_eq!(uffd.register(BASE, PAGE, MISSING), Err(UffdRegisterError::SpaceGone));
        assert_eq!(UffdRegisterError::SpaceGone.errno(), Errno::ENOMEM);
        assert!(uffd.try_read().is_none());
        drop(uffd);
    });
}

#[test]
fn registered_memory_gets_no_huge_pages() {
    use freehold::engine::HugePages;
    let config = Config::new().huge_pages(HugePages::Always);
    World::with(16 << 20, config).live(Locking::default(), |world, process, cpu| {
        process.mmap(BASE, HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, HUGE, MISSING).unwrap();
        let serve = || {
            assert_fault(&uffd, BASE, FaultReason::Missing, true);
            assert_eq!(uffd.copy(BASE, &bytes(7), WAKE), Ok(PAGE));
        };
        with_pager(world, |cpu| process.store(cpu, BASE + 8, 8u64).unwrap(), serve);
        assert_eq!((process.load(cpu, BASE), process.rss().anon), (Ok(7u64), 1));
        // A huge page that was mapped before counts as present.
        process.mmap(BASE + HUGE, HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        process.store(cpu, BASE + HUGE, 1u64).unwrap();
        uffd.register(BASE + HUGE, HUGE, MISSING).unwrap();
        assert_eq!(uffd.copy(BASE + HUGE, &bytes(2), WAKE), Err(UffdError::Present));
        assert_eq!(uffd.zeropage(BASE + HUGE + PAGE, PAGE, WAKE), Err(UffdError::Present));
        process.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
    });
}
