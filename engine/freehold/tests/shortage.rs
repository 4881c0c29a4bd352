//! Operations that find no memory ask the platform at a safe point, and are tried again
//! (`src/shortage.rs`, `Platform::memory_short`). The tests use up the memory of a machine (`starve`) or
//! make allocations fail, and install an answer with `Machine::set_memory_short`.
//!
//! `sweep::retried` repeats every operation with a failure at every allocation. `shuttle_engine/shortage.rs`
//! (`lab/freehold-machine`) explores two tasks that take each other's frames. A new operation that asks for
//! memory needs a line in `RETRIED` of `sweep/retried.rs`, and a test here if it continues in the middle.

use crate::support::{
    failure::{Failure, at_every_allocation},
    scarce::ScarceWorld,
    *,
};
use freehold::{
    PageIndex, PageRange,
    call::{Advice, LockFlags, RemapFlags},
    engine::HugePages,
    error::{FillError, MadviseError},
    fault::{Access, FaultError},
    platform::{
        MemoryShortage, PageOwner,
        ShortageAnswer::{self, Fail, Retry},
    },
    remote::{AccessMode, PinFlags},
    space::{AddressSpace, Unmap, Write},
    uffd::{Features, FillMode, RegisterMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};
use freehold_machine::{Mmu, Shadow};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// Address of the memory that uses up the machine.
pub const HOARD: u64 = BASE + (1 << 32);
/// Number of times that the platform is asked before an operation fails.
pub const ROUNDS: u32 = 16;
const FIXED: MapFlags = ANON.union(MapFlags::FIXED);

pub type Shortage<'s> = MemoryShortage<'s, Mmu<DefaultFormat>>;

/// Makes a call with this answer of the platform. Returns the result and the number of questions.
pub fn answering<R>(
    machine: &Machine,
    answer: impl Fn(&Shortage<'_>) -> ShortageAnswer + Send + Sync + 'static,
    call: impl FnOnce() -> R,
) -> (R, u64) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    machine.set_memory_short(Some(Arc::new(move |shortage| {
        counted.fetch_add(1, SeqCst);
        answer(shortage)
    })));
    let result = call();
    machine.set_memory_short(None);
    (result, asked.load(SeqCst))
}

/// Uses up all frames of the machine with pages of `hoard` from `HOARD` on. Returns the number of pages.
pub fn starve(hoard: &Process) -> u64 {
    anon(hoard, HOARD, 1 << 16);
    let is_made = |page: &u64| hoard.handle_fault(HOARD + page * PAGE, Access::WRITE).is_ok();
    (0..1 << 16).take_while(is_made).count() as u64
}

/// Runs `scenario` on every design, on a machine of 1 MiB. The scenario also gets a process that uses up the
/// memory.
pub fn with_hoard(scenario: impl Fn(&World, &Process, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        World::with(1 << 20, Config::new().vma_nodes(nodes_for(locking))).live(
            locking,
            |world, process, cpu| {
                let hoard = world.process(locking);
                scenario(world, process, &hoard, cpu);
            },
        );
    }
}

#[test]
fn fault_succeeds_after_the_platform_has_dropped_discardable_pages() {
    with_hoard(|world, process, hoard, cpu| {
        anon(process, BASE, 2);
        process.store(cpu, BASE, 1u64).unwrap();
        let pages = starve(hoard);
        hoard.madvise(HOARD, pages * PAGE, Advice::Free).unwrap();
        let space = hoard.space().clone();
        let answer = move |_: &Shortage<'_>| if space.drop_discardable() > 0 { Retry } else { Fail };
        let (done, asked) =
            answering(&world.machine, answer, || process.handle_fault(BASE + PAGE, Access::WRITE));
        assert_eq!(asked, 1);
        assert!(done.unwrap().waited, "the fault has released its locks");
        assert_eq!((process.rss().anon, hoard.rss().anon), (2, 0));
        assert_eq!(process.load(cpu, BASE), Ok(1u64));
    });
}

#[test]
fn fault_succeeds_after_the_platform_has_dropped_clean_pages_of_files() {
    with_hoard(|world, process, hoard, cpu| {
        let file = world.file(20);
        file.mapping().read_at(0, &mut [0; 20 * PAGE as usize]).unwrap();
        anon(process, BASE, 1);
        starve(hoard);
        let mapping = file.mapping().clone();
        let answer =
            move |_: &Shortage<'_>| if mapping.drop_clean(PageRange::ALL) > 0 { Retry } else { Fail };
        let (done, asked) = answering(&world.machine, answer, || process.store(cpu, BASE, 1u64));
        assert_eq!((done, asked), (Ok(()), 1));
    });
}

#[test]
fn file_fault_succeeds_after_the_platform_has_unmapped_memory_of_another_task() {
    with_hoard(|world, process, hoard, cpu| {
        let file = world.file(1);
        process.mmap(BASE, PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let pages = starve(hoard);
        let space = hoard.space().clone();
        let answer = move |_: &Shortage<'_>| {
            let unmapped = space.munmap(HOARD, pages * PAGE);
            unmapped.map_or(Fail, |()| Retry)
        };
        let (done, asked) = answering(&world.machine, answer, || process.load::<u64>(cpu, BASE));
        assert_eq!((done, asked), (Ok(Disk::number(0)), 1));
    });
}

#[test]
fn operation_fails_at_once_if_the_platform_has_no_memory() {
    with_hoard(|world, process, hoard, _| {
        anon(process, BASE, 1);
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        starve(hoard);
        let fault = || process.handle_fault(BASE, Access::WRITE).map(drop);
        assert_eq!(answering(&world.machine, |_| Fail, fault), (Err(FaultError::OutOfMemory), 1));
        assert_eq!(fault(), Err(FaultError::OutOfMemory), "without an answer");
        let populate = || process.madvise(BASE, PAGE, Advice::PopulateWrite);
        assert_eq!(answering(&world.machine, |_| Fail, populate), (Err(MadviseError::OutOfMemory), 1));
        uffd.register(BASE, PAGE, RegisterMode::MISSING).unwrap();
        let copy = || uffd.copy(BASE, &[1; PAGE as usize], FillMode::empty()).is_err();
        assert_eq!(answering(&world.machine, |_| Fail, copy), (true, 1));
    });
}

#[test]
fn platform_that_frees_nothing_is_asked_a_bounded_number_of_times() {
    with_hoard(|world, process, hoard, _| {
        anon(process, BASE, 1);
        starve(hoard);
        let rounds = Arc::new(Mutex::new(Vec::new()));
        for kind in 0..4 {
            let seen = rounds.clone();
            let answer = move |shortage: &Shortage<'_>| {
                seen.lock().unwrap().push(shortage.round);
                Retry
            };
            let (failed, _) = answering(&world.machine, answer, || match kind {
                0 => process.handle_fault(BASE, Access::WRITE).is_err(),
                1 => process.madvise(BASE, PAGE, Advice::PopulateWrite).is_err(),
                2 => process.pin_user_pages(BASE, 1, PinFlags::WRITE).is_err(),
                _ => process.write_memory(BASE, &[1], AccessMode::Plain).is_err(),
            });
            assert!(failed);
            let rounds = core::mem::take(&mut *rounds.lock().unwrap());
            assert_eq!(rounds, Vec::from_iter(0..ROUNDS), "operation {kind}");
        }
    });
}

