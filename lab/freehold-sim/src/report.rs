//! The results of a run: its time, and the lines whose transfers cost most.
//!
//! [`run`](crate::run()) returns a [`Report`]. Its counts and virtual times are the same in every run with
//! one seed, if the addresses are the same (`apart.rs`). A *transfer* is an access for which a cache line
//! came from another processor, or for which copies were invalidated. [`Report::hottest`] returns a table of
//! the fields that cost most; `report/fields.rs` sums the transfers by field. All lists have a fixed order,
//! so that equal runs give equal reports. A new total is a field of [`Report`], which `Report::of` sets and
//! [`Report::add`] sums.

mod fields;

pub use fields::HotField;

use crate::line::Move;
use crate::world::World;
use fields::Fields;
use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map::Entry};
use std::fmt;
use std::panic::Location;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Report {
    /// Virtual time until the last task ended.
    pub elapsed_ns: u64,
    /// Virtual time in which each processor had a task.
    pub busy_ns: Vec<u64>,
    /// Accesses to shared words.
    pub accesses: u64,
    /// Cache lines that came from another processor, or whose copies had to be invalidated.
    pub transfers: u64,
    /// Number of times that a task went to sleep.
    pub sleeps: u64,
    /// Interrupts that processors received.
    pub interrupts: u64,
    /// Number of times that the run resumed a task.
    pub turns: u64,
    /// The addresses of all lines that were accessed, in order.
    pub touched: Vec<usize>,
    /// The lines that were transferred, the most expensive first.
    pub lines: Vec<HotLine>,
    /// The fields on which these transfers happened, the most expensive first.
    pub fields: Vec<HotField>,
}

/// A cache line that passed between processors.
#[derive(Clone, Debug)]
pub struct HotLine {
    /// The address of the first byte.
    pub address: usize,
    /// Accesses of any kind.
    pub accesses: u64,
    /// Accesses for which the line came from another processor, or its copies were invalidated.
    pub transfers: u64,
    /// Time that processors waited for the line, including its transit.
    pub lost_ns: u64,
    /// The part of `lost_ns` in which the line was in transit to other processors.
    pub queued_ns: u64,
    /// Places in the program that caused transfers, the most frequent first.
    pub places: Vec<(&'static Location<'static>, u64)>,
}

impl Report {
    /// Makes the report of a run that has ended.
    pub(crate) fn of(world: World) -> Report {
        let (elapsed, busy, counts) = (world.elapsed(), world.busy(), world.counts);
        let mut touched = Vec::new();
        let all = world.into_lines().inspect(|(address, _)| touched.push(*address));
        let transferred = all.filter(|(_, count)| count.transfers > 0);
        let mut fields = Fields::default();
        let mut lines: Vec<HotLine> = transferred
            .map(|(address, count)| {
                fields.count(address, &count);
                HotLine {
                    address,
                    accesses: count.accesses,
                    transfers: count.transfers,
                    lost_ns: count.lost / 1000,
                    queued_ns: count.queued / 1000,
                    places: places(&count.moves),
                }
            })
            .collect();
        lines.sort_by_key(|line| (Reverse(line.lost_ns), line.address));
        touched.sort_unstable();
        Report {
            elapsed_ns: elapsed / 1000,
            busy_ns: busy.into_iter().map(|ps| ps / 1000).collect(),
            accesses: counts.accesses,
            transfers: lines.iter().map(|line| line.transfers).sum(),
            sleeps: counts.sleeps,
            interrupts: counts.interrupts,
            turns: counts.turns,
            touched,
            lines,
            fields: fields.sorted(),
        }
    }
}

impl Report {
    /// Adds the results of a later run on the same processors. The times are summed.
    pub fn add(&mut self, later: Report) {
        self.elapsed_ns += later.elapsed_ns;
        self.busy_ns.resize(self.busy_ns.len().max(later.busy_ns.len()), 0);
        self.busy_ns.iter_mut().zip(later.busy_ns).for_each(|(all, more)| *all += more);
        self.accesses += later.accesses;
        self.transfers += later.transfers;
        self.sleeps += later.sleeps;
        self.interrupts += later.interrupts;
        self.turns += later.turns;
        self.touched.extend(later.touched);
        self.touched.sort_unstable();
        self.touched.dedup();
        let mut lines: BTreeMap<usize, HotLine> =
            self.lines.drain(..).map(|line| (line.address, line)).collect();
        for line in later.lines {
            match lines.entry(line.address) {
                Entry::Occupied(mut known) => known.get_mut().add(line),
                Entry::Vacant(place) => drop(place.insert(line)),
            }
        }
        self.lines.extend(lines.into_values());
        self.lines.sort_by_key(|line| (Reverse(line.lost_ns), line.address));
        fields::add(&mut self.fields, later.fields);
    }

    /// Returns the fields on which most time was lost, as a Markdown table.
    pub fn hottest(&self, most: usize) -> String {
        self.hottest_of(|_| true, most)
    }

    /// Returns the table of [`hottest`](Self::hottest) for the fields for which `wanted` returns true.
    pub fn hottest_of(&self, wanted: impl Fn(&HotField) -> bool, most: usize) -> String {
        fields::table(self.fields.iter().filter(|field| wanted(field)).take(most), self.transfers)
    }
}

/// Returns the places whose accesses caused transfers of a line, each with its number of transfers; the most
/// frequent first.
fn places(moves: &[Move]) -> Vec<(&'static Location<'static>, u64)> {
    let mut places: Vec<(&'static Location<'static>, u64)> = Vec::new();
    for Move { place, times, .. } in moves {
        match places.iter_mut().find(|(known, _)| known == place) {
            Some((_, all)) => *all += times,
            None => places.push((place, *times)),
        }
    }
    places.sort_by_key(|(place, times)| (Reverse(*times), place.file(), place.line(), place.column()));
    places
}

impl HotLine {
    /// Adds the counts of the same line in a later run.
    fn add(&mut self, later: HotLine) {
        self.accesses += later.accesses;
        self.transfers += later.transfers;
        self.lost_ns += later.lost_ns;
        self.queued_ns += later.queued_ns;
        for (place, times) in later.places {
            match self.places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, all)) => *all += times,
                None => self.places.push((place, times)),
            }
        }
        self.places.sort_by_key(|(_, times)| Reverse(*times));
    }
}

impl fmt::Display for HotLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} transfers of {} accesses, {} ns lost", self.transfers, self.accesses, self.lost_ns)?;
        for (place, times) in self.places.iter().take(3) {
            write!(f, "\n    {times} at {place}")?;
        }
        Ok(())
    }
}
