//! A fatal signal arrives while a call waits (C-72).
//!
//! The bug in Linux: architecture code did not check whether it had acquired a killable lock. The code
//! continued, and released a lock that another task held. These tests make every call wait for the mmap lock,
//! for a VMA lock, for the end of a munmap of the same range, or for a page. Then they kill the call. The
//! call must return an error, hold no lock, and have changed nothing.
//!
//! The calls are those of `oom/calls.rs` and of the lists `NEEDING` and `LOOKING` below. `waits` states which
//! calls wait for the mmap lock in which design. The test fails if a call waits although `waits` returns
//! false, or does not wait although `waits` returns true. In most tests the signal is already pending when
//! the call begins, and ends the first wait of the call (`Task::interrupt_wait`). These tests therefore need
//! no second thread that sends the signal at the right moment.
//!
//! A new call of `oom/calls.rs` must be named in `LOOKS`, `IN_ONE_VMA` or `FAULTS` unless it always waits for
//! a holder of the mmap lock. A new call that needs the addresses of a closing range belongs in `NEEDING`,
//! and a new access to a page in `LOOKING`. `lab/freehold-machine/tests/shuttle_engine/killed.rs` kills calls
//! at every wait.

use super::{
    gate::Gated,
    oom::{
        calls::{CALLS, Call},
        scene::{Scene, Stage},
    },
    support::{
        oom::{Scene as _, undisturbed},
        view::View,
    },
    *,
};
use freehold::{
    PageIndex, PageRange,
    call::{Advice, RemapFlags},
    error::{Errno, ForkError, MmapError, MprotectError, MremapError, MunmapError},
    fault::{Access, FaultError, SegvCode},
    file::FillError,
    remote::{AccessMode, PinFlags},
    space::{AddressSpace, FaultLock, Unmap, Write},
};
use freehold_machine::Task;
use std::sync::{
    Mutex,
    mpsc::{Receiver, Sender, channel},
};

/// Runs a call on a thread of its own that has a fatal signal pending. Returns the result, and true if the
/// call was killed while it waited.
fn killed_in<R: Send>(call: impl FnOnce() -> R + Send) -> (R, bool) {
    let thread = || {
        Task::current().interrupt_wait(1);
        (call(), Task::current().is_killed())
    };
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// Calls that only read the set of VMAs, and therefore wait only for an exclusive writer.
const LOOKS: &[&str] = &["DONTNEED", "guards", "WILLNEED", "REMOVE"];

/// Calls inside one VMA. The VMA lock suffices for them under every design.
const IN_ONE_VMA: &[&str] = &["guards where there are pages", "guards taken away"];

/// Faults in VMAs that have an anon_vma or need none. The VMA lock suffices if the design uses it.
const FAULTS: &[&str] = &[
    "a store to fresh memory",
    "a load of fresh memory",
    "a store to a private file",
    "a store to a shared file",
    "a store to shared memory",
    "a load of a file",
    "a store to a page that a child has too",
    "a debugger's write",
    "POPULATE_WRITE",
    "POPULATE_READ",
];

/// Returns true if a call has to wait while another task holds the mmap lock.
fn waits(call: &Call, locking: Locking, reading: bool) -> bool {
    let looks =
        LOOKS.contains(&call.name) || (FAULTS.contains(&call.name) && locking.fault == FaultLock::MmapLock);
    let vma_lock_will_do = FAULTS.contains(&call.name) || IN_ONE_VMA.contains(&call.name);
    if looks { !reading } else { !vma_lock_will_do }
}

/// Makes a call while another task holds the mmap lock, for reading if `reading`, otherwise for writing.
/// Fails unless the call leaves everything as in `before` or as in `after`.
fn killed_for_the_lock(
    call: &Call,
    stage: Stage,
    locking: Locking,
    reading: bool,
    (before, after): (&View, &View),
) -> Stage {
    let what =
        || format!("{}, {locking:?}, held for {}", call.name, if reading { "reading" } else { "writing" });
    let mut scene = Scene::new(stage, call, locking);
    let holder = scene.process.clone();
    let (result, killed) = {
        let _reader = reading.then(|| holder.space().read());
        let _writer = (!reading).then(|| holder.space().write());
        killed_in(|| (call.run)(&mut scene))
    };
    drop(holder);
    scene.check();
    let view = scene.view();
    if killed {
        assert_eq!(result, Err(Errno::EINTR), "{}", what());
        assert!(view == *before, "{}: {}", what(), view.differences(before));
        assert_eq!((call.run)(&mut scene), Ok(0), "{}: again", what());
    } else {
        assert_eq!(result, Ok(0), "{}", what());
    }
    let view = scene.view();
    assert!(view == *after, "{}: {}", what(), view.differences(after));
    let stage = scene.end();
    assert_eq!(killed, waits(call, locking, reading), "{}: killed while waiting", what());
    stage
}

#[test]
fn call_killed_waiting_for_the_mmap_lock_changes_nothing() {
    let mut stage = Stage::new(None);
    // A quick run makes each call only on every third design. The first design differs from call to call.
    let step = Effort::of(3, 1, 1);
    for (turn, call) in CALLS.iter().enumerate() {
        let (good, same) = undisturbed(call, stage, Locking::default());
        stage = same;
        for locking in Locking::ALL.into_iter().skip(turn % step).step_by(step) {
            for reading in [false, true] {
                let views = (&good.before, &good.after);
                stage = killed_for_the_lock(call, stage, locking, reading, views);
            }
        }
    }
    stage.end();
}

/// A fault that needs the mmap lock, to choose an anon_vma or to find a hole, waits for an exclusive writer
/// and is killed while waiting. In designs with range writers, the locks of the neighbouring VMAs suffice to
/// choose an anon_vma.
#[test]
fn fault_is_killed_waiting_for_an_exclusive_writer() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        let mut other = world.machine.cpu(1);
        let guard = process.space().write();
        let locking = process.locking();
        let with_range_writers = locking.write == Write::RangesOnly && locking.fault != FaultLock::MmapLock;
        for (addr, access) in [(BASE, Access::WRITE), (BASE + 4 * PAGE, Access::READ)] {
            let fault = || process.touch(&mut other, addr, access);
            match with_range_writers && addr == BASE {
                false => assert_eq!(killed_in(fault), (Err(FaultError::Killed), true)),
                true => assert_eq!(killed_in(fault), (Ok(()), false)),
            }
        }
        drop(guard);
        process.check();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        process.store(cpu, BASE, 1u64).unwrap();
    });
}

