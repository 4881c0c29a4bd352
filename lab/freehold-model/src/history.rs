//! Concurrent calls of several threads of a process, and a check that the model can explain them in some
//! sequential order (linearizability).
//!
//! `shuttle_engine/linear.rs` among the tests of `freehold-machine` uses this module: [`draw`] makes a plan,
//! the test runs it on the engine, and [`explain`] searches all orders. Kinds of calls are added in [`draw`].
//!
//! The order must agree with the known times: a call that ended before another began comes first. Two
//! accesses to different pages are an exception: they may take effect in another order than the order in
//! which they were made, because a TLB may still hold the translation of one of the pages. Accesses by one
//! thread to one page keep their order, and so do an access and a call that changes memory.
//!
//! An access has up to three steps, as on Linux, and another call may take effect between two of them: the
//! growth of a stack, the fault, and the access itself. The fault of a write attaches the anon_vma and maps a
//! page whose content is unchanged. The store is done after the fault has released its locks. [`explain`]
//! first searches the orders in which a fault and its access are one step, because these are fewer.
//!
//! If the kernel chooses the address of a mapping, the model uses that address. The range there must be free
//! in the model.

use crate::draw::Draw;
use crate::model::Model;
use crate::op::*;
use crate::text;
use crate::world::World;
use std::fmt::Write as _;

/// If this bit of an address in a plan is set, the other bits are relative to the address that the thread's
/// last mmap returned.
const MINE: u64 = 1 << 62;

const MAYMOVE: u64 = 1;
const REMAP_FIXED: u64 = 2;
const FIXED: u64 = 0x10;
const GROWSDOWN: u64 = 0x100;
const NOREPLACE: u64 = 0x10_0000;
const ANON: u64 = 0x22;
/// A number of mappings that is larger than the number that one call can create.
const ROOM: i64 = 8;

/// A plan: calls by one thread, then concurrent calls by several threads.
pub struct Plan {
    /// The world of the subject that runs the plan.
    pub world: World,
    /// Calls that create the initial scene.
    pub before: Vec<Op>,
    /// The calls of each thread, in order.
    pub threads: Vec<Vec<Op>>,
}

/// A call that was made concurrently with other calls.
#[derive(Clone, Debug)]
pub struct Step {
    /// The call.
    pub op: Op,
    /// The result of the call.
    pub outcome: Outcome,
    /// The times at which the call began and ended, by a clock that all threads share.
    pub time: (u64, u64),
    /// The thread that made the call.
    pub thread: usize,
}

/// A state of all processes: mappings, counters and contents.
#[derive(Debug, PartialEq, Eq)]
pub struct Scene {
    processes: Vec<(Vec<MapLine>, Option<Counters>, Vec<Outcome>)>,
}

impl Scene {
    /// Records the state of all processes of a subject.
    pub fn of(subject: &mut impl Subject) -> Scene {
        let mut processes = Vec::new();
        for proc in 0..2 {
            let maps = subject.maps(proc);
            let pages = maps.iter().flat_map(|line| (line.start..line.end).step_by(PAGE as usize));
            let reads: Vec<_> = pages.map(|addr| Op { proc, call: Call::Read { addr, len: 1 } }).collect();
            let counters = if maps.is_empty() { None } else { subject.counters(proc) };
            processes.push((maps, counters, subject.apply_all(&reads)));
        }
        Scene { processes }
    }

    fn text(&self, world: &World) -> String {
        let mut out = String::new();
        for (proc, (maps, counters, bytes)) in self.processes.iter().enumerate() {
            for line in maps {
                let _ = writeln!(out, "  p{proc} {}", text::map_line(world, line));
            }
            let bytes: Vec<String> = bytes.iter().map(|byte| text::outcome(world, byte)).collect();
            let _ = writeln!(out, "  p{proc} {counters:?}\n  p{proc} {}", bytes.join(", "));
        }
        out
    }
}

/// Returns a call of the plan with the addresses that the thread really has. `mine` is the result of the
/// thread's last mmap. Returns `None` if the call needs this address and there is none.
pub fn concrete(op: &Op, mine: Option<u64>) -> Option<Op> {
    let mut op = op.clone();
    if let Call::Munmap { addr, .. }
    | Call::Mprotect { addr, .. }
    | Call::Write { addr, .. }
    | Call::Mremap { old: addr, .. } = &mut op.call
        && *addr & MINE != 0
    {
        *addr = *addr - MINE + mine?;
    }
    Some(op)
}

