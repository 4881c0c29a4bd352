//! Compares two subjects call by call, and shrinks the calls that show a difference.
//!
//! [`run`] draws the calls (`generate.rs`), and compares the result of every call, maps and counters after
//! every few calls, and the contents of all pages at the end of a run. [`run_ops`] compares in the same way
//! for given calls. The tests, the example `differential` and the fuzz target `engine` use these functions.
//! Each exception below makes the comparison blind in one place, so add an exception only if Linux itself may
//! give either of two results. The following results are not compared:
//!
//! - `mincore` of pages of files, because the answer depends on the page cache. The left side reports all of
//!   them as resident.
//! - Contents that `MADV_PAGEOUT` may have dropped: pages that `MADV_FREE` released, and pages of droppable
//!   memory. The generator therefore never uses `MADV_PAGEOUT` in a run with `MADV_FREE` or droppable memory.

use std::collections::BTreeMap;

use crate::escape::escapes;
use crate::generate::Generator;
use crate::model::Model;
use crate::op::*;
use crate::text;
use crate::world::{Quirks, World};

/// The extent of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of the first run. Each later run has the next number.
    pub seed: u64,
    /// Total number of calls.
    pub calls: u64,
    /// Number of calls in a run. Each run begins with empty address spaces.
    pub per_run: usize,
    /// Number of calls between comparisons of maps.
    pub between_maps: usize,
}

/// A difference, with the shortest known list of calls that shows the difference.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Seed of the run.
    pub seed: u64,
    /// The calls.
    pub ops: Vec<Op>,
    /// The difference after the last call.
    pub what: String,
}

/// Counts of a comparison, and its first difference.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of calls executed on both subjects.
    pub calls: u64,
    /// Number of these calls that succeeded.
    pub succeeded: u64,
    /// Number of these calls that failed with an errno.
    pub failed: u64,
    /// Number of these calls that raised a signal.
    pub signals: u64,
    /// Number of occurrences of each result of each call: 0 for success, an errno, or -1 for a signal.
    pub ends: BTreeMap<(&'static str, i32), u64>,
    /// Number of comparisons of a process's maps and counters.
    pub maps: u64,
    /// Number of pages whose contents were compared at the end of a run.
    pub pages: u64,
    /// The first difference, if any. The comparison ends there.
    pub difference: Option<Difference>,
}

/// Returns lines of `maps` with only the flags in `known`, which both sides report.
pub fn visible(mut maps: Vec<MapLine>, known: u32) -> Vec<MapLine> {
    for m in &mut maps {
        m.flags &= known;
    }
    maps
}

/// Runs random calls on both subjects until they differ or the calls are used up.
pub fn run<A: Subject, B: Subject>(a: &mut A, b: &mut B, plan: &Plan) -> Report {
    let world = a.world();
    assert_eq!(world, b.world(), "both subjects have the same world");
    let mut report = Report::default();
    let mut seed = plan.seed;
    while report.calls < plan.calls {
        let mut generator = Generator::new(world.clone(), seed);
        let ops: Vec<Op> = (0..plan.per_run).map(|_| generator.next_op()).collect();
        if let Some(what) = run_ops(a, b, &ops, plan.between_maps, &mut report) {
            let (ops, what) = shrink(a, b, ops, what);
            report.difference = Some(Difference { seed, ops, what });
            return report;
        }
        seed += 1;
    }
    report
}

/// Runs these calls on both subjects. Returns the difference, if any.
pub fn run_ops<A: Subject, B: Subject>(
    a: &mut A,
    b: &mut B,
    ops: &[Op],
    between_maps: usize,
    report: &mut Report,
) -> Option<String> {
    a.reset();
    b.reset();
    let world = a.world();
    for chunk in ops.chunks(between_maps) {
        let (left, right) = (a.apply_all(chunk), b.apply_all(chunk));
        for ((op, left), right) in chunk.iter().zip(&left).zip(&right) {
            report.calls += 1;
            let end = match left {
                Outcome::Err(e) => {
                    report.failed += 1;
                    *e
                }
                Outcome::Signal(_) => {
                    report.signals += 1;
                    -1
                }
                _ => {
                    report.succeeded += 1;
                    0
                }
            };
            *report.ends.entry((text::name(&op.call), end)).or_default() += 1;
            if !same(&op.call, left, right) {
                let (l, r) = (text::outcome(&world, left), text::outcome(&world, right));
                return Some(format!("{}\n  left:  {l}\n  right: {r}", text::op(&world, op)));
            }
        }
        a.check();
        b.check();
        for proc in 0..crate::model::MAX_PROCS as Proc {
            report.maps += u64::from(!a.maps(proc).is_empty());
            if let Some(what) = maps_differ(a, b, proc, &world) {
                return Some(what);
            }
        }
    }
    contents_differ(a, b, &world, report)
}

