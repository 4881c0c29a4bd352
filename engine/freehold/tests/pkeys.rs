//! Protection keys (`src/call/pkeys.rs`, `src/space/pkeys.rs`): allocation, the accesses that a key denies,
//! and which pages keep a key. A key is a number in the page-table entry. Each thread has a register with its
//! rights to each key; `set_rights` changes this register.
//!
//! `keyed` runs a scenario on every design, on a machine with protection keys. `denied` is the fault of a key
//! and `forbidden` the fault of a mapping's rights. `lab/freehold-machine/tests/shuttle_engine/mprotect.rs`
//! explores concurrent changes of rights. The last test changes a key while other threads use the page. A new
//! call that accesses memory belongs in `keys_apply_to_the_local_side_of_transfers`,
//! `keys_apply_to_fast_pins` or `keys_do_not_apply_to_remote_access`, depending on the thread for which the
//! call accesses the memory.

use crate::support::*;
use freehold::{
    call::{Advice, RemapFlags},
    engine::HugePages,
    error::{AccessError, MprotectError, PinError, PkeyError},
    fault::{FaultError, SegvCode},
    platform::PkeyRights,
    remote::{AccessMode, IoVec, PinFlags},
};
use freehold_machine::Cpu;

const X: Prot = Prot::EXEC;
const NONE: PkeyRights = PkeyRights::empty();

/// Returns a world whose machine has protection keys.
fn keyed_world(config: Config) -> World {
    let machine = Machine::new(MachineConfig::backed(16 << 20).pkeys()).unwrap();
    let engine = Engine::new(machine.clone(), config).unwrap();
    World { machine, engine: Some(engine) }
}

/// Runs `scenario` on every design, on a machine with protection keys.
fn keyed(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    Locking::ALL.into_iter().for_each(|locking| keyed_world(Config::default()).live(locking, &scenario));
}

/// Returns the fault of an access that a protection key denies.
fn denied<T>(addr: u64, key: u8) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Pkuerr(key) })
}

/// Returns the fault of an access that the rights of the mapping deny.
fn forbidden<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Accerr })
}

/// Sets the rights of a key in the register of a CPU.
fn set_rights(cpu: &mut Vcpu, key: u8, rights: PkeyRights) {
    let shift = 2 * u32::from(key);
    let pkru = cpu.pkru() & !(3 << shift) | rights.bits() << shift;
    cpu.set_pkru(pkru);
}

/// Returns the protection key of the VMA at the address.
fn key_at(process: &Process, addr: u64) -> u8 {
    process.find_vma(addr).unwrap().flags().pkey()
}

#[test]
fn sealed_mapping_keeps_its_key() {
    keyed(|_, process, _| {
        anon(process, BASE, 1);
        process.mseal(BASE, PAGE, 0).unwrap();
        assert_eq!(process.pkey_mprotect(BASE, PAGE, RW, 0), Err(MprotectError::Sealed));
        assert_eq!(
            process.pkey_mprotect(BASE, PAGE, RW, 3),
            Err(MprotectError::Invalid),
            "the key is not allocated"
        );
    });
}

#[test]
fn keys_are_allocated_once() {
    keyed(|_, process, _| {
        for key in 1..16 {
            assert_eq!(process.pkey_alloc(NONE), Ok(key));
        }
        assert_eq!(process.pkey_alloc(NONE), Err(PkeyError::NoneLeft));
        assert_eq!(process.pkey_free(7), Ok(()));
        for wrong in [7, 16, 255] {
            assert_eq!(process.pkey_free(wrong), Err(PkeyError::Invalid), "{wrong}");
        }
        let unknown = PkeyRights::from_bits_retain(4);
        assert_eq!(process.pkey_alloc(unknown), Err(PkeyError::Invalid));
        assert_eq!(process.pkey_alloc(PkeyRights::all()), Ok(7));
    });
    // A machine without keys has none to allocate, and pkey_mprotect refuses keys.
    everywhere(|_, process, _| {
        assert_eq!(process.pkey_alloc(NONE), Err(PkeyError::NoneLeft));
        anon(process, BASE, 1);
        for key in [0, 1] {
            assert_eq!(process.pkey_mprotect(BASE, PAGE, R, key), Err(MprotectError::Invalid));
            assert_eq!(process.pkey_free(key), Err(PkeyError::Invalid));
        }
        let away = BASE + 64 * PAGE;
        assert_eq!(
            process.pkey_mprotect(away, PAGE, R, 0),
            Err(MprotectError::Invalid),
            "the key is checked before the lookup"
        );
        assert_eq!(process.pkey_mprotect(BASE, 0, R, 0), Ok(()));
        assert_eq!(process.pkey_mprotect(BASE, u64::MAX - PAGE, R, 0), Err(MprotectError::NotMapped));
        process.mprotect(BASE, PAGE, X).unwrap();
        assert_eq!(key_at(process, BASE), 0);
        assert!(!process.smaps(0).any(|smap| smap.to_string().contains("ProtectionKey")));
    });
}

