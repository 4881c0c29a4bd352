//! Hardware that does not set accessed and dirty bits: after any event that clears these bits, an access
//! takes at most one fault. Hardware that sets the bits itself takes no fault to set them.
//!
//! The machine simulates three kinds of hardware: x86-64 sets both bits, Arm with an access flag only sets
//! accessed bits, and RISC-V with Svade sets no bit. `every_life` combines each kind of memory (`Kind`) with
//! each event between two accesses (`Between`), and with loads and stores. The function `access` counts the
//! faults and fails at the second fault. A new kind or event is one more variant and its arm in `map` or
//! `between`. `lab/freehold-machine/tests/shuttle_engine/software_bits.rs` has concurrent changes.

use super::*;
use freehold::{
    PageIndex, PageRange,
    call::{Advice, RemapFlags},
    engine::HugePages,
    error::{SoftDirtyError, UffdRegisterError},
    fault::Access,
    file::{Frames, Special, Zeroes},
    hugetlb::HugePageSize,
    platform::{FramePurpose, FrameRequest, PkeyRights},
    space::AddressSpace,
    uffd::{Features, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};
use freehold_machine::SoftwareBits;
use freehold_pagetable::{Aarch64, Format, PteFlags, Sv39, VirtAddr, X86_4};
use freehold_sync::Rank;
use gate::{Gated, before_lock, waits_for_lock};
use std::thread;

/// Hardware that sets no bit.
type NoBits = Sv39;
/// Hardware that sets accessed bits only.
type NoDirtyBit = Aarch64<1>;

/// Target address of mremap.
const AWAY: u64 = BASE + (4 << 30);

/// Kind of memory that is accessed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Anonymous,
    Huge,
    Shmem,
    FileShared,
    FilePrivate,
    PoolShared,
    PoolPrivate,
    Device,
}

const KINDS: [Kind; 8] = [
    Kind::Anonymous,
    Kind::Huge,
    Kind::Shmem,
    Kind::FileShared,
    Kind::FilePrivate,
    Kind::PoolShared,
    Kind::PoolPrivate,
    Kind::Device,
];

/// Event between two accesses. If a kind of memory does not allow the event, the call fails and the memory
/// stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Between {
    Nothing,
    Aging,
    WriteBack,
    Fork,
    Mprotect,
    /// mprotect of one small page. Splits a huge page.
    MprotectPart,
    Migration,
    Unmapping,
    Mremap,
    WriteProtection,
    Populate,
}

const BETWEEN: [Between; 11] = [
    Between::Nothing,
    Between::Aging,
    Between::WriteBack,
    Between::Fork,
    Between::Mprotect,
    Between::MprotectPart,
    Between::Migration,
    Between::Unmapping,
    Between::Mremap,
    Between::WriteProtection,
    Between::Populate,
];

/// Machine with one process that maps one kind of memory.
struct Scene<F: Format> {
    machine: Machine<F>,
    engine: Counted<Engine<Machine<F>>>,
    process: Process<F>,
    file: Option<Counted<File<Machine<F>>>>,
    /// A frame of the device.
    device: Pfn,
    at: u64,
    len: u64,
}

/// A disk of zeroes that accepts writes.
struct Blank;

impl<F: Format> Pager<Machine<F>> for Blank {
    fn read_page(&self, platform: &Machine<F>, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        Ok(())
    }
}

impl<F: Format> Scene<F> {
    fn new(kind: Kind) -> Self {
        let machine = Machine::<F>::new(MachineConfig::backed(16 << 20)).unwrap();
        let config = Config::new().huge_pages(HugePages::Madvise);
        let engine = Engine::new(machine.clone(), config).unwrap();
        let process = Process::new(&engine, &SpaceConfig::default()).unwrap();
        let mut frame = [Pfn::new(0)];
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        machine.zero_frame(frame[0]);
        let mut scene = Scene { machine, engine, process, file: None, device: frame[0], at: BASE, len: PAGE };
        scene.map(kind);
        scene
    }