/// fork is killed in the middle of its work, while it waits for readers of a VMA. The pages that fork had
/// already shared stay writable without a copy.
#[test]
fn fork_killed_waiting_for_vma_readers_changes_nothing() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        process.mmap(BASE + 4 * PAGE, 4 * PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        let file = world.file(4);
        process
            .mmap(BASE + 8 * PAGE, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0)
            .unwrap();
        fill(process, cpu, BASE, 4, 1);
        fill(process, cpu, BASE + 8 * PAGE, 4, 5);
        let (before, rss, frames) = (layout(process), process.rss(), world.machine.accounting().frames);
        let reader = process.find_vma(BASE + 9 * PAGE).unwrap();
        let (forked, killed) = killed_in(|| process.fork().map(drop));
        assert_eq!((forked, killed), (Err(ForkError::Killed), true));
        drop(reader);
        process.check();
        file.mapping().check();
        assert_eq!((layout(process), process.rss()), (before, rss));
        fill(process, cpu, BASE, 4, 11);
        fill(process, cpu, BASE + 8 * PAGE, 4, 15);
        assert_filled(process, cpu, BASE, 4, 11);
        assert_eq!(
            world.machine.accounting().frames,
            frames,
            "a page was copied although no other process maps it"
        );
        assert_eq!(world.machine.accounting().spaces, 1);
        drop(process.fork().unwrap());
    });
}

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;

