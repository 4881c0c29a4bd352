//! Memory failures (`src/rmap/failure.rs`, `src/rmap/lose.rs`): the pages that each process loses, the
//! reports, and frames that stay out of use.
//!
//! `everywhere` of this file runs a scenario in a `Failing` world, which checks at the end that exactly the
//! failed frames are missing. A scenario lets memory fail (`Failing::fail`), and checks the accesses of all
//! processes and the lost pages that were reported to the platform (`assert_losses_reported`). An anonymous
//! page is lost with its contents. A clean page of a file is read again. The last test makes random calls and
//! compares them with a model. A new call that accesses pages belongs in `every_call_reports_failed_memory`.

use crate::support::*;
use freehold::{
    PageIndex,
    call::{Advice, RemapFlags, SyncFlags},
    engine::HugePages,
    error::{AccessError, Errno, MadviseError, MlockError, MsyncError, UffdError},
    fault::FaultError,
    file::{FillError, Zeroes},
    remote::AccessMode,
    rmap::{Damage, OfflineError},
    space::Limits,
    uffd::{FillMode, RegisterMode, UffdConfig, Userfaultfd},
};
use std::{collections::BTreeMap, ops::Deref};

/// A world in which memory fails. Checks at the end that exactly the failed frames are missing.
struct Failing(World);

impl Deref for Failing {
    type Target = World;
    fn deref(&self) -> &World {
        &self.0
    }
}

impl Failing {
    fn new() -> Self {
        Failing(World::with(24 << 20, Config::new().huge_pages(HugePages::Madvise)))
    }

    /// Returns a process that may inject memory failures by madvise.
    fn privileged(&self, locking: Locking) -> Process {
        let limits = Limits::new().may_inject_failure(true);
        Process::new(self.engine(), &SpaceConfig::new().locking(locking).limits(limits)).unwrap()
    }

    /// Reports a failure of the memory at an address.
    #[track_caller]
    fn fail(&self, process: &Process, at: u64) -> Damage {
        let pfn = process.frame_at(at).expect("no page at the address");
        let damage = self.engine().memory_failure(pfn).expect("the frame was not taken out of use");
        assert_eq!(self.engine().memory_failure(pfn), Err(OfflineError::Failed));
        assert_eq!(self.engine().soft_offline(pfn), Err(OfflineError::Failed));
        assert_eq!(process.frame_at(at), None);
        damage
    }

    fn end(self) {
        let failed = self.engine().failed_frames();
        let Failing(World { machine, engine }) = self;
        drop(engine);
        let left = machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{left}");
    }
}

/// Runs `scenario` on every design, in a world in which memory fails.
fn everywhere(scenario: impl Fn(&Failing, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        let world = Failing::new();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

/// Returns the expected result of an access to failed memory.
fn failed<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::MemoryFailed { addr })
}

fn load(process: &Process, cpu: &mut Vcpu, at: u64) -> Result<u64, FaultError> {
    process.load(cpu, at)
}

/// Checks that exactly these lost pages were reported to the platform since the last check.
#[track_caller]
fn assert_losses_reported(world: &World, expected: &[(&Process, u64)]) {
    let sorted = |mut list: Vec<(Pfn, u64)>| {
        list.sort_by_key(|(root, at)| (root.get(), *at));
        list
    };
    let expected = expected.iter().map(|(process, at)| (process.mmu().root(), *at)).collect();
    assert_eq!(sorted(world.machine.take_lost_pages()), sorted(expected));
}

#[test]
fn failed_anonymous_page_is_lost_in_all_processes() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 4);
        fill(process, cpu, at, 4, 1);
        let child = Process::of(process.fork().unwrap());
        let grandchild = Process::of(child.fork().unwrap());
        // The reverse map finds the page wherever it was moved, and flushes CPUs that cache its translation.
        grandchild.mprotect(at, PAGE, R).unwrap();
        let far = at + (1 << 30);
        child.mremap(at, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far).unwrap();
        grandchild.store(cpu, at + PAGE, 100u64).unwrap();
        assert_eq!(load(process, cpu, at), Ok(1));
        assert_eq!(world.fail(process, at), Damage::Lost);
        assert_losses_reported(world, &[(process, at), (&child, far), (&grandchild, at)]);
        for (process, at) in [(process, at), (&child, far), (&grandchild, at)] {
            assert_eq!(load(process, cpu, at), failed(at));
            process.check();
        }
        assert_eq!(process.store(cpu, at + 8, 1u64), failed(at + 8));
        // A copy is another page.
        assert_eq!(world.fail(&child, far + PAGE), Damage::Lost);
        assert_losses_reported(world, &[(process, at + PAGE), (&child, far + PAGE)]);
        assert_eq!(load(&grandchild, cpu, at + PAGE), Ok(100));
        assert_eq!((process.rss().anon, child.rss().anon, grandchild.rss().anon), (2, 2, 3));
        assert_eq!(world.engine().failed_frames(), 2);
    });
}

