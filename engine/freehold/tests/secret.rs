//! Secret memory (memfd_secret, `src/file/kinds/secret.rs`): mapping, access to it, and refused calls. Only
//! the program that maps the memory can access its contents. `mapped` runs a scenario on every design with
//! four mapped pages. A new call that reads memory on behalf of another task needs a refusal here. The
//! expected answers are those of Linux 6.18; `recordings/causes/secret-memory` records the same calls there.

use crate::support::{
    Counted, File, FileAccess, Machine, MapFlags, Mapping, PAGE, Process, Prot, R, RW, Vcpu, World,
    everywhere,
};
use freehold::{
    call::{Advice, LockAllFlags, RemapFlags, SyncFlags},
    error::{AccessError, Errno, MadviseError, MlockError, MmapError, MsyncError, PinError},
    fault::FaultError,
    file::FillError,
    remote::{AccessMode, IoVec, PinFlags},
    rmap::MigrateError,
    vma::flags::VmFlags,
};

const PAGES: u64 = 4;
const LEN: u64 = PAGES * PAGE;
const KEPT: VmFlags = VmFlags::LOCKED.union(VmFlags::DONTDUMP);

fn secret(world: &World) -> Counted<File<Machine>> {
    let mapping = Mapping::secret(world.engine()).unwrap();
    mapping.truncate(LEN).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/secretmem (deleted)").unwrap()
}

