//! Memory runs out while huge pages are allocated, split and shared (C-10, C-47, C-64). `support/oom.rs`
//! lists the injected failures and the required state afterwards. A call may succeed without memory for huge
//! pages by using small pages.
//!
//! `CALLS` lists the calls, and `Scene` has the memory on which each call is made. A new call that may split
//! or allocate a huge page is one more entry of `CALLS`.

use super::{
    support::{
        oom::{self, EITHER, Left, errno, every_failure_of_each},
        scarce::ScarceWorld,
        view::View,
    },
    *,
};
use freehold::{
    call::{LockFlags, RemapFlags},
    error::Errno,
    fault::FaultError,
    remote::AccessMode,
    space::{Unmap, Write},
};

/// Target of moves: a whole number of huge pages away from the source.
const TARGET: u64 = BASE + 16 * HUGE;

/// Four blocks: a written huge page, the huge zero page, an unpopulated block, and a written huge page. A
/// child may share them.
struct Scene {
    scarce: ScarceWorld,
    /// Name of the call.
    doing: &'static str,
    process: Process,
    cpu: Vcpu,
    child: Option<Process>,
}

fn stage() -> ScarceWorld {
    let mut scarce = ScarceWorld::new(world(HugePages::Always));
    // The engine keeps its huge zero page once it is allocated.
    map(&scarce.hog, BASE, 1);
    assert_eq!(scarce.hog.load::<u64>(&mut scarce.cpu, BASE), Ok(0));
    scarce.hog.munmap(BASE, HUGE).unwrap();
    scarce.note_use();
    scarce
}

impl oom::Scene for Scene {
    type Stage = ScarceWorld;

    fn new(scarce: ScarceWorld, call: &Call, locking: Locking) -> Self {
        let mut scarce = if scarce.is_worn() {
            scarce.end();
            stage()
        } else {
            scarce
        };
        let process = scarce.world.process(locking);
        let mut cpu = scarce.world.machine.cpu(0);
        map(&process, BASE, 4);
        write_sample(&process, &mut cpu, BASE, 1);
        assert_eq!(process.load::<u64>(&mut cpu, BASE + HUGE), Ok(0));
        write_sample(&process, &mut cpu, BASE + 3 * HUGE, 3);
        let child = call.forked.then(|| Process::of(process.fork().unwrap()));
        scarce.use_up(0);
        Scene { scarce, doing: call.name, process, cpu, child }
    }

    fn check(&self) {
        oom::check(&self.process, self.child.as_ref());
    }

    fn view(&mut self) -> View {
        let pages = |at: u64| (0..5).flat_map(move |huge| SAMPLE.map(|page| at + huge * HUGE + page * PAGE));
        let places = pages(BASE).chain(pages(TARGET));
        View::new(&self.scarce.world.machine, &mut self.cpu, &self.process, self.child.as_ref(), places)
    }

    fn end(self) -> ScarceWorld {
        self.check();
        let Scene { scarce, doing, process, cpu, child } = self;
        drop((process, child, cpu));
        scarce.check_that_all_is_back(false, || doing.to_owned());
        scarce
    }
}

/// A call that is made on a [`Scene`].
type Call = oom::Call<Scene>;

const fn call(name: &'static str, run: fn(&mut Scene) -> Result<u64, Errno>) -> Call {
    Call::new("", name, run, EITHER)
}

fn signal(error: FaultError) -> Errno {
    if error == FaultError::OutOfMemory { Errno::ENOMEM } else { Errno::EFAULT }
}

fn store(s: &mut Scene, page: u64) -> Result<u64, Errno> {
    s.process.store(&mut s.cpu, BASE + page * PAGE, 77u64).map(|_| 0).map_err(signal)
}

fn load(s: &mut Scene, page: u64) -> Result<u64, Errno> {
    s.process.load::<u64>(&mut s.cpu, BASE + page * PAGE).map(|_| 0).map_err(signal)
}

fn unmap(s: &Scene, first: u64, pages: u64) -> Result<u64, Errno> {
    errno!(s.process.munmap(BASE + first * PAGE, pages * PAGE))
}

fn protect(s: &Scene, first: u64, pages: u64) -> Result<u64, Errno> {
    errno!(s.process.mprotect(BASE + first * PAGE, pages * PAGE, R))
}

fn remap(s: &Scene, (first, pages): (u64, u64), to: u64, more: RemapFlags) -> Result<u64, Errno> {
    let (from, len, flags) =
        (BASE + first * PAGE, pages * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED | more);
    errno!(s.process.mremap(from, len, len, flags, TARGET + to * PAGE))
}

fn advise(s: &Scene, first: u64, pages: u64, advice: Advice) -> Result<u64, Errno> {
    errno!(s.process.madvise(BASE + first * PAGE, pages * PAGE, advice))
}

/// Forks. The child is checked and then dropped.
fn fork(s: &mut Scene) -> Result<u64, Errno> {
    let child = Process::of(s.process.fork().map_err(|error| error.errno())?);
    assert_sample(&child, &mut s.cpu, BASE, 1, all);
    assert_sample(&child, &mut s.cpu, BASE + 3 * HUGE, 3, all);
    child.check();
    Ok(0)
}

