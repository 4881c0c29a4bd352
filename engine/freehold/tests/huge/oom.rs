//! Memory runs out where huge pages come, are split, and are shared (C-10, C-47, C-64): every allocation of
//! every call fails once, alone or with all that follow.
//!
//! Either the call fails, then everything is as it was and the same call succeeds afterwards; or it does with
//! small pages.

use super::{
    support::failure::{Failure, Point, try_at_every_allocation, use_up_frames, use_up_vmas},
    *,
};
use freehold::{
    call::{LockFlags, RemapFlags},
    error::Errno,
    fault::FaultError,
    remote::AccessMode,
    space::{Unmap, Write},
};

/// Where moves go to: as far as no number of huge pages.
const TARGET: u64 = BASE + 16 * HUGE;

/// Four huge pages: written, zeroes, nothing, written. A child may share them.
struct Scene {
    world: World,
    process: Process,
    cpu: Vcpu,
    child: Option<Process>,
    hog: Process,
}

type Contents = Vec<(u64, Result<u64, FaultError>)>;

/// What a program sees: contents, and how much is mapped and locked.
#[derive(Debug, PartialEq)]
struct State {
    contents: Contents,
    child: Contents,
    total: u64,
    locked: u64,
}

fn contents(process: &Process, cpu: &mut Vcpu) -> Contents {
    let pages = |at: u64| (0..5).flat_map(move |huge| SAMPLE.map(|page| at + huge * HUGE + page * PAGE));
    pages(BASE).chain(pages(TARGET)).map(|at| ((at - BASE) / PAGE, process.load(cpu, at))).collect()
}

impl Scene {
    fn new(locking: Locking, forked: bool) -> Self {
        let world = world(HugePages::Always);
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        map(&process, BASE, 4);
        write_sample(&process, &mut cpu, BASE, 1);
        assert_eq!(process.load::<u64>(&mut cpu, BASE + HUGE), Ok(0));
        write_sample(&process, &mut cpu, BASE + 3 * HUGE, 3);
        let child = forked.then(|| Process::of(process.fork().unwrap()));
        let hog = world.process(locking);
        use_up_frames(&world, &hog, &mut cpu, BASE, 0);
        let live = process.counts().map_count + child.as_ref().map_or(0, |child| child.counts().map_count);
        use_up_vmas(&hog, live, BASE + HUGE, 0);
        Scene { world, process, cpu, child, hog }
    }

    fn state(&mut self) -> State {
        let counts = self.process.counts();
        State {
            contents: contents(&self.process, &mut self.cpu),
            child: self.child.as_ref().map_or(Vec::new(), |child| contents(child, &mut self.cpu)),
            total: counts.total_vm,
            locked: counts.locked_vm,
        }
    }

    fn check(&self) {
        assert!(self.process.try_read().is_some(), "a lock is still held");
        self.process.check();
        self.child.iter().for_each(|child| child.check());
    }

    fn end(self) {
        self.check();
        let Scene { world, process, cpu, child, hog } = self;
        drop((process, child, hog, cpu));
        world.end();
    }
}

struct Call {
    name: &'static str,
    run: fn(&mut Scene) -> Result<(), Errno>,
    /// A child shares the pages.
    forked: bool,
    /// It needs memory at all.
    allocates: bool,
    /// It asks for some that it can do without.
    asks: bool,
    /// Pages may be gone when it fails.
    discards: bool,
}

const fn call(name: &'static str, run: fn(&mut Scene) -> Result<(), Errno>) -> Call {
    Call { name, run, forked: false, allocates: true, asks: false, discards: false }
}

impl Call {
    const fn forked(self) -> Self {
        Call { forked: true, ..self }
    }

    const fn needs_nothing(self) -> Self {
        Call { allocates: false, ..self }
    }

    const fn asks(self) -> Self {
        Call { asks: true, ..self }
    }

    const fn discards(self) -> Self {
        Call { discards: true, ..self }
    }
}

fn signal(error: FaultError) -> Errno {
    if error == FaultError::OutOfMemory { Errno::ENOMEM } else { Errno::EFAULT }
}

fn store(s: &mut Scene, page: u64) -> Result<(), Errno> {
    s.process.store(&mut s.cpu, BASE + page * PAGE, 77u64).map_err(signal)
}

fn load(s: &mut Scene, page: u64) -> Result<(), Errno> {
    s.process.load::<u64>(&mut s.cpu, BASE + page * PAGE).map(drop).map_err(signal)
}

