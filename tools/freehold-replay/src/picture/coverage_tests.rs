//! Tests the drawn state of an address space (`coverage.rs`): which ranges exist, since when, and which
//! blocks have ended. Addresses and times are small numbers. `Both` keeps the state together with the ended
//! blocks. The last test tries all pairs of ranges on a short line, and compares the state with an array of
//! cells.

use super::*;
use crate::picture::kind::Kind;

const HEAP: Memory = Memory { kind: Kind::Heap, reserved: false };
const FILE: Memory = Memory { kind: Kind::PrivateFile, reserved: false };

/// A map with the blocks that have ended so far.
#[derive(Default)]
struct Both {
    now: Coverage,
    over: Vec<Block>,
}

impl Both {
    fn set(&mut self, range: (u64, u64), time: u64, memory: Option<Memory>) {
        self.now.set(range.0..range.1, memory, time, &mut |block| self.over.push(block));
    }

    fn at(&self, address: u64) -> Option<Memory> {
        let (_, piece) = self.now.pieces.range(..=address).next_back()?;
        (address < piece.end).then_some(piece.memory)
    }

    fn ranges(&self) -> Vec<(u64, u64, u64, Memory)> {
        self.now.pieces.iter().map(|(start, piece)| (*start, piece.end, piece.since, piece.memory)).collect()
    }
}

/// ```text
/// 0    HHHHHHHH
/// 1    HH....HH      unmapped in the middle
/// 2    HHFFFFHH      and mapped again
/// ```
#[test]
fn mapping_into_a_hole_keeps_the_neighbours() {
    let mut both = Both::default();
    both.set((0, 8), 0, Some(HEAP));
    both.set((2, 6), 1, None);
    assert_eq!(both.ranges(), [(0, 2, 0, HEAP), (6, 8, 0, HEAP)]);
    assert_eq!(both.over, [Block { start: 2, end: 6, from: 0, to: 1, memory: HEAP }]);
    both.set((2, 6), 2, Some(FILE));
    assert_eq!(both.ranges(), [(0, 2, 0, HEAP), (2, 6, 2, FILE), (6, 8, 0, HEAP)]);
    assert_eq!(both.over.len(), 1);
}

#[test]
fn ranges_of_the_same_kind_keep_their_start_time() {
    let mut both = Both::default();
    both.set((0, 8), 0, Some(HEAP));
    both.set((2, 10), 5, Some(HEAP));
    assert_eq!(both.ranges(), [(0, 8, 0, HEAP), (8, 10, 5, HEAP)]);
    both.set((3, 3), 6, None);
    assert_eq!(both.ranges(), [(0, 8, 0, HEAP), (8, 10, 5, HEAP)]);
    assert!(both.over.is_empty());
}

#[test]
fn ranges_of_a_forked_child_begin_at_the_fork() {
    let mut both = Both::default();
    both.set((0, 8), 0, Some(HEAP));
    let mut child = both.now.forked(3);
    child.finish(4, &mut |block| both.over.push(block));
    assert_eq!(both.over, [Block { start: 0, end: 8, from: 3, to: 4, memory: HEAP }]);
    assert_eq!(both.ranges(), [(0, 8, 0, HEAP)]);
    assert_eq!((both.at(7), both.at(8)), (Some(HEAP), None));
}

/// Compares the map with an array of cells, for every pair of ranges on a short line.
#[test]
fn coverage_matches_an_array_of_cells() {
    let ranges = || (0..6u64).flat_map(|start| (start + 1..7).map(move |end| (start, end)));
    for first in ranges() {
        for second in ranges() {
            let mut both = Both::default();
            let mut cells = [None; 7];
            for (time, (start, end), memory) in
                [(1, first, Some(HEAP)), (2, second, Some(FILE)), (3, first, None), (4, second, Some(HEAP))]
            {
                both.set((start, end), time, memory);
                cells[start as usize..end as usize].fill(memory);
                for (address, cell) in cells.iter().enumerate() {
                    assert_eq!(both.at(address as u64), *cell, "{first:?} {second:?} {time}");
                }
            }
        }
    }
}
