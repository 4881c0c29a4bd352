//! Calls that take an address, an offset, a length, a count, an index or a key, with numbers at every edge.
//! With every pair of the values in `EDGES`, each call returns and does not panic. Counters and page tables
//! are consistent afterwards.
//!
//! A new call is one line in `OF_SPACES`, `OF_FILES` or `OF_ENGINES`. The answers of the calls are not
//! checked here: `edges.rs` and `lengths.rs` check them.

use crate::support::*;
use freehold::{
    PageCount, PageIndex, PageRange,
    call::{Advice, LockFlags, RemapFlags, ShmFlags, SyncFlags},
    engine::Overcommit,
    fault::Access,
    file::{Frames, Segment, Special, Zeroes},
    hugetlb::HugePageSize,
    nommu::{NoMmuSpace, Regions},
    reclaim::ReclaimRequest,
    remote::{AccessMode, IoVec, PinFlags},
    report::QueryFlags,
    uffd::{Features, FillMode, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};
use std::{
    ops::{ControlFlow, Range},
    panic::{AssertUnwindSafe, catch_unwind},
};

const EDGES: [u64; 19] = [
    0,
    1,
    PAGE - 1,
    PAGE,
    PAGE + 1,
    BASE,
    BASE + 1,
    BASE + 3 * PAGE,
    TASK_SIZE - PAGE,
    TASK_SIZE - 1,
    TASK_SIZE,
    TASK_SIZE + PAGE,
    1 << 52,
    1 << 55,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - PAGE,
    u64::MAX - PAGE + 1,
    u64::MAX,
];

/// Returns all pairs of edge values.
fn pairs() -> impl Iterator<Item = (u64, u64)> {
    EDGES.into_iter().flat_map(|a| EDGES.map(|b| (a, b)))
}

/// Accepts any answer of a call.
fn ignore<R>(_: R) {}

/// Makes a call with every pair of edge values. Adds to `failed` the name and the numbers of each call that
/// panics.
fn each<R>(failed: &mut Vec<String>, name: &str, mut call: impl FnMut(u64, u64) -> R) {
    for (a, b) in pairs() {
        if catch_unwind(AssertUnwindSafe(|| ignore(call(a, b)))).is_err() {
            failed.push(format!("{name}({a:#x}, {b:#x})"));
        }
    }
}

/// Name and code of a call of an address space. The call gets two numbers.
type Call = (&'static str, fn(&World, &Process, u64, u64));

/// Calls of an address space.
const OF_SPACES: &[Call] = &[
    ("mmap", |_, p, a, b| ignore(p.mmap(a, b, RW, ANON, None, 0))),
    ("mmap fixed", |_, p, a, b| ignore(p.mmap(a, b, RW, ANON | MapFlags::FIXED, None, 0))),
    ("mmap huge", |_, p, a, b| ignore(p.mmap(a, b, RW, ANON | MapFlags::HUGETLB, None, 0))),
    ("mmap file", |w, p, a, b| ignore(p.mmap(0, a, R, MapFlags::SHARED, Some(&w.file(4)), b))),
    ("munmap", |_, p, a, b| ignore(p.munmap(a, b))),
    ("munmap_atomic", |_, p, a, b| ignore(p.munmap_atomic(a, b))),
    ("mprotect", |_, p, a, b| ignore(p.mprotect(a, b, R))),
    ("pkey_mprotect", |_, p, a, b| ignore(p.pkey_mprotect(BASE, a, R, b as u8))),
    ("pkey_free", |_, p, a, b| ignore((p.pkey_free(a as u8), p.pkey_free(b as u8)))),
    ("madvise", |_, p, a, b| {
        for advice in (0..32).chain(98..108).filter_map(|raw| Advice::from_raw(raw).ok()) {
            let _ = p.madvise(a, b, advice);
        }
    }),
    ("process_madvise", |_, p, a, b| {
        let ranges = [IoVec { base: BASE, len: PAGE }, IoVec { base: a, len: b }];
        let _ = p.process_madvise(&ranges, Advice::WillNeed, true);
    }),
    ("mlock", |_, p, a, b| ignore((p.mlock(a, b), p.munlock(b, a)))),
    ("mlock2", |_, p, a, b| ignore(p.mlock2(a, b, LockFlags::ONFAULT))),
    ("msync", |_, p, a, b| ignore(p.msync(a, b, SyncFlags::SYNC))),
    ("mincore", |_, p, a, b| ignore(p.mincore(a, b, &mut [0; 4]))),
    ("mseal", |_, p, a, b| ignore(p.mseal(a, b, 0))),
    ("set_policy", |_, p, a, b| ignore(p.set_policy(a, b, 1))),
    ("pagemap", |_, p, a, b| p.pagemap(a..b, |_| ())),
    ("page_entries", |_, p, a, b| p.page_entries(a..b, |_| ControlFlow::Continue(()))),
    ("read_memory", |_, p, a, b| {
        let mut some = [0; 24];
        let _ = p.read_memory(a, &mut some[..(b % 24) as usize], AccessMode::Plain);
        let _ = p.read_memory(a, &mut some, AccessMode::Report);
    }),
    ("write_memory", |_, p, a, _| ignore(p.write_memory(a, &[1; 24], AccessMode::Forced))),
    ("read_vectored", |_, p, a, b| ignore(p.read_vectored(&[IoVec { base: a, len: b }], &mut [0; 24]))),
    ("write_vectored", |_, p, a, b| ignore(p.write_vectored(&[IoVec { base: a, len: b }], &[0; 24]))),
    ("process_vm_readv", |_, p, a, b| {
        let one = IoVec { base: BASE, len: 24 };
        let _ = p.process_vm_readv(&[one], p.space(), &[IoVec { base: a, len: b }]);
        let _ = p.process_vm_writev(&[IoVec { base: a, len: b }], p.space(), &[one]);
    }),
    ("read_chunks", |_, p, a, b| {
        let _ = p.read_chunks(a..b, &mut [0; 24], |_| ControlFlow::Break(()));
    }),
    ("read_cmdline", |_, p, a, _| ignore((p.read_cmdline(a, &mut [0; 24]), p.read_environ(a, &mut [0; 24])))),
    ("pin_user_pages", |_, p, a, b| ignore(p.pin_user_pages(a, b as usize, PinFlags::WRITE))),
    ("pin_user_pages_fast", |_, p, a, b| {
        let _ = p.pin_user_pages_fast(a, b as usize, PinFlags::empty());
        let _ = p.pin_user_pages_fast_only(a, b as usize, PinFlags::empty());
    }),
    ("Pins::read", |_, p, a, b| {
        let pins = p.pin_user_pages(BASE, 2, PinFlags::WRITE).unwrap();
        let mut some = [0; 24];
        let _ = (pins.read(a, &mut some), pins.write(b, &some));
    }),
    ("handle_fault", |_, p, a, b| {
        ignore((p.handle_fault(a, Access::WRITE), p.handle_fault(b, Access::EXEC)))
    }),
    ("frame_at", |_, p, a, _| {
        ignore((p.frame_at(a), p.swap_slot_at(a), p.vma_info(a), p.find_vma(a).is_some()))
    }),
    ("probe_at", |_, p, a, _| ignore((p.probe_at(a).is_some(), p.query_vma(a, QueryFlags::empty())))),
    ("maps", |_, p, a, _| ignore((p.maps(a).count(), p.smaps(a).count()))),
    ("brk", |_, p, a, b| ignore((p.brk(a), p.brk(b)))),
    ("set_heap", |_, p, a, b| ignore((p.set_heap(a..a), p.set_heap(a..b), p.heap(), p.brk(b)))),
    ("shmat", |w, p, a, b| {
        let segment = Segment::new(w.engine(), 1, 3 * PAGE).unwrap();
        let _ = (p.shmat(&segment, a, ShmFlags::empty()), p.shmat(&segment, b, ShmFlags::RND));
        let _ = (p.shmdt(a), p.shmdt(b));
    }),
    ("move_stack", |_, p, a, b| ignore((p.move_stack(a, b), p.move_stack(BASE, b)))),
    ("mremap", |_, p, a, b| {
        for new in EDGES {
            let _ = p.mremap(a, b, new, RemapFlags::MAYMOVE, 0);
            let _ = p.mremap(BASE, a, b, RemapFlags::MAYMOVE | RemapFlags::FIXED, new);
            let _ = p.mremap(a, b, b, RemapFlags::MAYMOVE | RemapFlags::DONTUNMAP, new);
        }
    }),
    ("remap_file_pages", |_, p, a, b| {
        for pgoff in EDGES {
            let _ = p.remap_file_pages(a, b, Prot::empty(), pgoff, MapFlags::empty());
        }
    }),
    ("install_special", |w, p, a, b| {
        let special = Special::new(w.engine(), Frames::new("[it]", &[]).unwrap()).unwrap();
        let _ = p.install_special(a, b, VmFlags::READ, &special);
    }),
    ("userfaultfd", |_, p, a, b| {
        let config = UffdConfig::new().features(Features::empty());
        let uffd = Userfaultfd::new(p.space(), config).unwrap();
        let all = RegisterMode::MISSING | RegisterMode::WP;
        let _ = (uffd.register(BASE, 4 * PAGE, all), uffd.register(a, b, all));
        let _ =
            (uffd.copy(a, &[0; 24], FillMode::empty()), uffd.copy(a, &[0; PAGE as usize], FillMode::empty()));
        let _ = (uffd.zeropage(a, b, FillMode::empty()), uffd.continue_with(a, b, FillMode::empty()));
        let _ = (uffd.poison(a, b, FillMode::empty()), uffd.wake(a, b));
        let _ = uffd.write_protect(a, b, ProtectMode::WP);
        for len in EDGES {
            let _ = uffd.move_pages(a, b, len, MoveMode::empty());
        }
        let _ = uffd.unregister(a, b);
    }),
];

fn arrange(world: &World) -> Process {
    let process = world.process(Locking::default());
    anon(&process, BASE, 8);
    fill(&process, &mut world.machine.cpu(0), BASE, 4, 1);
    let shared = MapFlags::SHARED | MapFlags::FIXED;
    process.mmap(BASE + 8 * PAGE, 4 * PAGE, RW, shared, Some(&world.file(4)), 0).unwrap();
    process
}

#[test]
fn space_calls_do_not_panic_on_edge_values() {
    let mut failed = Vec::new();
    for (name, call) in OF_SPACES {
        let world = World::with(16 << 20, Config::default());
        let process = arrange(&world);
        each(&mut failed, name, |a, b| call(&world, &process, a, b));
        process.check();
        drop(process);
        world.end();
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Returns a range of pages of a file.
fn range(a: u64, b: u64) -> PageRange {
    PageRange::new(PageIndex::new(a), PageIndex::new(b))
}

/// A function that creates a file.
type Maker = fn(&Counted<Engine<Machine>>) -> Counted<Mapping<Machine>>;

/// Name and code of a call of a file. The call gets two numbers.
type OfFiles = (&'static str, fn(&Mapping<Machine>, u64, u64));

/// Calls of a file.
const OF_FILES: &[OfFiles] = &[
    ("read_at", |m, a, b| ignore((m.read_at(a, &mut [0; 24]), m.read_at(b, &mut [])))),
    ("write_at", |m, a, _| ignore(m.write_at(a, &[1; 24]))),
    ("fill", |m, a, _| ignore((m.fill(PageIndex::new(a)), m.has_page(PageIndex::new(a))))),
    ("has_data", |m, a, b| ignore((m.has_data(PageIndex::new(a)), m.swapped_pages(range(a, b))))),
    ("write_back", |m, a, b| ignore(m.write_back(range(a, b)))),
    ("drop_clean", |m, a, b| _ = m.drop_clean(range(a, b))),
    ("revoke", |m, a, b| m.revoke(range(a, b), true)),
    ("allocate", |m, a, b| ignore(m.allocate(a..b))),
    ("add_probe", |m, a, b| {
        ignore((m.add_probe(a, &[0xcc]), m.add_probe(b, &[0xcc; 16]), m.remove_probe(a)))
    }),
    ("punch", |m, a, b| ignore(m.punch(a..b))),
    ("truncate", |m, a, b| ignore((m.truncate(a), m.truncate(b)))),
];

#[test]
fn file_calls_do_not_panic_on_edge_values() {
    let mut failed = Vec::new();
    let world = World::with(16 << 20, Config::default());
    world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None);
    let process = world.process(Locking::default());
    let engine = world.engine();
    let kinds: [(&str, Maker, u64); 4] = [
        ("stored", |engine| Mapping::new(engine, Disk, 4 * PAGE, false).unwrap(), PAGE),
        ("shared memory", |engine| Mapping::new(engine, Zeroes, 4 * PAGE, true).unwrap(), PAGE),
        ("memfd", |engine| Mapping::memfd(engine, 4 * PAGE).unwrap(), PAGE),
        (
            "huge",
            |engine| Mapping::of_huge_pages(engine, HugePageSize::Mib2, 2 << 20, false).unwrap(),
            2 << 20,
        ),
    ];
    for ((kind, make, unit), (name, call)) in
        kinds.into_iter().flat_map(|kind| OF_FILES.iter().map(move |call| (kind, *call)))
    {
        let mapping = make(engine);
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        process.mmap(BASE, unit, RW, flags, Some(&file), 0).unwrap();
        let _ = process.store(&mut world.machine.cpu(0), BASE, 1u64);
        each(&mut failed, &format!("{name} of {kind}"), |a, b| {
            call(&mapping, a, b);
            file.fits(PageIndex::new(a), b)
        });
        process.munmap(BASE, unit).unwrap();
        process.check();
    }
    drop(process);
    world.end();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Name and code of a call of an engine. The call gets two numbers.
type OfEngines = (&'static str, fn(&Counted<Engine<Machine>>, u64, u64));

/// Calls of an engine, and constructors.
const OF_ENGINES: &[OfEngines] = &[
    ("set_max_map_count", |e, a, _| e.set_max_map_count(a)),
    ("set_overcommit", |e, a, b| {
        for pages in [a, b].map(PageCount::new) {
            for policy in [Overcommit::Heuristic(pages), Overcommit::Never(pages)] {
                e.set_overcommit(policy);
                ignore((File::shared_memory(e, a, true), Segment::new(e, 1, b), Segment::noreserve(e, 1, a)));
            }
        }
        e.set_overcommit(Overcommit::Always);
    }),
    ("drop_clean", |e, a, _| _ = e.drop_clean(a)),
    ("reclaim", |e, a, b| _ = e.reclaim(&ReclaimRequest::pages(a).visits(b.min(1 << 16)))),
    ("resize_huge_pool", |e, a, b| {
        let size = HugePageSize::Mib2;
        e.huge_pool(size).set_overcommit(a);
        e.resize_huge_pool(size, b, None);
        e.resize_huge_pool(size, a, Some(b as usize));
        e.huge_pool(size).counts(Some(a as usize));
        e.huge_pool(size).set_overcommit(0);
        e.resize_huge_pool(size, 0, None);
    }),
    ("frames", |e, a, b| {
        for pfn in [a, b].map(Pfn::new) {
            let _ =
                (e.migrate(pfn), e.try_to_unmap(pfn), e.mkclean(pfn), e.referenced(pfn), e.entries_of(pfn));
        }
    }),
    ("Mapping::new", |e, a, b| {
        ignore((Mapping::new(e, Zeroes, a, true), Mapping::new(e, Disk, b, false), Mapping::memfd(e, a)));
        ignore((Mapping::direct(e, Disk, a), File::shared_memory(e, b, true)));
    }),
    ("of_huge_pages", |e, a, b| {
        for size in HugePageSize::ALL {
            ignore((
                Mapping::of_huge_pages(e, size, a, false),
                Mapping::of_huge_pages(e, size, b & !(size.bytes() - 1), true),
            ));
        }
    }),
    ("Segment::new", |e, a, b| {
        ignore((Segment::new(e, 1, a), Segment::of_huge_pages(e, 1, HugePageSize::Mib2, b, true)));
        ignore(Segment::of_huge_pages(e, 1, HugePageSize::Mib2, b, false));
    }),
    ("without an MMU", |e, a, b| {
        let space = NoMmuSpace::new(&Regions::new(e).unwrap()).unwrap();
        let at = space.mmap(0, 3 * PAGE, RW, ANON, None, 0).unwrap();
        let _ = (space.mmap(a, b, RW, ANON, None, 0), space.munmap(a, b), space.find(a).is_some());
        let _ = (space.munmap(at, a), space.munmap(at.wrapping_add(a), b));
        let file = File::shared_memory(e, 4 * PAGE, true).unwrap();
        let _ = (
            space.mmap(0, a, RW, MapFlags::PRIVATE, Some(&file), b),
            space.mmap(0, b, R, MapFlags::PRIVATE, Some(&file), a),
        );
    }),
    ("ForeignFrames", |_, a, b| {
        let frames = foreign(Pfn::new(5), 3);
        assert_eq!(frames.get(a).is_some(), a < 3);
        assert_eq!(frames.part(a, b).is_some(), b > 0 && a.checked_add(b).is_some_and(|end| end <= 3));
        let list = Frames::new("[it]", &[frames]).unwrap();
        assert_eq!(list.frame(PageIndex::new(a)).is_some(), a < 3);
    }),
];

#[test]
fn engine_calls_do_not_panic_on_edge_values() {
    let mut failed = Vec::new();
    for (name, call) in OF_ENGINES {
        let world = World::with(16 << 20, Config::default());
        each(&mut failed, name, |a, b| call(world.engine(), a, b));
        world.end();
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
fn reversed_range_is_empty() {
    World::new().live(Locking::default(), |world, process, cpu| {
        let file = world.file(4);
        let at = process.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        fill(process, cpu, at, 4, 1);
        let mapping = file.mapping();
        let backwards: Range<u64> = 3..1;
        assert_eq!(mapping.drop_clean(range(3, 1)), 0);
        mapping.revoke(range(3, 1), true);
        mapping.punch(backwards.start * PAGE..backwards.end * PAGE).unwrap();
        assert_eq!(process.rss().file, 4);
        assert_filled(process, cpu, at, 4, 1);
    });
}

#[test]
fn revoke_past_the_end_of_a_hugetlb_file_keeps_its_pages() {
    let world = World::with(16 << 20, Config::default());
    world.engine().resize_huge_pool(HugePageSize::Mib2, 1, None);
    world.live(Locking::default(), |world, process, cpu| {
        let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 << 20, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
        process.mmap(BASE, 2 << 20, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        process.store(cpu, BASE, 1u64).unwrap();
        mapping.revoke(range(1 << 55, (1 << 55) + 1), true);
        assert!(process.frame_at(BASE).is_some(), "a page number of 4 KiB pages overflowed");
        mapping.revoke(range(0, 1), true);
        assert_eq!(process.frame_at(BASE), None);
    });
}