#[test]
fn every_call_reports_failed_memory() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 4);
        fill(process, cpu, at, 4, 1);
        world.fail(process, at + PAGE);
        let mut bytes = [0; 16];
        let read = |at, bytes: &mut [u8]| process.read_memory(at, bytes, AccessMode::Plain);
        assert_eq!(read(at + PAGE, &mut bytes), Err(AccessError::BadAddress));
        assert_eq!(read(at + PAGE - 8, &mut bytes), Ok(8), "the bytes before the failed page");
        assert_eq!(process.write_memory(at + PAGE, &bytes, AccessMode::Forced), Err(AccessError::BadAddress));
        for advice in [Advice::PopulateRead, Advice::PopulateWrite] {
            let refused = process.madvise(at, 4 * PAGE, advice).unwrap_err();
            assert_eq!((refused, refused.errno()), (MadviseError::MemoryFailed, Errno::EHWPOISON));
        }
        assert_eq!(process.mlock(at, 4 * PAGE), Err(MlockError::NotAccessible));
        process.munlock(at, 4 * PAGE).unwrap();
        let mut present = [9; 4];
        process.mincore(at, 4 * PAGE, &mut present).unwrap();
        assert_eq!(present, [1; 4]);
        let mut pages = vec![];
        process.pagemap(at..at + 4 * PAGE, |part| pages.push(part.range));
        assert_eq!(pages, [at..at + PAGE, at + 2 * PAGE..at + 4 * PAGE]);
        assert_eq!(process.smaps(at).next().unwrap().usage.rss, 3 * PAGE);
        assert_eq!(world.engine().failed_frames(), 1);
    });
}

#[test]
fn failure_markers_move_with_their_vma() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 4);
        fill(process, cpu, at, 4, 1);
        world.fail(process, at + PAGE);
        for prot in [R, Prot::empty(), RW] {
            process.mprotect(at + PAGE, PAGE, prot).unwrap();
        }
        assert_eq!(load(process, cpu, at + PAGE), failed(at + PAGE));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(load(&child, cpu, at + PAGE), failed(at + PAGE));
        assert_eq!((process.rss().anon, child.rss().anon), (3, 3));
        let far = at + (1 << 30);
        process.mremap(at, 4 * PAGE, 4 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far).unwrap();
        assert_eq!(load(process, cpu, far + PAGE), failed(far + PAGE));
        assert_eq!(load(process, cpu, far + 2 * PAGE), Ok(3));
        process.check();
        // Discarding the page removes the marker.
        process.madvise(far, 4 * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(load(process, cpu, far + PAGE), Ok(0));
        child.munmap(at + PAGE, PAGE).unwrap();
        anon(&child, at + PAGE, 1);
        child.store(cpu, at + PAGE, 7u64).unwrap();
        assert_eq!((load(&child, cpu, at + PAGE), child.rss().anon), (Ok(7), 4));
        child.check();
        assert_eq!(process.rss().anon, 0);
    });
}

#[test]
fn failed_clean_page_is_read_again() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        let map = |flags| process.mmap(0, 4 * PAGE, RW, flags, Some(&file), 0).unwrap();
        let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
        for at in [shared, private] {
            assert_eq!(load(process, cpu, at), Ok(Disk::number(0)));
        }
        // A page that was written and written back is clean.
        process.store(cpu, shared, Disk::number(0)).unwrap();
        process.msync(shared, PAGE, SyncFlags::SYNC).unwrap();
        let old = process.frame_at(shared).unwrap();
        assert_eq!(world.fail(process, shared), Damage::Dropped);
        assert!(!file.mapping().has_page(PageIndex::new(0)));
        process.check();
        for at in [shared, private] {
            assert_eq!(load(process, cpu, at), Ok(Disk::number(0)));
        }
        assert_ne!(process.frame_at(shared), Some(old));
        process.msync(shared, 4 * PAGE, SyncFlags::SYNC).unwrap();
        assert_losses_reported(world, &[]);
        // A private copy is an anonymous page.
        process.store(cpu, private, 1u64).unwrap();
        assert_eq!(world.fail(process, private), Damage::Lost);
        assert_losses_reported(world, &[(process, private)]);
        assert_eq!((load(process, cpu, private), load(process, cpu, shared)), (failed(private), Ok(7)));
        // The marker of a private copy stays after a hole in the file. A truncation that covers the page
        // removes the marker.
        file.mapping().punch(0..PAGE).unwrap();
        assert_eq!(load(process, cpu, private), failed(private));
        file.mapping().truncate(0).unwrap();
        file.mapping().truncate(4 * PAGE).unwrap();
        assert_eq!(load(process, cpu, private), Ok(Disk::number(0)));
    });
}

