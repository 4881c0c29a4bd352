//! The calls that `oom.rs` makes while memory runs out, and that `killed.rs` makes while another task holds a
//! lock. An entry has a name, the call on a `Scene`, and the expectations that differ from the usual ones.
//! The methods of `Call` in `support/oom.rs` explain the expectations.
//!
//! `killed.rs` selects calls by their names. If an entry gets another name, the lists in `killed.rs` need
//! that name too.

use super::{
    scene::{Scene, at},
    support::oom::{self, EITHER, Left, NO_MEMORY, TRY_AGAIN, errno},
    *,
};
use freehold::{
    call::{Advice, LockAllFlags, LockFlags, RemapFlags},
    fault::FaultError,
    remote::AccessMode,
    vma::flags::VmFlags,
};

/// A call that is made on the scene of `scene.rs`.
pub type Call = oom::Call<Scene>;

const fn call(name: &'static str, run: fn(&mut Scene) -> Result<u64, Errno>) -> Call {
    Call::new("", name, run, NO_MEMORY)
}

fn map(scene: &Scene, page: u64, pages: u64, prot: Prot, flags: MapFlags) -> Result<u64, Errno> {
    let file = (!flags.contains(MapFlags::ANONYMOUS)).then_some(&scene.file);
    errno!(scene.process.mmap(at(page), pages * PAGE, prot, flags | MapFlags::FIXED, file, 0))
}

fn unmap(scene: &Scene, page: u64, pages: u64) -> Result<u64, Errno> {
    errno!(scene.process.munmap(at(page), pages * PAGE))
}

fn protect(scene: &Scene, page: u64, pages: u64, prot: Prot) -> Result<u64, Errno> {
    errno!(scene.process.mprotect(at(page), pages * PAGE, prot))
}

fn remap(scene: &Scene, from: u64, old: u64, new: u64, flags: RemapFlags, to: u64) -> Result<u64, Errno> {
    errno!(scene.process.mremap(at(from), old * PAGE, new * PAGE, flags, at(to)))
}

fn advise(scene: &Scene, page: u64, pages: u64, advice: Advice) -> Result<u64, Errno> {
    errno!(scene.process.madvise(at(page), pages * PAGE, advice))
}