/// Checks that the model can make the same calls in some sequential order, with the same results and the same
/// scene at the end.
///
/// # Errors
///
/// Fails with a description of the calls if no order matches.
pub fn explain(plan: &Plan, model: &Model, steps: &[Step], scene: &Scene) -> Result<(), String> {
    let mut search =
        Search { steps, before: Vec::new(), scene, order: Vec::new(), misses: Vec::new(), faults: false };
    for step in steps {
        let earlier = steps.iter().enumerate().filter(|(_, other)| precedes(other, step));
        search.before.push(earlier.map(|(n, _)| 1 << n).sum());
    }
    for faults in [false, true] {
        search.faults = faults;
        if search.explains(model, Done::default()) {
            return Ok(());
        }
    }
    let w = &plan.world;
    let mut out = String::from("no order of these calls gives these results:\n");
    for op in &plan.before {
        let _ = writeln!(out, "  before: {}", text::op(w, op));
    }
    for (n, step) in steps.iter().enumerate() {
        let (op, outcome) = (text::op(w, &step.op), text::outcome(w, &step.outcome));
        let _ = writeln!(out, "  [{n}] thread {} {:?}: {op} => {outcome}", step.thread, step.time);
    }
    let _ = writeln!(out, "the initial scene:\n{}", Scene::of(&mut model.clone()).text(w));
    let _ = writeln!(out, "the scene at the end:\n{}", scene.text(w));
    for (order, other) in search.misses.iter().take(3) {
        let _ = writeln!(out, "the order {order:?} gives these results, but this scene:\n{}", other.text(w));
    }
    Err(out)
}

/// Returns the page that an access touches, or `None` for other calls.
fn touched(op: &Op) -> Option<u64> {
    match op.call {
        Call::Read { addr, .. } | Call::Write { addr, .. } => Some(addr / PAGE),
        _ => None,
    }
}

/// Returns true if a step comes before another in every order.
fn precedes(one: &Step, other: &Step) -> bool {
    if one.time.1 > other.time.0 {
        return false;
    }
    match (touched(&one.op), touched(&other.op)) {
        (Some(page), Some(other_page)) => one.thread == other.thread && page == other_page,
        _ => true,
    }
}

/// The search for an order.
struct Search<'h> {
    steps: &'h [Step],
    /// For each step, the set of the steps that come before it.
    before: Vec<u64>,
    scene: &'h Scene,
    order: Vec<usize>,
    /// Orders with the same results but another scene at the end.
    misses: Vec<(Vec<usize>, Scene)>,
    /// True if the fault of an access may be a step of its own.
    faults: bool,
}

/// Sets of steps, one bit each.
#[derive(Clone, Copy, Default)]
struct Done {
    /// The steps that are done.
    steps: u64,
    /// The steps whose access has already grown a stack.
    grown: u64,
    /// The steps whose access has already faulted.
    faulted: u64,
}

impl Search<'_> {
    /// Returns true if the remaining steps can follow in some order.
    fn explains(&mut self, model: &Model, done: Done) -> bool {
        if self.order.len() == self.steps.len() {
            let end = Scene::of(&mut model.clone());
            let same = end == *self.scene;
            if !same {
                self.misses.push((self.order.clone(), end));
            }
            return same;
        }
        for (n, step) in self.steps.iter().enumerate() {
            let this = 1 << n;
            if done.steps & this != 0 || self.before[n] & !done.steps != 0 {
                continue;
            }
            if done.grown & this == 0
                && let Some(grown) = grown(model, &step.op)
                && self.explains(&grown, Done { grown: done.grown | this, ..done })
            {
                return true;
            }
            if self.faults
                && done.faulted & this == 0
                && let Some(faulted) = faulted(model, &step.op)
                && self.explains(&faulted, Done { faulted: done.faulted | this, ..done })
            {
                return true;
            }
            let mut model = model.clone();
            if !follows(&mut model, step) {
                continue;
            }
            self.order.push(n);
            if self.explains(&model, Done { steps: done.steps | this, ..done }) {
                return true;
            }
            self.order.pop();
        }
        false
    }
}

