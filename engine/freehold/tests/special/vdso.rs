//! The vdso and its data (`src/call/special.rs`): a pair of VMAs that are installed together or not at all,
//! and that are neither split nor merged nor grown. They move only as a whole, and the hook of the text is
//! notified of its new address. The tests compare the names and places of the VMAs, also if an injected
//! failure or a limit occurs between the two VMAs.

use super::*;
use freehold::{
    PageIndex, UserRange,
    call::{Advice, RemapFlags, SpecialPart},
    error::{MmapError, MremapError, MunmapError},
    file::{Frames, HookFault, Special, VmOps, VmaInfo},
    remote::AccessMode,
    vma::flags::VmFlags,
};
use freehold_machine::Mmu;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use support::failure::{Failure, at_every_allocation};

/// Flags of the data on x86.
const VVAR: VmFlags =
    VmFlags::READ.union(VmFlags::MAYREAD).union(VmFlags::IO).union(VmFlags::DONTDUMP).union(VmFlags::PFNMAP);
/// Flags of the text.
const VDSO: VmFlags = VmFlags::READ
    .union(VmFlags::EXEC)
    .union(VmFlags::MAYREAD)
    .union(VmFlags::MAYWRITE)
    .union(VmFlags::MAYEXEC);

/// Text that records its address in the only process of the test.
struct Text {
    board: Arc<Board>,
    at: Arc<AtomicU64>,
}

impl VmOps<Machine> for Text {
    fn name(&self) -> &str {
        "[vdso]"
    }

    fn mremap(&self, _: &Mmu<DefaultFormat>, _: &VmaInfo, to: UserRange) -> Result<(), MremapError> {
        self.at.store(to.start(), SeqCst);
        Ok(())
    }

    fn fault(
        &self,
        _: &Mmu<DefaultFormat>,
        _: &VmaInfo,
        pgoff: PageIndex,
        _: bool,
    ) -> Result<ForeignFrames, HookFault> {
        if pgoff.get() < 2 { Ok(foreign(self.board.frame(pgoff.get()), 1)) } else { Err(HookFault::Bus) }
    }
}

/// The special mappings of the data and the text, and the address of which the hook was notified last.
struct Pair {
    board: Arc<Board>,
    vvar: Counted<Special<Machine>>,
    vdso: Counted<Special<Machine>>,
    at: Arc<AtomicU64>,
}

impl Pair {
    fn new(world: &World) -> Self {
        let (board, at) = (Board::new(&world.machine), Arc::default());
        let vvar = Frames::new("[vvar]", &foreign_each(&[board.frame(4), board.frame(5)])).unwrap();
        let text = Text { board: board.clone(), at: Arc::clone(&at) };
        let (vvar, vdso) = (Special::new(world.engine(), vvar), Special::new(world.engine(), text));
        Pair { board, vvar: vvar.unwrap(), vdso: vdso.unwrap(), at }
    }

    fn install(&self, process: &Process, hint: u64) -> Result<u64, MmapError> {
        let part = |pages, flags, special| SpecialPart { len: pages * PAGE, flags, special };
        process.install_specials(hint, &[part(2, VVAR, &self.vvar), part(2, VDSO, &self.vdso)])
    }
}

/// Returns the start, the end and the name of each mapping, in pages from `BASE` on.
fn names(process: &Process) -> Vec<(u64, u64, String)> {
    let pages = |addr: u64| (addr - BASE) / PAGE;
    process.maps(0).map(|line| (pages(line.start), pages(line.end), line.name.as_str().to_owned())).collect()
}

#[test]
fn pair_is_installed_at_adjacent_addresses() {
    everywhere(|world, process, cpu| {
        let pair = Pair::new(world);
        assert_eq!(pair.install(process, BASE), Ok(BASE));
        let expected = [(0, 2, "[vvar]".to_owned()), (2, 4, "[vdso]".to_owned())];
        assert_eq!(names(process), expected);
        assert_eq!(process.load(cpu, BASE + PAGE), Ok(Board::number(5)));
        assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(Board::number(0)));
        assert_eq!(process.counts().total_vm, 4);
        // A second pair is placed at other addresses, and merges with nothing.
        let other = pair.install(process, BASE).unwrap();
        assert_eq!((process.counts().map_count, other != BASE), (4, true));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load(cpu, BASE + 3 * PAGE), Ok(Board::number(1)));
        assert_eq!(child.load(cpu, BASE), Ok(Board::number(4)));
        // A debugger may read the text and write to a copy of it, but cannot access the data.
        let mut bytes = [0; 8];
        process.read_memory(BASE + 2 * PAGE, &mut bytes, AccessMode::Plain).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), Board::number(0));
        process.write_memory(BASE + 2 * PAGE, &[1; 8], AccessMode::Forced).unwrap();
        assert_eq!(pair.board.word(0), Board::number(0));
        assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(u64::from_le_bytes([1; 8])));
        assert!(process.read_memory(BASE, &mut bytes, AccessMode::Forced).is_err());
        child.check();
    });
}