/// The order of the checks of pkey_mprotect.
#[test]
fn unallocated_key_is_refused_after_checks_of_the_range() {
    keyed(|_, process, _| {
        anon(process, BASE, 2);
        let protect = |at, len, prot| process.pkey_mprotect(at, len, prot, 5);
        assert_eq!(protect(BASE + 1, PAGE, R), Err(MprotectError::Invalid));
        assert_eq!(protect(BASE, 0, R), Ok(()));
        assert_eq!(protect(BASE, u64::MAX - PAGE, R), Err(MprotectError::NotMapped));
        assert_eq!(protect(BASE, PAGE, R), Err(MprotectError::Invalid));
        assert_eq!(
            protect(BASE + 64 * PAGE, PAGE, R),
            Err(MprotectError::Invalid),
            "the key is checked before the lookup"
        );
        assert_eq!(process.pkey_mprotect(BASE + 64 * PAGE, PAGE, R, 0), Err(MprotectError::NotMapped));
    });
}

/// A register denies accesses to pages with its key, whatever the page table and the TLB contain.
#[test]
fn register_denies_accesses_to_pages_with_its_key() {
    keyed(|world, process, cpu| {
        let key = cpu.call(|| process.pkey_alloc(PkeyRights::DISABLE_WRITE)).unwrap();
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 10);
        process.pkey_mprotect(BASE, 2 * PAGE, RW, key).unwrap();
        assert_eq!(layout(process), [(0, 2), (2, 4)]);
        assert_eq!(process.load(cpu, BASE), Ok(10u64));
        assert_eq!(process.store(cpu, BASE, 1u64), denied(BASE, key));
        assert_eq!(process.store(cpu, BASE + 2 * PAGE, 1u64), Ok(()));
        set_rights(cpu, key, PkeyRights::DISABLE_ACCESS);
        assert_eq!(process.load::<u64>(cpu, BASE + 8), denied(BASE + 8, key));
        // Another thread has a register of its own, which denies everything until that thread changes it.
        let mut other: Cpu<_> = world.machine.cpu(1);
        assert_eq!(process.load::<u64>(&mut other, BASE), denied(BASE, key));
        set_rights(&mut other, key, NONE);
        assert_eq!(process.store(&mut other, BASE, 3u64), Ok(()));
        set_rights(&mut other, key, PkeyRights::DISABLE_WRITE);
        assert_eq!(process.store(&mut other, BASE, 4u64), denied(BASE, key));
        assert_eq!(process.load(&mut other, BASE), Ok(3u64));
        // The key is checked before the rights of the VMA. An access that the key permits may still violate
        // those rights.
        process.pkey_mprotect(BASE, 2 * PAGE, R, key).unwrap();
        assert_eq!(process.store(&mut other, BASE, 4u64), denied(BASE, key));
        set_rights(&mut other, key, NONE);
        assert_eq!(process.store(&mut other, BASE, 4u64), forbidden(BASE));
        // The key is also checked in faults on pages that were never present.
        process.pkey_mprotect(BASE, 2 * PAGE, RW, key).unwrap();
        process.madvise(BASE, 2 * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, key));
        assert_eq!(process.load(&mut other, BASE), Ok(0u64));
        assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, key));
        drop(other);
    });
}

/// A change of the key takes effect at once, also in TLBs, even if no other right changes.
#[test]
fn changed_key_takes_effect_at_once() {
    keyed(|world, process, cpu| {
        let [closed, open] = [0; 2].map(|_| process.pkey_alloc(NONE).unwrap());
        set_rights(cpu, open, NONE);
        let mut other = world.machine.cpu(1);
        set_rights(&mut other, open, NONE);
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 10);
        assert_eq!(process.load(&mut other, BASE), Ok(10u64));
        for cpu in [cpu, &mut other] {
            for _ in 0..2 {
                process.pkey_mprotect(BASE, PAGE, RW, closed).unwrap();
                assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, closed));
                process.pkey_mprotect(BASE, PAGE, RW, open).unwrap();
                assert_eq!(process.load(cpu, BASE), Ok(10u64));
            }
        }
        // mprotect keeps the key.
        process.mprotect(BASE, PAGE, R).unwrap();
        assert_eq!(key_at(process, BASE), open);
        drop(other);
    });
}

