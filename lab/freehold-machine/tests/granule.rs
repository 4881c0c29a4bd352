//! Pages of 4, 16 and 64 KiB (`--cfg granule`, `freehold-pagetable/src/format/table_bits.rs`) on the format of
//! Arm: the encoding, and the calls that depend on sizes. `cargo xtask granules` runs this program for each
//! size. All other tests have numbers of 4 KiB pages and run only with these.

use freehold::{
    PAGE_SIZE,
    call::Advice,
    counted::Counted,
    engine::{Config, Engine, HugePages},
    fault::{FaultError, SegvCode},
    file::{File, FileAccess, Mapping},
    space::{Locking, MapFlags, Prot, SpaceConfig, ThpDisable},
};
use freehold_kit::conformance;
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use freehold_pagetable::{
    Aarch64, Access, ENTRIES, Format, Kind, Level, PAGE_SHIFT, Pfn, PteFlags, Rights, Table, VirtAddr,
};

type Arm = Machine<Aarch64>;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
const HUGE: u64 = Level::Pmd.span();

/// Returns the base-2 logarithm of the span of a leaf of 2 MiB, 32 MiB or 512 MiB, and the number of bits of an
/// address, as in table D8-1 and following of the manual.
const fn manual() -> (u32, u32, usize) {
    match PAGE_SHIFT {
        12 => (21, 48, 4),
        14 => (25, 47, 3),
        16 => (29, 48, 3),
        _ => panic!("no granule of Arm"),
    }
}

#[test]
fn sizes_are_those_of_the_manual() {
    let (huge, bits, levels) = manual();
    assert_eq!((Level::Pmd.shift(), Aarch64::<2>::USER_END, Aarch64::<2>::LEVELS), (huge, 1 << bits, levels));
    assert_eq!((size_of::<Table>() as u64, align_of::<Table>() as u64), (PAGE_SIZE, PAGE_SIZE));
    assert_eq!(ENTRIES as u64 * 8, PAGE_SIZE);
    let last = VirtAddr::new(Aarch64::<2>::USER_END - 1);
    assert_eq!(last.index(Aarch64::<2>::ROOT) + 1, Aarch64::<2>::USER_ENTRIES);
    assert_eq!(Aarch64::<2>::USER_ENTRIES, if PAGE_SHIFT == 16 { 64 } else { ENTRIES });
}

#[test]
fn formats_pass_the_conformance_suite() {
    conformance::format::<Aarch64<0>>().assert_passed(&[]);
    conformance::format::<Aarch64<1>>().assert_passed(&[]);
    conformance::format::<Aarch64<2>>().assert_passed(&[]);
}

#[test]
fn frames_are_encoded_as_physical_addresses() {
    let flags = PteFlags::USER | PteFlags::WRITE | PteFlags::ACCESSED | PteFlags::DIRTY;
    let highest = Pfn::new((1 << Aarch64::<2>::PFN_BITS) - 1);
    for (level, pfn) in [(Level::Pte, highest), (Level::Pmd, highest.align_down(Level::Pmd))] {
        let raw = Aarch64::<2>::leaf(level, pfn, flags);
        let address = pfn.get() << PAGE_SHIFT;
        assert_eq!(raw & 0x0000_ffff_ffff_f000, address, "the bits below the frame are 0");
        assert_eq!(raw & 3, if level == Level::Pte { 3 } else { 1 });
        let Kind::Leaf { pfn: found, .. } = Aarch64::<2>::kind(raw, level) else { panic!("no leaf") };
        assert_eq!(found, pfn);
        let step = |raw| {
            let mut rights = Rights { write: true, user: true, exec: true };
            Aarch64::<2>::hardware_step(raw, level, Access::READ, &mut rights)
        };
        assert_eq!(step(raw), Ok(raw));
        // Bits between 4 KiB and the size of a page are reserved.
        assert_eq!(step(raw | 1 << 12).is_ok(), PAGE_SHIFT == 12 && level == Level::Pte);
    }
    assert_eq!(Aarch64::<2>::table(Pfn::new(5)), 5 << PAGE_SHIFT | 3);
}