/// Moves the break to `pages` pages from its initial position.
fn heap(scene: &Scene, pages: i64) -> Result<u64, Errno> {
    let start = <Process>::DEFAULT_BRK;
    let to = start.wrapping_add_signed((4 + pages) * PAGE as i64);
    let now = scene.process.brk(to).map_err(|_| Errno::EINTR)?;
    if now == to { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// Converts the result of an access: the value becomes 0, and the fault becomes the errno of a call.
fn fault<T>(result: Result<T, FaultError>) -> Result<u64, Errno> {
    result.map(|_| 0).map_err(|error| match error {
        FaultError::OutOfMemory => Errno::ENOMEM,
        FaultError::Killed => Errno::EINTR,
        _ => Errno::EFAULT,
    })
}

fn store(scene: &mut Scene, page: u64, value: u64) -> Result<u64, Errno> {
    fault(scene.process.store(&mut scene.cpu, at(page), value))
}

fn load(scene: &mut Scene, page: u64) -> Result<u64, Errno> {
    fault(scene.process.load::<u64>(&mut scene.cpu, at(page)))
}

/// Forks, and uses and drops the child.
fn fork(scene: &mut Scene) -> Result<u64, Errno> {
    let child = Process::of(scene.process.fork().map_err(|error| error.errno())?);
    child.check();
    assert_filled(&child, &mut scene.cpu, at(0), 12, 100);
    Ok(0)
}

fn vdso(scene: &Scene) -> Result<u64, Errno> {
    let flags = VmFlags::READ | VmFlags::MAYREAD;
    errno!(scene.process.install_special(at(4000), PAGE, flags, &scene.vdso))
}

fn lock(scene: &Scene, page: u64, pages: u64, flags: LockFlags) -> Result<u64, Errno> {
    errno!(scene.process.mlock2(at(page), pages * PAGE, flags))
}

fn lock_all(scene: &Scene, flags: LockAllFlags) -> Result<u64, Errno> {
    errno!(scene.process.mlockall(flags))
}

const FIXED: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const KEEP: RemapFlags = FIXED.union(RemapFlags::DONTUNMAP);
const SHM: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);

pub const CALLS: &[Call] = &[
    call("mmap", |s| map(s, 4000, 4, R, ANON)),
    call("mmap that joins a neighbour", |s| map(s, 20, 2, RW, ANON)).needs_nothing(),
    call("mmap over several VMAs", |s| map(s, 6, 34, RW, ANON)),
    call("mmap inside a VMA", |s| map(s, 2, 2, R, ANON)),
    call("mmap like the VMA around", |s| map(s, 2, 2, RW, ANON)),
    call("mmap of a file", |s| map(s, 4000, 4, RW, MapFlags::PRIVATE)),
    call("mmap of a file over another", |s| map(s, 2001, 5, RW, MapFlags::SHARED)),
    call("mmap of shared memory", |s| map(s, 4000, 4, RW, SHM)),
    // Pages that cannot be populated are faulted in later.
    call("mmap with pages", |s| map(s, 4000, 4, RW, ANON | MapFlags::POPULATE)),
    call("mmap, locked", |s| map(s, 4000, 4, RW, ANON | MapFlags::LOCKED)),
    call("munmap of a VMA", |s| unmap(s, 16, 4)).needs_nothing(),
    call("munmap inside a VMA", |s| unmap(s, 2, 2)),
    call("munmap of many VMAs", |s| unmap(s, 1, 44)),
    call("munmap over several tables", |s| unmap(s, 601, 622)),
    call("munmap inside a file", |s| unmap(s, 2005, 2)),
    call("munmap, atomic", |s| errno!(s.process.munmap_atomic(at(601), 622 * PAGE))),
    call("mprotect inside a VMA", |s| protect(s, 2, 2, R)),
    call("mprotect that joins two VMAs", |s| protect(s, 8, 4, RW)).needs_nothing(),
    call("mprotect that moves a border", |s| protect(s, 8, 2, RW)).needs_nothing(),
    call("mprotect of many VMAs", |s| protect(s, 32, 16, Prot::empty())).needs_nothing(),
    call("mprotect of many parts", |s| protect(s, 4, 7, Prot::EXEC)).changes(Left::Layout),
    call("mprotect of a part of a file", |s| protect(s, 2002, 4, R)).changes(Left::Layout),
    call("mprotect that opens locked memory", |s| protect(s, 2201, 2, R)),
    call("mremap in place", |s| remap(s, 16, 4, 6, RemapFlags::empty(), 0)).needs_nothing(),
    call("mremap that grows and moves", |s| remap(s, 33, 1, 4, FIXED, 4000)),
    call("mremap within a table", |s| remap(s, 2, 4, 4, FIXED, 4000)),
    call("mremap of whole tables", |s| remap(s, 600, 624, 624, FIXED, 8792)),
    call("mremap over something", |s| remap(s, 2, 4, 4, FIXED, 698)).changes(Left::Anything),
    call("mremap that leaves its source", |s| remap(s, 2, 4, 4, KEEP, 4000)),
    call("mremap of a file", |s| remap(s, 2001, 2, 2, FIXED, 4001)),
    call("mremap of many VMAs", |s| remap(s, 32, 16, 16, FIXED, 4000))
        .changes(Left::Anything)
        .once()
        .looks(Scene::lost_by_a_move),
    call("mremap that shrinks", |s| remap(s, 600, 624, 100, RemapFlags::empty(), 0)),
    call("mremap that shrinks inside", |s| remap(s, 600, 500, 100, RemapFlags::empty(), 0)),
    call("DONTFORK", |s| advise(s, 2, 2, Advice::DontFork)).errnos(TRY_AGAIN),
    call("SEQUENTIAL of two parts", |s| advise(s, 4, 7, Advice::Sequential))
        .errnos(TRY_AGAIN)
        .changes(Left::Layout),
    call("DONTNEED", |s| advise(s, 0, 12, Advice::DontNeed)).needs_nothing(),
    call("guards where there are pages", |s| advise(s, 700, 400, Advice::GuardInstall)).needs_nothing(),
    call("guards", |s| advise(s, 5000, 1200, Advice::GuardInstall)).changes(Left::Anything),
    call("guards taken away", |s| advise(s, 2, 2, Advice::GuardRemove)).needs_nothing(),
    call("POPULATE_WRITE", |s| advise(s, 700, 40, Advice::PopulateWrite)),
    call("POPULATE_READ", |s| advise(s, 2000, 8, Advice::PopulateRead)),
    // Failures of hints are not reported.
    call("WILLNEED", |s| advise(s, 2000, 8, Advice::WillNeed)),
    call("REMOVE", |s| advise(s, 2004, 2, Advice::Remove)).needs_nothing(),
    call("mlock", |s| lock(s, 2, 2, LockFlags::empty())),
    call("mlock of what has no pages", |s| lock(s, 701, 4, LockFlags::empty()))
        .errnos(EITHER)
        .changes(Left::Layout),
    call("mlock on fault", |s| lock(s, 2, 8, LockFlags::ONFAULT)).changes(Left::Layout),
    call("munlock", |s| errno!(s.process.munlock(at(2201), PAGE))),
    call("mlockall", |s| lock_all(s, LockAllFlags::CURRENT.union(LockAllFlags::FUTURE))),
    call("munlockall", |s| errno!(s.process.munlockall())).needs_nothing(),
    call("mseal", |s| errno!(s.process.mseal(at(2), 2 * PAGE, 0))),
    call("mbind", |s| errno!(s.process.set_policy(at(2), 2 * PAGE, 7))),
    call("brk, up", |s| heap(s, 2)).needs_nothing(),
    call("brk, down", |s| heap(s, -2)),
    call("brk, all the way down", |s| heap(s, -4)).needs_nothing(),
    call("a store to fresh memory", |s| store(s, 1000, 5)),
    call("a load of fresh memory", |s| load(s, 5 + 1024)).needs_nothing(),
    call("a store to a private file", |s| store(s, 2002, 5)),
    call("a store to a shared file", |s| store(s, 2006, 5)),
    call("a store to shared memory", |s| store(s, 2103, 5)),
    call("a load of a file", |s| load(s, 2003)),
    // The stack grows, and then no frame is available. Linux behaves the same.
    call("a store that grows a stack", |s| store(s, 2997, 5)).changes(Left::Layout),
    call("a store to a page that a child has too", |s| store(s, 3, 5)).forked(),
    call("a debugger's write", |s| errno!(s.process.write_memory(at(9), &[1; 8], AccessMode::Forced)))
        .forked(),
    call("fork", fork),
    call("fork of a child's pages", fork).forked(),
    call("a special mapping", |s| vdso(s)),
];
