//! Stack use of the engine's entry points. A kernel gives an entry point 16 KiB of stack, and needs a part of
//! this stack itself.
//!
//! The depth is measured from the frame of the caller to the deepest call of the platform, including all
//! frames of the engine. The functions of the platform below that call are not counted: on this test machine
//! they handle stale translations and deferred functions, but in a kernel they do not. Engine functions that
//! do not call the platform are not measured, because they are leaves of the call tree.
//!
//! The test is a program of its own, so that a full test run can repeat it with an engine that is compiled
//! without optimisation. The limit `MAX_STACK` is for such an engine. A new entry point is one more call of
//! `Depths::of`. The test prints all depths, and a failure names the entry point with the largest depth.
//! `cargo test --package freehold-tests --test stack_depth -- --nocapture` shows these depths, and
//! `cargo xtask plain` runs the test without optimisation.

mod support;

use freehold::{
    PageRange,
    call::{Advice, RemapFlags, ShmFlags, SyncFlags},
    engine::Blocks,
    file::Zeroes,
    hugetlb::HugePageSize,
    reclaim::ReclaimRequest,
    remote::{AccessMode, PinFlags},
    uffd::{Features, FillMode, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{MemorySwap, deepest_call};
use support::*;

/// Largest stack use of an entry point in bytes, in a build without optimisation.
const MAX_STACK: usize = 15 << 10;
/// Measured depths: name of the entry point, bytes, and the deepest call of the platform.
#[derive(Default)]
struct Depths(Vec<(&'static str, usize, &'static str)>);

impl Depths {
    #[inline(never)]
    fn of<R>(&mut self, name: &'static str, entry: impl FnOnce() -> R) -> R {
        let mut result = None;
        let (depth, call) = deepest_call(|| result = Some(entry()));
        self.0.push((name, depth, call));
        result.unwrap()
    }
}

#[test]
fn no_entry_point_exceeds_the_stack_of_a_kernel() {
    let mut depths = Depths::default();
    let all: [fn(&mut Depths); 9] =
        [anonymous, swapped, reclaimed, files, shared, userfaults, huge_pages, access, pages];
    all.into_iter().for_each(|scenario| scenario(&mut depths));
    depths.0.sort_by_key(|(_, depth, ..)| *depth);
    for (name, depth, call) in &depths.0 {
        println!("{depth:6}  {name}, at {call}");
    }
    let (name, depth, call) = depths.0.last().unwrap();
    assert!((1..=MAX_STACK).contains(depth), "{name} needs {depth} bytes of stack when it calls {call}");
}

fn anonymous(depths: &mut Depths) {
    let world = World::with(32 << 20, Config::default());
    let process = depths.of("AddressSpace::new", || world.process(Locking::default()));
    let mut cpu = world.machine.cpu(0);
    let fixed = ANON | MapFlags::FIXED;
    depths.of("mmap", || process.mmap(BASE, 64 * PAGE, RW, fixed, None, 0)).unwrap();
    depths.of("a first fault", || process.store(&mut cpu, BASE, 1u64)).unwrap();
    depths.of("a fault", || process.store(&mut cpu, BASE + PAGE, 1u64)).unwrap();
    fill(&process, &mut cpu, BASE, 64, 1);
    depths.of("mprotect", || process.mprotect(BASE + 8 * PAGE, PAGE, R)).unwrap();
    let child = depths.of("fork", || process.fork()).unwrap();
    depths.of("a fault that copies", || process.store(&mut cpu, BASE, 2u64)).unwrap();
    depths.of("exit of a child", || drop(child));
    let to = BASE + 1024 * PAGE;
    let moved = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    depths.of("mremap", || process.mremap(BASE + 16 * PAGE, 8 * PAGE, 16 * PAGE, moved, to)).unwrap();
    depths.of("mmap over other mappings", || process.mmap(to + PAGE, 2 * PAGE, RW, fixed, None, 0)).unwrap();
    depths.of("mlock", || process.mlock(BASE, 4 * PAGE)).unwrap();
    depths.of("munlock", || process.munlock(BASE, 4 * PAGE)).unwrap();
    depths.of("madvise, discarding", || process.madvise(BASE, 4 * PAGE, Advice::DontNeed)).unwrap();
    depths.of("madvise, guards", || process.madvise(BASE + 4 * PAGE, PAGE, Advice::GuardInstall)).unwrap();
    depths.of("brk", || process.brk(0)).unwrap();
    depths.of("maps", || process.maps(0).count());
    depths.of("smaps", || process.smaps(0).count());
    depths.of("mincore", || process.mincore(BASE, PAGE, &mut [0])).unwrap();
    depths.of("munmap", || process.munmap(BASE + 40 * PAGE, 2 * PAGE)).unwrap();
    depths.of("munmap_atomic", || process.munmap_atomic(BASE + 44 * PAGE, 2 * PAGE)).unwrap();
    depths.of("mseal", || process.mseal(BASE, PAGE, 0)).unwrap();
    depths.of("exit", || drop(process));
    drop(cpu);
    world.end();
}

fn swapped(depths: &mut Depths) {
    let world = World::with(32 << 20, Config::default());
    let id = world.engine().swap_on(MemorySwap::new(256), 0).unwrap();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 64);
    fill(&process, &mut cpu, BASE, 64, 1);
    depths.of("madvise, swapping out", || process.madvise(BASE, 64 * PAGE, Advice::PageOut)).unwrap();
    depths.of("a fault on a swapped page", || process.load::<u64>(&mut cpu, BASE)).unwrap();
    depths.of("fork of swapped pages", || process.fork()).unwrap();
    depths.of("reclaim", || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX)));
    let mapping = Mapping::memfd(world.engine(), 64 * PAGE).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
    process.mmap(BASE, 64 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    fill(&process, &mut cpu, BASE, 64, 1);
    depths
        .of("madvise, swapping shared memory out", || process.madvise(BASE, 64 * PAGE, Advice::PageOut))
        .unwrap();
    assert_eq!(mapping.swapped_pages(PageRange::ALL), 64);
    depths.of("a fault on swapped shared memory", || process.load::<u64>(&mut cpu, BASE)).unwrap();
    depths.of("write_at to swapped shared memory", || mapping.write_at(20 * PAGE, &[1; 8])).unwrap();
    depths.of("punch of swapped shared memory", || mapping.punch(30 * PAGE + 8..34 * PAGE)).unwrap();
    fill(&process, &mut cpu, BASE, 64, 1);
    depths.of("reclaim of shared memory", || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX)));
    assert_eq!(mapping.swapped_pages(PageRange::ALL), 64);
    depths.of("swapoff", || world.engine().swap_off(id, || [process.space().clone()])).unwrap();
    drop((process, cpu, mapping, file));
    world.end();
}