fn replace(s: &Scene, first: u64, pages: u64) -> Result<u64, Errno> {
    let flags = ANON | MapFlags::FIXED;
    errno!(s.process.mmap(BASE + first * PAGE, pages * PAGE, R, flags, None, 0))
}

const KEEP: RemapFlags = RemapFlags::DONTUNMAP;
const NONE: RemapFlags = RemapFlags::empty();

const CALLS: &[Call] = &[
    call("a store to unpopulated memory", |s| store(s, 1024)),
    call("a load of unpopulated memory", |s| load(s, 1124)),
    call("a store to the zero page", |s| store(s, 612)),
    call("a store to the zero page after a fork", |s| store(s, 612)).forked(),
    call("a store to a page shared with a child", |s| store(s, 100)).forked(),
    call("a debugger's write", |s| {
        errno!(s.process.write_memory(BASE + 100 * PAGE, &[1; 8], AccessMode::Forced))
    })
    .forked(),
    call("munmap of the front", |s| unmap(s, 0, 100)),
    call("munmap of the middle", |s| unmap(s, 100, 156)),
    call("munmap across several huge pages", |s| unmap(s, 256, 3 * PAGES)),
    call("munmap of a page shared with a child", |s| unmap(s, 100, 1)).forked(),
    call("munmap of all", |s| unmap(s, 0, 4 * PAGES)).needs_nothing().asks(),
    call("mmap over the middle", |s| replace(s, 100, 156)),
    call("mmap across several huge pages", |s| replace(s, 256, 3 * PAGES)),
    call("mprotect of the back", |s| protect(s, 3 * PAGES + 411, 101)),
    call("mprotect of the middle", |s| protect(s, 100, 156)),
    call("mprotect of the zero page", |s| protect(s, PAGES + 100, 156)),
    call("mprotect of whole huge pages", |s| protect(s, 0, 4 * PAGES)).needs_nothing(),
    call("mremap of a part", |s| remap(s, (100, 156), 300, NONE)),
    call("mremap of the zero page", |s| remap(s, (612, 10), 5, NONE)),
    call("mremap of whole huge pages", |s| remap(s, (0, 4 * PAGES), 0, NONE)),
    call("mremap of whole huge pages by a page", |s| remap(s, (0, 4 * PAGES), 1, NONE)),
    call("mremap of pages shared with a child", |s| remap(s, (0, 4 * PAGES), 300, NONE)).forked(),
    call("mremap that keeps its source", |s| remap(s, (100, 3 * PAGES), 7, KEEP)),
    call("fork", fork),
    call("fork of a child's pages", fork).forked(),
    call("DONTNEED of a part", |s| advise(s, 100, 156, Advice::DontNeed)).needs_nothing(),
    call("DONTNEED of all", |s| advise(s, 0, 4 * PAGES, Advice::DontNeed)).needs_nothing().asks(),
    call("DONTNEED of a child's pages", |s| advise(s, 100, 156, Advice::DontNeed)).forked().needs_nothing(),
    call("DONTNEED of a part of each", |s| {
        [0, 1, 3]
            .into_iter()
            .try_for_each(|huge| advise(s, huge * PAGES + 100, 156, Advice::DontNeed).map(drop))?;
        Ok(0)
    })
    .needs_nothing(),
    call("DONTNEED of parts by the child", |s| {
        let child = s.child.as_ref().expect("it has a child");
        let advise = |huge| child.madvise(BASE + huge * HUGE + 100 * PAGE, PAGE, Advice::DontNeed);
        errno!([0, 1, 3].into_iter().try_for_each(advise))
    })
    .forked()
    .needs_nothing(),
    call("DONTFORK of a part", |s| advise(s, 100, 156, Advice::DontFork)),
    call("guards in a part", |s| advise(s, 100, 156, Advice::GuardInstall)).needs_nothing(),
    call("guards everywhere", |s| advise(s, 0, 4 * PAGES, Advice::GuardInstall)).changes(Left::Anything),
    call("POPULATE_WRITE", |s| advise(s, PAGES, 2 * PAGES, Advice::PopulateWrite)),
    call("POPULATE_READ", |s| advise(s, 0, 4 * PAGES, Advice::PopulateRead)),
    call("mlock of a part", |s| errno!(s.process.mlock2(BASE + 100 * PAGE, 156 * PAGE, LockFlags::ONFAULT))),
];

/// Designs to test: each kind of munmap, and both values of `write`.
fn designs() -> [Locking; 5] {
    let [mmap_lock, .., ranges, _] = Locking::ALL;
    let whole = ranges.write(Write::Whole);
    [
        mmap_lock,
        whole.unmap(Unmap::Sectioned { bytes: 4 * HUGE }),
        ranges.unmap(Unmap::Downgraded),
        whole,
        ranges,
    ]
}

/// C-10, C-47, C-64.
#[test]
fn c10_failed_allocation_leaves_huge_pages_unchanged() {
    every_failure_of_each(CALLS, designs(), &[0], |_| stage(), ScarceWorld::end);
}
