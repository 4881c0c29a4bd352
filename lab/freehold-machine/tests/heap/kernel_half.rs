//! Root tables whose upper half belongs to the kernel (`src/kernel.rs`), as on x86-64.
//!
//! `freehold::platform`, "A kernel's own half", promises: every address space has the entries, including
//! entries that are added while the space runs; the engine never touches them; a root is empty when it is
//! freed.
//!
//! | test | how |
//! | --- | --- |
//! | `kernel_half_is_present_...` | [`life`]: creates, forks, changes and ends spaces while entries are added; with four and five levels of tables |
//! | `failed_space_creation_frees_its_tables` | makes each heap allocation during the creation of a space fail in turn; therefore this file is in the program `heap` |
//! | `freed_root_tables_are_empty` | allocates a freed root again |
//! | `records_of_a_platform_have_documented_sizes` | checks other promises of `freehold::platform`: sizes, alignments, and that zero bytes are valid values |
//!
//! [`assert_kernel`] checks the kernel's half by walking it as the hardware does. In addition the machine
//! checks each root when its space ends, and each table when it is freed, and `assert_clean` finds frames and
//! tables that were not freed.

use freehold::{
    PAGE_SIZE,
    call::RemapFlags,
    counted::Counted,
    engine::{Config, Engine},
    platform::{
        Access, ENTRIES, Format, Frame, Table, TableMemory, TableMeta, VirtAddr, X86_4, X86_5, hw_walk,
    },
    space::{AddressSpace, Locking, MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process, fail_heap_once, stop_failing_heap};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
const SUPERVISOR: Access = Access { user: false, ..Access::READ };

/// Returns a machine with a kernel's half, and an engine on it.
fn machine<F: Format>() -> (Machine<F>, Counted<Engine<Machine<F>>>) {
    let machine = Machine::<F>::new(MachineConfig::backed(16 << 20).kernel_half()).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    (machine, engine)
}

/// Returns the first address that entry `n` of the kernel's half translates.
fn kernel_address<F: Format>(n: usize) -> VirtAddr {
    let bits = F::ROOT.shift() + ENTRIES.ilog2();
    let low = ((F::USER_ENTRIES + n) as u64) << F::ROOT.shift();
    VirtAddr::new(low | u64::MAX << bits)
}

/// Checks that the kernel's half of the space has `entries` entries, and that programs cannot access the
/// entries.
fn assert_kernel<F: Format>(machine: &Machine<F>, space: &AddressSpace<Machine<F>>, entries: usize) {
    let root = space.mmu().root();
    for n in 0..=entries {
        let at = kernel_address::<F>(n);
        let found = hw_walk::<F, _>(machine, root, at, SUPERVISOR);
        assert_eq!(found.is_ok(), n < entries, "entry {n}, {at:?}: {found:?}");
        assert!(hw_walk::<F, _>(machine, root, at, Access::READ).is_err(), "a program reads the kernel");
    }
    space.check();
}

/// Creates, forks, changes and ends address spaces, while the kernel's half gets more entries.
fn life<F: Format>(locking: Locking) {
    let (machine, engine) = machine::<F>();
    let config = SpaceConfig::new().locking(locking);
    let process = Process::new(&engine, &config).unwrap();
    let mut cpu = machine.cpu(0);
    assert_kernel(&machine, &process, 1);
    // The highest and the lowest addresses, in tables of their own.
    let top = <Process>::TASK_SIZE - 4 * PAGE_SIZE;
    for at in [0x10_0000, 0x5000_0000_0000, top] {
        process.mmap(at, 4 * PAGE_SIZE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        process.store(&mut cpu, at, at).unwrap();
    }
    machine.extend_kernel_half();
    assert_kernel(&machine, &process, 2);
    let child = Process::of(process.fork().unwrap());
    assert_kernel(&machine, &child, 2);
    let grandchild = Process::of(child.fork().unwrap());
    machine.extend_kernel_half();
    let moved = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    child.mremap(top, 4 * PAGE_SIZE, 4 * PAGE_SIZE, moved, 0x2000_0000_0000).unwrap();
    assert_eq!(child.load(&mut cpu, 0x2000_0000_0000), Ok(top));
    for space in [&process, &child, &grandchild] {
        assert_kernel(&machine, space, 3);
    }
    drop(child);
    // The space of the child has ended, so only the other two spaces get the new entry.
    machine.extend_kernel_half();
    process.clear();
    assert_kernel(&machine, &process, 4);
    assert_kernel(&machine, &grandchild, 4);
    assert_eq!(grandchild.load(&mut cpu, top), Ok(top));
    drop((cpu, process, grandchild));
    drop(engine);
    machine.accounting().assert_clean();
}

#[test]
fn kernel_half_is_present_in_every_space() {
    Locking::ALL.into_iter().for_each(life::<X86_4>);
}

#[test]
fn kernel_half_is_present_with_five_levels() {
    life::<X86_5>(Locking::default());
}

/// If the creation of a space fails, its root is emptied and freed, too.
#[test]
fn failed_space_creation_frees_its_tables() {
    let (machine, engine) = machine::<X86_4>();
    for nth in 1.. {
        fail_heap_once(nth);
        let space = AddressSpace::new(&engine, &SpaceConfig::default());
        if stop_failing_heap() == 0 {
            assert_kernel(&machine, &space.unwrap(), 1);
            break;
        }
        assert!(space.is_err());
        assert_eq!(machine.accounting().tables, 0);
    }
    drop(engine);
    machine.accounting().assert_clean();
}

/// A root is empty when it is freed: the machine panics if a freed table has an entry. The table is zero when
/// it is allocated again.
#[test]
fn freed_root_tables_are_empty() {
    let (machine, engine) = machine::<X86_4>();
    for _ in 0..3 {
        let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
        let root = space.mmu().root();
        assert!(!machine.table(root).is_zero());
        drop(space);
        let table = machine.alloc_table(None).unwrap();
        assert_eq!(table, root, "the pool allocates the lowest free table");
        assert!(machine.table(table).is_zero());
        // SAFETY: the table was just allocated by `alloc_table`, and no entry refers to it.
        unsafe { machine.free_table(table) };
    }
}

/// Sizes and alignments that the documentation of `freehold::platform` states.
#[test]
fn records_of_a_platform_have_documented_sizes() {
    assert_eq!((size_of::<Table>(), align_of::<Table>()), (4096, 4096));
    assert_eq!((size_of::<TableMeta>(), align_of::<TableMeta>()), (64, 64));
    assert_eq!((size_of::<Frame>(), align_of::<Frame>()), (32, 8));
    assert!(!std::mem::needs_drop::<(Table, TableMeta, Frame)>());
    // SAFETY: the types consist of atomics, for which zero is a valid value.
    let (frame, table) = unsafe { (std::mem::zeroed::<Frame>(), Box::<Table>::new_zeroed().assume_init()) };
    assert!(frame.is_free() && table.is_zero());
    assert_eq!(format!("{frame:?}"), format!("{:?}", Frame::new()));
}
