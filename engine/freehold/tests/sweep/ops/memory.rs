//! Operations of the sweep that change mappings or access memory: system calls, faults, remote access and
//! pins.
//!
//! Each entry of `OPS` names the public method and the arguments, and makes the call on a scene. It returns
//! the error of the call as an [`Errno`], so that the harness can check whether the error is allowed.
//! `complete.rs` fails if a public method has no entry here or in a neighbouring file.

use super::{Left, Op, done, errno, made, op, signal};
use crate::sweep::{scene::Scene, stage::HOG, *};
use freehold::{
    call::{LockAllFlags, LockFlags, RemapFlags, ShmFlags, SpecialPart},
    error::Errno,
    fault::Access,
    platform::PkeyRights,
    remote::{AccessMode, IoVec, PinFlags},
    space::Arguments,
    vma::flags::VmFlags,
};

const FIXED: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const KEEP: RemapFlags = FIXED.union(RemapFlags::DONTUNMAP);
const SHM: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);
const HUGETLB: MapFlags = MapFlags::HUGETLB;

/// Maps `units` units at an address.
fn map(s: &Scene, at: u64, units: u64, flags: MapFlags) -> Result<u64, Errno> {
    let file = (!flags.contains(MapFlags::ANONYMOUS)).then_some(&s.file);
    s.process.mmap(at, units * s.unit, RW, flags | MapFlags::FIXED, file, 0).map_err(|error| error.errno())
}

fn unmap(s: &Scene, unit: u64, units: u64) -> Result<u64, Errno> {
    errno!(s.process.munmap(s.at(unit), units * s.unit))
}

fn protect(s: &Scene, unit: u64, units: u64, prot: Prot) -> Result<u64, Errno> {
    errno!(s.process.mprotect(s.at(unit), units * s.unit, prot))
}

fn remap(s: &Scene, from: (u64, u64), units: u64, flags: RemapFlags, to: u64) -> Result<u64, Errno> {
    let moved = s.process.mremap(s.at(from.0), from.1 * s.unit, units * s.unit, flags, to);
    moved.map_err(|error| error.errno())
}

fn lock(s: &Scene, flags: LockFlags) -> Result<u64, Errno> {
    errno!(s.process.mlock2(s.at(2), 4 * s.unit, flags))
}

/// Moves the break by `pages` pages.
fn brk(s: &Scene, pages: i64) -> Result<u64, Errno> {
    let to = s.process.brk(0).unwrap().wrapping_add_signed(pages * PAGE as i64);
    match s.process.brk(to) {
        Ok(now) if now == to => Ok(0),
        _ => Err(Errno::ENOMEM),
    }
}

fn fork(s: &mut Scene) -> Result<u64, Errno> {
    let child = Process::of(s.process.fork().map_err(|error| error.errno())?);
    child.check();
    Ok(0)
}

fn pin(s: &Scene, flags: PinFlags) -> Result<u64, Errno> {
    let pins = s.process.pin_user_pages(s.at(1), 2, flags).map_err(|error| error.errno())?;
    let mut word = [0; 8];
    pins.read(0, &mut word).map_err(|error| error.errno())?;
    // Writes back the same word, to check that a pin that fails later has changed nothing.
    let _ = pins.write(0, &word);
    let all = pins.len() == 2 && !pins.is_empty() && pins.frames().len() == 2;
    pins.unpin_dirty();
    if all { Ok(2) } else { Err(Errno::ENOMEM) }
}

fn parts(s: &Scene) -> [IoVec; 2] {
    [IoVec { base: s.at(0), len: 16 }, IoVec { base: s.at(5), len: 16 }]
}

/// Converts the result of a transfer. A short count means that memory ran out.
fn transferred(result: Result<usize, freehold::error::AccessError>, all: usize) -> Result<u64, Errno> {
    match result {
        Ok(done) if done < all => Err(Errno::ENOMEM),
        other => other.map(|done| done as u64).map_err(|error| error.errno()),
    }
}

