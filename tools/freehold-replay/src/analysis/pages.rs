//! The present pages of one address space by kind of memory, as far as a recording shows them.
//!
//! A chunk covers 2 MiB of addresses with one byte for each page, so that a chunk with a present page stands
//! for the page table of these addresses. `memory.rs` adds and removes pages as faults and calls do; a
//! snapshot replaces them. The tests are in `pages_tests.rs`.

use super::mappings::Kind;
use std::collections::BTreeMap;
use std::ops::Range;

/// Size of a page in bytes.
pub(super) const PAGE: u64 = 4096;
/// Pages of a chunk.
pub(super) const CHUNK: u64 = 512;
/// Largest number of chunks of an address space: 256 GiB. Further pages are not followed, so that the memory
/// of an analysis stays bounded.
const MAX_CHUNKS: usize = 1 << 17;
/// Flag of a page that is private to the address space: anonymous memory, or a copy of a file's page.
const OWN: u8 = 0x80;

/// The pages of one page table.
#[derive(Clone, Debug)]
struct Chunk {
    /// 0 for an absent page, otherwise the kind's index plus 1, with [`OWN`].
    pages: [u8; CHUNK as usize],
    present: u16,
    /// True if one huge page fills the chunk.
    huge: bool,
}

/// The present pages of an address space. Pages are numbered by address divided by [`PAGE`].
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    chunks: BTreeMap<u64, Box<Chunk>>,
    counts: [u64; Kind::COUNT],
    /// Number of huge pages that were removed or changed only in part.
    pub(super) splits: u64,
}

impl Pages {
    /// Returns the number of present pages by kind. The last is the number of page tables.
    pub(super) fn counts(&self) -> [u64; Kind::COUNT] {
        let mut counts = self.counts;
        counts[Kind::PageTables as usize] = self.chunks.len() as u64;
        counts
    }

    /// Returns true if the page is present.
    pub(super) fn contains(&self, page: u64) -> bool {
        self.chunks.get(&(page / CHUNK)).is_some_and(|chunk| chunk.pages[(page % CHUNK) as usize] != 0)
    }

    /// Returns the number of present pages in a range.
    pub(super) fn count(&self, range: &Range<u64>) -> u64 {
        let chunks =
            self.chunks.range(range.start / CHUNK..range.end.div_ceil(CHUNK).max(range.start / CHUNK));
        let counts = chunks.map(|(number, chunk)| {
            let part = part(*number, range);
            match part.len() as u64 {
                CHUNK => u64::from(chunk.present),
                _ => chunk.pages[part].iter().filter(|page| **page != 0).count() as u64,
            }
        });
        counts.sum()
    }

    /// Makes pages present. `own` pages are private to the address space. Present pages only become `own`.
    pub(super) fn add(&mut self, range: Range<u64>, kind: Kind, own: bool) {
        let code = (kind as u8 + 1) | if own { OWN } else { 0 };
        for number in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            if self.chunks.len() >= MAX_CHUNKS && !self.chunks.contains_key(&number) {
                return;
            }
            let empty = || Box::new(Chunk { pages: [0; CHUNK as usize], present: 0, huge: false });
            let chunk = self.chunks.entry(number).or_insert_with(empty);
            for page in &mut chunk.pages[part(number, &range)] {
                if *page == 0 {
                    *page = code;
                    chunk.present += 1;
                    self.counts[kind as usize] += 1;
                } else if own {
                    *page |= OWN;
                }
            }
        }
    }

    /// Makes an empty chunk one huge page. Returns false if the chunk has a page.
    pub(super) fn add_huge(&mut self, page: u64, kind: Kind) -> bool {
        let first = page / CHUNK * CHUNK;
        if self.chunks.contains_key(&(first / CHUNK)) {
            return false;
        }
        self.add(first..first + CHUNK, kind, true);
        if let Some(chunk) = self.chunks.get_mut(&(first / CHUNK)) {
            chunk.huge = true;
        }
        true
    }

    /// Removes all pages, because a snapshot lists the present pages.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.counts = [0; Kind::COUNT];
    }

    /// Marks the chunks that a range covers completely as huge pages.
    pub(super) fn mark_huge(&mut self, range: Range<u64>) {
        let first = range.start.div_ceil(CHUNK);
        let chunks = self.chunks.range_mut(first..(range.end / CHUNK).max(first));
        chunks.for_each(|(_, chunk)| chunk.huge = true);
    }

    /// Removes pages.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let numbers: Vec<u64> = self
            .chunks
            .range(range.start / CHUNK..range.end.div_ceil(CHUNK).max(range.start / CHUNK))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let part = part(number, range);
            if (part.len() as u64) < CHUNK && std::mem::take(&mut chunk.huge) {
                self.splits += 1;
            }
            for page in &mut chunk.pages[part] {
                if let Some(kind) = std::mem::take(page).checked_sub(1) {
                    chunk.present -= 1;
                    self.counts[usize::from(kind & !OWN)] -= 1;
                }
            }
            if chunk.present == 0 {
                self.chunks.remove(&number);
            }
        }
    }

    /// Moves the pages of a range to the pages that begin at `to`, which must be absent.
    pub(super) fn transfer(&mut self, range: &Range<u64>, to: u64) {
        let mut moved = Vec::new();
        for (number, chunk) in
            self.chunks.range(range.start / CHUNK..range.end.div_ceil(CHUNK).max(range.start / CHUNK))
        {
            for index in part(*number, range) {
                if let Some(code) = chunk.pages[index].checked_sub(1) {
                    moved.push((number * CHUNK + index as u64 - range.start, code));
                }
            }
        }
        self.remove(range);
        for (offset, code) in moved {
            let at = to + offset;
            let kind = Kind::ALL[usize::from(code & !OWN)];
            self.add(at..at + 1, kind, code & OWN != 0);
        }
    }

    /// Returns the pages of a forked child: those that are private to the address space.
    pub(super) fn forked(&self) -> Pages {
        let mut child = Pages::default();
        for (number, chunk) in &self.chunks {
            let mut copy = chunk.clone();
            copy.present = 0;
            for page in &mut copy.pages {
                if *page & OWN == 0 {
                    *page = 0;
                } else {
                    copy.present += 1;
                    child.counts[usize::from((*page & !OWN) - 1)] += 1;
                }
            }
            if copy.present > 0 {
                child.chunks.insert(*number, copy);
            }
        }
        child
    }
}

/// Returns the part of a chunk that a range of pages covers, as indices.
fn part(number: u64, range: &Range<u64>) -> Range<usize> {
    let first = number * CHUNK;
    let start = range.start.clamp(first, first + CHUNK) - first;
    let end = range.end.clamp(first, first + CHUNK) - first;
    start as usize..end.max(start) as usize
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