#[test]
fn failed_dirty_page_is_reported_as_lost() {
    everywhere(|world, process, cpu| {
        let (file, other) = (world.file(4), world.process(Locking::default()));
        let map = |process: &Process, flags| process.mmap(0, 4 * PAGE, RW, flags, Some(&file), 0).unwrap();
        let (shared, private) = (map(process, MapFlags::SHARED), map(process, MapFlags::PRIVATE));
        process.store(cpu, shared, 1u64).unwrap();
        assert_eq!(load(process, cpu, private), Ok(1));
        assert_eq!(world.fail(process, shared), Damage::Lost);
        assert_losses_reported(world, &[(process, shared), (process, private)]);
        for at in [shared, private] {
            assert_eq!(load(process, cpu, at), failed(at));
        }
        // Other mappings read the page from the disk. The first msync of the file returns the error, once.
        let elsewhere = map(&other, MapFlags::SHARED);
        assert_eq!(load(&other, cpu, elsewhere), Ok(Disk::number(0)));
        assert_eq!(other.msync(elsewhere + PAGE, PAGE, SyncFlags::SYNC), Err(MsyncError::Io));
        assert_eq!(process.msync(shared, PAGE, SyncFlags::SYNC), Ok(()));
        // MADV_DONTNEED removes the marker, so the next load maps the page from the file again.
        process.munmap(private, 4 * PAGE).unwrap();
        process.madvise(shared, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(load(process, cpu, shared), Ok(Disk::number(0)));
        other.check();
    });
}

#[test]
fn failed_page_of_shared_memory_is_lost() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap();
        let map = || process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let at = map();
        fill(process, cpu, at, 2, 1);
        assert_eq!(world.fail(process, at), Damage::Lost);
        let child = Process::of(process.fork().unwrap());
        let again = map();
        for (process, at) in [(process, at), (&child, at), (process, again)] {
            assert_eq!(load(process, cpu, at), failed(at));
            assert_eq!(process.store(cpu, at, 1u64), failed(at));
        }
        let advised = child.madvise(at, PAGE, Advice::PopulateRead);
        assert_eq!(advised, Err(MadviseError::MemoryFailed));
        let mut bytes = [0; 8];
        assert_eq!(mapping.read_at(0, &mut bytes), Err(FillError::Lost));
        assert_eq!(mapping.write_at(0, &bytes), Err(FillError::Lost));
        assert_eq!(mapping.lay_out(), Ok(()), "existing pages are left alone");
        assert_eq!(
            (mapping.read_at(0, &mut bytes), FillError::Lost.errno()),
            (Err(FillError::Lost), Errno::EIO)
        );
        // After a hole is punched, a mapping without an entry for the page gets an ordinary page. In a
        // mapping with a marker, accesses fail until the program discards the page.
        mapping.punch(0..PAGE).unwrap();
        assert_eq!((load(process, cpu, at), load(process, cpu, again)), (failed(at), Ok(0)));
        process.madvise(at, PAGE, Advice::DontNeed).unwrap();
        assert_eq!((load(process, cpu, at), load(process, cpu, at + PAGE)), (Ok(0), Ok(2)));
        // A truncation that removes a lost page also removes the marker of the page.
        world.fail(process, at + PAGE);
        mapping.truncate(PAGE).unwrap();
        mapping.truncate(4 * PAGE).unwrap();
        assert_eq!(load(process, cpu, at + PAGE), Ok(0));
    });
}

#[test]
fn only_the_failed_part_of_a_huge_page_is_lost() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 512);
        process.madvise(at, 512 * PAGE, Advice::HugePage).unwrap();
        process.store(cpu, at + 100 * PAGE, 1u64).unwrap();
        process.store(cpu, at + 101 * PAGE, 2u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        world.fail(process, at + 100 * PAGE);
        for process in [process, &child] {
            assert_eq!(load(process, cpu, at + 100 * PAGE), failed(at + 100 * PAGE));
            assert_eq!(load(process, cpu, at + 101 * PAGE), Ok(2));
            assert_eq!(process.rss().anon, 511);
            process.check();
        }
    });
}

