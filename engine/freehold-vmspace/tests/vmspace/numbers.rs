//! A space by itself: ranges at every edge, and buffers that are too small.
//!
//! Safe functions are public and get numbers from any caller. They must accept or refuse each number as
//! documented. No number may overflow, or make the crate access memory outside the range or the buffer.

use crate::{machine, refuses};
use freehold_vmspace::{
    HugePageSize, MapError, PAGE_SIZE, Pfn, UserRange, VirtAddr, VmSpace,
    platform::{Format, PteFlags, X86_4},
};

const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);
const END: u64 = X86_4::USER_END;
const AT: u64 = 0x10_0000;

const EDGES: [u64; 13] = [
    0,
    1,
    PAGE_SIZE - 1,
    PAGE_SIZE,
    AT,
    AT + 1,
    AT + 2 * PAGE_SIZE,
    END - PAGE_SIZE,
    END - 1,
    END,
    END + 1,
    1 << 63,
    u64::MAX,
];

#[test]
fn standalone_space_accepts_or_refuses_every_range() {
    let (machine, memory) = machine();
    for (start, end) in EDGES.into_iter().flat_map(|start| EDGES.map(|end| (start, end))) {
        let mut space = VmSpace::new(&memory).unwrap();
        space.map(AT..AT + 4 * PAGE_SIZE, RW).unwrap();
        let fits = start % PAGE_SIZE == 0 && end % PAGE_SIZE == 0 && start < end && end <= END;
        match space.map(start..end, RW) {
            Err(MapError::Invalid) => assert!(!fits, "{start:#x}..{end:#x}"),
            _ => assert!(fits, "{start:#x}..{end:#x}"),
        }
        let touched = |page: u64| start <= end && start < page + PAGE_SIZE && end > page;
        space.set_rights(start..end, PteFlags::USER);
        for page in (AT..AT + 4 * PAGE_SIZE).step_by(PAGE_SIZE as usize) {
            let writes = space.translate(page).unwrap().flags.contains(PteFlags::WRITE);
            assert!(touched(page) != writes || start == end, "{start:#x}..{end:#x}: {page:#x}");
        }
        space.translate(start);
        space.frame_at(VirtAddr::new(end));
        space.unmap(start..end);
    }
    let pool = memory.huge_pool(HugePageSize::Mib2);
    for number in EDGES {
        pool.set_overcommit(number);
        assert_eq!(memory.resize_huge_pool(HugePageSize::Mib2, number, Some(1 + number as usize % 7)), 0);
        assert_eq!(pool.counts(Some(usize::MAX)).total, 0);
    }
    drop(memory);
    machine.accounting().assert_clean();
}

#[test]
fn mark_present_panics_if_the_buffer_is_too_small() {
    let (machine, memory) = machine();
    let mut space = VmSpace::new(&memory).unwrap();
    space.map(AT..AT + 4 * PAGE_SIZE, RW).unwrap();
    let range = UserRange::at(AT, 4 * PAGE_SIZE);
    for len in 0..4 {
        let mut out = vec![0; len];
        assert!(refuses(|| space.mark_present(range, &mut out), "fewer bytes than pages"));
        assert_eq!(out, vec![0; len]);
    }
    let mut out = [0; 5];
    space.mark_present(range, &mut out);
    assert_eq!(out, [1, 1, 1, 1, 0]);
    assert!(space.frame_at(VirtAddr::new(AT)).is_some_and(|frame| frame != Pfn::new(0)));
    drop((space, memory));
    machine.accounting().assert_clean();
}
