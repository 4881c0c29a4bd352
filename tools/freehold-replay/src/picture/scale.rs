//! The vertical scale of a panel: maps addresses to heights. Addresses that were never mapped get no room.
//! Ranges that are large or have many faults get more room than others.
//!
//! 1. Blocks (`coverage.rs`) are cut at all their boundaries into atoms. The kind of an atom is the kind of
//!    memory that was mapped there for the longest time.
//! 2. Adjacent atoms of one kind form a group. Memory without access rights (`Kind::Reserved`) joins the
//!    group of its neighbours.
//! 3. Each group gets a height that grows with its size and its faulted pages, but less than in proportion.
//!
//! `panel.rs` gets positions from [`Scale::height`], and `paint.rs` writes the name of each group in
//! [`Scale::runs`]. Heights must ascend with addresses, from 0 to the height of the panel (`scale_tests.rs`).

use super::coverage::Block;
use super::kind::Kind;
use std::collections::BTreeMap;

/// Smallest hole, in bytes, that may separate parts of an address space.
const FAR: u64 = 1 << 30;
/// Largest number of holes that separate parts. The largest holes are chosen.
const MAX_BREAKS: usize = 6;
/// Height of a hole that separates parts, in the unit of [`Scale::new`].
const BREAK: f64 = 5.0;
/// Largest number of equal pieces into which addresses with faults are cut. Pieces with more faults get more
/// height.
const MAX_CHUNKS: usize = 4096;

/// Positions of addresses, from 0 at the lowest to `height` at the highest.
#[derive(Debug)]
pub struct Scale {
    /// Pairs of address and height, ascending in both. Heights between two knots are interpolated.
    knots: Vec<(u64, f64)>,
    /// Adjacent memory of one kind, ascending.
    pub runs: Vec<Run>,
}

/// Adjacent addresses that were mostly one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The lowest address.
    pub start: u64,
    /// The kind.
    pub kind: Kind,
    /// Number of bytes that had access rights at some time.
    pub bytes: u64,
    /// Height of the lower edge.
    pub low: f64,
    /// Height of the upper edge.
    pub high: f64,
    /// True if a hole that separates parts of the address space lies below this run.
    pub apart: bool,
}

/// Addresses between two neighbouring boundaries.
struct Atom {
    start: u64,
    end: u64,
    /// The kind of memory that was mapped here for the longest time.
    kind: Kind,
    /// Number of distinct pages that faulted.
    touched: u64,
}

/// Adjacent atoms of one kind. An atom without access rights takes the kind of its neighbours.
struct Group {
    kind: Kind,
    /// The atoms, ascending.
    atoms: Vec<Atom>,
    apart: bool,
}

impl Scale {
    /// Computes the scale for blocks and faults (time and page).
    pub fn new(blocks: &[Block], faults: &[(u64, u64)], height: f64) -> Scale {
        let groups = groups(atoms(blocks, faults));
        let weights: Vec<f64> = groups.iter().map(Group::weight).collect();
        let breaks = groups.iter().filter(|group| group.apart).count() as f64;
        let hole = if breaks > 0.0 { BREAK.min(height / 4.0 / breaks) } else { 0.0 };
        let all: f64 = weights.iter().sum();
        let unit = if all > 0.0 { (height - hole * breaks) / all } else { 0.0 };
        let mut scale = Scale { knots: Vec::new(), runs: Vec::new() };
        let mut low = 0.0;
        for (group, weight) in groups.iter().zip(weights) {
            if group.apart {
                low += hole;
            }
            let high = low + weight * unit;
            scale.push(group, low, high);
            low = high;
        }
        scale
    }

    fn push(&mut self, group: &Group, low: f64, high: f64) {
        let (bytes, touched) = (group.bytes(), group.touched());
        let mut at = low;
        for atom in &group.atoms {
            let size = (atom.end - atom.start) as f64 / bytes as f64;
            let share = match touched {
                0 => size,
                _ => 0.4 * size + 0.6 * atom.touched as f64 / touched as f64,
            };
            self.knots.push((atom.start, at));
            at = (at + share * (high - low)).min(high);
            self.knots.push((atom.end, at));
        }
        let start = group.atoms.first().map_or(0, |atom| atom.start);
        let open =
            group.atoms.iter().filter(|atom| atom.kind != Kind::Reserved || group.kind == Kind::Reserved);
        let bytes = open.map(|atom| atom.end - atom.start).sum();
        self.runs.push(Run { start, kind: group.kind, bytes, low, high, apart: group.apart });
    }