/// Maps all free memory. Returns its frames.
fn all_memory(process: &Process, cpu: &mut Vcpu, at: u64) -> Vec<Pfn> {
    let mut frames = vec![];
    while process.store(cpu, at + frames.len() as u64 * PAGE, 1u64).is_ok() {
        frames.push(process.frame_at(at + frames.len() as u64 * PAGE).unwrap());
    }
    frames
}

/// A lost page of a file is not missing: its pager cannot supply the contents, so the fault does not notify
/// the pager.
#[test]
fn lost_page_is_not_missing_for_userfaultfd() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        let at = process.mmap(0, PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        uffd.register(at, PAGE, RegisterMode::MISSING).unwrap();
        world.fail(process, at);
        process.madvise(at, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(load(process, cpu, at), failed(at));
        let copied = uffd.copy(at, &[0; PAGE as usize], FillMode::empty());
        assert_eq!(copied, Err(UffdError::BadAddress));
    });
}

#[test]
fn failed_frames_are_never_used_again() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 8000);
        let before = all_memory(process, cpu, at);
        let child = Process::of(process.fork().unwrap());
        let gone = [0, 1, 500, 4000].map(|page| before[page]);
        // The first frame is mapped and shared, and the second is mapped. The other two frames are free, in
        // the platform or in the cache of this CPU.
        world.engine().memory_failure(gone[0]).unwrap();
        drop(child);
        world.engine().memory_failure(gone[1]).unwrap();
        process.munmap(at, 8000 * PAGE).unwrap();
        assert_eq!(world.engine().memory_failure(gone[2]), Ok(Damage::Free));
        assert_eq!(world.engine().soft_offline(gone[3]), Ok(()));
        for pfn in gone {
            assert_eq!(world.engine().memory_failure(pfn), Err(OfflineError::Failed));
        }
        anon(process, BASE, 8000);
        let after = all_memory(process, cpu, at);
        assert_eq!(after.len(), before.len() - gone.len());
        assert!(gone.iter().all(|pfn| !after.contains(pfn)));
        assert_eq!(world.engine().failed_frames(), 4);
        assert_eq!(world.engine().soft_offline(after[0]), Err(OfflineError::OutOfMemory));
        assert_eq!(load(process, cpu, at), Ok(1));
        process.munmap(at, 8000 * PAGE).unwrap();
    });
}