pub const OPS: &[Op] = &[
    op("AddressSpace::mmap", "mmap", |s| map(s, s.far(0), 4, ANON)),
    op("AddressSpace::mmap", "mmap after the memory", |s| map(s, s.at(8), 2, ANON)),
    op("AddressSpace::mmap", "mmap inside", |s| map(s, s.at(2), 3, ANON)),
    op("AddressSpace::mmap", "mmap over all", |s| map(s, s.at(0), 8, ANON)),
    op("AddressSpace::mmap", "mmap of the file", |s| map(s, s.far(0), 4, MapFlags::PRIVATE)),
    op("AddressSpace::mmap", "mmap of the file, shared, inside", |s| map(s, s.at(2), 3, MapFlags::SHARED)),
    op("AddressSpace::mmap", "mmap of shared memory", |s| map(s, s.far(0), 4, SHM)),
    op("AddressSpace::mmap", "mmap of huge pages", |s| map(s, s.far(0), 2, ANON | HUGETLB)),
    op("AddressSpace::mmap", "mmap of huge pages, shared, inside", |s| map(s, s.at(2), 2, SHM | HUGETLB)),
    op("AddressSpace::mmap", "mmap with pages", |s| map(s, s.far(0), 4, ANON | MapFlags::POPULATE)),
    op("AddressSpace::mmap", "mmap, locked", |s| map(s, s.far(0), 4, ANON | MapFlags::LOCKED)),
    op("AddressSpace::mmap", "mmap of a stack", |s| map(s, s.far(0), 4, ANON | MapFlags::GROWSDOWN)),
    op("AddressSpace::mmap", "mmap of a device", |s| {
        s.board.driver_mode().whole = None;
        errno!(s.process.mmap(
            s.far(0),
            4 * PAGE,
            RW,
            MapFlags::SHARED | MapFlags::FIXED,
            Some(&s.device),
            PAGE
        ))
    }),
    // The driver maps its frames after the replaced mapping was unmapped. As on Linux, a failure leaves a
    // hole.
    op("AddressSpace::mmap", "mmap of a device, whole, inside", |s| {
        s.board.driver_mode().whole = Some(u64::MAX);
        errno!(s.process.mmap(s.at(2), PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&s.device), 0))
    })
    .leaves(Left::Anything),
    op("AddressSpace::munmap", "munmap inside", |s| unmap(s, 2, 3)),
    op("AddressSpace::munmap", "munmap of the start", |s| unmap(s, 0, 3)),
    op("AddressSpace::munmap", "munmap of all", |s| unmap(s, 0, 8)),
    op("AddressSpace::munmap_atomic", "munmap, atomic", |s| {
        errno!(s.process.munmap_atomic(s.at(2), 3 * s.unit))
    }),
    op("AddressSpace::mprotect", "mprotect inside", |s| protect(s, 2, 3, R)).leaves(Left::Layout),
    op("AddressSpace::mprotect", "mprotect of all", |s| protect(s, 0, 8, Prot::empty()))
        .needs_nothing()
        .leaves(Left::Layout),
    op("AddressSpace::mprotect", "mprotect to read and write", |s| protect(s, 1, 4, RW)).leaves(Left::Layout),
    op("AddressSpace::pkey_mprotect", "pkey_mprotect", |s| {
        errno!(s.process.pkey_mprotect(s.at(3), s.unit, R, 0))
    })
    .leaves(Left::Layout),
    op("AddressSpace::pkey_alloc", "pkey_alloc", |s| errno!(s.process.pkey_alloc(PkeyRights::empty())))
        .needs_nothing(),
    op("AddressSpace::pkey_free", "pkey_free", |s| errno!(s.process.pkey_free(1))).needs_nothing(),
    op("AddressSpace::mremap", "mremap in place", |s| remap(s, (0, 8), 10, RemapFlags::empty(), 0)),
    op("AddressSpace::mremap", "mremap that moves a part", |s| remap(s, (2, 3), 3, FIXED, s.far(0))),
    op("AddressSpace::mremap", "mremap that moves all", |s| remap(s, (0, 8), 8, FIXED, s.far(0)))
        // If the range has several VMAs, the VMAs before the failing VMA have moved.
        .leaves(Left::Anything)
        .once(),
    op("AddressSpace::mremap", "mremap that moves and grows", |s| remap(s, (1, 1), 3, FIXED, s.far(0))),
    op("AddressSpace::mremap", "mremap that finds a place", |s| remap(s, (1, 1), 3, RemapFlags::MAYMOVE, 0)),
    op("AddressSpace::mremap", "mremap that moves and shrinks", |s| remap(s, (1, 3), 1, FIXED, s.far(0)))
        // The excess is unmapped first.
        .leaves(Left::Anything)
        .once(),
    op("AddressSpace::mremap", "mremap that shrinks", |s| remap(s, (1, 5), 2, RemapFlags::empty(), 0)),
    op("AddressSpace::mremap", "mremap that keeps its source", |s| remap(s, (2, 3), 3, KEEP, s.far(0))),
    op("AddressSpace::mremap", "mremap with an old length of zero", |s| remap(s, (2, 0), 2, FIXED, s.far(0))),
    // The mapping at a fixed target has been unmapped.
    op("AddressSpace::mremap", "mremap within the range", |s| remap(s, (0, 3), 3, FIXED, s.at(4)))
        .leaves(Left::Anything)
        .once(),
    op("AddressSpace::mlock", "mlock", |s| errno!(s.process.mlock(s.at(2), 4 * s.unit))).leaves(Left::Layout),
    op("AddressSpace::mlock2", "mlock on fault", |s| lock(s, LockFlags::ONFAULT)).leaves(Left::Layout),
    op("AddressSpace::munlock", "munlock", |s| errno!(s.process.munlock(s.at(2), 2 * s.unit)))
        .leaves(Left::Layout),
    op("AddressSpace::mlockall", "mlockall", |s| {
        errno!(s.process.mlockall(LockAllFlags::CURRENT | LockAllFlags::FUTURE))
    })
    // Errors of single VMAs are not reported.
    .leaves(Left::Layout),
    op("AddressSpace::munlockall", "munlockall", |s| errno!(s.process.munlockall()))
        .needs_nothing()
        .leaves(Left::Layout),
    op("AddressSpace::mseal", "mseal", |s| errno!(s.process.mseal(s.at(2), 3 * s.unit, 0)))
        .leaves(Left::Layout),
    op("AddressSpace::set_policy", "mbind", |s| errno!(s.process.set_policy(s.at(2), 4 * s.unit, 7)))
        .leaves(Left::Layout),
    op("AddressSpace::brk", "brk up", |s| brk(s, 3)).needs_nothing(),
    op("AddressSpace::brk", "brk down", |s| brk(s, -2)),
    op("AddressSpace::set_heap", "set_heap", |s| {
        made(s.process.set_heap(0x1234_5000..0x1234_5000).map_err(|_| ()))
    })
    .needs_nothing(),
    op("AddressSpace::set_arguments", "set_arguments", |s| {
        let arguments = Arguments { args: s.at(0)..s.at(1), env: s.at(1)..s.at(2) };
        errno!(s.process.set_arguments(&arguments))
    })
    .needs_nothing(),
    op("AddressSpace::fork", "fork", fork),
    op("AddressSpace::clear", "exit", |s| done(|| s.process.clear())),
    op("AddressSpace::shmat", "shmat", |s| errno!(s.process.shmat(&s.segment, s.far(0), ShmFlags::empty()))),
    op("AddressSpace::shmat", "shmat inside", |s| {
        errno!(s.process.shmat(&s.segment, s.at(2), ShmFlags::REMAP))
    }),
    op("AddressSpace::shmdt", "shmdt", |s| errno!(s.process.shmdt(s.at(0))))
        .needs_nothing()
        .leaves(Left::Anything),
    op("AddressSpace::remap_file_pages", "remap_file_pages", |s| {
        errno!(s.process.remap_file_pages(
            s.at(1),
            2 * s.unit,
            Prot::empty(),
            4 * s.unit / PAGE,
            MapFlags::empty()
        ))
    }),
    op("AddressSpace::install_special", "install_special", |s| {
        errno!(s.process.install_special(s.far(0), PAGE, VmFlags::READ, &s.vdso))
    }),
    op("AddressSpace::install_specials", "install_specials", |s| {
        let part = |len| SpecialPart { len, flags: VmFlags::READ | VmFlags::EXEC, special: &s.vdso };
        errno!(s.process.install_specials(0, &[part(PAGE), part(2 * PAGE), part(PAGE)]))
    }),
    op("AddressSpace::move_stack", "move_stack", |s| errno!(s.process.move_stack(s.at(0), 512 * PAGE))),
    op("AddressSpace::handle_fault", "a store to unpopulated memory", |s| {
        let at = s.at(5);
        signal(s.process.store(&mut s.cpu, at, 9u64))
    }),
    op("AddressSpace::handle_fault", "a store to a present page", |s| {
        let at = s.at(3);
        signal(s.process.store(&mut s.cpu, at, 9u64))
    }),
    op("AddressSpace::handle_fault", "a load of unpopulated memory", |s| {
        let at = s.at(5);
        signal(s.process.load::<u64>(&mut s.cpu, at))
    }),
    op("AddressSpace::handle_fault", "a load of a present page", |s| {
        let at = s.at(4);
        signal(s.process.load::<u64>(&mut s.cpu, at))
    }),
    op("AddressSpace::handle_fault", "an instruction fetch", |s| {
        let at = s.at(4);
        signal(s.process.touch(&mut s.cpu, at, Access::EXEC))
    }),
    // If no frame is available, the stack has already grown. Linux behaves the same.
    op("AddressSpace::handle_fault", "a store below the memory", |s| {
        signal(s.process.store(&mut s.cpu, BASE - 3 * PAGE, 9u64))
    })
    .leaves(Left::Layout),
    op("AddressSpace::device_page", "device_page", |s| {
        s.process.device_page(s.at(5), true).map(|_| 0).map_err(|error| error.errno())
    }),
    op("AddressSpace::read_memory", "read_memory", |s| {
        transferred(s.process.read_memory(s.at(5), &mut [0; 16], AccessMode::Plain), 16)
    }),
    op("AddressSpace::read_memory", "read_memory, forced", |s| {
        transferred(s.process.read_memory(s.at(7) - 8, &mut [0; 16], AccessMode::Forced), 16)
    }),
    op("AddressSpace::write_memory", "write_memory", |s| {
        transferred(s.process.write_memory(s.at(5), &[3; 16], AccessMode::Plain), 16)
    }),
    op("AddressSpace::write_memory", "write_memory, forced", |s| {
        transferred(s.process.write_memory(s.at(3), &[3; 16], AccessMode::Forced), 16)
    }),
    op("AddressSpace::read_vectored", "read_vectored", |s| {
        transferred(s.process.read_vectored(&parts(s), &mut [0; 32]), 32)
    }),
    op("AddressSpace::write_vectored", "write_vectored", |s| {
        transferred(s.process.write_vectored(&parts(s), &[5; 32]), 32)
    })
    .leaves(Left::Pages),
    op("AddressSpace::read_chunks", "read_chunks", |s| {
        let read = s
            .process
            .read_chunks(s.at(5)..s.at(5) + 64, &mut [0; 16], |_| std::ops::ControlFlow::Continue(()));
        transferred(read.map(|bytes| bytes as usize), 64)
    })
    .needs_nothing(),
    op("AddressSpace::process_vm_readv", "process_vm_readv", |s| {
        let other = [IoVec { base: HOG, len: 32 }];
        transferred(s.process.process_vm_readv(&parts(s), &s.hog, &other), 32)
    })
    .leaves(Left::Pages),
    op("AddressSpace::process_vm_writev", "process_vm_writev", |s| {
        let other = [IoVec { base: HOG, len: 32 }];
        transferred(s.process.process_vm_writev(&parts(s), &s.hog, &other), 32)
    }),
    op("AddressSpace::process_vm_writev", "process_vm_writev into the range", |s| {
        let own = [IoVec { base: HOG, len: 32 }];
        transferred(s.hog.process_vm_writev(&own, &s.process, &parts(s)), 32)
    })
    .leaves(Left::Pages),
    op("AddressSpace::pin_user_pages", "pin_user_pages", |s| pin(s, PinFlags::empty())),
    op("AddressSpace::pin_user_pages", "pin_user_pages for stores", |s| pin(s, PinFlags::WRITE)),
    op("AddressSpace::pin_user_pages", "pin_user_pages long-term", |s| {
        pin(s, PinFlags::WRITE | PinFlags::LONGTERM | PinFlags::FORCE)
    }),
    op("AddressSpace::pin_user_pages_fast", "pin_user_pages_fast", |s| {
        let pins = s.process.pin_user_pages_fast(s.at(4), 2, PinFlags::WRITE);
        pins.map_err(|error| error.errno())
            .and_then(|pins| if pins.len() == 2 { Ok(2) } else { Err(Errno::ENOMEM) })
    }),
    op("AddressSpace::pin_user_pages_fast_only", "pin_user_pages_fast_only", |s| {
        let pins = s.process.pin_user_pages_fast_only(s.at(4), 2, PinFlags::WRITE);
        pins.map(|pins| pins.len() as u64).map_err(|error| error.errno())
    }),
];
