//! Kinds of memory (*states*) of the sweep: the contents of the range of eight units at the start of the
//! scene, and its registration with a userfaultfd. A new state is one entry of [`STATES`]: a name, a function
//! that fills the range, and if necessary a world, a size of the unit and the features of the userfaultfd.
//! Each state adds one run of every operation to the sweep.

use super::{
    board::Board,
    scene::{Scene, UNITS},
    support::storage::Storage,
    *,
};
use freehold::{
    PageIndex,
    call::{Advice, LockFlags, ShmFlags},
    file::{Seals, Zeroes},
    hugetlb::HugePageSize,
    platform::{FramePurpose, FrameRequest, PkeyRights},
    reclaim::{ReclaimPolicy, ReclaimRequest},
    remote::PinFlags,
    uffd::{Features, RegisterMode},
};
use freehold_machine::MemorySwap;

/// A kind of memory, and the machine on which its scenes run.
pub struct State {
    /// Name in failure messages and in `SWEEP_STATE`.
    pub name: &'static str,
    /// Bytes of a unit.
    pub unit: u64,
    /// Creates the world of the scenes.
    pub world: fn() -> World,
    /// Features of the scene's userfaultfd if the memory is registered with it. Another thread then serves
    /// the pager's messages.
    pub features: Option<Features>,
    /// Takes long to build. `retried.rs` makes only a part of the operations, also in a full run.
    pub is_slow: bool,
    /// Fills the range of a scene.
    pub build: fn(&mut Scene),
}

/// A quarter of a huge page, so that splits lie inside a huge page.
const PART: u64 = HUGE / 4;

/// Returns a kind of memory with small pages that no pager serves.
const fn state(name: &'static str, build: fn(&mut Scene)) -> State {
    State { name, unit: PAGE, world: small, features: None, is_slow: false, build }
}

/// Returns a kind of memory that is registered with a userfaultfd.
const fn watched(name: &'static str, features: Features, build: fn(&mut Scene)) -> State {
    State { features: Some(features), ..state(name, build) }
}

/// Creates a machine without the oracles, because the sweep has a hundred thousand scenes. Other tests run
/// with the oracles.
fn world(config: MachineConfig) -> World {
    let machine = Machine::new(config.fast()).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    World { machine, engine: Some(engine) }
}

fn small() -> World {
    world(MachineConfig::backed(16 << 20))
}

fn keyed() -> World {
    world(MachineConfig::backed(16 << 20).pkeys())
}

/// Creates a machine with a swap device, which outlives the scenes.
fn swapping() -> World {
    let machine = Machine::new(MachineConfig::backed(2 << 20).fast()).unwrap();
    let engine = Engine::new(machine.clone(), Config::default().reclaim(ReclaimPolicy::Clock)).unwrap();
    engine.swap_on(MemorySwap::new(64), 0).unwrap();
    World { machine, engine: Some(engine) }
}

/// Creates a machine whose memory has no contents, because huge pages have many bytes.
fn large() -> World {
    let world = world(MachineConfig::phantom(64 << 20));
    // The first read of an empty huge page allocates the huge page of zeroes, which the engine keeps.
    let process = world.process(Locking::default());
    anon(&process, BASE, HUGE / PAGE);
    process.madvise(BASE, HUGE, Advice::HugePage).unwrap();
    process.load::<u64>(&mut world.machine.cpu(0), BASE).unwrap();
    drop(process);
    world
}

fn pooled() -> World {
    let world = large();
    assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, 24, None), 24);
    world
}

const M: RegisterMode = RegisterMode::MISSING;
const WP: RegisterMode = RegisterMode::WP;
const MINOR: RegisterMode = RegisterMode::MINOR;
const PLAIN: Features = Features::empty();
const FORK: Features = Features::EVENT_FORK;
const REMAP: Features = Features::EVENT_REMAP;
const REMOVE: Features = Features::EVENT_REMOVE;
const UNMAP: Features = Features::EVENT_UNMAP;
const ALL: Features = FORK
    .union(REMAP)
    .union(REMOVE)
    .union(UNMAP)
    .union(Features::WP_UNPOPULATED)
    .union(Features::WP_HUGETLBFS_SHMEM);
const BUS: Features = ALL.union(Features::SIGBUS);