/// Pages keep the key of their VMA through fork, mremap, copies, file mappings and splits. VMAs merge only if
/// their keys are equal.
#[test]
fn pages_keep_the_key_of_their_vma() {
    keyed(|world, process, cpu| {
        let key = process.pkey_alloc(NONE).unwrap();
        let file = world.file(4);
        let map = |at, flags, file, prot| {
            process.mmap(at, 2 * PAGE, prot, flags | MapFlags::FIXED, file, 0).unwrap()
        };
        let at = [0, 16, 32].map(|page| BASE + page * PAGE);
        map(at[0], ANON, None, RW);
        map(at[1], MapFlags::PRIVATE, Some(&file), RW);
        map(at[2], MapFlags::SHARED, Some(&file), RW);
        for at in at {
            process.pkey_mprotect(at, 2 * PAGE, RW, key).unwrap();
            assert_eq!(process.load::<u64>(cpu, at), denied(at, key));
        }
        let deny = |process: &Process, cpu: &mut Vcpu, at: u64| {
            set_rights(cpu, key, PkeyRights::DISABLE_ACCESS);
            for page in [at, at + PAGE] {
                assert_eq!(process.load::<u64>(cpu, page), denied(page, key), "{page:#x}");
            }
            set_rights(cpu, key, NONE);
        };
        set_rights(cpu, key, NONE);
        for at in at {
            process.store(cpu, at, 5u64).unwrap();
            assert!(process.load::<u64>(cpu, at + PAGE).is_ok());
            deny(process, cpu, at);
        }
        let child = Process::of(process.fork().unwrap());
        for at in at {
            deny(&child, cpu, at);
            // The accesses are a store that copies, a store by the last user of the page, and a fault on a
            // missing page.
            child.store(cpu, at, 6u64).unwrap();
            process.store(cpu, at, 7u64).unwrap();
            child.store(cpu, at + PAGE, 8u64).unwrap();
            deny(&child, cpu, at);
            deny(process, cpu, at);
        }
        assert_eq!(child.pkey_alloc(NONE), Ok(key + 1), "the child inherits the allocated keys");
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let moved = process.mremap(at[0], 2 * PAGE, 2 * PAGE, fixed, BASE + 64 * PAGE).unwrap();
        deny(process, cpu, moved);
        let frame = process.frame_at(moved).unwrap();
        let new = world.engine().migrate(frame).unwrap();
        assert_eq!((process.frame_at(moved), key_at(process, moved)), (Some(new), key));
        deny(process, cpu, moved);
        assert_eq!(process.load(cpu, moved), Ok(7u64));
        // An adjacent VMA with another key does not merge.
        anon(process, BASE, 4);
        process.pkey_mprotect(BASE + PAGE, 2 * PAGE, RW, key).unwrap();
        assert_eq!(layout(process)[..3], [(0, 1), (1, 3), (3, 4)]);
        process.pkey_mprotect(BASE, PAGE, RW, key).unwrap();
        assert_eq!(layout(process)[..2], [(0, 3), (3, 4)]);
        process.pkey_mprotect(BASE, 4 * PAGE, RW, 0).unwrap();
        assert_eq!(layout(process)[0], (0, 4));
        let text = process.smaps(moved).next().unwrap().to_string();
        assert!(text.contains(&format!("ProtectionKey:  {key:>8}\nVmFlags:")), "{text}");
        child.check();
    });
}

/// A huge page has a key, and its parts keep the key after a split.
#[test]
fn huge_pages_keep_their_key_after_a_split() {
    let config = Config::new().huge_pages(HugePages::Always);
    keyed_world(config).live(Locking::default(), |_, process, cpu| {
        let key = process.pkey_alloc(NONE).unwrap();
        anon(process, BASE, 1024);
        process.store(cpu, BASE, 1u64).unwrap();
        process.pkey_mprotect(BASE, 2 * HUGE, RW, key).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, key));
        set_rights(cpu, key, NONE);
        assert_eq!(process.load(cpu, BASE + HUGE), Ok(0u64));
        process.store(cpu, BASE + HUGE, 2u64).unwrap();
        process.munmap(BASE + PAGE, PAGE).unwrap();
        set_rights(cpu, key, PkeyRights::DISABLE_WRITE);
        for at in [BASE, BASE + 5 * PAGE, BASE + HUGE] {
            assert_eq!(process.store(cpu, at, 1u64), denied(at, key));
            assert!(process.load::<u64>(cpu, at).is_ok());
        }
    });
}