/// A call that needs a range whose munmap has not completed.
type Needing = (&'static str, fn(&Space) -> Result<(), Errno>);

const RANGE: u64 = 8 * PAGE;
/// Start of a stack that lies after the closing range and could grow into this range.
const STACK: u64 = BASE + RANGE;

const NEEDING: &[Needing] = &[
    ("mmap", |s| {
        let mapped = s.mmap(BASE + PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0);
        mapped.map(drop).map_err(MmapError::errno)
    }),
    ("mmap with MAP_FIXED_NOREPLACE", |s| {
        let mapped = s.mmap(BASE + PAGE, PAGE, RW, ANON | MapFlags::FIXED_NOREPLACE, None, 0);
        mapped.map(drop).map_err(MmapError::errno)
    }),
    ("munmap", |s| s.munmap(BASE, RANGE).map_err(MunmapError::errno)),
    ("munmap of a larger range", |s| s.munmap(BASE - RANGE, 2 * RANGE).map_err(MunmapError::errno)),
    ("munmap, atomic", |s| s.munmap_atomic(BASE + PAGE, PAGE).map_err(MunmapError::errno)),
    ("mprotect", |s| s.mprotect(BASE, RANGE, R).map_err(MprotectError::errno)),
    ("advice", |s| s.madvise(BASE, RANGE, Advice::DontFork).map_err(|error| error.errno())),
    ("mremap to the range", |s| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        s.mremap(STACK + 3 * PAGE, PAGE, PAGE, flags, BASE).map(drop).map_err(MremapError::errno)
    }),
    ("stack growth", |s| match s.handle_fault(STACK - PAGE, Access::WRITE) {
        Err(FaultError::Killed) => Err(Errno::EINTR),
        _ => Err(Errno::EFAULT),
    }),
];

/// Unmaps `BASE..BASE + RANGE`, and runs `visit` on the unmapping thread while the range is closing. The
/// memory after the range has the flags `behind`.
fn while_closing(locking: Locking, behind: MapFlags, visit: impl FnOnce(&Space) + Send + 'static) {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), Config::default()).unwrap();
    let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
    let fixed = |addr, flags| space.mmap(addr, RANGE, RW, ANON | MapFlags::FIXED | flags, None, 0).unwrap();
    fixed(BASE, MapFlags::empty());
    fixed(STACK, behind);
    let mut cpu = machine.cpu(0);
    for page in 0..16 {
        let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
        cpu.store(space.mmu(), BASE + page * PAGE, page, fault).unwrap();
    }
    let inside = space.clone();
    gated.flush.put(move || visit(&inside));
    space.munmap(BASE, RANGE).unwrap();
    assert!(!gated.flush.is_waiting(), "{locking:?}: nothing was flushed");
    space.check();
    // A call that needs the range no longer waits.
    assert_eq!(space.mmap(BASE, RANGE, RW, ANON | MapFlags::FIXED, None, 0), Ok(BASE));
    space.check();
    drop((space, cpu, engine, gated));
    machine.accounting().assert_clean();
}

/// Returns the designs in which munmap releases the mmap lock early.
fn released() -> impl Iterator<Item = Locking> {
    Locking::ALL.into_iter().filter(|locking| locking.unmap == Unmap::Released)
}

#[test]
fn call_killed_waiting_for_a_munmap_changes_nothing() {
    for locking in released() {
        while_closing(locking, MapFlags::GROWSDOWN, |space| {
            let lines = || space.maps(0).map(|line| (line.start, line.end)).collect::<Vec<_>>();
            let before = lines();
            for (what, call) in NEEDING {
                assert_eq!(killed_in(|| call(space)), (Err(Errno::EINTR), true), "{what}");
                // The killed call holds no lock: a writer does not have to wait.
                assert_eq!(killed_in(|| space.write_killable().is_ok()), (true, false), "{what}");
                assert_eq!(lines(), before, "{what}");
            }
        });
    }
}

/// A call that does not need the closing range does not wait.
#[test]
fn calls_outside_a_closing_range_do_not_wait() {
    for locking in released() {
        while_closing(locking, MapFlags::empty(), |space| {
            assert!(space.find_vma(BASE).is_none());
            let hole = Err(FaultError::Segv { addr: BASE, code: SegvCode::Maperr });
            let calls = || {
                assert_eq!(space.handle_fault(BASE, Access::READ), hole);
                let near = space.mmap(BASE, PAGE, RW, ANON, None, 0).unwrap();
                assert!(!(BASE..BASE + RANGE).contains(&near), "placed where pages may still be mapped");
                space.munmap(near, PAGE).unwrap();
                space.mprotect(STACK + PAGE, PAGE, R).unwrap();
                let child = space.fork().unwrap();
                assert!(child.maps(0).all(|line| line.start >= STACK));
                child.check();
            };
            assert_eq!(killed_in(calls), ((), false));
        });
    }
}