#[test]
fn fatal_signal_ends_an_operation_whose_memory_is_short() {
    with_hoard(|world, process, hoard, _| {
        anon(process, BASE, 1);
        starve(hoard);
        let fault = || killed(|| process.handle_fault(BASE, Access::WRITE));
        let (done, asked) = answering(&world.machine, |_| Retry, fault);
        assert_eq!((done, asked), (Err(FaultError::Killed), 1));
        // A task that is killed while the platform waits.
        let die = |_: &Shortage<'_>| {
            Task::current().kill();
            Retry
        };
        let populate = || {
            let done = process.madvise(BASE, PAGE, Advice::PopulateWrite);
            Task::current().revive();
            done
        };
        assert_eq!(answering(&world.machine, die, populate), (Err(MadviseError::Killed), 1));
    });
}

#[test]
fn population_of_many_pages_gets_new_rounds_after_each_page() {
    with_hoard(|world, process, hoard, cpu| {
        let pages = 3 * u64::from(ROUNDS);
        anon(process, BASE, pages);
        assert!(starve(hoard) > pages);
        let (space, next) = (hoard.space().clone(), AtomicU64::new(0));
        // Each answer frees a single page.
        let answer = move |_: &Shortage<'_>| {
            let page = next.fetch_add(1, SeqCst);
            space.madvise(HOARD + page * PAGE, PAGE, Advice::DontNeed).map_or(Fail, |()| Retry)
        };
        let populate = || process.madvise(BASE, pages * PAGE, Advice::PopulateWrite);
        let (done, asked) = answering(&world.machine, answer, populate);
        assert_eq!((done, process.rss().anon as u64), (Ok(()), pages));
        assert!(asked > u64::from(ROUNDS), "{asked}");
        fill(process, cpu, BASE, pages, 1);
    });
}