fn reclaimed(depths: &mut Depths) {
    let world = World::with(32 << 20, Config::default());
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let file = world.file(64);
    let shared = MapFlags::SHARED | MapFlags::FIXED;
    process.mmap(BASE, 64 * PAGE, RW, shared, Some(&file), 0).unwrap();
    let mut reclaim = |name| depths.of(name, || world.engine().reclaim(&ReclaimRequest::pages(u64::MAX)));
    for page in 0..64 {
        process.load::<u64>(&mut cpu, BASE + page * PAGE).unwrap();
    }
    assert_eq!(reclaim("reclaim of clean pages").freed, 64);
    fill(&process, &mut cpu, BASE, 64, 1);
    assert_eq!(reclaim("reclaim of dirty pages").writing, 64);
    anon(&process, BASE, 64);
    fill(&process, &mut cpu, BASE, 64, 1);
    process.madvise(BASE, 64 * PAGE, Advice::Free).unwrap();
    assert_eq!(reclaim("reclaim of lazily freed pages").freed, 64);
    drop((process, cpu, file));
    world.end();
}

fn files(depths: &mut Depths) {
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let file = depths.of("Mapping::new, File::new", || world.file(64));
    let (shared, private) = (MapFlags::SHARED | MapFlags::FIXED, MapFlags::PRIVATE | MapFlags::FIXED);
    depths.of("mmap of a file", || process.mmap(BASE, 64 * PAGE, RW, shared, Some(&file), 0)).unwrap();
    let own = BASE + 1024 * PAGE;
    process.mmap(own, 64 * PAGE, RW, private, Some(&file), 0).unwrap();
    depths.of("a fault in a file", || process.load::<u64>(&mut cpu, BASE)).unwrap();
    depths.of("a store to a file", || process.store(&mut cpu, BASE + PAGE, 1u64)).unwrap();
    depths.of("a store to a private file", || process.store(&mut cpu, own, 1u64)).unwrap();
    depths.of("populate", || process.madvise(own + 32 * PAGE, 4 * PAGE, Advice::PopulateWrite)).unwrap();
    depths.of("msync", || process.msync(BASE, 4 * PAGE, SyncFlags::SYNC)).unwrap();
    fill(&process, &mut cpu, BASE, 8, 1);
    depths.of("madvise, evicting", || process.madvise(BASE, 64 * PAGE, Advice::PageOut)).unwrap();
    depths.of("read_at", || file.mapping().read_at(100, &mut [0; 8])).unwrap();
    depths.of("write_at", || file.mapping().write_at(100, &[1; 8])).unwrap();
    depths.of("write_back", || file.mapping().write_back((0..4).into())).unwrap();
    depths.of("punch", || file.mapping().punch(4 * PAGE..8 * PAGE)).unwrap();
    depths.of("add_probe", || file.mapping().add_probe(9 * PAGE, &[0xcc])).unwrap();
    depths.of("remove_probe", || file.mapping().remove_probe(9 * PAGE)).unwrap();
    depths.of("truncate", || file.mapping().truncate(PAGE)).unwrap();
    depths.of("exit with files", || drop((process, file)));
    drop(cpu);
    world.end();
}