    fn map(&mut self, kind: Kind) {
        let mapping = match kind {
            Kind::Anonymous | Kind::Huge | Kind::Device => None,
            Kind::Shmem => Some(Mapping::new(&self.engine, Zeroes, PAGE, true).unwrap()),
            Kind::FileShared | Kind::FilePrivate => {
                Some(Mapping::new(&self.engine, Blank, PAGE, false).unwrap())
            }
            Kind::PoolShared | Kind::PoolPrivate => {
                assert_eq!(self.engine.resize_huge_pool(HugePageSize::Mib2, 4, None), 4);
                Some(Mapping::of_huge_pages(&self.engine, HugePageSize::Mib2, HUGE, false).unwrap())
            }
        };
        let file = |mapping| File::new(mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        self.file = mapping.as_ref().map(file);
        if matches!(kind, Kind::Huge | Kind::PoolShared | Kind::PoolPrivate) {
            self.len = HUGE;
        }
        let shared = matches!(kind, Kind::Shmem | Kind::FileShared | Kind::PoolShared);
        let flags = match (&self.file, shared) {
            (None, _) => ANON,
            (Some(_), true) => MapFlags::SHARED,
            (Some(_), false) => MapFlags::PRIVATE,
        };
        if kind == Kind::Device {
            let frames = Frames::new("[device]", &[foreign(self.device, 1)]).unwrap();
            let special = Special::new(&self.engine, frames).unwrap();
            let rights = VmFlags::READ | VmFlags::WRITE | VmFlags::MAYREAD | VmFlags::MAYWRITE;
            let flags = rights | VmFlags::SHARED | VmFlags::MAYSHARE;
            self.at = self.process.install_special(BASE, PAGE, flags, &special).unwrap();
            return;
        }
        self.process.mmap(BASE, self.len, RW, flags | MapFlags::FIXED, self.file.as_ref(), 0).unwrap();
        if kind == Kind::Huge {
            self.process.madvise(BASE, HUGE, Advice::HugePage).unwrap();
        }
    }

    /// Makes the event happen. If the event is a fork, returns the child, which makes the second access.
    fn between(&mut self, what: Between) -> Option<Process<F>> {
        let (process, at, len) = (&self.process, self.at, self.len);
        // The zero page and a device's page have no frame of the engine.
        let frame = process.frame_at(at).unwrap_or(Pfn::new(0));
        match what {
            Between::Nothing => {}
            Between::Aging => _ = self.engine.referenced(frame),
            Between::WriteBack => {
                self.file.iter().for_each(|file| file.mapping().write_back(PageRange::ALL).unwrap());
            }
            Between::Fork => return Some(Process::of(process.fork().unwrap())),
            Between::Mprotect => {
                [R, RW].into_iter().for_each(|prot| process.mprotect(at, len, prot).unwrap())
            }
            Between::MprotectPart => {
                [R, RW].into_iter().for_each(|prot| _ = process.mprotect(at, PAGE, prot))
            }
            Between::Migration => _ = self.engine.migrate(frame),
            Between::Unmapping => _ = self.engine.try_to_unmap(frame),
            Between::Mremap => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                if let Ok(to) = process.mremap(at, len, len, flags, AWAY) {
                    self.at = to;
                }
            }
            Between::WriteProtection => {
                let config = UffdConfig::new().features(Features::empty());
                let uffd = Userfaultfd::new(process.space(), config).unwrap();
                if uffd.register(at, len, RegisterMode::WP).is_ok() {
                    uffd.write_protect(at, len, ProtectMode::WP).unwrap();
                    uffd.write_protect(at, len, ProtectMode::empty()).unwrap();
                }
            }
            Between::Populate => {
                let _ = self.engine.referenced(frame);
                process.madvise(at, len, Advice::PopulateWrite).unwrap();
            }
        }
        None
    }

    #[expect(unsafe_code, reason = "frees the device's frame")]
    fn end(self) {
        let Scene { machine, engine, process, file, device, .. } = self;
        process.check();
        drop((process, file, engine));
        // SAFETY: `new` allocated the frame, and the address space that mapped it is gone.
        unsafe { machine.free_frames(&[device]) };
        machine.accounting().assert_clean();
    }
}

/// Loads a word, or stores one. Returns the word and the number of faults.
fn access<F: Format>(process: &Process<F>, cpu: &mut Cpu<F>, at: u64, store: Option<u64>) -> (u64, u64) {
    let mut faults = 0;
    let mut handler = |at: VirtAddr, access| {
        faults += 1;
        assert!(faults <= 1, "an access faults again after its fault was resolved: {access:?} at {at:?}");
        process.handle_fault(at.get(), access).map(drop)
    };
    let value = match store {
        None => cpu.load(process.mmu(), at, &mut handler).unwrap(),
        Some(value) => {
            cpu.store(process.mmu(), at, value, &mut handler).unwrap();
            value
        }
    };
    (value, faults)
}

/// Makes an access, the event `what`, and another access on a CPU whose TLB is empty; returns how many faults
/// the second access took.
fn second_access<F: Format>(kind: Kind, what: Between, first: Option<u64>, second: Option<u64>) -> u64 {
    let mut scene = Scene::<F>::new(kind);
    let mut cpus = [0, 1].map(|number| scene.machine.cpu(number));
    let (value, _) = access(&scene.process, &mut cpus[0], scene.at, first);
    let other = scene.between(what);
    let (process, at) = (other.as_ref().unwrap_or(&scene.process), scene.at);
    let (found, faults) = access(process, &mut cpus[1], at, second);
    assert_eq!(found, second.unwrap_or(value), "{kind:?}, {what:?}");
    for cpu in &mut cpus {
        for store in [None, Some(5), None] {
            access(process, cpu, at, store);
            access(&scene.process, cpu, at, store);
        }
    }
    drop((other, cpus));
    scene.end();
    faults
}

const LOAD: Option<u64> = None;
const STORE: Option<u64> = Some(2);