/// Returns the model after it has grown the stack that an access needs. Growing the stack and accessing the
/// page are two steps, as on Linux. Returns `None` if no stack must grow.
fn grown(model: &Model, op: &Op) -> Option<Model> {
    let addr = touched(op)? * PAGE;
    let mut grown = model.clone();
    let before = grown.maps(op.proc);
    grown.apply(&Op { proc: op.proc, call: Call::Read { addr, len: 1 } });
    (grown.maps(op.proc) != before).then_some(grown)
}

/// Returns the model after the fault of an access. Returns `None` for other calls, and if the fault fails.
fn faulted(model: &Model, op: &Op) -> Option<Model> {
    let addr = touched(op)? * PAGE;
    let mut faulted = model.clone();
    faulted.touch(op.proc.into(), addr, matches!(op.call, Call::Write { .. })).ok()?;
    Some(faulted)
}

/// Returns true if the model can make this step now with the same result.
fn follows(model: &mut Model, step: &Step) -> bool {
    let (mut op, mut room) = (step.op.clone(), 0);
    match (&mut op.call, &step.outcome) {
        (Call::Mmap { addr, flags, .. }, Outcome::Ok(at)) if *flags & (FIXED | NOREPLACE) == 0 => {
            (*addr, *flags) = (*at, *flags | NOREPLACE);
        }
        (Call::Mremap { old, new_len, flags, new_addr, .. }, Outcome::Ok(at))
            if *flags & REMAP_FIXED == 0 && at != old =>
        {
            // mremap moves a mapping only if the mapping cannot stay and may move, and only to free
            // addresses.
            match model.clone().apply(&step.op) {
                Outcome::Ok(there) if there != *old => {}
                _ => return false,
            }
            let to = *at..*at + *new_len;
            if model.maps(op.proc).iter().any(|line| line.start < to.end && to.start < line.end) {
                return false;
            }
            // The model makes this move with a fixed target, and therefore needs more room below the limit of
            // mappings.
            room = ROOM;
            (*flags, *new_addr) = (*flags | REMAP_FIXED, *at);
        }
        _ => {}
    }
    model.grow_limit(room);
    let outcome = model.apply(&op);
    model.grow_limit(-(room));
    outcome == step.outcome
}

/// Draws a plan: short lists of calls that are likely to overlap.
pub fn draw(random: &mut impl Draw, world: &World, threads: u64, most: u64) -> Plan {
    let heap = world.heap;
    let about = random.pick(&[About::All, About::All, About::Heap, About::Stacks, About::Remaps]);
    let mut drawer = Drawer { random, heap, base: heap - 6 * PAGE, about, forked: false };
    let mut before = Vec::new();
    for _ in 0..2 + drawer.random.below(4) {
        before.push(drawer.scene());
    }
    let threads = (0..threads).map(|_| (0..1 + drawer.random.below(most)).map(|_| drawer.call()).collect());
    let threads: Vec<Vec<Call>> = threads.collect();
    let ops = |calls: Vec<Call>| calls.into_iter().map(|call| Op { proc: 0, call }).collect();
    Plan { world: world.clone(), before: ops(before), threads: threads.into_iter().map(ops).collect() }
}

/// The kind of calls that make up half of a plan.
#[derive(Clone, Copy)]
enum About {
    /// Any calls.
    All,
    /// Calls of brk.
    Heap,
    /// Accesses, below stacks and elsewhere.
    Stacks,
    /// Mappings that are resized or moved.
    Remaps,
}

/// Draws the calls of a plan, most of them near the heap.
struct Drawer<'r, R> {
    random: &'r mut R,
    heap: u64,
    base: u64,
    about: About,
    /// True if the calls contain a fork. The calls contain at most one fork.
    forked: bool,
}

