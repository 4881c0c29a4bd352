//! C-33: tests every small layout of three neighbouring VMAs. Each range in a layout gets each protection,
//! and the result must equal the model's.
//!
//! ```text
//! page       0     1     2     3     4     5     6
//!            |---- left -|-- middle -|-- right --|
//! changed          |---- any whole pages ---|            21 ranges; inaccessible | readable | writable
//!
//! each VMA:  rights        readable | writable
//!            attributes    all equal | one marked (sequential access)
//!            family        none | one that several VMAs share | its own | its own, since the fork
//! caller:    the process that created the VMAs | its child, which has all families from the fork
//! ```
//!
//! A *family* is an anon_vma, the identity that decides whether VMAs with anonymous pages merge. One arena
//! contains many copies of a layout, each with its own change. `/proc/PID/maps` does not show families. At
//! the end, a test therefore makes all memory writable. This change merges the VMAs whose families permit it.
//! A failure prints the layout and the shortest calls that show the difference.
//!
//! A quick run takes every third layout. With `FREEHOLD_EFFORT=long` all designs run the test. The locks that
//! a task holds must not affect merging.

use freehold::space::Locking;
use freehold_machine::Effort;
use freehold_model::compare::{self, Report};
use freehold_model::op::Proc;
use freehold_model::{Call, Engine, Model, Op, PAGE, Subject, World, text};
use std::collections::BTreeSet;

/// Number of pages of each of the three VMAs.
const EACH: u64 = 2;
/// Number of pages from the start of one copy of the layout to the start of the next.
const STRIDE: u64 = 3 * EACH + 2;

const READ: u64 = 1;
const WRITE: u64 = 3;
const ALL: u64 = 7;
const RANDOM: u64 = 1;
const SEQUENTIAL: u64 = 2;
const DONTDUMP: u64 = 16;

/// The family of anonymous pages (the anon_vma) that a VMA belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Never written.
    None,
    /// Written while these VMAs were still one VMA, so they have the same family.
    Same,
    /// Written while no neighbour had equal properties, so the VMA has a family of its own.
    Own,
    /// Written after the fork, in both processes.
    Late,
}

const FAMILIES: [Family; 4] = [Family::None, Family::Same, Family::Own, Family::Late];

/// The properties of the three VMAs.
#[derive(Clone, Copy, Debug)]
struct Layout {
    rights: [u64; 3],
    /// The VMA with the attribute.
    marked: Option<usize>,
    family: [Family; 3],
}

/// A range, in pages of the layout, and its new protection.
#[derive(Clone, Copy, Debug)]
struct Change {
    start: u64,
    end: u64,
    prot: u64,
}

/// Returns all ranges of pages of a layout.
fn ranges() -> impl Iterator<Item = (u64, u64)> {
    (0..3 * EACH).flat_map(|start| (start + 1..=3 * EACH).map(move |end| (start, end)))
}

/// A list of calls.
struct Script {
    ops: Vec<Op>,
    proc: Proc,
}

impl Script {
    fn call(&mut self, call: Call) {
        self.ops.push(Op { proc: self.proc, call });
    }

    fn map(&mut self, addr: u64, pages: u64, prot: u64) {
        self.call(Call::Mmap { addr, len: pages * PAGE, prot, flags: 0x32, file: None, off: 0 });
    }

    fn protect(&mut self, addr: u64, pages: u64, prot: u64) {
        self.call(Call::Mprotect { addr, len: pages * PAGE, prot });
    }

    fn advise(&mut self, addr: u64, advice: u64) {
        self.call(Call::Madvise { addr, len: EACH * PAGE, advice });
    }

    fn write(&mut self, addr: u64) {
        self.call(Call::Write { addr, value: 1 });
    }

    /// Creates the layout at `base`.
    fn make(&mut self, layout: &Layout, base: u64) {
        let at = |i: usize| base + i as u64 * EACH * PAGE;
        self.map(base, 3 * EACH, WRITE);
        if let Some(i) = layout.family.iter().position(|family| *family == Family::Same) {
            self.write(at(i));
        }
        // The other VMAs are mapped again. Different advice keeps these VMAs from merging in the meantime.
        for i in (0..3).filter(|i| layout.family[*i] != Family::Same) {
            self.map(at(i), EACH, ALL);
            self.advise(at(i), [RANDOM, SEQUENTIAL, DONTDUMP][i]);
            if layout.family[i] == Family::Own {
                self.write(at(i));
            }
        }
        for i in 0..3 {
            self.protect(at(i), EACH, layout.rights[i]);
            self.advise(at(i), DONTDUMP + 1);
            self.advise(at(i), if layout.marked == Some(i) { SEQUENTIAL } else { 0 });
        }
    }