/// The keys of the calling thread apply to the local side of a transfer, because the thread itself makes this
/// access. They do not apply to the remote side.
#[test]
fn keys_apply_to_the_local_side_of_transfers() {
    keyed(|_, process, cpu| {
        anon(process, BASE, 2);
        let key = process.pkey_alloc(NONE).unwrap();
        process.pkey_mprotect(BASE, PAGE, RW, key).unwrap();
        let [keyed, plain] = [BASE, BASE + PAGE].map(|base| [IoVec { base, len: 8 }]);
        let fails = Err(AccessError::BadAddress);
        for (rights, read, write) in [
            (NONE, Ok(8), Ok(8)),
            (PkeyRights::DISABLE_WRITE, fails, Ok(8)),
            (PkeyRights::DISABLE_ACCESS, fails, fails),
        ] {
            set_rights(cpu, key, rights);
            cpu.call(|| {
                assert_eq!(process.process_vm_readv(&keyed, process, &plain), read, "{rights:?}");
                assert_eq!(process.process_vm_writev(&keyed, process, &plain), write, "{rights:?}");
                assert_eq!(process.process_vm_readv(&plain, process, &keyed), Ok(8), "{rights:?}");
            });
        }
    });
}

/// A pin by a thread for its own process obeys the keys of the thread, with and without locks. A pin that any
/// task may request ignores keys.
#[test]
fn keys_apply_to_fast_pins() {
    keyed(|_, process, cpu| {
        let key = process.pkey_alloc(NONE).unwrap();
        anon(process, BASE, 4);
        process.pkey_mprotect(BASE + PAGE, 2 * PAGE, RW, key).unwrap();
        let [plain, keyed] = [BASE, BASE + PAGE];
        cpu.run(process.mmu());
        let (read, write) = (PinFlags::empty(), PinFlags::WRITE);
        // The first round finds no page present, the second one finds all.
        for _ in 0..2 {
            for (closed, rights, may_read, may_write) in [
                (key, PkeyRights::DISABLE_ACCESS, false, false),
                (key, PkeyRights::DISABLE_WRITE, true, false),
                (key, NONE, true, true),
                (0, PkeyRights::DISABLE_ACCESS, false, false),
                (0, PkeyRights::DISABLE_WRITE, true, false),
                (0, NONE, true, true),
            ] {
                set_rights(cpu, closed, rights);
                let at = if closed == 0 { plain } else { keyed };
                for (flags, may) in
                    [(read, may_read), (write, may_write), (write | PinFlags::FORCE, may_write)]
                {
                    let wanted = if may { Ok(1) } else { Err(PinError::BadAddress) };
                    cpu.call(|| {
                        let only = process.pin_user_pages_fast_only(at, 1, flags).unwrap();
                        assert!(may || only.is_empty(), "{at:#x} {rights:?} {flags:?}");
                        let pins = process.pin_user_pages_fast(at, 1, flags).map(|pins| pins.len());
                        assert_eq!(pins, wanted, "{at:#x} {rights:?} {flags:?}");
                    });
                }
            }
            set_rights(cpu, key, PkeyRights::DISABLE_ACCESS);
            let of_any_task = cpu.call(|| process.pin_user_pages(plain, 4, write)).unwrap();
            assert_eq!(of_any_task.len(), 4);
            // The pin ends before the first page that is denied.
            assert_eq!(cpu.call(|| process.pin_user_pages_fast(plain, 4, write)).unwrap().len(), 1);
            set_rights(cpu, key, NONE);
            assert_eq!(cpu.call(|| process.pin_user_pages_fast(plain, 4, write)).unwrap().len(), 4);
        }
    });
}