/// Returns the processes that have mappings.
fn living<A: Subject>(a: &mut A) -> Vec<Proc> {
    (0..crate::model::MAX_PROCS as Proc).filter(|&p| !a.maps(p).is_empty()).collect()
}

/// Returns true if two results of a call count as equal.
fn same(call: &Call, left: &Outcome, right: &Outcome) -> bool {
    match (call, left, right) {
        // A page that is resident on the left may be absent on the right, because the kernel decides which
        // pages of files stay in its cache. A page that is absent on the left must be absent on the right.
        (Call::Mincore { .. }, Outcome::Bytes(l), Outcome::Bytes(r)) => {
            l.len() == r.len() && l.iter().zip(r).all(|(l, r)| l == r || *l == 1)
        }
        _ => left == right,
    }
}

/// Compares maps and counters of a process. Returns the difference, if any.
fn maps_differ<A: Subject, B: Subject>(a: &mut A, b: &mut B, proc: Proc, w: &World) -> Option<String> {
    let known = a.known_flags() & b.known_flags();
    let (left, right) = (visible(a.maps(proc), known), visible(b.maps(proc), known));
    if left != right {
        let only = |these: &[MapLine], those: &[MapLine], side: &str| {
            let odd = these.iter().filter(|m| !those.contains(m));
            odd.map(|m| format!("  {side} {}\n", text::map_line(w, m))).collect::<String>()
        };
        let lines = only(&left, &right, "left: ") + &only(&right, &left, "right:");
        return Some(format!("maps of p{proc}\n{lines}"));
    }
    match (a.counters(proc), b.counters(proc)) {
        (Some(l), Some(r)) if l != r => Some(format!("counters of p{proc}\n  left:  {l:?}\n  right: {r:?}")),
        _ => None,
    }
}

/// Reads every page of both subjects. Returns the difference, if any.
fn contents_differ<A: Subject, B: Subject>(
    a: &mut A,
    b: &mut B,
    w: &World,
    report: &mut Report,
) -> Option<String> {
    for proc in living(a) {
        let mut ops = Vec::new();
        for m in a.maps(proc) {
            for addr in (m.start..m.end).step_by(PAGE as usize) {
                ops.push(Op { proc, call: Call::Read { addr, len: PAGE } });
            }
        }
        report.pages += ops.len() as u64;
        let (left, right) = (a.apply_all(&ops), b.apply_all(&ops));
        for ((op, l), r) in ops.iter().zip(&left).zip(&right) {
            if l != r {
                let at = match (l, r) {
                    (Outcome::Bytes(l), Outcome::Bytes(r)) => {
                        let n = l.iter().zip(r).position(|(l, r)| l != r).unwrap_or(0);
                        format!("byte {n}: left {:#x}, right {:#x}", l[n], r[n])
                    }
                    _ => {
                        let brief = |o| text::outcome(w, o).chars().take(60).collect::<String>();
                        format!("left {}, right {}", brief(l), brief(r))
                    }
                };
                return Some(format!("contents: {}: {at}", text::op(w, op)));
            }
        }
    }
    None
}

/// Returns true if the model meets a quirk of the kernel when it makes these calls.
fn meets_quirk(world: &World, ops: &[Op]) -> bool {
    let mut model = Model::new(world.clone());
    ops.iter().any(|op| {
        model.apply(op);
        model.met_quirk()
    })
}

/// Drops calls in ever smaller pieces, as long as the subjects still differ. Returns the remaining calls and
/// the difference.
pub fn shrink<A: Subject, B: Subject>(a: &mut A, b: &mut B, ops: Vec<Op>, what: String) -> (Vec<Op>, String) {
    let (mut ops, mut what) = (ops, what);
    let world = a.world();
    let mut tries = |ops: &[Op]| {
        // Without the dropped calls, the remaining calls may have other effects. The remaining calls still
        // cannot reach outside the arena, because only the arguments of a call determine that.
        debug_assert!(ops.iter().all(|op| !escapes(&world, &op.call)));
        // Without the dropped calls, the remaining calls must not meet a quirk that the generator avoided.
        if world.quirks == Quirks::Avoided && meets_quirk(&world, ops) {
            return None;
        }
        let every = if ops.len() < 64 { 1 } else { 16 };
        run_ops(a, b, ops, every, &mut Report::default())
    };
    // Pieces are dropped from the end, so the calls after the difference are dropped first.
    let mut piece = ops.len().div_ceil(2).max(1);
    loop {
        let mut at = ops.len();
        let mut dropped = false;
        while at > 0 {
            let from = at.saturating_sub(piece);
            let mut fewer = ops.clone();
            fewer.drain(from..at);
            if let Some(new) = tries(&fewer) {
                (ops, what, dropped) = (fewer, new, true);
            }
            at = from.min(ops.len());
        }
        match (piece, dropped) {
            (1, false) => return (ops, what),
            (1, true) => {}
            _ => piece = piece.div_ceil(2),
        }
    }
}