impl<R: Draw> Drawer<'_, R> {
    /// Returns an address among nine pages around the start of the heap.
    fn addr(&mut self) -> u64 {
        self.base + self.random.below(9) * PAGE
    }

    fn len(&mut self) -> u64 {
        self.random.pick(&[1, 1, 2, 3, 4, 6]) * PAGE
    }

    fn prot(&mut self) -> u64 {
        self.random.pick(&[3, 3, 3, 1, 0])
    }

    fn fixed(&mut self, len: u64) -> Call {
        let grows = if matches!(self.about, About::Stacks) { [0, GROWSDOWN] } else { [0, 0] };
        let flags = ANON | FIXED | self.random.pick(&grows);
        Call::Mmap { addr: self.addr(), len, prot: self.prot(), flags, file: None, off: 0 }
    }

    /// Returns a call that sets up the memory before the threads start.
    fn scene(&mut self) -> Call {
        match self.random.below(10) {
            0..=4 => {
                let len = self.len() + PAGE;
                self.fixed(len)
            }
            5..=6 => Call::Write { addr: self.addr(), value: 9 },
            7 => Call::Brk { addr: self.heap + self.random.below(4) * PAGE },
            8 => Call::Mmap { addr: 0, len: 2 * PAGE, prot: 3, flags: ANON, file: None, off: 0 },
            // mlock is drawn only here and not concurrently. mlock has two steps, as on Linux, and its second
            // step could fault in mappings that were made after the first step.
            9 if self.random.below(2) == 0 => Call::Mlock2 { addr: self.addr(), len: 2 * PAGE, flags: 1 },
            _ => Call::Mprotect { addr: self.addr(), len: PAGE, prot: 1 },
        }
    }

    fn brk(&mut self) -> Call {
        let less = self.random.pick(&[0, 0, 0, 8]);
        Call::Brk { addr: self.heap + self.random.below(5) * PAGE - less }
    }

    fn remap(&mut self) -> Call {
        let flags = self.random.pick(&[0, MAYMOVE, MAYMOVE, MAYMOVE | REMAP_FIXED]);
        let old_len = self.random.pick(&[1, 1, 2]) * PAGE;
        Call::Mremap { old: self.addr(), old_len, new_len: self.len(), flags, new_addr: self.addr() }
    }

    fn access(&mut self) -> Call {
        match self.random.below(3) {
            0 => Call::Read { addr: self.addr(), len: 1 },
            _ => Call::Write { addr: self.addr(), value: self.random.below(200) as u8 },
        }
    }

    fn call(&mut self) -> Call {
        match self.about {
            About::All => self.any_call(),
            _ if self.random.below(2) == 0 => self.any_call(),
            About::Heap => self.brk(),
            About::Stacks => self.access(),
            About::Remaps => self.remap(),
        }
    }

    fn any_call(&mut self) -> Call {
        let (addr, len) = (self.addr(), self.len());
        match self.random.below(100) {
            0..=11 => {
                let flags = self.random.pick(&[ANON, ANON, ANON, 0x21]);
                Call::Mmap {
                    addr: 0,
                    len: self.random.pick(&[1, 1, 2]) * PAGE,
                    prot: self.prot(),
                    flags,
                    file: None,
                    off: 0,
                }
            }
            12..=14 => Call::Mmap { addr, len, prot: 3, flags: ANON, file: None, off: 0 },
            15..=25 => self.fixed(len),
            26..=30 => Call::Mmap { addr, len, prot: 3, flags: ANON | NOREPLACE, file: None, off: 0 },
            31..=42 => Call::Munmap { addr, len },
            43..=49 => Call::Munmap { addr: MINE, len: PAGE },
            50..=60 => Call::Mprotect { addr, len, prot: self.prot() },
            61..=62 => Call::Mprotect { addr: MINE, len: PAGE, prot: 1 },
            63..=70 => Call::Madvise { addr, len, advice: self.random.pick(&[10, 10, 11, 16, 18, 19]) },
            71..=72 => Call::Madvise { addr, len: PAGE, advice: self.random.pick(&[4, 102, 103]) },
            73..=77 => Call::Munlock { addr, len },
            78..=82 => self.brk(),
            83..=88 => self.remap(),
            89..=90 if !self.forked => {
                self.forked = true;
                Call::Fork
            }
            91 => Call::Mseal { addr, len, flags: 0 },
            92..=93 => Call::Write { addr: MINE, value: 7 },
            _ => self.access(),
        }
    }
}