#[test]
fn caches_of_the_engine_are_emptied_before_the_platform_is_asked() {
    everywhere(|world, process, cpu| {
        world.engine().set_huge_pages(HugePages::Madvise);
        anon(process, BASE, 512);
        fill(process, cpu, BASE, 512, 1);
        let hoard = world.process(process.locking());
        let pages = starve(&hoard);
        // Frees the frames of one aligned block. Some of them stay in the cache of this CPU.
        let block = |page: u64| hoard.frame_at(HOARD + page * PAGE).unwrap().get() / 512;
        let counts = (0..pages).fold(BTreeMap::new(), |mut counts, page| {
            *counts.entry(block(page)).or_insert(0) += 1;
            counts
        });
        let (&whole, _) = counts.iter().find(|(_, count)| **count == 512).expect("a block of the hoard");
        let freed: Vec<u64> = (0..pages).filter(|page| block(*page) == whole).collect();
        for page in freed {
            hoard.madvise(HOARD + page * PAGE, PAGE, Advice::DontNeed).unwrap();
        }
        let collapse = || process.madvise(BASE, 512 * PAGE, Advice::Collapse);
        assert_eq!(answering(&world.machine, |_| Fail, collapse), (Ok(()), 0));
        assert_filled(process, cpu, BASE, 512, 1);
    });
}

/// Makes `call` with each of its heap allocations failing. `meanwhile` runs at the safe point. Another
/// thread repeats `others` with the result of `prepare`. Returns the number of times that the platform was
/// asked.
fn with_every_failure<T: Sync>(
    locking: Locking,
    prepare: impl Fn(&Process) -> T,
    meanwhile: impl Fn(&AddressSpace<Machine>) + Send + Sync + Copy + 'static,
    call: impl Fn(&Process) -> bool,
    others: impl Fn(&T) + Sync,
    check: impl Fn(&Process),
) -> u64 {
    let mut all = 0;
    at_every_allocation(&[Failure::HeapFromThere], |point| {
        let config = Config::new().vma_nodes(nodes_for(locking));
        let mut scarce = ScarceWorld::new(World::with(16 << 20, config));
        let process = scarce.world.process(locking);
        let prepared = prepare(&process);
        scarce.use_up(0);
        let space = process.space().clone();
        let answer = move |_: &Shortage<'_>| {
            Failure::HeapFromThere.stop();
            meanwhile(&space);
            Retry
        };
        let (done, asked) = answering(&scarce.world.machine, answer, || {
            while_repeating(|| others(&prepared), || point.fail(|| call(&process)))
        });
        assert!(done, "{point}");
        point.note(asked);
        all += asked;
        check(&process);
        process.check();
        drop((process, prepared));
        scarce.end();
    });
    all
}

#[test]
fn mprotect_continues_behind_the_part_that_it_has_completed() {
    for locking in Locking::ALL {
        // Two VMAs, of which the second must be split.
        let prepare = |process: &Process| {
            anon(process, BASE, 2);
            process.mmap(BASE + 2 * PAGE, 4 * PAGE, R, FIXED, None, 0).unwrap();
            // The parts never merge.
            process.madvise(BASE + 2 * PAGE, 4 * PAGE, Advice::DontDump).unwrap();
        };
        let rights = |space: &AddressSpace<Machine>, page: u64| {
            space.vma_info(BASE + page * PAGE).unwrap().flags & VmFlags::ACCESS
        };
        // Another task makes the first part writable again, after the call has taken the right away.
        let meanwhile = move |space: &AddressSpace<Machine>| {
            if rights(space, 0).is_empty() {
                space.mprotect(BASE, 2 * PAGE, RW).unwrap();
                space.madvise(BASE, PAGE, Advice::DontFork).unwrap();
            }
        };
        let call = |process: &Process| process.mprotect(BASE, 4 * PAGE, Prot::empty()).is_ok();
        let check = |process: &Process| {
            let changed = process.vma_info(BASE).unwrap().flags.contains(VmFlags::DONTCOPY);
            assert_eq!(rights(process, 0).is_empty(), !changed, "the change of the other task is kept");
            assert!(rights(process, 2).is_empty() && rights(process, 3).is_empty());
            assert!(!rights(process, 4).is_empty());
        };
        assert!(with_every_failure(locking, prepare, meanwhile, call, |()| (), check) > 0, "{locking:?}");
    }
}