pub const STATES: &[State] = &[
    state("nothing", |_| ()),
    state("memory", memory),
    state("memory shared with a child", |s| {
        memory(s);
        forked(s);
    }),
    State { world: swapping, is_slow: true, ..state("memory that was swapped out", swapped) },
    State {
        world: swapping,
        is_slow: true,
        ..state("memory that was swapped out, shared with a child", |s| {
            swapped(s);
            forked(s);
        })
    },
    state("VMAs of two kinds", |s| {
        memory(s);
        for unit in (0..UNITS).step_by(2) {
            s.process.mprotect(s.at(unit), s.unit, R).unwrap();
        }
    }),
    state("a file, private", |s| of_file(s, MapFlags::PRIVATE)),
    state("a file, private, shared with a child", |s| {
        of_file(s, MapFlags::PRIVATE);
        forked(s);
    }),
    state("a file, shared", |s| of_file(s, MapFlags::SHARED)),
    state("shared memory", |s| {
        s.file = s.shmem(12);
        of_file(s, MapFlags::SHARED);
    }),
    state("shared memory, private", |s| {
        s.file = s.shmem(12);
        of_file(s, MapFlags::PRIVATE);
    }),
    state("a memfd with seals", |s| {
        let memfd = Mapping::memfd(s.world.engine(), 12 * PAGE).unwrap();
        memfd.add_seals(Seals::SHRINK | Seals::GROW).unwrap();
        s.file = File::new(&memfd, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        of_file(s, MapFlags::SHARED);
    }),
    state("a device of zeroes", |s| {
        let zeroes = Mapping::zeroes(s.world.engine()).unwrap();
        s.file = File::new(&zeroes, FileAccess::READ_WRITE, "/dev/zero").unwrap();
        of_file(s, MapFlags::PRIVATE);
        forked(s);
    }),
    state("a direct file", |s| {
        let storage = Storage::new(&s.world.machine);
        s.file = storage.file(&s.world, 12);
        // The storage gets all its frames now, so that only the engine's own allocations can fail later.
        let mut frames = [Pfn::new(0); 40];
        assert_eq!(
            s.world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames),
            frames.len()
        );
        frames.iter().for_each(|frame| s.world.machine.zero_frame(*frame));
        storage.state().frames.extend((0..).zip(frames));
        of_file(s, MapFlags::SHARED);
    }),
    state("locked memory", |s| {
        memory(s);
        s.process.mlock(s.at(0), UNITS * s.unit).unwrap();
    }),
    state("memory locked on fault", |s| {
        memory(s);
        s.process.mlock2(s.at(0), UNITS * s.unit, LockFlags::ONFAULT).unwrap();
    }),
    state("sealed memory", |s| {
        memory(s);
        s.process.mseal(s.at(0), UNITS * s.unit, 0).unwrap();
    }),
    state("guards", |s| {
        memory(s);
        s.process.madvise(s.at(1), 2 * s.unit, Advice::GuardInstall).unwrap();
        s.process.madvise(s.at(5), s.unit, Advice::GuardInstall).unwrap();
    }),
    state("pinned memory", |s| {
        memory(s);
        pin(s, PinFlags::WRITE);
    }),
    state("pinned pages of a file", |s| {
        of_file(s, MapFlags::PRIVATE);
        pin(s, PinFlags::LONGTERM);
    }),
    state("memory that failed", |s| {
        memory(s);
        let frame = s.process.frame_at(s.at(1)).unwrap();
        s.world.engine().memory_failure(frame).unwrap();
    }),
    state("a stack", |s| map(s, ANON | MapFlags::GROWSDOWN, None)),
    state("droppable memory", |s| map(s, MapFlags::DROPPABLE | MapFlags::ANONYMOUS, None)),
    state("memory that is wiped on fork", |s| {
        memory(s);
        s.process.madvise(s.at(0), UNITS * s.unit, Advice::WipeOnFork).unwrap();
    }),
    state("memory with a policy", |s| {
        memory(s);
        s.process.set_policy(s.at(2), 3 * s.unit, 3).unwrap();
    }),
    state("attached memory", |s| {
        let segment = freehold::file::Segment::new(s.world.engine(), 9, UNITS * s.unit).unwrap();
        s.process.shmat(&segment, s.at(0), ShmFlags::empty()).unwrap();
        s.attached = Some(segment);
        touch(s);
    }),
    State { world: keyed, ..state("memory with a key", keyed_memory) },
    state("text with a probe", |s| {
        let exec = Prot::READ | Prot::EXEC;
        let mapped = s.process.mmap(
            s.at(0),
            UNITS * s.unit,
            exec,
            MapFlags::PRIVATE | MapFlags::FIXED,
            Some(&s.file),
            0,
        );
        assert_eq!(mapped, Ok(s.at(0)));
        assert!(s.process.load::<u64>(&mut s.cpu, BASE + PAGE).is_ok());
        s.file.mapping().add_probe(PAGE + 100, &[0xcc]).unwrap();
        s.file.mapping().add_probe(4 * PAGE + 8, &[0xcc]).unwrap();
        assert!(s.process.load::<u64>(&mut s.cpu, BASE + PAGE).is_ok());
    }),
    state("a device", |s| of_device(s, MapFlags::SHARED)),
    state("a device, whole, private", |s| {
        s.board.driver_mode().whole = Some(u64::MAX);
        of_device(s, MapFlags::PRIVATE);
    }),
    state("a special mapping", |s| {
        let flags = freehold::vma::flags::VmFlags::READ | freehold::vma::flags::VmFlags::MAYREAD;
        s.process.install_special(s.at(0), UNITS * s.unit, flags, &s.vdso).unwrap();
    }),
    State { unit: PART, world: large, ..state("huge pages", huge) },
    State {
        unit: PART,
        world: large,
        ..state("huge pages shared with a child", |s| {
            huge(s);
            forked(s);
        })
    },
    State { unit: HUGE, world: pooled, ..state("huge pages of a pool", pool_private) },
    State {
        unit: HUGE,
        world: pooled,
        ..state("huge pages of a pool shared with a child", |s| {
            pool_private(s);
            forked(s);
        })
    },
    State { unit: HUGE, world: pooled, ..state("a file of huge pages", pool_shared) },
    watched("registered: missing", PLAIN, |s| registered(s, M)),
    watched("registered: missing, fork", FORK, |s| registered(s, M)),
    watched("registered: missing, remap", REMAP, |s| registered(s, M)),
    watched("registered: missing, remove", REMOVE, |s| registered(s, M)),
    watched("registered: missing, unmap", UNMAP, |s| registered(s, M)),
    watched("registered: missing, all events", ALL, |s| registered(s, M)),
    watched("registered: missing, no task waits", BUS, |s| registered(s, M)),
    watched("registered: write-protected", PLAIN, |s| registered(s, WP)),
    watched("registered: write-protected, fork", FORK, |s| registered(s, WP)),
    watched("registered: write-protected, remap", REMAP, |s| registered(s, WP)),
    watched("registered: write-protected, remove", REMOVE, |s| registered(s, WP)),
    watched("registered: write-protected, unmap", UNMAP, |s| registered(s, WP)),
    watched("registered: write-protected, all events", ALL, |s| registered(s, WP)),
    watched("registered: write-protected, no messages", Features::WP_ASYNC, |s| registered(s, WP)),
    watched("registered: both, all events", ALL, |s| registered(s, M | WP)),
    watched("registered: both, no task waits", BUS, |s| registered(s, M | WP)),
    watched("registered shared memory: missing, all events", ALL, |s| registered_shmem(s, M)),
    watched("registered shared memory: minor", PLAIN, |s| registered_shmem(s, MINOR)),
    watched("registered shared memory: minor, all events", ALL, |s| registered_shmem(s, MINOR)),
    watched("registered shared memory: write-protected, all events", ALL, |s| registered_shmem(s, WP)),
    watched("registered shared memory: everything, all events", ALL, |s| registered_shmem(s, M | WP | MINOR)),
    State {
        unit: HUGE,
        world: pooled,
        ..watched("registered huge pages of a pool: both, all events", ALL, |s| {
            pool_private(s);
            register(s, M | WP);
            s.uffd.write_protect(s.at(3), 2 * s.unit, freehold::uffd::ProtectMode::WP).unwrap();
        })
    },
    State {
        unit: HUGE,
        world: pooled,
        ..watched("a registered file of huge pages: everything, all events", ALL, |s| {
            pool_shared(s);
            s.file.mapping().fill(PageIndex::new(5)).unwrap();
            register(s, M | WP | MINOR);
            s.uffd.write_protect(s.at(3), 2 * s.unit, freehold::uffd::ProtectMode::WP).unwrap();
        })
    },
    watched("registered, shared with a child, all events", ALL, |s| {
        memory(s);
        forked(s);
        register(s, M | WP);
    }),
];

