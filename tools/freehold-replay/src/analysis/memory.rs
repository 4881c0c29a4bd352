//! Follows the memory of all address spaces: mappings, present pages, faults.
//!
//! `mod.rs` passes each event twice: to [`Memory::before`], while `Life` still has the old state, and to
//! [`Memory::event`], after `Life` has followed the event. `Life` knows which VMAs exist; this file knows
//! which operation made them and which pages are present. Pages come from faults and from calls that
//! populate, and every snapshot replaces them by the kernel's list. Accesses without a fault leave no trace
//! in a recording.
//!
//! The rules are simpler than Linux's: a read fault on a file brings in the 16 pages around it, as if the
//! file were in the page cache, and a huge page is assumed where the settings allow one.

use super::faults::{FaultKind, FaultSums};
use super::label;
use super::mappings::{Kind, Mapping, Pieces};
use super::pages::{CHUNK, PAGE, Pages};
use super::resident::{Counts, Peak, Sums, bytes};
use super::summary;
use crate::picture::life::{Life, NONE};
use freehold_trace::plan::Purpose;
use freehold_trace::{
    Call, CallName, Event, FaultCode, Kind as Happened, Recording, Returned, Snapshot, Why,
};
use std::collections::HashMap;
use std::ops::Range;

/// End of user addresses.
const USER_END: u64 = 1 << 47;
/// Pages that a read fault on a file maps.
const AROUND: u64 = 16;
/// `MAP_FIXED`.
const FIXED: u64 = 0x10;
/// `MAP_POPULATE`.
const POPULATE: u64 = 0x8000;
/// The mappings of the peak are listed again when the peak has grown by one part in this number. Listing them
/// at each new peak would take too long.
const LISTED_AGAIN: u64 = 250;
/// `MREMAP_DONTUNMAP`.
const DONTUNMAP: u64 = 4;

/// The memory of one address space.
#[derive(Debug, Default)]
struct Space {
    pieces: Pieces,
    pages: Pages,
    /// The pages that are included in the sums.
    counted: Counts,
    /// Index of the process for which it was made.
    owner: usize,
    ended: bool,
}

/// The memory of all address spaces.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By index in `Life`.
    spaces: Vec<Space>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) faults: FaultSums,
    pub(super) sums: Sums,
    pub(super) peak: Peak,
    /// The most pages of all processes so far.
    most: u64,
    /// True if the peak is higher than when its kinds were noted.
    higher: bool,
    /// The pages of all processes when the mappings of the peak were listed.
    listed: u64,
}

/// Returns the pages of a range of addresses.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.min(USER_END).div_ceil(PAGE)
}

/// Returns the range of a call's first two arguments, in whole pages.
fn range_of(start: u64, length: u64) -> Range<u64> {
    let start = start.min(USER_END);
    start..start.saturating_add(length).min(USER_END).next_multiple_of(PAGE)
}

/// Returns true if an event may remove pages.
fn may_remove(event: &Event) -> bool {
    match &event.kind {
        Happened::Call(call) => match call.name {
            CallName::Mmap => call.args[3] & FIXED != 0,
            CallName::Mprotect | CallName::PkeyMprotect | CallName::Mbind | CallName::Mlock => false,
            name => !name.is_of_descriptors(),
        },
        kind => matches!(kind, Happened::Exec { .. } | Happened::Exit { .. } | Happened::Snapshot { .. }),
    }
}

impl Memory {
    /// Prepares for an event at the time `now`. `life` has not followed the event yet.
    pub(super) fn before(&mut self, event: &Event, life: &Life, now: u64) {
        if self.higher && may_remove(event) {
            self.list_peak(life);
        }
        let ends = matches!(event.kind, Happened::Exec { .. } | Happened::Exit { last: true });
        if let Some(space) = life.space(event.task).filter(|_| ends)
            && life.spaces[space].users == 1
        {
            self.end(space, now);
        }
    }

    /// Follows an event. `life` has already followed it, and has changed the VMAs in the ranges `changed`.
    pub(super) fn event(
        &mut self,
        event: &Event,
        changed: &[Range<u64>; 2],
        snapshot: Option<&Snapshot>,
        life: &Life,
        recording: &Recording,
    ) {
        if let Some(name) = label::operation(&event.kind) {
            self.faults.interrupts(&name, u64::from(event.cost.interrupts));
        }
        let task = match event.kind {
            Happened::Clone { child, .. } => child,
            Happened::Snapshot { process, .. } => process,
            _ => event.task,
        };
        let Some(index) = life.space(task) else { return };
        let parent = life.space(event.task).unwrap_or(NONE);
        while self.spaces.len() <= index {
            let owner = life.process(task).unwrap_or(0);
            self.spaces.push(Space { owner, ..Space::default() });
            if matches!(event.kind, Happened::Clone { .. })
                && parent < index
                && self.spaces.len() == index + 1
            {
                self.spaces[index].pieces = self.spaces[parent].pieces.clone();
                self.spaces[index].pages = self.spaces[parent].pages.forked();
            }
        }
        let now = life.end;
        let mut at = Place { memory: self, index, event, life, now };
        match &event.kind {
            Happened::Fault { address, code, in_exec: false } => {
                at.fault(*address, *code, changed, recording)
            }
            Happened::Call(call) => at.call(call, changed, recording),
            Happened::Exec { .. } => at.listed(snapshot, "exec"),
            Happened::Snapshot { why, .. } if *why != Why::MidExec => at.listed(snapshot, "snapshot"),
            _ => {}
        }
        self.count(index, now);
    }