    /// Returns the height of `address`. For an address that was never mapped, returns the height of the next
    /// mapped address below.
    pub fn height(&self, address: u64) -> f64 {
        let above = self.knots.partition_point(|(start, _)| *start <= address);
        let Some(&(start, low)) = above.checked_sub(1).and_then(|below| self.knots.get(below)) else {
            return 0.0;
        };
        match self.knots.get(above) {
            Some(&(end, high)) if end > start => {
                low + (high - low) * ((address - start) as f64 / (end - start) as f64)
            }
            _ => low,
        }
    }
}

impl Group {
    fn bytes(&self) -> u64 {
        self.atoms.iter().map(|atom| atom.end - atom.start).sum()
    }

    fn touched(&self) -> u64 {
        self.atoms.iter().map(|atom| atom.touched).sum()
    }

    fn takes(&self, kind: Kind) -> bool {
        self.kind == kind || self.kind == Kind::Reserved || kind == Kind::Reserved
    }

    fn push(&mut self, atom: Atom) {
        if self.kind == Kind::Reserved {
            self.kind = atom.kind;
        }
        self.atoms.push(atom);
    }

    /// Returns the relative height of the group. The height grows with size and faults, but less than in
    /// proportion; otherwise the largest group would hide the others.
    fn weight(&self) -> f64 {
        (self.bytes() as f64 / 4096.0).powf(0.22) + 1.5 * (self.touched() as f64).powf(0.45)
    }
}

fn groups(atoms: Vec<Atom>) -> Vec<Group> {
    let mut holes: Vec<u64> =
        (atoms.windows(2)).map(|pair| pair[1].start - pair[0].end).filter(|hole| *hole >= FAR).collect();
    holes.sort_unstable_by_key(|hole| std::cmp::Reverse(*hole));
    holes.truncate(MAX_BREAKS);
    let far = holes.last().copied().unwrap_or(u64::MAX);
    let mut groups: Vec<Group> = Vec::new();
    for atom in atoms {
        let last = groups.last_mut();
        let end = last.as_ref().and_then(|group| group.atoms.last()).map_or(atom.start, |last| last.end);
        let apart = atom.start - end >= far;
        match last {
            Some(group) if !apart && group.takes(atom.kind) => group.push(atom),
            _ => groups.push(Group { kind: atom.kind, atoms: vec![atom], apart }),
        }
    }
    groups
}

/// Returns the atoms between neighbouring boundaries that were mapped at some time.
fn atoms(blocks: &[Block], faults: &[(u64, u64)]) -> Vec<Atom> {
    let mut pages: Vec<u64> = faults.iter().map(|(_, page)| *page).collect();
    pages.sort_unstable();
    pages.dedup();
    // For each boundary, how much longer each kind was mapped above the boundary than below it.
    let mut edges: BTreeMap<u64, [i128; Kind::ALL.len()]> = BTreeMap::new();
    for block in blocks {
        let (kind, time) = (block.memory.shown() as usize, i128::from(block.to - block.from));
        edges.entry(block.start).or_default()[kind] += time;
        edges.entry(block.end).or_default()[kind] -= time;
    }
    for boundary in chunks(&pages) {
        edges.entry(boundary).or_default();
    }
    let mut found = Vec::new();
    let mut times = [0i128; Kind::ALL.len()];
    let mut edges = edges.into_iter().peekable();
    while let Some((start, change)) = edges.next() {
        for (time, change) in times.iter_mut().zip(change) {
            *time += change;
        }
        let Some(&(end, _)) = edges.peek() else { break };
        let longest = Kind::ALL.into_iter().rev().max_by_key(|kind| times[*kind as usize]);
        if let Some(kind) = longest.filter(|kind| times[*kind as usize] > 0) {
            let below = |address: u64| pages.partition_point(|page| *page < address / 4096);
            let touched = (below(end) - below(start)) as u64;
            found.push(Atom { start, end, kind, touched });
        }
    }
    found
}

/// Returns the boundaries of pieces that contain faults. All pieces have the same size: the smallest size for
/// which at most `MAX_CHUNKS` pieces contain faults.
fn chunks(pages: &[u64]) -> Vec<u64> {
    let mut shift = 4;
    loop {
        let mut chunks: Vec<u64> = pages.iter().map(|page| page >> shift).collect();
        chunks.dedup();
        if chunks.len() <= MAX_CHUNKS {
            let edges = chunks.into_iter().flat_map(|chunk| [chunk, chunk + 1]);
            return edges.map(|chunk| chunk << (shift + 12)).collect();
        }
        shift += 1;
    }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
