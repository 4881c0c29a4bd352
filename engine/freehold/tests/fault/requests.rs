//! Frame requests as the platform sees them: size, purpose, address space and urgency of each `FrameRequest`.
//! The platform `Gated` records the requests, and the test compares them with the expected requests after one
//! fault of each kind. A new `FramePurpose` needs a fault or a call here. A new field of `FrameRequest` needs
//! a field of `Asked` in `support/gate.rs`.

use crate::support::{
    gate::{Asked, Gated},
    *,
};
use freehold::{
    PageIndex,
    engine::HugePages,
    fault::Access,
    hugetlb::HugePageSize,
    platform::{AllocEffort, FramePurpose, NodeChoice},
    space::AddressSpace,
};

const SINGLE: Asked = Asked {
    order: 0,
    node: NodeChoice::Any,
    purpose: FramePurpose::Anonymous,
    root: None,
    effort: AllocEffort::Normal,
};

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

#[test]
fn platform_gets_the_purpose_of_each_frame_request() {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), Config::default()).unwrap();
    assert_eq!(asked(&gated), [Asked { purpose: FramePurpose::Engine, ..SINGLE }], "the zero page");

    let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    let root = Some(space.mmu().root());
    let fault = |at| assert!(space.handle_fault(at, Access::WRITE).is_ok());
    // The frames in the cache of a CPU are released first, so that each kind of request reaches the
    // platform.
    engine.trim();
    space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    fault(BASE);
    assert_eq!(asked(&gated), [Asked { root, ..SINGLE }]);

    engine.trim();
    let mapping = Mapping::new(&engine, Bytes, PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
    let shared = MapFlags::SHARED | MapFlags::FIXED;
    space.mmap(BASE + PAGE, PAGE, RW, shared, Some(&file), 0).unwrap();
    fault(BASE + PAGE);
    assert_eq!(asked(&gated), [Asked { purpose: FramePurpose::File, ..SINGLE }]);

    let huge = Asked { order: 9, root, effort: AllocEffort::Opportunistic, ..SINGLE };
    engine.set_huge_pages(HugePages::Always);
    let start = BASE + (4 << 20);
    space.mmap(start, 2 << 20, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    fault(start);
    assert_eq!(asked(&gated), [huge]);

    assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, None), 1);
    let pool = Asked { order: 9, node: NodeChoice::Only(0), purpose: FramePurpose::HugePool, ..SINGLE };
    assert_eq!(asked(&gated), [pool]);

    drop((space, file, mapping, engine, gated));
    machine.accounting().assert_clean();
}