/// Every allocation fails once, and limits are reached between the two VMAs. Either both VMAs are installed
/// or none.
#[test]
fn pair_is_installed_completely_or_not_at_all() {
    everywhere(|world, process, _| {
        let pair = Pair::new(world);
        // Uses up the VMAs in the cache.
        for n in 0..200 {
            let prot = if n % 2 == 0 { R } else { RW };
            process.mmap(BASE + (64 + n) * PAGE, PAGE, prot, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        at_every_allocation(&[Failure::Heap], |point| {
            let before = layout(process);
            let installed = point.fail(|| pair.install(process, BASE));
            process.check();
            assert!(point.reached() || installed == Ok(BASE));
            match installed {
                Ok(at) => process.munmap(at, 4 * PAGE).unwrap(),
                Err(error) => assert_eq!(error, MmapError::OutOfMemory),
            }
            assert_eq!(layout(process), before);
        });
        // The limit has room for one VMA of the pair, but not for both.
        let total = process.counts().total_vm;
        let limits = process.limits().get();
        process.limits().set(&limits.clone().address_space((total + 3) * PAGE));
        assert_eq!(pair.install(process, BASE), Err(MmapError::Limit));
        process.limits().set(&limits);
        anon(process, BASE + 3 * PAGE, 1);
        let elsewhere = pair.install(process, BASE).unwrap();
        assert_ne!(elsewhere, BASE, "only half of the pair fits there");
        process.munmap(elsewhere, 4 * PAGE).unwrap();
        let part = SpecialPart { len: PAGE, flags: VVAR, special: &pair.vvar };
        let empty = SpecialPart { len: 0, flags: VVAR, special: &pair.vvar };
        let huge = SpecialPart { len: 1 << 46, flags: VVAR, special: &pair.vvar };
        assert_eq!(process.install_specials(0, &[]), Err(MmapError::Invalid));
        assert_eq!(process.install_specials(0, &[part, empty]), Err(MmapError::Invalid));
        let two = [
            SpecialPart { len: u64::MAX, ..huge },
            SpecialPart { len: PAGE, flags: VVAR, special: &pair.vvar },
        ];
        assert_eq!(process.install_specials(0, &two), Err(MmapError::NoSpace));
    });
}

#[test]
fn pair_may_exceed_the_vma_limit_by_one() {
    let config = Config::new().max_map_count(6);
    for (before, fits) in [(5, true), (6, false), (7, false)] {
        World::with(16 << 20, config.clone()).live(Locking::default(), |world, process, _| {
            let pair = Pair::new(world);
            for n in 0..before {
                anon(process, BASE + (16 + 2 * n) * PAGE, 1);
            }
            let installed = pair.install(process, BASE);
            assert_eq!(installed.is_ok(), fits, "{before}: {installed:?}");
            assert_eq!(process.counts().map_count, before + if fits { 2 } else { 0 });
        });
    }
}

/// C-30: the two VMAs move as a whole, one after the other as programs on Linux do, and the hook gets the new
/// address. They are not split, grown or duplicated.
#[test]
fn c30_pair_moves_as_a_whole() {
    everywhere(|world, process, cpu| {
        let pair = Pair::new(world);
        pair.install(process, BASE).unwrap();
        let text = BASE + 2 * PAGE;
        let to = BASE + 32 * PAGE;
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        for (at, len, new_len, flags, error) in [
            (text, PAGE, PAGE, fixed, MremapError::Invalid),
            (text + PAGE, PAGE, PAGE, fixed, MremapError::Invalid),
            (text, 2 * PAGE, PAGE, RemapFlags::empty(), MremapError::Invalid),
            (text, 2 * PAGE, 3 * PAGE, RemapFlags::MAYMOVE, MremapError::NotExpandable),
            (text, 2 * PAGE, 2 * PAGE, fixed | RemapFlags::DONTUNMAP, MremapError::Invalid),
            (text, 0, 2 * PAGE, fixed, MremapError::Invalid),
        ] {
            assert_eq!(process.mremap(at, len, new_len, flags, to), Err(error), "{at:#x} {len} {new_len}");
            assert_eq!(layout(process), [(0, 2), (2, 4)]);
        }
        for (at, error) in [(BASE, MunmapError::NotSplittable), (text + PAGE, MunmapError::NotSplittable)] {
            assert_eq!(process.munmap(at, PAGE), Err(error));
        }
        assert!(process.madvise(text, PAGE, Advice::DontFork).is_err());
        assert_eq!(pair.at.load(SeqCst), 0);
        assert_eq!(process.mremap(text, 2 * PAGE, 2 * PAGE, fixed, to + 2 * PAGE), Ok(to + 2 * PAGE));
        assert_eq!(pair.at.load(SeqCst), to + 2 * PAGE);
        assert_eq!(process.mremap(BASE, 2 * PAGE, 2 * PAGE, fixed, to), Ok(to));
        assert_eq!(layout(process), [(32, 34), (34, 36)]);
        assert_eq!(process.load(cpu, to + 3 * PAGE), Ok(Board::number(1)));
        // Both VMAs also move in one call.
        assert_eq!(process.mremap(to, 4 * PAGE, 4 * PAGE, fixed, BASE), Ok(BASE));
        assert_eq!((layout(process), pair.at.load(SeqCst)), (vec![(0, 2), (2, 4)], text));
        assert_eq!(process.load(cpu, BASE), Ok(Board::number(4)));
    });
}
