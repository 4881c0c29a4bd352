//! Chooses what an analysis says about mappings: those of the peak, those with the most faults, those that
//! were never unmapped or never touched.
//!
//! `memory.rs` and `mod.rs` call these functions. `mod_tests.rs` has the tests.

use super::bins::Bins;
use super::mappings::{Kind, Mapping};
use super::memory::Memory;
use super::pages::PAGE;
use super::resident::{MAX_PROCESSES, MAX_VMAS, Most, PeakMapping, ProcessPeak, Resident};
use crate::picture::life::Life;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Largest number of mappings in a list.
const MAX_LISTED: usize = 40;

/// The mappings of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mappings {
    /// Number of mappings.
    pub count: u64,
    /// The mappings with the most faults, at most 40.
    pub most_faults: Vec<Mapping>,
    /// Mappings of calls that were never unmapped, had present memory at the end, and had no fault in the
    /// second half of their life. They are leaks or caches, or they were used without faults.
    pub never_unmapped: Listed,
    /// Mappings of calls that were made with access rights and that no recorded event touched.
    pub never_touched: Listed,
}

/// Mappings of one sort.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Listed {
    /// Number of mappings.
    pub count: u64,
    /// Their sizes together: the present bytes of those never unmapped, the mapped bytes of those never
    /// touched.
    pub bytes: u64,
    /// The largest, at most 40.
    pub largest: Vec<Mapping>,
}

impl Listed {
    fn of<'m>(mappings: impl Iterator<Item = &'m Mapping>, size: impl Fn(&Mapping) -> u64) -> Listed {
        let mut all: Vec<&Mapping> = mappings.collect();
        all.sort_by_key(|mapping| (std::cmp::Reverse(size(mapping)), mapping.line));
        Listed {
            count: all.len() as u64,
            bytes: all.iter().map(|mapping| size(mapping)).fold(0, u64::saturating_add),
            largest: all.into_iter().take(MAX_LISTED).cloned().collect(),
        }
    }
}

/// Sums up the mappings.
pub(super) fn mappings(all: &[Mapping]) -> Mappings {
    let mut most: Vec<&Mapping> = all.iter().filter(|mapping| mapping.faults.sum() > 0).collect();
    most.sort_by_key(|mapping| (std::cmp::Reverse(mapping.faults.sum()), mapping.line));
    let idle = |mapping: &&Mapping| {
        let last = mapping.last_fault_ns.unwrap_or(mapping.from_ns).max(mapping.from_ns);
        let idle = mapping.to_ns.saturating_sub(last);
        idle.saturating_mul(2) >= mapping.to_ns.saturating_sub(mapping.from_ns)
    };
    let kept = all.iter().filter(|mapping| {
        mapping.is_called() && !mapping.unmapped && mapping.left_bytes > 0 && mapping.kind != Kind::Heap
    });
    let unused = all.iter().filter(|mapping| {
        let touched = mapping.faults.sum() > 0 || mapping.left_bytes > 0 || mapping.populated;
        mapping.is_called() && !touched && !mapping.reserved && mapping.kind != Kind::Special
    });
    Mappings {
        count: all.len() as u64,
        most_faults: most.into_iter().take(MAX_LISTED).cloned().collect(),
        never_unmapped: Listed::of(kept.filter(idle), |mapping| mapping.left_bytes),
        never_touched: Listed::of(unused, |mapping| mapping.bytes),
    }
}

/// Returns the mappings with the most pages. `found` has the pages by process and mapping.
pub(super) fn peak_mappings(
    found: HashMap<(usize, usize), u64>,
    mappings: &[Mapping],
    life: &Life,
) -> Vec<PeakMapping> {
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(key, pages)| (std::cmp::Reverse(*pages), *key));
    found.truncate(MAX_VMAS);
    let shown = found.into_iter().map(|((process, mapping), pages)| {
        let mapping = &mappings[mapping];
        let process = life.processes.get(process);
        PeakMapping {
            process: process.map_or(0, |process| process.serial),
            command: process.map_or_else(String::new, |process| process.name.clone()),
            kind: mapping.kind,
            name: mapping.name.clone(),
            made_by: mapping.made_by.clone(),
            line: mapping.line,
            start: mapping.start,
            bytes: pages * PAGE,
        }
    });
    shown.collect()
}

/// Returns the resident memory over time. Call it after [`Memory::finish`].
pub(super) fn resident(memory: &mut Memory, life: &Life) -> Resident {
    let sums = &mut memory.sums;
    sums.bins.at(life.end, &Most::default());
    let mut by_kind = BTreeMap::new();
    for kind in Kind::ALL {
        let series: Vec<u64> = sums.bins.series(|most| most.0[kind as usize] * PAGE);
        if series.iter().any(|bytes| *bytes > 0) {
            by_kind.insert(kind, series);
        }
    }
    let mut order: Vec<usize> = (0..sums.processes.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(sums.processes[*index].peak), *index));
    order.truncate(MAX_PROCESSES);
    let processes = order.into_iter().filter_map(|index| {
        let (own, process) = (&mut sums.processes[index], life.processes.get(index)?);
        let bins: &mut Bins<u64> = &mut own.bins;
        bins.at(life.end, &0);
        Some(ProcessPeak {
            process: process.serial,
            command: process.name.clone(),
            peak_bytes: own.peak * PAGE,
            peak_at_ns: own.peak_at,
            over_time: own.bins.series(|pages| pages * PAGE),
        })
    });
    let processes = processes.filter(|process| process.peak_bytes > 0).collect();
    Resident { step_ns: sums.bins.width(), by_kind, peak: memory.peak.clone(), processes }
}