/// Runs `scenario` on every design, with four mapped pages of secret memory.
fn mapped(scenario: impl Fn(&World, &Process, &mut Vcpu, &Counted<File<Machine>>, u64)) {
    everywhere(|world, process, cpu| {
        let file = secret(world);
        let at = process.mmap(0, LEN, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        scenario(world, process, cpu, &file, at);
    });
}

fn flags(process: &Process, at: u64) -> VmFlags {
    process.find_vma(at).unwrap().flags()
}

#[test]
fn secret_memory_is_mapped_shared_locked_and_by_faults() {
    mapped(|_, process, cpu, file, at| {
        assert!(flags(process, at).contains(KEPT | VmFlags::SHARED | VmFlags::MAYWRITE));
        assert!(!flags(process, at).contains(VmFlags::MAYEXEC));
        assert_eq!((process.counts().locked_vm, process.rss().file), (PAGES, 0));
        // Each fault maps one page, which is counted as a page of a file.
        assert_eq!(process.load::<u64>(cpu, at), Ok(0));
        assert_eq!(process.rss().file, 1);
        process.store(cpu, at + PAGE, 7u64).unwrap();
        assert_eq!((process.rss().file, process.rss().shmem), (2, 0));
        let map = |prot, flags| process.mmap(0, PAGE, prot, flags, Some(file), 0);
        assert_eq!(map(RW, MapFlags::PRIVATE), Err(MmapError::Invalid));
        assert_eq!(map(RW | Prot::EXEC, MapFlags::SHARED), Err(MmapError::NotPermitted));
        let populated = map(R, MapFlags::SHARED | MapFlags::POPULATE).unwrap();
        assert_eq!(process.rss().file, 2, "MAP_POPULATE maps no secret page");
        assert!(flags(process, populated).contains(KEPT));
        assert_eq!(process.mprotect(at, PAGE, R | Prot::EXEC).unwrap_err().errno(), Errno::EACCES);
        process.mprotect(at, PAGE, R).unwrap();
        // The second half of the mapping lies beyond the end of the file.
        let at = process.mmap(0, 2 * LEN, RW, MapFlags::SHARED, Some(file), 0).unwrap();
        assert_eq!(process.store(cpu, at + LEN, 1u64), Err(FaultError::Bus { addr: at + LEN }));
    });
}

#[test]
fn size_of_secret_memory_is_set_once() {
    everywhere(|world, _, _| {
        let mapping = Mapping::secret(world.engine()).unwrap();
        mapping.truncate(0).unwrap();
        mapping.truncate(LEN).unwrap();
        for size in [0, PAGE, LEN, 2 * LEN] {
            assert_eq!(mapping.truncate(size), Err(FillError::Invalid));
        }
        assert_eq!(mapping.size(), LEN);
        assert_eq!(mapping.read_at(0, &mut [0; 8]), Err(FillError::Invalid));
        assert_eq!(mapping.write_at(0, &[1; 8]), Err(FillError::Invalid));
        assert_eq!(mapping.punch(0..PAGE), Err(FillError::Unsupported));
        assert_eq!(FillError::Unsupported.errno(), Errno::EOPNOTSUPP);
    });
}

#[test]
fn secret_memory_is_only_accessible_to_its_program() {
    mapped(|world, process, cpu, _, at| {
        cpu.run(process.mmu());
        // A refused pin maps no page.
        let fast = cpu.call(|| process.pin_user_pages_fast(at, 1, PinFlags::empty()));
        assert_eq!((fast.err(), process.rss().file), (Some(PinError::BadAddress), 0));
        process.store(cpu, at, 7u64).unwrap();
        let mut bytes = [0; 8];
        for mode in [AccessMode::Plain, AccessMode::Forced, AccessMode::Report] {
            assert_eq!(process.read_memory(at, &mut bytes, mode), Err(AccessError::BadAddress));
        }
        assert_eq!(process.write_memory(at, &bytes, AccessMode::Forced), Err(AccessError::BadAddress));
        for flags in [PinFlags::empty(), PinFlags::WRITE, PinFlags::LONGTERM] {
            assert_eq!(process.pin_user_pages(at, 1, flags).err().unwrap(), PinError::BadAddress);
            // The fast path finds a present page without reading its VMA, and must refuse the page, too.
            let fast = cpu.call(|| process.pin_user_pages_fast(at, 1, flags));
            assert_eq!(fast.err().unwrap(), PinError::BadAddress);
            let only = cpu.call(|| process.pin_user_pages_fast_only(at, 1, flags));
            assert!(only.unwrap().is_empty());
        }
        // Secret memory is refused as the remote side of a transfer, and accepted as the local side.
        let own = process.mmap(0, PAGE, RW, MapFlags::PRIVATE | MapFlags::ANONYMOUS, None, 0).unwrap();
        process.store(cpu, own, 9u64).unwrap();
        let part = |base| [IoVec { base, len: 8 }];
        let read = |local, remote| process.process_vm_readv(&part(local), process, &part(remote));
        assert_eq!(read(own, at), Err(AccessError::BadAddress));
        assert_eq!(process.process_vm_writev(&part(own), process, &part(at)), Err(AccessError::BadAddress));
        assert_eq!(read(at, own), Ok(8));
        assert_eq!(process.load::<u64>(cpu, at), Ok(9));
        // A secret page cannot be migrated.
        let pfn = process.frame_at(at).unwrap();
        assert_eq!(world.engine().migrate(pfn), Err(MigrateError::Busy));
        assert_eq!(process.load::<u64>(cpu, at), Ok(9));
    });
}

#[test]
fn secret_memory_stays_locked() {
    mapped(|_, process, _, file, at| {
        process.munlock(at, LEN).unwrap();
        process.munlockall().unwrap();
        assert!(flags(process, at).contains(KEPT));
        assert_eq!(process.counts().locked_vm, PAGES);
        // mlock does not populate secret memory.
        assert_eq!(process.mlock(at, PAGE), Err(MlockError::NotAccessible));
        assert_eq!(MlockError::NotAccessible.errno(), Errno::ENOMEM);
        process.mlockall(LockAllFlags::CURRENT).unwrap();
        assert_eq!(process.rss().file, 0);
        // Secret memory counts against the limit of a process without the right to lock more.
        let limits = process.limits().get().memlock(LEN + PAGE).may_lock(false);
        process.limits().set(&limits);
        let map = |pages: u64| process.mmap(0, pages * PAGE, RW, MapFlags::SHARED, Some(file), 0);
        assert_eq!(map(2), Err(MmapError::LockLimit));
        assert_eq!(MmapError::LockLimit.errno(), Errno::EAGAIN);
        let one = map(1).unwrap();
        let grown = process.mremap(one, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0);
        assert_eq!(grown.unwrap_err().errno(), Errno::EAGAIN);
        process.munmap(at, LEN).unwrap();
        assert_eq!(process.counts().locked_vm, 1);
        map(PAGES).unwrap();
    });
}

#[test]
fn secret_memory_refuses_advice_that_accesses_pages() {
    use Advice::*;
    mapped(|_, process, cpu, _, at| {
        process.store(cpu, at, 7u64).unwrap();
        let refused =
            [DontNeed, Remove, Cold, PageOut, PopulateRead, PopulateWrite, Collapse, GuardInstall, Free];
        for advice in refused {
            assert_eq!(process.madvise(at, PAGE, advice), Err(MadviseError::Invalid), "{advice:?}");
        }
        for advice in [WillNeed, Mergeable, HugePage, DontFork, DoFork, DontNeedLocked] {
            process.madvise(at, PAGE, advice).unwrap();
        }
        assert_eq!(process.rss().file, 0);
        assert_eq!(process.load::<u64>(cpu, at), Ok(7));
        process.madvise(at, PAGE, DoDump).unwrap();
        assert!(!flags(process, at).contains(VmFlags::DONTDUMP));
        assert_eq!(process.msync(at, PAGE, SyncFlags::SYNC), Err(MsyncError::Invalid));
        assert_eq!(process.msync(at, PAGE, SyncFlags::INVALIDATE), Err(MsyncError::Locked));
        process.msync(at, PAGE, SyncFlags::ASYNC).unwrap();
        let mut present = [9; PAGES as usize];
        process.mincore(at, LEN, &mut present).unwrap();
        assert_eq!(present, [1, 0, 0, 0]);
    });
}

#[test]
fn child_shares_secret_memory_unlocked() {
    mapped(|_, process, cpu, _, at| {
        process.store(cpu, at, 7u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load::<u64>(cpu, at), Ok(7));
        child.store(cpu, at + PAGE, 8u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + PAGE), Ok(8));
        assert_eq!(flags(&child, at) & KEPT, VmFlags::DONTDUMP);
        assert_eq!(child.counts().locked_vm, 0);
        assert_eq!(child.mlock(at, PAGE), Err(MlockError::NotAccessible));
        assert_eq!(child.counts().locked_vm, 0);
        assert_eq!(child.madvise(at, PAGE, Advice::Remove), Err(MadviseError::NotSupported));
        child.madvise(at, PAGE, Advice::GuardInstall).unwrap();
        child.madvise(at, PAGE, Advice::Cold).unwrap();
        drop(child);
        assert_eq!(process.load::<u64>(cpu, at), Ok(7));
    });
}