/// Runs `scenario` on each design, in a process with two CPUs and memory for five huge pages.
fn on_every_design(
    scenario: impl Fn(&Counted<Engine<Arm>>, &Process<Aarch64>, &mut Cpu<Aarch64>, &mut Cpu<Aarch64>),
) {
    // A huge page of 512 MiB takes seconds, so the largest pages run on one design.
    let designs = if PAGE_SHIFT == 16 { &[Locking::default()] } else { &Locking::ALL[..] };
    for &locking in designs {
        let memory = MachineConfig::backed(5 * HUGE).tables(64 * PAGE_SIZE).cpus(2);
        let machine = Arm::new(memory).unwrap();
        let config = Config::new().huge_pages(HugePages::Always);
        let engine = Engine::new(machine.clone(), config).unwrap();
        let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let (mut first, mut second) = (machine.cpu(0), machine.cpu(1));
        scenario(&engine, &process, &mut first, &mut second);
        process.check();
        drop((process, engine, first, second));
        machine.accounting().assert_clean();
    }
}

#[test]
fn small_pages_fault_fork_and_go() {
    on_every_design(|_, process, cpu, other| {
        process.set_thp_disable(ThpDisable::Everywhere);
        let pages = 2 * ENTRIES as u64 + 3;
        let at = process.mmap(0, pages * PAGE_SIZE, RW, ANON, None, 0).unwrap();
        for page in [0, 1, ENTRIES as u64, pages - 1] {
            process.store(cpu, at + page * PAGE_SIZE, page + 1).unwrap();
        }
        assert_eq!(process.rss().anon, 4);
        let child = Process::of(process.fork().unwrap());
        child.store(other, at, 9u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, at), Ok(1));
        assert_eq!(child.load::<u64>(other, at + (pages - 1) * PAGE_SIZE), Ok(pages));
        drop(child);
        process.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
        assert!(process.store(cpu, at, 1u64).is_err());
        process.munmap(at + PAGE_SIZE, (pages - 2) * PAGE_SIZE).unwrap();
        let addr = at + PAGE_SIZE;
        assert_eq!(process.load::<u64>(other, addr), Err(FaultError::Segv { addr, code: SegvCode::Maperr }));
        assert_eq!(process.load::<u64>(other, at + (pages - 1) * PAGE_SIZE), Ok(pages));
        assert!(process.munmap(at + PAGE_SIZE / 2, PAGE_SIZE).is_err(), "half a page is no page");
    });
}

#[test]
fn huge_pages_are_mapped_split_collapsed_and_discarded() {
    on_every_design(|_, process, cpu, other| {
        let at = process.mmap(0, 2 * HUGE, RW, ANON, None, 0).unwrap().next_multiple_of(HUGE);
        process.store(cpu, at + 5 * PAGE_SIZE, 5u64).unwrap();
        let huge = || process.smaps(0).map(|smap| smap.usage.anonymous_huge).sum::<u64>();
        assert_eq!((process.rss().anon, huge()), (ENTRIES as i64, HUGE));
        assert_eq!(process.load::<u64>(other, at + 5 * PAGE_SIZE), Ok(5));
        process.mprotect(at + 7 * PAGE_SIZE, PAGE_SIZE, Prot::READ).unwrap();
        assert_eq!(huge(), 0);
        process.store(other, at + HUGE - 8, 6u64).unwrap();
        process.mprotect(at + 7 * PAGE_SIZE, PAGE_SIZE, RW).unwrap();
        process.madvise(at, HUGE, Advice::Collapse).unwrap();
        assert_eq!(huge(), HUGE);
        assert_eq!(process.load::<u64>(cpu, at + 5 * PAGE_SIZE), Ok(5));
        assert_eq!(process.load::<u64>(other, at + HUGE - 8), Ok(6));
        process.madvise(at, HUGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + 5 * PAGE_SIZE), Ok(0));
    });
}

#[test]
fn files_have_pages_of_this_size() {
    on_every_design(|engine, process, cpu, other| {
        let shared = Mapping::memfd(engine, 3 * PAGE_SIZE).unwrap();
        let file = File::new(&shared, FileAccess::READ_WRITE, "/shared").unwrap();
        let map = || process.mmap(0, 3 * PAGE_SIZE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        let (one, two) = (map(), map());
        process.store(cpu, one + 2 * PAGE_SIZE + 8, 3u64).unwrap();
        assert_eq!(process.load::<u64>(other, two + 2 * PAGE_SIZE + 8), Ok(3));
        shared.truncate(2 * PAGE_SIZE).unwrap();
        let addr = two + 2 * PAGE_SIZE + 8;
        assert_eq!(process.load::<u64>(other, addr), Err(FaultError::Bus { addr }));
        let frame = process.frame_at(two);
        assert!(frame.is_none() || engine.migrate(frame.unwrap()).is_ok());
    });
}