/// The signal comes from another thread, and kills a thread that already sleeps.
#[test]
fn signal_kills_a_sleeping_mmap() {
    for locking in released() {
        while_closing(locking, MapFlags::empty(), |space| {
            let (sender, receiver) = channel();
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(move || {
                    sender.send(Task::current()).unwrap();
                    space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0)
                });
                let task = receiver.recv().unwrap();
                until(|| task.waits() > 0);
                task.kill();
                assert_eq!(sleeper.join().unwrap(), Err(MmapError::Killed));
            });
        });
    }
}

/// Calls that need the page at `BASE`. A VMA covers the address, but the page is missing.
const LOOKING: &[Needing] = &[
    ("a load", |s| match s.handle_fault(BASE, Access::READ) {
        Err(FaultError::Killed) => Err(Errno::EINTR),
        _ => Err(Errno::EFAULT),
    }),
    ("a reader", |s| {
        let read = s.read_memory(BASE, &mut [0; 8], AccessMode::Plain);
        read.map(drop).map_err(|error| error.errno())
    }),
    ("a debugger", |s| {
        let written = s.write_memory(BASE, &[1; 8], AccessMode::Forced);
        written.map(drop).map_err(|error| error.errno())
    }),
    ("populate", |s| s.madvise(BASE, PAGE, Advice::PopulateRead).map_err(|error| error.errno())),
    ("a pin", |s| s.pin_user_pages(BASE, 1, PinFlags::empty()).map(drop).map_err(|error| error.errno())),
];

/// Calls that need a page which is being migrated wait for the migration, and can be killed.
#[test]
fn call_is_killed_waiting_for_a_migrating_page() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        space.handle_fault(BASE, Access::WRITE).unwrap();
        let inside = space.clone();
        gated.flush.put(move || {
            for (what, call) in LOOKING {
                assert_eq!(killed_in(|| call(&inside)), (Err(Errno::EINTR), true), "{what}");
            }
        });
        engine.migrate(space.frame_at(BASE).unwrap()).unwrap();
        assert!(!gated.flush.is_waiting(), "{locking:?}");
        space.handle_fault(BASE, Access::READ).unwrap();
        space.check();
        drop((space, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// A disk that ends the read of its first page, and the removal of its last page, only on command.
struct Hangs {
    asked: Mutex<Sender<()>>,
    answers: Mutex<Receiver<()>>,
}

impl Hangs {
    /// Number of pages of the file.
    const PAGES: u64 = 4;

    fn hang(&self) {
        self.asked.lock().unwrap().send(()).unwrap();
        self.answers.lock().unwrap().recv().unwrap();
    }
}

impl Pager<Gated> for Hangs {
    fn read_page(&self, platform: &Gated, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        if index == PageIndex::ZERO {
            self.hang();
        }
        platform.zero_frame(frame);
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        if pages.end == PageIndex::new(Self::PAGES) {
            self.hang();
        }
    }
}

/// While the disk hangs in the read of a page, the calls that need this page wait for it, and can be killed.
/// While the disk hangs in the discard of a page that is part of the file again, the calls that need this page
/// wait for the discard.
#[test]
fn call_is_killed_waiting_for_a_file_on_a_hanging_disk() {
    for reads in [true, false] {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
        let ((asked, is_asked), (answer, answers)) = (channel(), channel());
        let disk = Hangs { asked: Mutex::new(asked), answers: Mutex::new(answers) };
        let mapping = Mapping::new(&engine, disk, Hangs::PAGES * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/slow").unwrap();
        let first = if reads { 0 } else { (Hangs::PAGES - 1) * PAGE };
        space.mmap(BASE, PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), first).unwrap();
        std::thread::scope(|scope| {
            match reads {
                true => scope.spawn(|| mapping.fill(PageIndex::ZERO).unwrap()),
                false => scope.spawn(|| mapping.truncate((Hangs::PAGES - 1) * PAGE).unwrap()),
            };
            is_asked.recv().unwrap();
            if !reads {
                mapping.truncate(Hangs::PAGES * PAGE).unwrap();
            }
            for (what, call) in LOOKING {
                assert_eq!(killed_in(|| call(&space)), (Err(Errno::EINTR), true), "{what}");
            }
            let read = killed_in(|| mapping.read_at(first, &mut [0; 8]));
            assert_eq!(read, (Err(FillError::Killed), true));
            answer.send(()).unwrap();
        });
        space.handle_fault(BASE, Access::READ).unwrap();
        space.check();
        drop((space, file, mapping, engine, gated));
        machine.accounting().assert_clean();
    }
}
