//! Frame requests as the platform sees them: size, purpose, owner and urgency of each `FrameRequest`. The
//! platform `Gated` records the requests, and the test compares them with the expected requests after one
//! fault of each kind. A new `FramePurpose` needs a fault or a call here. A new field of `FrameRequest` needs
//! a field of `Asked` in `support/gate.rs`.

use crate::support::{
    gate::{Asked, AskedFrames, AskedOwner, Gated},
    *,
};
use freehold::{
    PageIndex, PageRange,
    call::{Advice, RemapFlags},
    engine::{HugePages, SharedBlocks},
    fault::Access,
    hugetlb::HugePageSize,
    nommu::{NoMmuSpace, Regions},
    platform::{AllocEffort, FramePurpose, NodeChoice},
    space::AddressSpace,
};
use std::sync::atomic::Ordering::SeqCst;

const BATCH: Asked = Asked {
    order: 0,
    node: NodeChoice::Any,
    purpose: FramePurpose::Anonymous,
    owner: None,
    effort: AllocEffort::Normal,
    frames: AskedFrames::Batch,
};
const ONE: Asked = Asked { frames: AskedFrames::One, ..BATCH };
const FIXED: MapFlags = MapFlags::FIXED;

/// A disk of zeroes.
struct Bytes;

impl Pager<Gated> for Bytes {
    fn read_page(&self, gated: &Gated, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        gated.zero_frame(frame);
        Ok(())
    }
}

/// Returns all requests since the last call.
fn asked(gated: &Gated) -> Vec<Asked> {
    core::mem::take(&mut *gated.asked.lock().unwrap())
}

/// Runs a scenario on a new engine, whose cache of frames is empty. All memory is free afterwards.
fn with_engine(config: Config, scenario: impl FnOnce(&Counted<Engine<Gated>>, &Gated)) {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), config).unwrap();
    let zeroes = Asked { purpose: FramePurpose::Engine, ..ONE };
    assert_eq!(asked(&gated), [zeroes], "the frame of zeroes cannot move, so it is not in a batch of others");
    scenario(&engine, &gated);
    drop((engine, gated));
    machine.accounting().assert_clean();
}

/// Returns the owner of a space's private memory.
fn owner(space: &AddressSpace<Gated>) -> Option<AskedOwner> {
    Some(AskedOwner::Space(space.mmu().root()))
}

fn touch(space: &AddressSpace<Gated>, at: u64) {
    assert!(space.handle_fault(at, Access::WRITE).is_ok());
}

#[test]
fn platform_gets_the_purpose_and_the_owner_of_each_frame_request() {
    with_engine(Config::default(), |engine, gated| {
        let space = AddressSpace::new(engine, &SpaceConfig::default()).unwrap();
        let owner = owner(&space);
        // The frames in the cache of a CPU are released first, so that each kind of request reaches the
        // platform.
        engine.trim();
        space.mmap(BASE, PAGE, RW, ANON | FIXED, None, 0).unwrap();
        touch(&space, BASE);
        assert_eq!(asked(gated), [Asked { owner, ..BATCH }]);

        engine.trim();
        let new = engine.migrate(space.frame_at(BASE).unwrap()).unwrap();
        let requests = asked(gated);
        assert!(matches!(requests[0].owner, Some(AskedOwner::SameAs(old)) if old != new));
        assert_eq!(requests, [Asked { owner: requests[0].owner, ..BATCH }]);

        engine.trim();
        let mapping = Mapping::new(engine, Bytes, PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        space.mmap(BASE + PAGE, PAGE, RW, MapFlags::SHARED | FIXED, Some(&file), 0).unwrap();
        touch(&space, BASE + PAGE);
        let in_file = Some(AskedOwner::File(mapping.file_id()));
        assert_eq!(asked(gated), [Asked { purpose: FramePurpose::File, owner: in_file, ..BATCH }]);

        let huge = Asked { order: 9, owner, effort: AllocEffort::Opportunistic, ..ONE };
        engine.set_huge_pages(HugePages::Always);
        let start = BASE + (4 << 20);
        space.mmap(start, 2 << 20, RW, ANON | FIXED, None, 0).unwrap();
        touch(&space, start);
        assert_eq!(asked(gated), [huge]);

        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, None), 1);
        let pool = Asked { order: 9, node: NodeChoice::Only(0), purpose: FramePurpose::HugePool, ..ONE };
        assert_eq!(asked(gated), [pool]);
    });
}

#[test]
fn platform_gets_the_purpose_and_the_owner_of_runs() {
    with_engine(Config::default(), |engine, gated| {
        let regions = Regions::new(engine).unwrap();
        let space = NoMmuSpace::new(&regions).unwrap();
        space.mmap(0, 3 * PAGE, RW, ANON, None, 0).unwrap();
        let run = Asked { frames: AskedFrames::Run(3), ..ONE };
        let owner = Some(AskedOwner::Caller);
        assert_eq!(asked(gated), [Asked { purpose: FramePurpose::NoMmu, owner, ..run }]);
        drop((space, regions));

        engine.set_shared_blocks(SharedBlocks::new().always(16 << 10));
        let shared = Mapping::memfd(engine, 4 * PAGE).unwrap();
        shared.fill(PageIndex::new(0)).unwrap();
        let owner = Some(AskedOwner::File(shared.file_id()));
        let purposes: Vec<_> = asked(gated).iter().map(|asked| (asked.purpose, asked.owner)).collect();
        assert_eq!(purposes, [(FramePurpose::File, owner)]);
    });
}

/// Memory can be freed when none is left. The split of a VMA needs heap memory, but no frame.
#[test]
fn operations_that_free_memory_request_no_frames_and_no_page_tables() {
    with_engine(Config::default(), |engine, gated| {
        engine.set_huge_pages(HugePages::Always);
        let space = AddressSpace::new(engine, &SpaceConfig::default()).unwrap();
        let mapping = Mapping::new(engine, Bytes, 8 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        space.mmap(BASE, 2 * HUGE, RW, ANON | FIXED, None, 0).unwrap();
        [BASE, BASE + HUGE].into_iter().for_each(|at| touch(&space, at));
        let files = BASE + 2 * HUGE;
        space.mmap(files, 8 * PAGE, RW, MapFlags::SHARED | FIXED, Some(&file), 0).unwrap();
        (0..8).for_each(|page| touch(&space, files + page * PAGE));
        let child = space.fork().unwrap();
        let in_file = space.frame_at(files).unwrap();
        engine.trim();
        let tables = gated.tables.load(SeqCst);
        assert!(!asked(gated).is_empty());

        // Parts of huge pages, which the parent and the child share.
        child.munmap(BASE + PAGE, PAGE).unwrap();
        child.madvise(BASE + HUGE + PAGE, PAGE, Advice::DontNeed).unwrap();
        space.munmap(BASE + 3 * PAGE, 2 * PAGE).unwrap();
        space.mremap(BASE + HUGE, HUGE, HUGE - PAGE, RemapFlags::empty(), 0).unwrap();
        let all = PageRange::new(PageIndex::new(0), PageIndex::new(8));
        engine.try_to_unmap(in_file).unwrap();
        mapping.write_back(all).unwrap();
        mapping.drop_clean(all);
        mapping.truncate(PAGE).unwrap();
        engine.drop_clean(u64::MAX);
        child.reap().unwrap();
        drop((child, space, file, mapping));
        engine.trim();
        assert_eq!((asked(gated), gated.tables.load(SeqCst) - tables), (vec![], 0));
    });
}
