//! The drawn state of an address space: ranges of one kind of memory, each with its start time.
//!
//! `life.rs` calls [`Coverage::set`] whenever the VMAs of a range have changed, and [`Coverage::finish`] at
//! the end of an address space. When a piece is unmapped or changes its kind, it ends and becomes a [`Block`]
//! of the picture. Unlike VMAs, adjacent pieces of one kind and one start time are joined. The tests are in
//! `coverage_tests.rs`.

use super::kind::Memory;
use std::collections::BTreeMap;
use std::ops::Range;

/// A range that was one kind of memory for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The lowest address.
    pub start: u64,
    /// The address after the last byte.
    pub end: u64,
    /// Time of the beginning, in nanoseconds without the time for which the program was frozen.
    pub from: u64,
    /// Time of the end, in the same unit.
    pub to: u64,
    /// The kind of memory.
    pub memory: Memory,
}

/// The ranges that exist now.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Pieces by start address. Pieces do not overlap.
    pieces: BTreeMap<u64, Piece>,
}

/// A range that exists now.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    /// Time of its beginning.
    since: u64,
    memory: Memory,
}

impl Coverage {
    /// Returns a copy in which all ranges begin `now`, for a child created by fork.
    pub fn forked(&self, now: u64) -> Coverage {
        let pieces = self.pieces.iter().map(|(start, piece)| (*start, Piece { since: now, ..*piece }));
        Coverage { pieces: pieces.collect() }
    }

    /// Sets all of the range to `memory` from now on. Calls `over` with each block that ends.
    pub fn set(
        &mut self,
        Range { start, end }: Range<u64>,
        memory: Option<Memory>,
        now: u64,
        over: &mut dyn FnMut(Block),
    ) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let mut old: Vec<(u64, Piece)> = Vec::new();
        while let Some((&at, _)) = self.pieces.range(start..end).next() {
            old.extend(self.pieces.remove(&at).map(|piece| (at, piece)));
        }
        let mut at = start;
        for (from, piece) in old {
            self.fill(at, from, now, memory);
            if memory == Some(piece.memory) {
                self.put(from, piece);
            } else {
                over(Block { start: from, end: piece.end, from: piece.since, to: now, memory: piece.memory });
                self.fill(from, piece.end, now, memory);
            }
            at = piece.end;
        }
        self.fill(at, end, now, memory);
        self.join(end);
    }

    /// Ends all ranges.
    pub fn finish(&mut self, now: u64, over: &mut dyn FnMut(Block)) {
        for (start, piece) in std::mem::take(&mut self.pieces) {
            over(Block { start, end: piece.end, from: piece.since, to: now, memory: piece.memory });
        }
    }

    /// Fills a hole with a piece that begins now, unless `memory` is `None`.
    fn fill(&mut self, start: u64, end: u64, now: u64, memory: Option<Memory>) {
        if let Some(memory) = memory
            && start < end
        {
            self.put(start, Piece { end, since: now, memory });
        }
    }

    /// Inserts a piece into a hole, and joins the piece with the piece below if the two are equal.
    fn put(&mut self, start: u64, piece: Piece) {
        self.pieces.insert(start, piece);
        self.join(start);
    }

    /// Joins the two pieces that meet at `at` if they are equal in all but their range.
    fn join(&mut self, at: u64) {
        let Some(&above) = self.pieces.get(&at) else { return };
        let Some((_, below)) = self.pieces.range_mut(..at).next_back() else { return };
        if below.end == at && below.since == above.since && below.memory == above.memory {
            below.end = above.end;
            self.pieces.remove(&at);
        }
    }

    /// Splits the piece that contains `at`, so that no piece crosses it.
    fn split(&mut self, at: u64) {
        let Some((_, piece)) = self.pieces.range_mut(..at).next_back() else { return };
        if piece.end > at {
            let above = *piece;
            piece.end = at;
            self.pieces.insert(at, above);
        }
    }
}

#[cfg(test)]
#[path = "coverage_tests.rs"]
mod tests;