    /// Writes to the VMAs whose family is `Late`. Called after the fork.
    fn make_late(&mut self, layout: &Layout, base: u64) {
        for i in (0..3).filter(|i| layout.family[*i] == Family::Late) {
            self.write(base + i as u64 * EACH * PAGE);
        }
    }
}

/// Returns the calls up to and including the changes, and the calls that make the families visible.
fn script(world: &World, layout: &Layout, changes: &[Change]) -> (Vec<Op>, Vec<Op>) {
    let base = |n: usize| world.start + (n as u64 * STRIDE + 1) * PAGE;
    let mut script = Script { ops: Vec::new(), proc: 0 };
    (0..changes.len()).for_each(|n| script.make(layout, base(n)));
    script.call(Call::Fork);
    for proc in [0, 1] {
        script.proc = proc;
        for (n, change) in changes.iter().enumerate() {
            script.make_late(layout, base(n));
            script.protect(base(n) + change.start * PAGE, change.end - change.start, change.prot);
        }
    }
    let changed = std::mem::take(&mut script.ops);
    for proc in [0, 1] {
        script.proc = proc;
        for n in 0..changes.len() {
            script.protect(base(n), 3 * EACH, WRITE);
        }
    }
    (changed, script.ops)
}

/// Runs calls on both subjects and compares results and maps. Adds the number of VMAs of each layout to
/// `seen`.
fn same(model: &mut Model, engine: &mut Engine, ops: &[Op], seen: &mut BTreeSet<usize>) -> bool {
    let agree = model.apply_all(ops) == engine.apply_all(ops);
    let start = model.world().start;
    agree
        && [0, 1].into_iter().all(|proc| {
            let maps = model.maps(proc);
            let layout = |at: u64| (at - start) / PAGE / STRIDE;
            seen.extend(maps.chunk_by(|a, b| layout(a.start) == layout(b.start)).map(<[_]>::len));
            maps == engine.maps(proc)
        })
}

/// Runs all changes of a layout on both subjects. Returns the numbers of VMAs in the copies of the layout
/// after the changes.
fn check_layout(
    model: &mut Model,
    engine: &mut Engine,
    layout: &Layout,
    changes: &[Change],
) -> BTreeSet<usize> {
    let world = model.world();
    let (changed, shown) = script(&world, layout, changes);
    let mut seen = BTreeSet::new();
    model.reset();
    engine.reset();
    if same(model, engine, &changed, &mut seen) && same(model, engine, &shown, &mut BTreeSet::new()) {
        engine.check();
        return seen;
    }
    let all = [changed, shown].concat();
    let what = compare::run_ops(model, engine, &all, 1, &mut Report::default()).expect("they differ");
    let (ops, what) = compare::shrink(model, engine, all, what);
    let ops: String = ops.iter().map(|op| text::op(&world, op) + "\n").collect();
    panic!("{layout:?}: model (left) and engine (right) differ:\n{ops}=> {what}");
}

/// Returns all layouts.
fn layouts() -> Vec<Layout> {
    let mut layouts = Vec::new();
    for bits in 0..8 {
        let rights = [0, 1, 2].map(|i| if bits & 1 << i != 0 { WRITE } else { READ });
        for marked in [None, Some(0), Some(1), Some(2)] {
            for n in 0..64 {
                let family = [n % 4, n / 4 % 4, n / 16].map(|n| FAMILIES[n]);
                layouts.push(Layout { rights, marked, family });
            }
        }
    }
    layouts
}

#[test]
fn every_range_of_every_small_layout_merges_and_splits_as_in_the_model() {
    let changes: Vec<Change> =
        ranges().flat_map(|(start, end)| [0, READ, WRITE].map(|prot| Change { start, end, prot })).collect();
    let designs = if crate::support::long() { crate::support::lockings() } else { vec![Locking::default()] };
    for locking in designs {
        let world = Engine::world_for(false);
        let (mut model, mut engine) = (Model::new(world.clone()), Engine::new(world, locking));
        let mut seen = BTreeSet::new();
        for layout in layouts().into_iter().step_by(Effort::of(3, 1, 1)) {
            seen.extend(check_layout(&mut model, &mut engine, &layout, &changes));
        }
        // Some layouts ended as one VMA, some kept three VMAs, and in other layouts the change split VMAs.
        assert_eq!(seen, BTreeSet::from([1, 2, 3, 4, 5]), "numbers of VMAs that layouts ended with");
    }
}