#[test]
fn soft_offline_migrates_the_page() {
    everywhere(|world, process, cpu| {
        let (at, file) = (anon(process, BASE, 2), world.file(4));
        let shared = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        process.store(cpu, shared, 2u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        for page in [at, shared] {
            let old = process.frame_at(page).unwrap();
            world.engine().soft_offline(old).unwrap();
            assert_eq!(world.engine().memory_failure(old), Err(OfflineError::Failed));
        }
        for (page, value) in [(at, 1), (shared, 2)] {
            assert_eq!((load(process, cpu, page), load(&child, cpu, page)), (Ok(value), Ok(value)));
        }
        process.msync(shared, PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!(world.engine().failed_frames(), 2);
        assert_losses_reported(world, &[]);
        child.check();
    });
}

#[test]
fn hwpoison_needs_a_privilege() {
    everywhere(|world, ordinary, cpu| {
        let at = anon(ordinary, BASE, 4);
        for advice in [Advice::HwPoison, Advice::SoftOffline] {
            let refused = ordinary.madvise(at, PAGE, advice).unwrap_err();
            assert_eq!((refused, refused.errno()), (MadviseError::NotPermitted, Errno::EPERM));
            assert_eq!(ordinary.madvise(at, 0, advice), Ok(()));
            assert_eq!(ordinary.madvise(at + 1, PAGE, advice), Err(MadviseError::Invalid));
        }
        let process = world.privileged(Locking::default());
        let at = anon(&process, BASE, 4);
        fill(&process, cpu, at, 4, 1);
        assert_eq!(process.madvise(at, 2 * PAGE, Advice::SoftOffline), Ok(()));
        assert_filled(&process, cpu, at, 4, 1);
        assert_eq!(process.madvise(at + PAGE, 2 * PAGE, Advice::HwPoison), Ok(()));
        assert_losses_reported(world, &[(&process, at + PAGE), (&process, at + 2 * PAGE)]);
        assert_eq!((load(&process, cpu, at), load(&process, cpu, at + PAGE)), (Ok(1), failed(at + PAGE)));
        // A failed page, a hole and the shared zero page cannot be failed.
        for (from, error) in [(at + PAGE, MadviseError::BadAccess), (at + 4 * PAGE, MadviseError::BadAccess)]
        {
            assert_eq!(process.madvise(from, PAGE, Advice::HwPoison), Err(error));
        }
        let zeroes = anon(&process, at + 8 * PAGE, 1);
        assert_eq!(process.madvise(zeroes, PAGE, Advice::HwPoison), Err(MadviseError::Busy));
        assert_eq!(load(&process, cpu, zeroes), Ok(0));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.madvise(at, PAGE, Advice::HwPoison), Ok(()), "the right is inherited");
        assert_eq!(load(&process, cpu, at), failed(at));
        process.check();
        assert_eq!(world.engine().failed_frames(), 5);
    });
}

/// Random calls of a tree of processes with memory failures and migrations, compared with a model.
#[test]
fn random_calls_with_failures_match_the_model() {
    for seed in 0..24 {
        let locking = Locking::ALL[seed as usize % Locking::ALL.len()];
        let world = Failing::new();
        let mut cpu = world.machine.cpu(0);
        let mut dice = Dice::new(seed);
        let mut pick = |n| dice.roll(n);
        /// The model of a process: the value of each written page. `None` stands for a lost page.
        type Known = BTreeMap<u64, Option<u64>>;
        let mut processes = vec![(world.process(locking), Known::new())];
        const PAGES: u64 = 24;
        anon(&processes[0].0, BASE, PAGES);
        for step in 0..400u64 {
            let members = processes.len();
            let who = pick(members as u64) as usize;
            let at = BASE + pick(2 * PAGES) * PAGE;
            match pick(11) {
                0..=3 => {
                    let (process, known) = &mut processes[who];
                    match process.store(&mut cpu, at, step) {
                        Ok(()) => drop(known.insert(at, Some(step))),
                        Err(FaultError::MemoryFailed { .. }) => {
                            assert!(!matches!(known.get(&at), Some(Some(_))), "seed {seed}, step {step}");
                        }
                        Err(_) => {}
                    }
                }
                4 | 5 => {
                    let Some(pfn) = processes[who].0.frame_at(at) else { continue };
                    if pick(2) == 0 {
                        world.engine().soft_offline(pfn).unwrap();
                        continue;
                    }
                    for (process, known) in &mut processes {
                        for (at, value) in known.iter_mut() {
                            if process.frame_at(*at) == Some(pfn) {
                                *value = None;
                            }
                        }
                    }
                    assert_eq!(world.engine().memory_failure(pfn), Ok(Damage::Lost));
                }
                6 => {
                    let prot = if pick(2) == 0 { R } else { RW };
                    let _ = processes[who].0.mprotect(at, (1 + pick(4)) * PAGE, prot);
                }
                7 => {
                    let (len, to) = ((1 + pick(3)) * PAGE, BASE + pick(2 * PAGES) * PAGE);
                    let (process, known) = &mut processes[who];
                    let moved = process.mremap(at, len, len, RemapFlags::MAYMOVE | RemapFlags::FIXED, to);
                    if moved.is_ok() {
                        pages_moved(known, at, len, to);
                    } else {
                        // The failed call may have unmapped the target and moved a part of the source.
                        known.retain(|page, _| process.frame_at(*page).is_some());
                    }
                }
                8 if members < 5 => {
                    let child = (Process::of(processes[who].0.fork().unwrap()), processes[who].1.clone());
                    processes.push(child);
                }
                9 => {
                    let (process, known) = &mut processes[who];
                    let len = (1 + pick(3)) * PAGE;
                    let _ = process.madvise(at, len, Advice::DontNeed);
                    known.retain(|page, _| !(at..at + len).contains(page));
                }
                _ if members > 1 && pick(4) == 0 => drop(processes.swap_remove(who)),
                _ => {
                    let (process, known) = &processes[who];
                    for (page, value) in known {
                        let expected = value.map_or(failed(*page), Ok);
                        let found = process.load::<u64>(&mut cpu, *page);
                        assert_eq!(found, expected, "seed {seed}, step {step}, {page:#x}");
                    }
                }
            }
            processes.iter().for_each(|(process, _)| process.check());
        }
        drop((processes, cpu));
        world.end();
    }
}