/// mlock, mbind, mseal and MADV_DONTFORK change two VMAs, of which the second must be split. Another task
/// changes the first one at the safe point.
#[test]
fn changes_of_flags_continue_behind_the_part_that_they_have_completed() {
    type Call = fn(&AddressSpace<Machine>) -> bool;
    /// A call, a test of its effect on a page, and the change of another task, if there can be one.
    type Case = (&'static str, Call, fn(&AddressSpace<Machine>, u64) -> bool, Call);
    let cases: [Case; 4] = [
        (
            "mlock",
            |space| space.mlock2(BASE, 4 * PAGE, LockFlags::ONFAULT).is_ok(),
            |space, at| space.vma_info(at).unwrap().flags.contains(VmFlags::LOCKED),
            |space| space.munlock(BASE, 2 * PAGE).is_ok(),
        ),
        (
            "mbind",
            |space| space.set_policy(BASE, 4 * PAGE, 7).is_ok(),
            |space, at| space.find_vma(at).unwrap().policy() == 7,
            |space| space.set_policy(BASE, 2 * PAGE, 0).is_ok(),
        ),
        (
            "madvise",
            |space| space.madvise(BASE, 4 * PAGE, Advice::DontFork).is_ok(),
            |space, at| space.vma_info(at).unwrap().flags.contains(VmFlags::DONTCOPY),
            |space| space.madvise(BASE, 2 * PAGE, Advice::DoFork).is_ok(),
        ),
        (
            "mseal",
            |space| space.mseal(BASE, 4 * PAGE, 0).is_ok(),
            |space, at| space.vma_info(at).unwrap().flags.contains(VmFlags::SEALED),
            |_| false,
        ),
    ];
    for (locking, (name, call, is_changed, undo)) in
        Locking::ALL.into_iter().flat_map(|locking| cases.iter().map(move |case| (locking, *case)))
    {
        let prepare = |process: &Process| {
            anon(process, BASE, 2);
            process.mmap(BASE + 2 * PAGE, 4 * PAGE, R, FIXED, None, 0).unwrap();
            process.madvise(BASE + 2 * PAGE, 4 * PAGE, Advice::DontDump).unwrap();
        };
        // The right to execute records that the first part was changed back.
        let meanwhile = move |space: &AddressSpace<Machine>| {
            if is_changed(space, BASE) && undo(space) {
                space.mprotect(BASE, PAGE, Prot::EXEC).unwrap();
            }
        };
        let check = |process: &Process| {
            let undone = process.vma_info(BASE).unwrap().flags.contains(VmFlags::EXEC);
            assert_eq!(is_changed(process, BASE), !undone, "{name}: the change of the other task is kept");
            let changed = [2, 3, 4].map(|page| is_changed(process, BASE + page * PAGE));
            assert_eq!(changed, [true, true, false], "{name}");
        };
        let asked = with_every_failure(locking, prepare, meanwhile, |process| call(process), |()| (), check);
        assert!(asked > 0, "{name} {locking:?}");
    }
}

/// Another task undoes the change of the first of two VMAs at the safe point.
#[test]
fn registration_with_a_userfaultfd_continues_behind_the_part_that_it_has_completed() {
    thread_local! {
        static UFFD: RefCell<Option<Userfaultfd<Machine>>> = const { RefCell::new(None) };
    }
    fn change(register: bool, pages: u64) -> bool {
        UFFD.with_borrow(|uffd| match (uffd.as_ref().unwrap(), register) {
            (uffd, true) => uffd.register(BASE, pages * PAGE, RegisterMode::WP).is_ok(),
            (uffd, false) => uffd.unregister(BASE, pages * PAGE).is_ok(),
        })
    }
    let is_registered = |space: &AddressSpace<Machine>, page: u64| {
        space.vma_info(BASE + page * PAGE).unwrap().flags.contains(VmFlags::UFFD_WP)
    };
    for (locking, registers) in
        Locking::ALL.into_iter().flat_map(|locking| [(locking, true), (locking, false)])
    {
        let prepare = |process: &Process| {
            anon(process, BASE, 2);
            process.mmap(BASE + 2 * PAGE, 4 * PAGE, R, FIXED, None, 0).unwrap();
            process.madvise(BASE + 2 * PAGE, 4 * PAGE, Advice::DontDump).unwrap();
            UFFD.set(Some(Userfaultfd::new(process.space(), UffdConfig::default()).unwrap()));
            assert!(registers || change(true, 6));
        };
        // The right to execute records that the first part was changed back.
        let meanwhile = move |space: &AddressSpace<Machine>| {
            if is_registered(space, 0) == registers {
                assert!(change(!registers, 2));
                space.mprotect(BASE, PAGE, Prot::EXEC).unwrap();
            }
        };
        let check = |process: &Process| {
            let undone = process.vma_info(BASE).unwrap().flags.contains(VmFlags::EXEC);
            assert_eq!(
                is_registered(process, 0) != registers,
                undone,
                "the change of the other task is kept"
            );
            let changed = [2, 3, 4].map(|page| is_registered(process, page) == registers);
            assert_eq!(changed, [true, true, false]);
            UFFD.take();
        };
        let asked = with_every_failure(locking, prepare, meanwhile, |_| change(registers, 4), |()| (), check);
        assert!(asked > 0, "{locking:?} {registers}");
    }
}

#[test]
fn write_to_a_file_asks_for_memory_after_each_page_and_without_its_lock() {
    with_hoard(|world, _, hoard, _| {
        let pages = 3 * u64::from(ROUNDS);
        let file = Mapping::memfd(world.engine(), PAGE).unwrap();
        file.write_at(0, &[1]).unwrap();
        assert!(starve(hoard) > pages);
        let (space, next, written) = (hoard.space().clone(), AtomicU64::new(0), file.clone());
        // Each answer takes the locks of the file, and frees a single page.
        let answer = move |shortage: &Shortage<'_>| {
            let PageOwner::File(owner) = shortage.owner else { panic!("{:?}", shortage.owner) };
            assert_eq!(owner, written.file_id());
            written.write_at(0, &[2]).unwrap();
            let page = next.fetch_add(1, SeqCst);
            space.madvise(HOARD + page * PAGE, PAGE, Advice::DontNeed).map_or(Fail, |()| Retry)
        };
        let data = vec![7; (pages * PAGE) as usize];
        let (done, asked) = answering(&world.machine, answer, || file.write_at(PAGE, &data));
        assert_eq!((done, file.present_pages()), (Ok(data.len()), pages + 1));
        assert!(asked > u64::from(ROUNDS), "{asked}");
        let mut found = [0; 2];
        file.read_at(PAGE - 1, &mut found).unwrap();
        assert_eq!(found, [0, 7]);
        file.read_at(0, &mut found).unwrap();
        assert_eq!(found[0], 2);
    });
}