    /// Updates the sums after a change of an address space.
    fn count(&mut self, index: usize, now: u64) {
        let space = &mut self.spaces[index];
        let counts = if space.ended { [0; Kind::COUNT] } else { space.pages.counts() };
        if counts != space.counted {
            self.sums.change(space.owner, &space.counted, &counts, now);
            space.counted = counts;
            let total = self.sums.total();
            if total > self.most {
                self.most = total;
                self.higher = true;
                (self.peak.at_ns, self.peak.bytes) = (now, total * PAGE);
            }
        }
    }

    /// Lists the mappings of the current state, which has the most pages so far.
    fn list_peak(&mut self, life: &Life) {
        self.higher = false;
        let total = self.sums.total();
        if total != self.most {
            return;
        }
        self.peak.by_kind = bytes(&self.sums.now);
        if total < self.listed + self.listed / LISTED_AGAIN {
            return;
        }
        self.listed = total;
        let mut found: HashMap<(usize, usize), u64> = HashMap::new();
        for space in self.spaces.iter().filter(|space| !space.ended) {
            for (part, mapping) in space.pieces.iter() {
                let pages = space.pages.count(&pages_of(&part));
                if pages > 0 {
                    *found.entry((space.owner, mapping)).or_default() += pages;
                }
            }
        }
        self.peak.mappings = summary::peak_mappings(found, &self.mappings, life);
    }

    /// Ends an address space.
    fn end(&mut self, index: usize, now: u64) {
        let Some(space) = self.spaces.get_mut(index).filter(|space| !space.ended) else { return };
        space.ended = true;
        self.faults.huge_split += space.pages.splits;
        for (part, mapping) in space.pieces.iter() {
            let mapping = &mut self.mappings[mapping];
            if mapping.space == index {
                mapping.left_bytes += space.pages.count(&pages_of(&part)) * PAGE;
                mapping.to_ns = now;
            }
        }
        (space.pieces, space.pages) = (Pieces::default(), Pages::default());
        self.count(index, now);
    }

    /// Ends all address spaces.
    pub(super) fn finish(&mut self, life: &Life) {
        if self.higher {
            self.list_peak(life);
        }
        for index in 0..self.spaces.len() {
            self.end(index, life.end);
        }
    }
}

/// An event in its address space.
struct Place<'a> {
    memory: &'a mut Memory,
    index: usize,
    event: &'a Event,
    life: &'a Life,
    now: u64,
}

