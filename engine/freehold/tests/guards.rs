//! Guard pages (`src/call/madvise/guard.rs`), and sealed mappings (`src/call/mseal.rs`). A guard is a
//! page-table entry, not a VMA: the tests make accesses that must fail with SIGSEGV, to check which calls
//! keep, copy, move or remove a guard. A seal makes calls on its mapping fail; the test lists the calls that
//! fail and those that are still allowed. One test installs guards while other threads store. A new call that
//! a seal refuses belongs in `mseal_refuses_unmapping_and_protection_changes`. A new call that copies or
//! moves page-table entries belongs in `guards_are_copied_moved_and_dropped`.

use crate::support::*;
use freehold::{
    call::{Advice, LockFlags, RemapFlags},
    error::{AccessError, MadviseError, MmapError, MprotectError, MremapError, MsealError, MunmapError},
    fault::{FaultError, SegvCode},
    file::{Mapping, Zeroes},
    remote::AccessMode,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Returns the fault of an access to a guard.
fn guarded<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

/// Installs guards.
fn install(process: &Process, at: u64, pages: u64) -> Result<(), MadviseError> {
    process.madvise(at, pages * PAGE, Advice::GuardInstall)
}

/// A guard replaces any entry: none, the zero page, an anonymous page, a page of a file that was read or
/// written, or another guard.
#[test]
fn guard_replaces_any_entry() {
    everywhere(|world, process, cpu| {
        let memory = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
        let file = File::new(&memory, FileAccess::READ_WRITE, "/memory").unwrap();
        anon(process, BASE, 4);
        process.load::<u64>(cpu, BASE + PAGE).unwrap();
        fill(process, cpu, BASE + 2 * PAGE, 2, 7);
        let (private, shared) = (BASE + 16 * PAGE, BASE + 32 * PAGE);
        for (at, kind) in [(private, MapFlags::PRIVATE), (shared, MapFlags::SHARED)] {
            process.mmap(at, 4 * PAGE, RW, kind | MapFlags::FIXED, Some(&file), 0).unwrap();
            process.load::<u64>(cpu, at).unwrap();
            process.store(cpu, at + PAGE, 5u64).unwrap();
        }
        for at in [BASE, private, shared] {
            for _ in 0..2 {
                install(process, at, 4).unwrap();
            }
            for page in 0..4 {
                let at = at + page * PAGE;
                assert_eq!(process.load::<u64>(cpu, at), guarded(at));
                assert_eq!(process.store(cpu, at, 1u64), guarded(at));
                assert_eq!(
                    process.read_memory(at, &mut [0; 8], AccessMode::Forced),
                    Err(AccessError::BadAddress)
                );
            }
            process.madvise(at, PAGE, Advice::DontNeed).unwrap();
            process.madvise(at, PAGE, Advice::DontNeedLocked).unwrap();
            assert_eq!(process.load::<u64>(cpu, at), guarded(at), "DONTNEED keeps guards");
            assert!(process.madvise(at, PAGE, Advice::PopulateRead).is_err());
        }
        assert_eq!(process.rss().total(), 0);
        process.check();
        // The stores through the shared mapping are in the file.
        for at in [BASE, private, shared] {
            process.madvise(at, 4 * PAGE, Advice::GuardRemove).unwrap();
        }
        let second = |process: &Process, cpu: &mut Vcpu, at| process.load::<u64>(cpu, at + PAGE).unwrap();
        assert_eq!([BASE, private, shared].map(|at| second(process, cpu, at)), [0, 5, 5]);
    });
}

#[test]
fn guards_are_copied_moved_and_dropped() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 7);
        install(process, BASE + PAGE, 2).unwrap();
        let child = Process::of(process.fork().unwrap());
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let to = BASE + 16 * PAGE;
        process.mremap(BASE, 4 * PAGE, 4 * PAGE, fixed, to).unwrap();
        for (process, at) in [(&child, BASE), (process, to)] {
            assert_eq!(process.load(cpu, at), Ok(7u64));
            assert_eq!(process.load::<u64>(cpu, at + PAGE), guarded(at + PAGE));
            process.mprotect(at, 4 * PAGE, R).unwrap();
            assert_eq!(process.load::<u64>(cpu, at + 2 * PAGE), guarded(at + 2 * PAGE));
            assert_eq!(process.load(cpu, at + 3 * PAGE), Ok(10u64));
        }
        process.munmap(to, 4 * PAGE).unwrap();
        anon(process, to, 4);
        assert_eq!(process.load(cpu, to + PAGE), Ok(0u64));
        child.check();
    });
}

#[test]
fn guards_are_refused_in_locked_memory_and_holes() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        install(process, BASE, 1).unwrap();
        process.mlock2(BASE, 2 * PAGE, LockFlags::ONFAULT).unwrap();
        assert_eq!(install(process, BASE, 2), Err(MadviseError::Invalid), "locked");
        process.madvise(BASE, 2 * PAGE, Advice::GuardRemove).unwrap();
        assert_eq!(process.load(cpu, BASE), Ok(0u64));
        // Installing skips holes and reports them.
        assert_eq!(install(process, BASE + 3 * PAGE, 2), Err(MadviseError::NotMapped));
        assert_eq!(process.load::<u64>(cpu, BASE + 3 * PAGE), guarded(BASE + 3 * PAGE));
    });
}