#[test]
fn reads_and_fills_of_files_ask_the_platform_for_memory() {
    type Call = fn(&Mapping<Machine>) -> Result<(), FillError>;
    let calls: [(&str, Call); 5] = [
        ("fill", |file| file.fill(PageIndex::new(1))),
        ("reserve", |file| file.reserve(PageIndex::new(1))),
        ("read_at", |file| file.read_at(PAGE, &mut [0; 8]).map(drop)),
        ("truncate", |file| file.truncate(PAGE + 8)),
        ("punch", |file| file.punch(PAGE + 8..PAGE + 16)),
    ];
    with_hoard(|world, _, hoard, _| {
        for (name, call) in calls {
            let file = world.file(2);
            let pages = starve(hoard);
            let space = hoard.space().clone();
            let failed = answering(&world.machine, |_| Fail, || call(file.mapping()));
            assert_eq!(failed, (Err(FillError::NoMemory), 1), "{name}");
            let answer = move |_: &Shortage<'_>| {
                space.madvise(HOARD, pages * PAGE, Advice::DontNeed).map_or(Fail, |()| Retry)
            };
            assert_eq!(answering(&world.machine, answer, || call(file.mapping())), (Ok(()), 1), "{name}");
            hoard.munmap(HOARD, 1 << 28).unwrap();
        }
    });
}

