//! Tests the knowledge that calls add about an address space of unknown start (`unknown.rs`).
//!
//! A test begins with an address space in which all addresses are unknown, passes calls with their results to
//! the functions `learn_*`, and checks the [`Conclusions`]: is the result unsure, and which ranges does the
//! plan clear or assume? A later call on the same range shows if the range is known now.

use super::*;
use crate::plan::address_set::AddressSet;
use crate::plan::space::AppliedCall;

fn call(name: CallName, args: [u64; 6], returned: Returned) -> Call {
    Call { name, args, returned, file: None, transfer: None, beside: Vec::new() }
}

/// Returns an address space in which all addresses are unknown.
fn space() -> Space {
    Space { known_ranges: Some(AddressSet::default()), ..Space::default() }
}

const OK: Returned = Returned::Value(0);

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
fn successful_call_shows_that_memory_is_mapped() {
    let mut space = space();
    let protect = call(CallName::Mprotect, [0x1000, 0x2000, 1, 0, 0, 0], OK);
    let first = space.learn_from_call(&protect, &[0x1000..0x3000, 0..0]);
    assert_eq!(
        first,
        Conclusions {
            unsure: true,
            cleared: vec![],
            assumed: vec![0x1000..0x3000],
            ..Conclusions::default()
        }
    );
    // The addresses stay unknown, but the plan has already mapped assumed memory there.
    let again = space.learn_from_call(&protect, &[0x1000..0x3000, 0..0]);
    assert_eq!(again, Conclusions { unsure: true, ..Conclusions::default() });
    let unmap = call(CallName::Munmap, [0x1000, 0x2000, 0, 0, 0, 0], OK);
    assert_eq!(space.learn_from_call(&unmap, &[0x1000..0x3000, 0..0]), Conclusions::default());
    let refused = call(CallName::Mprotect, [0x1000, 0x2000, 1, 0, 0, 0], Returned::Error(12));
    assert!(!space.learn_from_call(&refused, &[0x1000..0x3000, 0..0]).unsure);
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
fn range_that_the_kernel_chose_was_free() {
    let mut space = space();
    let lock = call(CallName::Mlock, [0x5000, 0x1000, 0, 0, 0, 0], OK);
    space.learn_from_call(&lock, &[0x5000..0x6000, 0..0]);
    let map = call(CallName::Mmap, [0, 0x2000, 3, 0x22, u64::MAX, 0], Returned::Value(0x5000));
    let shown = space.learn_from_call(&map, &[0x5000..0x7000, 0..0]);
    assert_eq!(shown, Conclusions { unsure: false, cleared: vec![0x5000..0x7000], ..Conclusions::default() });
    // The memory is known now.
    let lock = space.learn_from_call(&lock, &[0x5000..0x6000, 0..0]);
    assert_eq!(lock, Conclusions::default());
}

/// An mremap that does not grow its VMA only examines the VMA at its address.
#[test]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
fn mremap_shows_one_page() {
    let mut space = space();
    let stays = call(CallName::Mremap, [0x1000, 0x4000, 0x4000, 0, 0, 0], Returned::Value(0x1000));
    let shown = space.learn_from_call(&stays, &[0x1000..0x5000, 0x1000..0x5000]);
    assert_eq!(shown.assumed, [0x1000..0x2000]);
    let moves = call(CallName::Mremap, [0x1000, 0x1000, 0x1000, 3, 0x9000, 0], Returned::Value(0x9000));
    let shown = space.learn_from_call(&moves, &[0x1000..0x2000, 0x9000..0xa000]);
    assert_eq!((shown.unsure, shown.assumed.len()), (true, 0));
    // The moved memory stays unknown. The source is known to be unmapped.
    let lock = call(CallName::Mlock, [0x9000, 0x1000, 0, 0, 0, 0], OK);
    assert!(space.learn_from_call(&lock, &[0x9000..0xa000, 0..0]).unsure);
    let refused = call(CallName::Mlock, [0x1000, 0x1000, 0, 0, 0, 0], Returned::Error(12));
    assert!(!space.learn_from_call(&refused, &[0x1000..0x2000, 0..0]).unsure);
}

/// Linux may have moved some of the VMAs before it refused to move the next VMA.
#[test]
fn failed_move_of_several_vmas_leaves_both_ranges_unknown() {
    let mut space = space();
    let unmap = call(CallName::Munmap, [0x1000, 0x4000, 0, 0, 0, 0], OK);
    space.learn_from_call(&unmap, &[0x1000..0x5000, 0..0]);
    let refused = call(CallName::Mremap, [0x1000, 0x4000, 0x4000, 3, 0x9000, 0], Returned::Error(14));
    assert!(space.learn_from_call(&refused, &[0x1000..0x5000, 0x9000..0xd000]).unsure);
    let lock = call(CallName::Mlock, [0x2000, 0x1000, 0, 0, 0, 0], Returned::Error(12));
    assert!(space.learn_from_call(&lock, &[0x2000..0x3000, 0..0]).unsure);
}

#[test]
fn call_refused_for_an_unknown_reason_is_not_replayed() {
    let refused = call(CallName::Mremap, [0x1000, 0x1000, 0x2000, 0, 0, 0], Returned::Error(12));
    assert!(space().learn_from_call(&refused, &[0x1000..0x2000, 0..0]).unsure);
    assert!(is_skipped_if_unsure(&refused));
    assert!(!is_skipped_if_unsure(&call(CallName::Mprotect, [0; 6], Returned::Error(12))));
    assert!(!is_skipped_if_unsure(&call(CallName::Mmap, [0; 6], OK)));
}

/// Page faults, which strace does not show, extend a mapping that grows downwards.
#[test]
fn memory_below_a_growing_mapping_is_unknown() {
    let mut space = space();
    let unmap = call(CallName::Munmap, [0x1000, 0x8000, 0, 0, 0, 0], OK);
    space.learn_from_call(&unmap, &[0x1000..0x9000, 0..0]);
    let map = call(CallName::Mmap, [0x8000, 0x1000, 3, 0x132, u64::MAX, 0], Returned::Value(0x8000));
    space.learn_from_call(&map, &[0x8000..0x9000, 0..0]);
    space.apply(&mut AppliedCall::first(&map, &mut 0));
    let refused = |from: u64| call(CallName::Mlock, [from, 0x1000, 0, 0, 0, 0], Returned::Error(12));
    assert!(space.learn_from_call(&refused(0x7000), &[0x7000..0x8000, 0..0]).unsure);
    assert!(!space.learn_from_call(&refused(0x8000), &[0x8000..0x9000, 0..0]).unsure);
    // The mapping may have grown below the unmapped range. That memory stays after the munmap, and may grow
    // further.
    space.learn_from_call(&unmap, &[0x6000..0x9000, 0..0]);
    space.areas.unmap(&(0x6000..0x9000));
    assert!(space.learn_from_call(&refused(0x4000), &[0x4000..0x5000, 0..0]).unsure);
}

/// Returns `call` with one range that overlaps another call in time.
fn beside(call: Call, range: Range<u64>, later: bool, locks: bool) -> Call {
    Call { beside: vec![Beside { range, later, locks }], ..call }
}

/// Two calls overlap in time, and one of the calls may have unmapped memory that the other call concerns.
#[test]
fn range_that_two_calls_change_concurrently_is_unknown() {
    let mut space = space();
    let range = [0x1000..0x5000, 0..0];
    let map = call(CallName::Mmap, [0x1000, 0x4000, 3, 0x32, u64::MAX, 0], Returned::Value(0x1000));
    let unmap = call(CallName::Munmap, [0x2000, 0x1000, 0, 0, 0, 0], OK);
    let lock = call(CallName::Mlock, [0x2000, 0x1000, 0, 0, 0, 0], OK);
    assert_eq!(space.learn_from_call(&map, &range), Conclusions::default());
    assert!(space.learn_from_overlaps(&beside(map, 0x2000..0x3000, true, false), &range));
    let part = [0x2000..0x3000, 0..0];
    assert!(!space.learn_from_call(&lock, &part).unsure, "the range stays known until the other call");
    space.learn_from_call(&unmap, &part);
    assert!(space.learn_from_overlaps(&beside(unmap, 0x2000..0x3000, false, false), &part));
    assert!(space.learn_from_call(&lock, &part).unsure);
    assert!(!space.learn_from_call(&lock, &[0x3000..0x4000, 0..0]).unsure);
}

/// An mmap received a range that an overlapping munmap freed. The munmap must have come first.
#[test]
fn range_that_is_unmapped_and_mapped_concurrently_is_known() {
    let mut space = space();
    let range = [0x1000..0x3000, 0..0];
    let map = call(CallName::Mmap, [0, 0x2000, 3, 0x22, u64::MAX, 0], Returned::Value(0x1000));
    space.learn_from_call(&map, &range);
    space.apply(&mut AppliedCall::first(&map, &mut 0));
    let unmap = call(CallName::Munmap, [0x1000, 0x2000, 0, 0, 0, 0], OK);
    space.learn_from_call(&unmap, &range);
    space.learn_from_overlaps(&beside(unmap, 0x1000..0x3000, true, false), &range);
    space.learn_from_call(&map, &range);
    assert!(!space.learn_from_overlaps(&beside(map, 0x1000..0x3000, false, false), &range));
    let lock = call(CallName::Mlock, [0x1000, 0x1000, 0, 0, 0, 0], OK);
    assert!(!space.learn_from_call(&lock, &[0x1000..0x2000, 0..0]).unsure);
}

/// A refused mlock may have locked the memory before a hole, or all memory, or none.
#[test]
fn possible_locks_make_dependent_results_unsure() {
    let mut space = space();
    let range = [0x1000..0x3000, 0..0];
    let map = call(CallName::Mmap, [0x1000, 0x2000, 3, 0x32, u64::MAX, 0], Returned::Value(0x1000));
    space.learn_from_call(&map, &range);
    let drops = call(CallName::Madvise, [0x1000, 0x1000, 4, 0, 0, 0], OK);
    let first = [0x1000..0x2000, 0..0];
    assert!(!space.learn_from_call(&drops, &first).unsure);
    let lock = call(CallName::Mlock, [0x1000, 0x4000, 0, 0, 0, 0], Returned::Error(12));
    space.learn_locks(&lock, &[0x1000..0x5000, 0..0]);
    assert!(space.learn_from_call(&drops, &first).unsure);
    let protect = call(CallName::Mprotect, [0x1000, 0x1000, 1, 0, 0, 0], OK);
    assert!(!space.learn_from_call(&protect, &first).unsure);
    space.learn_locks(&call(CallName::Munlock, [0x1000, 0x1000, 0, 0, 0, 0], OK), &first);
    assert!(!space.learn_from_call(&drops, &first).unsure);
    // Another task locks the memory at the same time.
    assert!(space.learn_from_overlaps(&beside(drops.clone(), 0x1000..0x2000, true, true), &first));
    assert!(space.learn_from_call(&drops, &first).unsure);
}

/// After a move of unknown memory, the source is unmapped in the replay, too.
#[test]
fn moved_unknown_memory_is_cleared_and_assumed() {
    let mut space = space();
    let moves = call(CallName::Mremap, [0x1000, 0x2000, 0x2000, 3, 0x9000, 0], Returned::Value(0x9000));
    let shown = space.learn_from_call(&moves, &[0x1000..0x3000, 0x9000..0xb000]);
    assert_eq!(shown.moved, Some([0x1000..0x3000, 0x9000..0xb000]));
    let shrinks = call(CallName::Mremap, [0x20000, 0x3000, 0x1000, 0, 0, 0], Returned::Value(0x20000));
    let shown = space.learn_from_call(&shrinks, &[0x20000..0x23000, 0x20000..0x21000]);
    assert_eq!(shown.moved, Some([0x21000..0x23000, 0x20000..0x21000]));
}