fn shared(depths: &mut Depths) {
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let segment = freehold::file::Segment::new(world.engine(), 1, 4 * PAGE).unwrap();
    depths.of("shmat", || process.shmat(&segment, BASE, ShmFlags::empty())).unwrap();
    depths.of("a fault in shared memory", || process.store(&mut cpu, BASE, 1u64)).unwrap();
    depths.of("shmdt", || process.shmdt(BASE)).unwrap();
    depths.of("removing a segment", || segment.remove());
    drop((process, cpu, segment));
    world.end();
}

fn userfaults(depths: &mut Depths) {
    let world = World::new();
    let process = world.process(Locking::default());
    let cpu = world.machine.cpu(0);
    anon(&process, BASE, 64);
    let config = UffdConfig::new().features(Features::EVENT_REMOVE);
    let uffd = Userfaultfd::new(process.space(), config).unwrap();
    let modes = RegisterMode::MISSING | RegisterMode::WP;
    depths.of("uffd register", || uffd.register(BASE, 64 * PAGE, modes)).unwrap();
    let (page, fill) = ([7; PAGE as usize], FillMode::empty());
    depths.of("uffd copy", || uffd.copy(BASE, &page, fill)).unwrap();
    depths.of("uffd zeropage", || uffd.zeropage(BASE + PAGE, PAGE, fill)).unwrap();
    depths.of("uffd poison", || uffd.poison(BASE + 2 * PAGE, PAGE, fill)).unwrap();
    let to = BASE + 8 * PAGE;
    depths.of("uffd move", || uffd.move_pages(to, BASE, PAGE, MoveMode::empty())).unwrap();
    depths.of("uffd write_protect", || uffd.write_protect(to, PAGE, ProtectMode::WP)).unwrap();
    depths.of("uffd wake", || uffd.wake(BASE, 64 * PAGE)).unwrap();
    depths.of("a fault that notifies a pager", || {
        std::thread::scope(|scope| {
            let pager = scope.spawn(|| {
                uffd.read().unwrap();
                uffd.zeropage(BASE + 20 * PAGE, PAGE, fill).unwrap();
            });
            process.store(&mut world.machine.cpu(1), BASE + 20 * PAGE, 1u64).unwrap();
            pager.join().unwrap();
        });
    });
    depths.of("uffd unregister", || uffd.unregister(BASE, PAGE)).unwrap();
    depths.of("uffd close", || drop(uffd));
    drop((process, cpu));
    world.end();
}