/// Keys do not apply to an access on behalf of another process, because that access has no key register.
#[test]
fn keys_do_not_apply_to_remote_access() {
    keyed(|_, process, cpu| {
        let key = process.pkey_alloc(NONE).unwrap();
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 10);
        process.pkey_mprotect(BASE, PAGE, RW, key).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(process.read_memory(BASE, &mut bytes, AccessMode::Plain), Ok(8));
        assert_eq!(u64::from_le_bytes(bytes), 10);
        assert_eq!(process.write_memory(BASE, &20u64.to_le_bytes(), AccessMode::Plain), Ok(8));
        assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, key));
        set_rights(cpu, key, NONE);
        assert_eq!(process.load(cpu, BASE), Ok(20u64));
    });
}

/// Execute-only memory uses a key that programs cannot allocate.
#[test]
fn execute_only_memory_uses_a_reserved_key() {
    keyed(|world, process, cpu| {
        let first = process.pkey_alloc(NONE).unwrap();
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 10);
        // The thread has given itself all rights. mprotect to execute-only takes away the rights to the
        // reserved key.
        cpu.set_pkru(0);
        cpu.call(|| process.mprotect(BASE, 2 * PAGE, X)).unwrap();
        let key = key_at(process, BASE);
        assert_eq!((key, cpu.pkru() >> (2 * key) & 3), (first + 1, 1));
        assert_eq!(process.load::<u64>(cpu, BASE), denied(BASE, key));
        assert_eq!(process.touch(cpu, BASE, freehold::fault::Access::EXEC), Ok(()));
        let mut other = world.machine.cpu(1);
        assert_eq!(process.load::<u64>(&mut other, BASE), denied(BASE, key));
        // All execute-only memory has the same key, which cannot be freed or used explicitly.
        let mapped = process.mmap(BASE + 16 * PAGE, PAGE, X, ANON | MapFlags::FIXED, None, 0).unwrap();
        assert_eq!(key_at(process, mapped), key);
        assert_eq!(process.pkey_free(key), Err(PkeyError::Invalid));
        assert_eq!(process.pkey_mprotect(BASE, PAGE, X, key), Err(MprotectError::Invalid));
        assert_eq!(process.pkey_alloc(NONE), Ok(key + 1));
        // A key that was set explicitly stays, and memory that becomes readable again loses the reserved key.
        process.pkey_mprotect(BASE, PAGE, X, first).unwrap();
        assert_eq!(key_at(process, BASE), first);
        process.mprotect(BASE + PAGE, PAGE, R).unwrap();
        assert_eq!((key_at(process, BASE + PAGE), process.load(cpu, BASE + PAGE)), (0, Ok(11u64)));
        let child = Process::of(process.fork().unwrap());
        child.mprotect(BASE + 3 * PAGE, PAGE, X).unwrap();
        assert_eq!(key_at(&child, BASE + 3 * PAGE), key);
        drop(other);
    });
}

/// A thread changes the key of a page while other threads use the page. No access succeeds without a right to
/// the current key.
#[test]
fn concurrent_key_changes_deny_all_other_accesses() {
    const ROUNDS: u64 = 200;
    keyed(|world, process, _| {
        let [closed, open] = [0; 2].map(|_| process.pkey_alloc(NONE).unwrap());
        anon(process, BASE, 2);
        std::thread::scope(|scope| {
            for number in 1..3 {
                scope.spawn(move || {
                    let mut cpu = world.machine.cpu(number);
                    set_rights(&mut cpu, open, NONE);
                    for round in 0..4 * ROUNDS {
                        let at = BASE + round % 2 * PAGE;
                        match process.store(&mut cpu, at + number as u64 * 8, round) {
                            Ok(()) => {}
                            error => assert_eq!(error, denied(at + number as u64 * 8, closed)),
                        }
                    }
                });
            }
            let mut cpu = world.machine.cpu(3);
            set_rights(&mut cpu, closed, NONE);
            for round in 0..ROUNDS {
                process.pkey_mprotect(BASE, 2 * PAGE, RW, closed).unwrap();
                // Only this thread can store from here on.
                let sum = |cpu: &mut Vcpu| -> u64 {
                    (1..3).map(|n| process.load::<u64>(cpu, BASE + n * 8).unwrap()).sum()
                };
                let before = sum(&mut cpu);
                if round % 2 == 0 {
                    process.madvise(BASE + PAGE, PAGE, Advice::DontNeed).unwrap();
                }
                std::thread::yield_now();
                assert_eq!(sum(&mut cpu), before, "a thread stored without the right to");
                process.pkey_mprotect(BASE, 2 * PAGE, RW, open).unwrap();
            }
        });
    });
}