fn unmap(s: &Scene, first: u64, pages: u64) -> Result<(), Errno> {
    s.process.munmap(BASE + first * PAGE, pages * PAGE).map_err(|error| error.errno())
}

fn protect(s: &Scene, first: u64, pages: u64) -> Result<(), Errno> {
    s.process.mprotect(BASE + first * PAGE, pages * PAGE, R).map_err(|error| error.errno())
}

fn remap(s: &Scene, (first, pages): (u64, u64), to: u64, more: RemapFlags) -> Result<(), Errno> {
    let (from, len, flags) =
        (BASE + first * PAGE, pages * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED | more);
    s.process.mremap(from, len, len, flags, TARGET + to * PAGE).map(drop).map_err(|error| error.errno())
}

fn advise(s: &Scene, first: u64, pages: u64, advice: Advice) -> Result<(), Errno> {
    s.process.madvise(BASE + first * PAGE, pages * PAGE, advice).map_err(|error| error.errno())
}

/// The child of the call dies at once, but not before it was looked at.
fn fork(s: &mut Scene) -> Result<(), Errno> {
    let child = Process::of(s.process.fork().map_err(|error| error.errno())?);
    assert_sample(&child, &mut s.cpu, BASE, 1, all);
    assert_sample(&child, &mut s.cpu, BASE + 3 * HUGE, 3, all);
    child.check();
    Ok(())
}

fn replace(s: &Scene, first: u64, pages: u64) -> Result<(), Errno> {
    let flags = ANON | MapFlags::FIXED;
    let mapped = s.process.mmap(BASE + first * PAGE, pages * PAGE, R, flags, None, 0);
    mapped.map(drop).map_err(|error| error.errno())
}

const KEEP: RemapFlags = RemapFlags::DONTUNMAP;
const NONE: RemapFlags = RemapFlags::empty();

const CALLS: &[Call] = &[
    call("a store to nothing", |s| store(s, 1024)),
    call("a load of nothing", |s| load(s, 1124)),
    call("a store to zeroes", |s| store(s, 612)),
    call("a store to zeroes that a child has", |s| store(s, 612)).forked(),
    call("a store to what a child has", |s| store(s, 100)).forked(),
    call("a debugger's write", |s| {
        let wrote = s.process.write_memory(BASE + 100 * PAGE, &[1; 8], AccessMode::Forced);
        wrote.map(drop).map_err(|error| error.errno())
    })
    .forked(),
    call("munmap of the front", |s| unmap(s, 0, 100)),
    call("munmap of the middle", |s| unmap(s, 100, 156)),
    call("munmap from one into another", |s| unmap(s, 256, 3 * PAGES)),
    call("munmap of what a child has", |s| unmap(s, 100, 1)).forked(),
    call("munmap of all", |s| unmap(s, 0, 4 * PAGES)).needs_nothing().asks(),
    call("mmap over the middle", |s| replace(s, 100, 156)),
    call("mmap from one into another", |s| replace(s, 256, 3 * PAGES)),
    call("mprotect of the back", |s| protect(s, 3 * PAGES + 411, 101)),
    call("mprotect of the middle", |s| protect(s, 100, 156)),
    call("mprotect of zeroes", |s| protect(s, PAGES + 100, 156)),
    call("mprotect of whole ones", |s| protect(s, 0, 4 * PAGES)).needs_nothing(),
    call("mremap of a part", |s| remap(s, (100, 156), 300, NONE)),
    call("mremap of zeroes", |s| remap(s, (612, 10), 5, NONE)),
    call("mremap of whole ones", |s| remap(s, (0, 4 * PAGES), 0, NONE)),
    call("mremap of whole ones by a page", |s| remap(s, (0, 4 * PAGES), 1, NONE)),
    call("mremap of what a child has", |s| remap(s, (0, 4 * PAGES), 300, NONE)).forked(),
    call("mremap that leaves its source", |s| remap(s, (100, 3 * PAGES), 7, KEEP)),
    call("fork", fork),
    call("fork of a child's pages", fork).forked(),
    call("DONTNEED of a part", |s| advise(s, 100, 156, Advice::DontNeed)).needs_nothing(),
    call("DONTNEED of all", |s| advise(s, 0, 4 * PAGES, Advice::DontNeed)).needs_nothing().asks(),
    call("DONTNEED of a child's pages", |s| advise(s, 100, 156, Advice::DontNeed)).forked().needs_nothing(),
    call("DONTNEED of a part of each", |s| {
        [0, 1, 3].into_iter().try_for_each(|huge| advise(s, huge * PAGES + 100, 156, Advice::DontNeed))
    })
    .needs_nothing(),
    call("DONTNEED of parts by the child", |s| {
        let child = s.child.as_ref().expect("it has a child");
        let advise = |huge| child.madvise(BASE + huge * HUGE + 100 * PAGE, PAGE, Advice::DontNeed);
        [0, 1, 3].into_iter().try_for_each(advise).map_err(|error| error.errno())
    })
    .forked()
    .needs_nothing(),
    call("DONTFORK of a part", |s| advise(s, 100, 156, Advice::DontFork)),
    call("guards in a part", |s| advise(s, 100, 156, Advice::GuardInstall)).needs_nothing(),
    call("guards everywhere", |s| advise(s, 0, 4 * PAGES, Advice::GuardInstall)).discards(),
    call("POPULATE_WRITE", |s| advise(s, PAGES, 2 * PAGES, Advice::PopulateWrite)),
    call("POPULATE_READ", |s| advise(s, 0, 4 * PAGES, Advice::PopulateRead)),
    call("mlock of a part", |s| {
        let locked = s.process.mlock2(BASE + 100 * PAGE, 156 * PAGE, LockFlags::ONFAULT);
        locked.map_err(|error| error.errno())
    }),
];