fn map(s: &mut Scene, flags: MapFlags, file: Option<&Counted<File<Machine>>>) {
    let mapped = s.process.mmap(s.at(0), UNITS * s.unit, RW, flags | MapFlags::FIXED, file, 0);
    assert_eq!(mapped, Ok(s.at(0)));
    touch(s);
}

/// Stores to the start of some units. The other units stay unpopulated.
fn touch(s: &mut Scene) {
    for unit in [0, 1, 3, 4] {
        s.process.store(&mut s.cpu, BASE + unit * s.unit, 100 + unit).unwrap();
    }
    assert!(s.process.load::<u64>(&mut s.cpu, BASE + 6 * s.unit).is_ok());
}

fn memory(s: &mut Scene) {
    map(s, ANON, None);
}

/// Swaps the pages of the range out.
fn swapped(s: &mut Scene) {
    memory(s);
    // Pages of other processes stay.
    let frames: Vec<Pfn> = (0..UNITS).filter_map(|unit| s.process.frame_at(s.at(unit))).collect();
    let only = |pfn| frames.contains(&pfn);
    while s.process.rss().anon > 0 {
        let request = ReclaimRequest::pages(frames.len() as u64).only(&only);
        let reclaimed = s.world.engine().reclaim(&request);
        assert_ne!(reclaimed.freed, 0, "{reclaimed:?}");
    }
}