/// Runs every combination of memory, event and accesses. `access` fails if an access faults twice.
fn every_life<F: Format>() {
    for (kind, what) in KINDS.into_iter().flat_map(|kind| BETWEEN.map(|what| (kind, what))) {
        for (first, second) in [(LOAD, LOAD), (LOAD, STORE), (Some(1), LOAD), (Some(1), STORE)] {
            second_access::<F>(kind, what, first, second);
        }
    }
}

#[test]
fn one_fault_serves_an_access_where_hardware_sets_the_bits() {
    every_life::<X86_4>();
}

#[test]
fn one_fault_serves_an_access_where_software_sets_the_bits() {
    every_life::<NoBits>();
}

#[test]
fn one_fault_serves_an_access_where_software_sets_the_dirty_bit() {
    every_life::<NoDirtyBit>();
}

/// Returns the faults of the second access on each hardware.
fn on_each_hardware(kind: Kind, what: Between, first: Option<u64>, second: Option<u64>) -> [u64; 3] {
    [
        second_access::<X86_4>(kind, what, first, second),
        second_access::<NoDirtyBit>(kind, what, first, second),
        second_access::<NoBits>(kind, what, first, second),
    ]
}

/// Aging and fork clear accessed bits and write permissions. Only hardware that does not set accessed bits
/// itself takes a fault afterwards.
#[test]
fn only_software_bits_cost_a_fault() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Device) {
        for second in [LOAD, STORE] {
            assert_eq!(on_each_hardware(kind, Between::Nothing, Some(1), second), [0; 3], "{kind:?}");
            assert_eq!(on_each_hardware(kind, Between::Aging, Some(1), second), [0, 0, 1], "{kind:?}");
        }
    }
    for kind in [Kind::Anonymous, Kind::Huge, Kind::FilePrivate, Kind::PoolPrivate] {
        assert_eq!(on_each_hardware(kind, Between::Fork, Some(1), LOAD), [0, 0, 1], "{kind:?}");
    }
    // The entry of a device's page allows stores from the start, and is clean until a store.
    assert_eq!(on_each_hardware(Kind::Device, Between::Nothing, LOAD, STORE), [0, 1, 1]);
}

#[test]
fn a_populated_page_takes_no_fault() {
    for kind in KINDS {
        for (first, second) in [(LOAD, STORE), (Some(1), LOAD), (Some(1), STORE)] {
            assert_eq!(on_each_hardware(kind, Between::Populate, first, second), [0; 3], "{kind:?}");
        }
    }
}

/// A page is unmapped between the fault's lookup of the entry and the lock of its page table. The fault
/// serves the entry that it finds under the lock.
#[test]
fn entry_that_changed_before_its_table_lock_gets_no_bits() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(8 << 20)).unwrap();
        let engine = Engine::new(Gated::new(&machine), Config::default()).unwrap();
        let config = SpaceConfig::new().locking(locking);
        let space = AddressSpace::new(&engine, &config).unwrap();
        space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        for (access, left) in [(Access::READ, 0), (Access::WRITE, 1)] {
            space.handle_fault(BASE, Access::WRITE).unwrap();
            engine.referenced(space.frame_at(BASE).unwrap()).unwrap();
            let other = space.clone();
            before_lock(Rank::PageTable, move || {
                let advise = || other.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
                thread::scope(|scope| scope.spawn(advise).join().unwrap());
            });
            space.handle_fault(BASE, access).unwrap();
            assert!(!waits_for_lock(), "no table was locked");
            assert_eq!(space.rss().anon, left, "anonymous pages after the access");
        }
        space.check();
        drop((space, engine));
        machine.accounting().assert_clean();
    }
}

/// A flag that a format does not have: the calls that need it say so.
#[test]
fn calls_that_need_an_absent_flag_are_refused() {
    /// x86-64 without a bit for write protection by a pager.
    type NoUffdWp = SoftwareBits<X86_4, true, { PteFlags::UFFD_WP.bits() }>;
    let scene = Scene::<NoBits>::new(Kind::Anonymous);
    assert_eq!(scene.process.clear_soft_dirty(), Err(SoftDirtyError::NotSupported));
    assert!(scene.process.pkey_alloc(PkeyRights::empty()).is_err(), "RISC-V has no protection keys");
    assert_eq!(RegisterMode::supported::<Machine<NoBits>>(), RegisterMode::all());
    assert_eq!(RegisterMode::supported::<Machine<NoUffdWp>>(), RegisterMode::MISSING | RegisterMode::MINOR);
    let scene = Scene::<NoDirtyBit>::new(Kind::Anonymous);
    assert_eq!(scene.process.clear_soft_dirty(), Ok(()));
    let scene = Scene::<NoUffdWp>::new(Kind::Anonymous);
    let uffd = Userfaultfd::new(scene.process.space(), UffdConfig::default()).unwrap();
    let register = |mode| uffd.register(scene.at, PAGE, mode).map(drop);
    assert_eq!(register(RegisterMode::WP), Err(UffdRegisterError::Invalid));
    assert_eq!(register(RegisterMode::MISSING), Ok(()));
}