/// Each munmap, and both ways to keep changes apart.
fn designs() -> [Locking; 5] {
    let [mmap_lock, .., ranges, _] = Locking::ALL;
    let whole = Locking { write: Write::Whole, ..ranges };
    [
        mmap_lock,
        Locking { unmap: Unmap::Sectioned { bytes: 4 * HUGE }, ..whole },
        Locking { unmap: Unmap::Downgraded, ..ranges },
        whole,
        ranges,
    ]
}

/// Makes the call with one failure.
///
/// # Errors
///
/// What is not as it should be.
fn with_failure(
    call: &Call,
    locking: Locking,
    point: &Point,
    (untouched, done): (&State, &State),
) -> Result<(), String> {
    let what = |how: &str| Err(format!("{}, {locking:?}, {point}: {how}", call.name));
    let mut scene = Scene::new(locking, call.forked);
    let result = point.fail(|| (call.run)(&mut scene));
    scene.check();
    if let Err(errno) = result {
        if !point.reached() || !call.allocates || !matches!(errno, Errno::ENOMEM | Errno::EAGAIN) {
            return what(&format!("ended with {errno:?}"));
        }
        if !call.discards && scene.state() != *untouched {
            return what("something changed");
        }
        if let Err(errno) = (call.run)(&mut scene) {
            return what(&format!("again, ended with {errno:?}"));
        }
    }
    // At the second attempt, or at the first, because what failed could be done without.
    let state = scene.state();
    scene.end();
    if state == *done { Ok(()) } else { what("does not end as it should") }
}

fn every_failure_of(call: &Call, locking: Locking) -> Result<(), String> {
    let state = |run: bool| {
        let mut scene = Scene::new(locking, call.forked);
        if run {
            assert_eq!((call.run)(&mut scene), Ok(()), "{}: without any failure", call.name);
        }
        let state = scene.state();
        scene.end();
        state
    };
    let (untouched, done) = (state(false), state(true));
    let failures = try_at_every_allocation(&Failure::ALL, |point| {
        with_failure(call, locking, point, (&untouched, &done))
    })?;
    // A change of a part looks for memory for its claim, and does without.
    let may_ask = !call.allocates && locking.write == Write::RangesOnly;
    match (failures > 0) == (call.allocates || call.asks) || may_ask {
        true => Ok(()),
        false => Err(format!("{}, {locking:?}: {failures} failures", call.name)),
    }
}

/// C-10, C-47, C-64.
#[test]
fn every_failure_leaves_huge_pages_as_they_were() {
    let mut wrong = Vec::new();
    for (number, call) in CALLS.iter().enumerate() {
        // In a quick run each call has one design, by turns.
        let turn = [designs()[number % designs().len()]];
        for &locking in Effort::of(&turn[..], &designs(), &designs()) {
            wrong.extend(every_failure_of(call, locking).err());
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