fn huge_pages(depths: &mut Depths) {
    let world = World::with(16 * HUGE, Config::default());
    depths.of("resize_huge_pool", || world.engine().resize_huge_pool(HugePageSize::Mib2, 4, None));
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 * HUGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge").unwrap();
    let shared = MapFlags::SHARED | MapFlags::FIXED;
    depths.of("mmap of huge pages", || process.mmap(BASE, 2 * HUGE, RW, shared, Some(&file), 0)).unwrap();
    depths.of("a fault in huge pages", || process.store(&mut cpu, BASE, 1u64)).unwrap();
    let own = ANON | MapFlags::HUGETLB | MapFlags::FIXED;
    process.mmap(BASE + 8 * HUGE, HUGE, RW, own, None, 0).unwrap();
    depths.of("a fault in private huge pages", || process.store(&mut cpu, BASE + 8 * HUGE, 1u64)).unwrap();
    let child = depths.of("fork with huge pages", || process.fork()).unwrap();
    depths.of("a copy of a huge page", || process.store(&mut cpu, BASE + 8 * HUGE, 2u64)).unwrap();
    drop(child);
    depths.of("discarding huge pages", || process.madvise(BASE, HUGE, Advice::DontNeed)).unwrap();
    depths.of("truncating huge pages", || mapping.truncate(HUGE)).unwrap();
    let thp = BASE + 64 * HUGE;
    process.mmap(thp, 2 * HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    process.madvise(thp, 2 * HUGE, Advice::HugePage).unwrap();
    depths.of("a fault that allocates a huge page", || process.store(&mut cpu, thp, 1u64)).unwrap();
    process.mmap(thp + 4 * HUGE, HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    world.engine().set_blocks(Blocks::new().always(Blocks::SIZES));
    depths.of("a fault that allocates a block", || process.store(&mut cpu, thp + 4 * HUGE, 1u64)).unwrap();
    depths.of("munmap of a part of a huge page", || process.munmap(thp + PAGE, PAGE)).unwrap();
    depths.of("exit with huge pages", || drop(process));
    drop((cpu, file, mapping));
    world.engine().resize_huge_pool(HugePageSize::Mib2, 0, None);
    world.end();
}

fn access(depths: &mut Depths) {
    let world = World::new();
    let (process, other) = (world.process(Locking::default()), world.process(Locking::default()));
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 16);
    anon(&other, BASE, 16);
    depths.of("write_memory", || process.write_memory(BASE, &[1; 64], AccessMode::Plain)).unwrap();
    depths.of("read_memory", || process.read_memory(BASE, &mut [0; 64], AccessMode::Plain)).unwrap();
    let pins = depths.of("pin_user_pages", || process.pin_user_pages(BASE, 4, PinFlags::WRITE)).unwrap();
    depths.of("unpinning", || drop(pins));
    cpu.run(process.mmu());
    let fast = || cpu.call(|| process.pin_user_pages_fast(BASE, 4, PinFlags::WRITE));
    drop(depths.of("pin_user_pages_fast", fast).unwrap());
    drop((process, other, cpu));
    world.end();
}

fn pages(depths: &mut Depths) {
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, 4);
    let shmem = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
    let file = File::new(&shmem, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
    process.mmap(BASE + 8 * PAGE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
    fill(&process, &mut cpu, BASE, 4, 1);
    fill(&process, &mut cpu, BASE + 8 * PAGE, 4, 1);
    let frame = |at| process.frame_at(at).unwrap();
    let (page, shared) = (frame(BASE), frame(BASE + 8 * PAGE));
    depths.of("migrate", || world.engine().migrate(page)).unwrap();
    depths.of("migrate of a file's page", || world.engine().migrate(shared)).unwrap();
    // The migrated page is not mapped in this space any more.
    fill(&process, &mut cpu, BASE + 8 * PAGE, 1, 1);
    let shared = frame(BASE + 8 * PAGE);
    depths.of("mkclean", || world.engine().mkclean(shared)).unwrap();
    depths.of("referenced", || world.engine().referenced(shared)).unwrap();
    depths.of("try_to_unmap", || world.engine().try_to_unmap(shared)).unwrap();
    let lost = frame(BASE + PAGE);
    depths.of("memory_failure", || world.engine().memory_failure(lost)).unwrap();
    drop((process, cpu, file, shmem));
}