/// mprotect populates locked memory that becomes writable. As on Linux, mprotect populates each original
/// mapping up to the first guard, although the mappings are merged afterwards.
#[test]
fn populating_stops_at_the_first_guard_of_each_mapping() {
    everywhere(|_, process, _| {
        process.mmap(BASE, 8 * PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        process.mprotect(BASE + 4 * PAGE, 4 * PAGE, Prot::empty()).unwrap();
        install(process, BASE + PAGE, 1).unwrap();
        assert!(
            process.mlock(BASE, 8 * PAGE).is_err(),
            "the range is locked but could not be populated completely"
        );
        assert_eq!(process.rss().anon, 0);
        process.mprotect(BASE, 8 * PAGE, RW).unwrap();
        assert_eq!((process.rss().anon, layout(process)), (5, vec![(0, 8)]));
    });
}

/// GuardInstall runs while other threads store to the same pages. After the call returns, no store succeeds
/// until the guards are removed. `state` is odd while the guards are installed: a store that begins and ends
/// in the same odd state must fail. Each odd state lasts until every thread has completed a store in it.
#[test]
fn no_store_passes_a_guard_after_install_returns() {
    const PAGES: u64 = 8;
    const ROUNDS: u64 = 10;
    const STORERS: usize = 2;
    everywhere(|world, process, _| {
        anon(process, BASE, PAGES);
        let (over, state) = (AtomicBool::new(false), AtomicU64::new(0));
        // The state in which each thread last began and ended a store.
        let stored_in = [const { AtomicU64::new(0) }; STORERS];
        std::thread::scope(|scope| {
            let (over, state, stored_in) = (&over, &state, &stored_in);
            let _over = Over(over);
            for (number, stored_in) in stored_in.iter().enumerate() {
                scope.spawn(move || {
                    let _over = Over(over);
                    let mut cpu = world.machine.cpu(1 + number);
                    for page in (0..PAGES).cycle().take_while(|_| !over.load(SeqCst)) {
                        let before = state.load(SeqCst);
                        let stored = process.store(&mut cpu, BASE + page * PAGE, page);
                        if before == state.load(SeqCst) {
                            assert!(stored.is_err() || before % 2 == 0, "a store passed a guard");
                            stored_in.store(before, SeqCst);
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let until = |so: &dyn Fn() -> bool| {
                while !over.load(SeqCst) && !so() {
                    std::thread::yield_now();
                }
            };
            for round in 0..ROUNDS {
                until(&|| process.rss().anon > 0);
                install(process, BASE, PAGES).unwrap();
                let guarded = 2 * round + 1;
                state.store(guarded, SeqCst);
                until(&|| stored_in.iter().all(|last| last.load(SeqCst) == guarded));
                assert_eq!(process.rss().total(), 0);
                state.store(guarded + 1, SeqCst);
                process.madvise(BASE, PAGES * PAGE, Advice::GuardRemove).unwrap();
            }
        });
    });
}

/// Stops the other threads when its own thread ends or fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Operations that a seal refuses, and operations that it allows.
#[test]
fn mseal_refuses_unmapping_and_protection_changes() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 6);
        fill(process, cpu, BASE, 6, 1);
        process.mprotect(BASE + 2 * PAGE, 2 * PAGE, R).unwrap();
        assert_eq!(process.mseal(BASE + 1, PAGE, 0), Err(MsealError::Invalid));
        assert_eq!(
            process.mseal(BASE + PAGE, 8 * PAGE, 0),
            Err(MsealError::NotMapped),
            "the failed call seals nothing"
        );
        process.mprotect(BASE + PAGE, PAGE, RW).unwrap();
        for _ in 0..2 {
            process.mseal(BASE + PAGE, 3 * PAGE, 0).unwrap();
        }
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let (at, to) = (BASE + 2 * PAGE, BASE + 32 * PAGE);
        assert_eq!(process.munmap(at, PAGE), Err(MunmapError::Sealed));
        assert_eq!(process.munmap(BASE, 6 * PAGE), Err(MunmapError::Sealed));
        assert_eq!(process.mprotect(at, PAGE, RW), Err(MprotectError::Sealed));
        // pkey_mprotect checks the key before the seal, and this machine has no keys.
        assert_eq!(process.pkey_mprotect(at, PAGE, RW, 0), Err(MprotectError::Invalid));
        assert_eq!(process.mremap(at, PAGE, PAGE, fixed, to), Err(MremapError::NotPermitted));
        assert_eq!(
            process.mremap(at, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0),
            Err(MremapError::NotPermitted)
        );
        let over = process.mmap(at, PAGE, RW, ANON | MapFlags::FIXED, None, 0);
        assert_eq!(over, Err(MmapError::NotPermitted));
        anon(process, to, 1);
        assert_eq!(process.mremap(to, PAGE, PAGE, fixed, at), Err(MremapError::NotPermitted));
        for advice in
            [Advice::DontNeed, Advice::Free, Advice::GuardInstall, Advice::WipeOnFork, Advice::DontFork]
        {
            assert_eq!(process.madvise(at, PAGE, advice), Err(MadviseError::Sealed), "{advice:?}");
        }
        assert_filled(process, cpu, BASE, 6, 1);
        // Allowed: DONTNEED on memory that the program could overwrite, and calls that change no contents.
        process.madvise(BASE + PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load(cpu, BASE + PAGE), Ok(0u64));
        process.madvise(at, PAGE, Advice::Normal).unwrap();
        process.mlock(at, PAGE).unwrap();
        process.munlock(at, PAGE).unwrap();
        process.madvise(at, PAGE, Advice::GuardRemove).unwrap();
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.munmap(at, PAGE), Err(MunmapError::Sealed), "a child inherits the seal");
    });
}