fn of_file(s: &mut Scene, flags: MapFlags) {
    let file = s.file.clone();
    map(s, flags, Some(&file));
}

fn of_device(s: &mut Scene, flags: MapFlags) {
    const { assert!(super::board::PAGES == UNITS) };
    let _: &Board = &s.board;
    let device = s.device.clone();
    map(s, flags, Some(&device));
}

fn forked(s: &mut Scene) {
    s.child = Some(Process::of(s.process.fork().unwrap()));
}

fn pin(s: &mut Scene, flags: PinFlags) {
    s.pins.push(s.process.pin_user_pages(s.at(0), 2, flags).unwrap());
}

fn keyed_memory(s: &mut Scene) {
    memory(s);
    // Without protection keys, key 0 is refused, too, and the memory has no key.
    let Ok(pkey) = s.process.pkey_alloc(PkeyRights::empty()) else { return };
    s.process.pkey_mprotect(s.at(2), 3 * s.unit, RW, pkey).unwrap();
}

fn huge(s: &mut Scene) {
    s.process.mmap(s.at(0), UNITS * s.unit, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    s.process.madvise(s.at(0), UNITS * s.unit, Advice::HugePage).unwrap();
    touch(s);
}

fn pool_private(s: &mut Scene) {
    map(s, ANON | MapFlags::HUGETLB, None);
}

fn pool_shared(s: &mut Scene) {
    let mapping = Mapping::of_huge_pages(s.world.engine(), HugePageSize::Mib2, 12 * HUGE, false).unwrap();
    s.file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
    of_file(s, MapFlags::SHARED);
}

fn register(s: &mut Scene, mode: RegisterMode) {
    s.uffd.register(s.at(0), UNITS * s.unit, mode).unwrap();
}

fn registered(s: &mut Scene, mode: RegisterMode) {
    memory(s);
    register(s, mode);
    if mode.contains(WP) {
        s.uffd.write_protect(s.at(3), 2 * s.unit, freehold::uffd::ProtectMode::WP).unwrap();
    }
}

fn registered_shmem(s: &mut Scene, mode: RegisterMode) {
    let mapping = Mapping::new(s.world.engine(), Zeroes, 12 * PAGE, true).unwrap();
    s.file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
    of_file(s, MapFlags::SHARED);
    mapping.fill(PageIndex::new(5)).unwrap();
    register(s, mode);
    if mode.contains(WP) {
        s.uffd.write_protect(s.at(3), 2 * s.unit, freehold::uffd::ProtectMode::WP).unwrap();
    }
}