impl Place<'_> {
    fn space(&mut self) -> &mut Space {
        &mut self.memory.spaces[self.index]
    }

    fn fault(&mut self, address: u64, code: FaultCode, changed: &[Range<u64>; 2], recording: &Recording) {
        self.follow(&changed[0], "fault");
        let page = address / PAGE;
        let cost = &self.event.cost;
        let Some((part, number)) = self.space().pieces.find(address) else {
            let kind = if cost.after.is_none() { FaultKind::Refused } else { FaultKind::FirstTouch };
            return self.memory.faults.add(kind, self.now);
        };
        let present = self.space().pages.contains(page);
        let kind = self.memory.mappings[number].kind;
        let copies = code.write() && kind.is_private();
        let found = match () {
            _ if cost.after.is_none() => FaultKind::Refused,
            _ if cost.major => FaultKind::Major,
            _ if code.present() && copies => FaultKind::CopyOnWrite,
            _ if kind.is_file() && copies => FaultKind::CopyOnWrite,
            _ if kind.is_file() => FaultKind::File,
            _ if present || code.present() => FaultKind::Spurious,
            _ => FaultKind::FirstTouch,
        };
        self.memory.faults.add(found, self.now);
        self.memory.mappings[number].fault(found, self.now);
        if found == FaultKind::Refused {
            return;
        }
        let huge = kind == Kind::Anonymous && self.has_huge(number, recording);
        let chunk = page / CHUNK * CHUNK..page / CHUNK * CHUNK + CHUNK;
        let pages = pages_of(&part);
        let fits = pages.start <= chunk.start && chunk.end <= pages.end;
        if huge && copies && fits && self.space().pages.add_huge(page, kind) {
            self.memory.faults.huge_made += 1;
            return;
        }
        match kind {
            _ if copies => self.space().pages.add(page..page + 1, kind, true),
            Kind::FilePrivate | Kind::FileShared if !code.write() && found == FaultKind::File => {
                let first = page / AROUND * AROUND;
                let around = first.max(pages.start)..(first + AROUND).min(pages.end);
                self.space().pages.add(around, kind, false);
            }
            // A read of anonymous memory maps the page of zeroes, which does not count as resident.
            Kind::Heap | Kind::Anonymous | Kind::Stack => {}
            _ => self.space().pages.add(page..page + 1, kind, false),
        }
    }

    /// Returns true if a fault on a mapping may bring in a huge page.
    fn has_huge(&self, mapping: usize, recording: &Recording) -> bool {
        match recording.machine("thp") {
            Some("always") => true,
            Some("never") => false,
            _ => self.memory.mappings[mapping].huge,
        }
    }

    fn call(&mut self, call: &Call, changed: &[Range<u64>; 2], recording: &Recording) {
        let args = &call.args;
        let range = range_of(args[0], args[1]);
        match (call.name, call.returned) {
            (CallName::Mmap, Returned::Value(start)) => self.mmap(call, start, recording),
            (CallName::Mremap, Returned::Value(to)) => self.mremap(call, to),
            (CallName::Madvise, Returned::Value(_)) => match args[2] {
                // DONTNEED, REMOVE, DONTNEED_LOCKED
                4 | 9 | 24 => self.space().pages.remove(&pages_of(&range)),
                14 | 15 => {
                    for (_, mapping) in self.memory.spaces[self.index].pieces.within(range) {
                        self.memory.mappings[mapping].huge = args[2] == 14;
                    }
                }
                // POPULATE_READ, POPULATE_WRITE, COLLAPSE
                22 => self.populate(range, false),
                23 | 25 => self.populate(range, true),
                _ => {}
            },
            (CallName::Mlock, Returned::Value(_)) => self.populate(range, true),
            (CallName::Mlock2, Returned::Value(_)) if args[2] & 1 == 0 => self.populate(range, true),
            _ => {}
        }
        for range in changed {
            self.follow(range, &label::call(call));
        }
    }

    fn mmap(&mut self, call: &Call, start: u64, recording: &Recording) {
        let range = range_of(start, call.args[1]);
        let file = call.file.and_then(|file| recording.file(file));
        let kind = Kind::of_mmap(call, file);
        let name = file.map_or_else(String::new, |file| file.path.clone());
        self.remove(range.clone());
        self.make(range.clone(), kind, name, call.args[2] & 7 == 0, "mmap");
        if call.args[3] & POPULATE != 0 {
            self.populate(range, true);
        }
    }

    fn mremap(&mut self, call: &Call, to: u64) {
        let (old, new) = (range_of(call.args[0], call.args[1]), range_of(to, call.args[2]));
        let Some((_, mapping)) = self.space().pieces.find(old.start) else { return };
        if old.start == new.start {
            self.remove(new.end.min(old.end)..old.end);
            let grown = old.end.min(new.end)..new.end;
            return self.extend(grown, mapping);
        }
        self.remove(new.clone());
        let moved = old.start..old.end.min(old.start + (new.end - new.start));
        self.space().pages.transfer(&pages_of(&moved), new.start / PAGE);
        // The new part is added first, so that the mapping does not count as unmapped in between.
        self.extend(new, mapping);
        if call.args[3] & DONTUNMAP == 0 {
            self.remove(old);
        }
    }

    /// Makes the pages of a range present, as far as it is mapped.
    fn populate(&mut self, range: Range<u64>, write: bool) {
        let space = &mut self.memory.spaces[self.index];
        for (part, mapping) in space.pieces.within(range) {
            let mapping = &mut self.memory.mappings[mapping];
            let own = write && !mapping.kind.is_file() && mapping.kind.is_private();
            if own || mapping.kind.is_file() || mapping.kind == Kind::SharedMemory {
                mapping.populated = true;
                space.pages.add(pages_of(&part), mapping.kind, own);
            }
        }
    }

    /// Adds a mapping at a range that is free.
    fn make(&mut self, range: Range<u64>, kind: Kind, name: String, reserved: bool, made_by: &str) {
        if range.start >= range.end {
            return;
        }
        let owner = self.memory.spaces[self.index].owner;
        let mapping = Mapping {
            process: self.life.processes.get(owner).map_or(0, |process| process.serial),
            made_by: made_by.to_owned(),
            line: self.event.line,
            task: self.event.task,
            from_ns: self.now,
            to_ns: self.now,
            start: range.start,
            kind,
            name,
            reserved,
            space: self.index,
            ..Mapping::default()
        };
        self.memory.mappings.push(mapping);
        let number = self.memory.mappings.len() - 1;
        self.extend(range, number);
    }

    /// Adds a part to a mapping, at a range that is free.
    fn extend(&mut self, range: Range<u64>, number: usize) {
        if range.start >= range.end {
            return;
        }
        let mapping = &mut self.memory.mappings[number];
        if mapping.space == self.index {
            mapping.mapped += range.end - range.start;
            mapping.bytes = mapping.bytes.max(mapping.mapped);
            mapping.start = mapping.start.min(range.start);
        }
        self.space().pieces.put(range, number);
    }

    /// Removes everything in a range.
    fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let space = &mut self.memory.spaces[self.index];
        space.pages.remove(&pages_of(&range));
        for (part, mapping) in space.pieces.cut(range) {
            let mapping = &mut self.memory.mappings[mapping];
            if mapping.space == self.index {
                mapping.mapped = mapping.mapped.saturating_sub(part.end - part.start);
                if mapping.mapped == 0 {
                    (mapping.unmapped, mapping.to_ns) = (true, self.now);
                }
            }
        }
    }

    /// Updates the mappings of a range from the VMAs.
    fn follow(&mut self, range: &Range<u64>, made_by: &str) {
        let range = range.start.min(USER_END)..range.end.min(USER_END);
        if range.start >= range.end {
            return;
        }
        let mut at = range.start;
        let vmas: Vec<_> = self.life.spaces[self.index].vmas.within(&range).collect();
        for vma in vmas {
            let (start, end) = (vma.range.start.max(at), vma.range.end.min(range.end));
            self.remove(at..start);
            let kind = match vma.purpose {
                Purpose::Heap => Kind::Heap,
                Purpose::Stack => Kind::Stack,
                Purpose::Special => Kind::Special,
                _ if vma.shared => Kind::SharedMemory,
                Purpose::Any if vma.file => Kind::FilePrivate,
                Purpose::Any => Kind::Anonymous,
            };
            self.fill(start..end, kind, "", vma.prot == 0, made_by);
            at = end.max(at);
        }
        self.remove(at..range.end);
    }

    /// Adds mappings where a range has none. The heap and stacks grow instead.
    fn fill(&mut self, range: Range<u64>, kind: Kind, name: &str, reserved: bool, made_by: &str) {
        let (mut at, mut gaps) = (range.start, Vec::new());
        for (part, _) in self.space().pieces.within(range.clone()) {
            gaps.push(at..part.start);
            at = part.end.max(at);
        }
        gaps.push(at..range.end);
        for gap in gaps.into_iter().filter(|gap| gap.start < gap.end) {
            let pieces = &self.memory.spaces[self.index].pieces;
            let below = gap.start.checked_sub(1).and_then(|below| pieces.find(below));
            let above = pieces.next(gap.end).filter(|(part, _)| part.start == gap.end);
            let neighbour = match kind {
                Kind::Heap => below,
                Kind::Stack => above,
                _ => None,
            };
            match neighbour.filter(|(_, number)| self.memory.mappings[*number].kind == kind) {
                Some((_, number)) => self.extend(gap, number),
                None => self.make(gap, kind, name.to_owned(), reserved, made_by),
            }
        }
    }

    /// Takes over the kernel's list of VMAs and pages.
    fn listed(&mut self, snapshot: Option<&Snapshot>, made_by: &str) {
        let Some(snapshot) = snapshot else { return };
        let mut at = 0;
        for area in &snapshot.areas {
            self.remove(at..area.start.min(USER_END));
            if area.end <= USER_END {
                let (range, reserved) = (area.start..area.end, area.prot == 0);
                self.fill(range, Kind::of_area(area), &area.name, reserved, made_by);
            }
            at = area.end.min(USER_END);
        }
        self.remove(at..USER_END);
        if snapshot.pages.is_empty() {
            return;
        }
        const SHARED: u32 = 4;
        const PRESENT: u32 = 8;
        const ZERO: u32 = 0x20;
        const HUGE: u32 = 0x40;
        let space = &mut self.memory.spaces[self.index];
        space.pages.clear();
        for run in snapshot.pages.iter().filter(|run| run.categories & (PRESENT | ZERO) == PRESENT) {
            let range = run.first.saturating_mul(PAGE)..(run.first + run.count).saturating_mul(PAGE);
            for (part, mapping) in space.pieces.within(range.start.min(USER_END)..range.end.min(USER_END)) {
                let kind = self.memory.mappings[mapping].kind;
                space.pages.add(pages_of(&part), kind, run.categories & SHARED == 0);
                if run.categories & HUGE != 0 {
                    space.pages.mark_huge(pages_of(&part));
                }
            }
        }
    }
}
