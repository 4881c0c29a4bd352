//! Tests the scale of addresses (`scale.rs`): the height that each range of memory gets. A case is a list of
//! blocks (`block`), and pages that faulted. `assert_ascends` checks for any scale that heights ascend with
//! addresses; the tests compare heights of quiet, busy and unmapped ranges.

use super::*;
use crate::picture::kind::Memory;

fn block(start: u64, end: u64, kind: Kind) -> Block {
    let memory = Memory { kind, reserved: kind == Kind::Reserved };
    Block { start, end, from: 0, to: 10, memory }
}

const MIB: u64 = 1 << 20;

/// Checks that heights ascend with addresses, from the bottom to the top.
fn assert_ascends(scale: &Scale, height: f64) {
    for pair in scale.knots.windows(2) {
        assert!(pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1, "{pair:?}");
    }
    let (first, last) = (scale.knots[0], scale.knots[scale.knots.len() - 1]);
    assert!(first.1.abs() < 1e-6 && (last.1 - height).abs() < 1e-6, "{first:?} to {last:?}");
}

#[test]
fn unmapped_holes_get_no_height() {
    let blocks = [
        block(MIB, 2 * MIB, Kind::PrivateFile),
        block(100 * MIB, 101 * MIB, Kind::Heap),
        block(1 << 46, (1 << 46) + MIB, Kind::Stack),
    ];
    let scale = Scale::new(&blocks, &[], 100.0);
    assert_ascends(&scale, 100.0);
    let kinds: Vec<(Kind, u64, bool)> =
        scale.runs.iter().map(|run| (run.kind, run.bytes, run.apart)).collect();
    assert_eq!(kinds, [(Kind::PrivateFile, MIB, false), (Kind::Heap, MIB, false), (Kind::Stack, MIB, true)]);
    assert_eq!(scale.height(2 * MIB), scale.height(50 * MIB));
    assert!((scale.height(100 * MIB) - scale.height(99 * MIB)).abs() < 1e-9);
    assert!(scale.height(1 << 46) - scale.height(101 * MIB) > BREAK - 1e-9);
    assert_eq!((scale.height(0), scale.height(u64::MAX)), (0.0, scale.knots[5].1));
}

#[test]
fn memory_with_faults_gets_more_height() {
    let blocks = [block(MIB, 11 * MIB, Kind::Anonymous), block(11 * MIB, 21 * MIB, Kind::Heap)];
    // All faults are in the second MiB.
    let faults: Vec<(u64, u64)> = (512..768).map(|page| (0, page)).collect();
    let scale = Scale::new(&blocks, &faults, 100.0);
    assert_ascends(&scale, 100.0);
    let [quiet, busy] = [scale.runs[1], scale.runs[0]].map(|run| run.high - run.low);
    assert!(busy > 2.0 * quiet, "{busy} {quiet}");
    assert!(scale.height(3 * MIB) - scale.height(2 * MIB) > 0.5 * busy);
}

#[test]
fn guards_join_the_run_of_their_neighbours() {
    let blocks = [
        block(0, MIB, Kind::Reserved),
        block(MIB, 9 * MIB, Kind::Stack),
        block(9 * MIB, 10 * MIB, Kind::Reserved),
        block(10 * MIB, 18 * MIB, Kind::Stack),
    ];
    let scale = Scale::new(&blocks, &[], 50.0);
    assert_eq!(scale.runs.len(), 1);
    assert_eq!((scale.runs[0].kind, scale.runs[0].bytes), (Kind::Stack, 16 * MIB));
}

/// Placements like those of a JavaScript engine: hundreds of pieces at scattered addresses.
#[test]
fn many_distant_pieces_leave_height_for_memory() {
    let blocks: Vec<Block> =
        (1..500u64).map(|at| block(at << 36, (at << 36) + MIB, Kind::Anonymous)).collect();
    let scale = Scale::new(&blocks, &[], 200.0);
    assert_ascends(&scale, 200.0);
    let breaks = scale.runs.iter().filter(|run| run.apart).count();
    assert!(scale.runs.iter().map(|run| run.high - run.low).sum::<f64>() >= 150.0 - 1e-6, "{breaks} breaks");
}

#[test]
fn empty_scale_has_height_zero() {
    let scale = Scale::new(&[], &[(1, 2)], 10.0);
    assert_eq!((scale.height(8192), scale.runs.len()), (0.0, 0));
}