/// A device has translations again when the second attempt begins, so each attempt must be announced.
#[test]
fn each_attempt_of_mprotect_notifies_the_listeners() {
    static DEVICE: Mutex<Option<Arc<Shadow>>> = Mutex::new(None);
    let fill_device = |space: &AddressSpace<Machine>| {
        let device = DEVICE.lock().unwrap().clone().unwrap();
        assert_eq!(device.fill(space, (0..6).map(|page| BASE + page * PAGE)), 6);
    };
    for locking in Locking::ALL {
        // Two VMAs, of which the second must be split.
        let prepare = |process: &Process| {
            anon(process, BASE, 6);
            process.madvise(BASE + 2 * PAGE, 4 * PAGE, Advice::DontDump).unwrap();
            for page in 0..6 {
                process.handle_fault(BASE + page * PAGE, Access::WRITE).unwrap();
            }
            *DEVICE.lock().unwrap() = Some(Shadow::attach(process.space()).unwrap().0);
            fill_device(process);
        };
        let call = |process: &Process| process.mprotect(BASE, 4 * PAGE, R).is_ok();
        let check = |process: &Process| DEVICE.lock().unwrap().take().unwrap().check(process);
        assert!(with_every_failure(locking, prepare, fill_device, call, |()| (), check) > 0, "{locking:?}");
    }
}

#[test]
fn munmap_by_sections_spares_memory_mapped_behind_it() {
    let locking = Locking::ALL[0].write(Write::Whole).unmap(Unmap::Sectioned { bytes: 2 << 20 });
    let prepare = |process: &Process| {
        anon(process, BASE, 3 * 512);
        process.handle_fault(BASE, Access::WRITE).unwrap();
        // Each section allocates a message.
        let config = UffdConfig::new().features(Features::EVENT_UNMAP);
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(BASE, 3 * HUGE, RegisterMode::MISSING).unwrap();
        uffd
    };
    // Another task maps a page in the first section after the call has unmapped it.
    let meanwhile = |space: &AddressSpace<Machine>| {
        if space.vma_info(BASE).is_none() {
            space.mmap(BASE, PAGE, R, FIXED, None, 0).unwrap();
        }
    };
    let call = |process: &Process| process.munmap(BASE, 3 * HUGE - PAGE).is_ok();
    let read = |uffd: &Userfaultfd<Machine>| drop(uffd.try_read());
    let mapped = AtomicU64::new(0);
    let check = |process: &Process| {
        mapped.fetch_add(u64::from(process.vma_info(BASE).is_some()), SeqCst);
        assert!(process.vma_info(BASE + PAGE).is_none());
        assert!(process.vma_info(BASE + 3 * HUGE - PAGE).is_some());
    };
    assert!(with_every_failure(locking, prepare, meanwhile, call, read, check) > 0);
    assert!(mapped.load(SeqCst) > 0, "no section was followed by a failure");
}

#[test]
fn mremap_asks_for_memory_only_before_it_has_unmapped_anything() {
    for locking in Locking::ALL {
        let target = BASE + (1 << 30);
        let prepare = |process: &Process| {
            anon(process, BASE, 4);
            process.handle_fault(BASE, Access::WRITE).unwrap();
        };
        let meanwhile = move |space: &AddressSpace<Machine>| {
            assert!(space.vma_info(BASE).is_some() && space.vma_info(target).is_none());
        };
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let call = |process: &Process| process.mremap(BASE + PAGE, PAGE, 2 * PAGE, fixed, target).is_ok();
        let check = |process: &Process| {
            assert!(process.vma_info(target + PAGE).is_some() && process.vma_info(BASE + PAGE).is_none());
        };
        assert!(with_every_failure(locking, prepare, meanwhile, call, |()| (), check) > 0, "{locking:?}");
        // A mapping at the target is unmapped first. The call then keeps its error.
        let failed = at_every_allocation(&[Failure::HeapFromThere], |point| {
            let world = World::with(16 << 20, Config::new().vma_nodes(nodes_for(locking)));
            let process = world.process(locking);
            prepare(&process);
            anon(&process, target, 2);
            let space = process.space().clone();
            let answer = move |_: &Shortage<'_>| {
                assert!(space.vma_info(target).is_some(), "another task may map memory in the gap");
                Failure::HeapFromThere.stop();
                Retry
            };
            let (_, asked) = answering(&world.machine, answer, || point.fail(|| call(&process)));
            point.note(asked);
            process.check();
            drop(process);
            world.end();
        });
        assert!(failed > 0);
    }
}
