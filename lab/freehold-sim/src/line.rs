//! Cache lines: where they are, and what it takes to get one.
//!
//! | state | owner | holders | left by |
//! | --- | --- | --- | --- |
//! | in memory | none | none | the first access |
//! | changed | the processor that wrote it last | that one | another's read: shared; another's write: changed by that one |
//! | shared | none | all that have read it since | a write: changed by the writer |
//!
//! A line passes from hand to hand one after the other: a processor that wants it while it is under way
//! stands in its queue, and what it does to the line happens when the line has arrived there. The one that
//! has it keeps it for a moment ([`LineCosts::hold`]) before it goes on, so that an exchange which failed can
//! be tried again at once. Copies of a line that nobody changes are given out side by side.

use crate::machine::{Distance, LineCosts, Machine};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

/// Bytes of a line.
pub const LINE: usize = 64;

/// Bytes of a part of a line, which has the size of the smallest words that are told apart.
pub const PART: usize = 4;
/// Parts of a line.
const PARTS: usize = LINE / PART;

const WORDS: usize = Machine::MAX_CPUS / 64;

/// A set of processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    pub fn only(cpu: usize) -> CpuSet {
        let mut set = CpuSet::default();
        set.insert(cpu);
        set
    }

    pub fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64] & 1 << (cpu % 64) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let bit = bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    word * 64 + bit
                })
            })
        })
    }
}

/// What is known of a line.
#[derive(Debug)]
pub struct Line {
    /// The processor that changed it, and has it alone.
    owner: Option<u16>,
    /// Those that have it as it is.
    holders: CpuSet,
    /// Whose memory it is: the socket that touched it first.
    home: u16,
    /// It goes to another processor.
    transit: Option<Transit>,
    /// Processors that want it while it is under way.
    queue: VecDeque<Request>,
    /// Counts its changes.
    pub version: u64,
    /// Tasks that spin until it changes.
    pub spinners: Vec<usize>,
    /// Where in the program it was accessed last.
    last: Option<&'static Location<'static>>,
    /// What became of it.
    pub count: LineCount,
}

#[derive(Clone, Copy, Debug)]
struct Transit {
    /// When it leaves those that have it, in picoseconds.
    departs: u64,
    /// The access that it is for.
    place: &'static Location<'static>,
}

/// A processor wants a line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub cpu: usize,
    pub address: usize,
    pub kind: Kind,
    /// Since when, in picoseconds.
    pub since: u64,
    pub place: &'static Location<'static>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The processor has the line, at this time.
    Has(u64),
    /// It has it at that time, when it tells so by [`Line::arrive`].
    Comes(u64),
    /// It stands in the queue.
    Queued,
}

/// A processor from the queue has the line, or will have it: from this time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub cpu: usize,
    pub at: u64,
    /// It has to tell when it has it.
    pub comes: bool,
}

/// What a line's users cost each other.
#[derive(Clone, Debug, Default)]
pub struct LineCount {
    /// Accesses of any kind.
    pub accesses: u64,
    /// How often it came from another processor, or had to be taken from others.
    pub transfers: u64,
    /// Picoseconds that its users waited for it, its way included.
    pub lost: u64,
    /// Picoseconds of these that it was in the hands of others.
    pub queued: u64,
    /// Accesses to each part of it.
    pub parts: [u32; PARTS],
    /// Its transfers, those that are alike together.
    pub moves: Vec<Move>,
}

/// Transfers of a line for accesses that are alike.
#[derive(Clone, Debug)]
pub struct Move {
    /// The part that was wanted.
    pub part: u8,
    /// How far away the processors were that had the line: the nearest of those with a copy to be read, the
    /// farthest of those that lost theirs.
    pub distance: Distance,
    /// The access that it was for.
    pub place: &'static Location<'static>,
    /// The access to the line before that one.
    pub from: Option<&'static Location<'static>>,
    pub times: u64,
    /// As in [`LineCount`].
    pub lost: u64,
    pub queued: u64,
}

impl Move {
    fn is_like(&self, other: &Move) -> bool {
        let from = match (self.from, other.from) {
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        from && self.part == other.part
            && self.distance == other.distance
            && std::ptr::eq(self.place, other.place)
    }
}

/// Kinds of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Load,
    Store,
    Rmw,
}

/// All lines that were touched.
#[derive(Debug, Default)]
pub struct Lines(HashMap<usize, Line, BuildHasherDefault<AddressHasher>>);

impl Lines {
    /// The line of an address.
    pub fn of(&mut self, address: usize, home: usize) -> &mut Line {
        self.0.entry(address / LINE).or_insert_with(|| Line {
            owner: None,
            holders: CpuSet::default(),
            home: home as u16,
            transit: None,
            queue: VecDeque::new(),
            version: 0,
            spinners: Vec::new(),
            last: None,
            count: LineCount::default(),
        })
    }

    pub fn into_counts(self) -> impl Iterator<Item = (usize, LineCount)> {
        self.0.into_iter().map(|(line, state)| (line * LINE, state.count))
    }
}

impl Line {
    /// Whether a processor has the line at a time, alone or for an access that reads.
    pub fn is_at(&self, cpu: usize, kind: Kind, at: u64) -> bool {
        let alone = self.owner == Some(cpu as u16) && self.transit.is_none_or(|way| at < way.departs);
        alone || kind == Kind::Load && self.holders.contains(cpu) && self.owner.is_none()
    }

    /// A processor asks for the line.
    pub fn request(&mut self, machine: &Machine, request: Request) -> Answer {
        self.count.accesses += 1;
        let Request { cpu, address, kind, since, place } = request;
        self.count.parts[address % LINE / PART] += 1;
        if self.is_at(cpu, kind, since) {
            self.change(cpu, kind, place);
            return Answer::Has(since);
        }
        if self.transit.is_some() {
            self.queue.push_back(request);
            return Answer::Queued;
        }
        let grant = self.grant(machine, request, since);
        if grant.comes { Answer::Comes(grant.at) } else { Answer::Has(grant.at) }
    }

    /// The line has arrived at the processor to which it was under way, which keeps it for `hold` if it
    /// changes it, in picoseconds. Those of the queue that have it now, or will have it next.
    pub fn arrive(
        &mut self,
        machine: &Machine,
        cpu: usize,
        kind: Kind,
        now: u64,
        hold: u64,
        grants: &mut Vec<Grant>,
    ) {
        let way = self.transit.take().expect("a line that arrives was under way");
        self.change(cpu, kind, way.place);
        let hold = if kind == Kind::Load { 0 } else { hold };
        while self.transit.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            grants.push(self.grant(machine, next, now + hold));
        }
    }

    /// The line goes to a processor, from `begin` on.
    fn grant(&mut self, machine: &Machine, request: Request, begin: u64) -> Grant {
        let Request { cpu, address, kind, since, place } = request;
        let way = self.way(machine, cpu, kind);
        let begin = begin.max(since);
        let at = begin + way.time;
        self.count.queued += begin - since;
        self.count.lost += at - since;
        if let Some(distance) = way.from_others {
            self.count.transfers += 1;
            let part = (address % LINE / PART) as u8;
            let (lost, queued) = (at - since, begin - since);
            let fresh = Move { part, distance, place, from: self.last, times: 1, lost, queued };
            match self.count.moves.iter_mut().find(|known| known.is_like(&fresh)) {
                Some(known) => {
                    known.times += 1;
                    known.lost += lost;
                    known.queued += queued;
                }
                None => self.count.moves.push(fresh),
            }
        }
        if way.moves {
            self.transit = Some(Transit { departs: begin, place });
        } else {
            self.change(cpu, kind, place);
        }
        Grant { cpu, at, comes: way.moves }
    }

    /// A processor that has the line reads or writes it.
    fn change(&mut self, cpu: usize, kind: Kind, place: &'static Location<'static>) {
        self.last = Some(place);
        match kind {
            Kind::Load if self.owner == Some(cpu as u16) => {}
            Kind::Load => {
                self.owner = None;
                self.holders.insert(cpu);
            }
            Kind::Store | Kind::Rmw => {
                self.owner = Some(cpu as u16);
                self.holders = CpuSet::only(cpu);
                self.version += 1;
            }
        }
    }

    /// How a line that `cpu` has not, or not alone, comes to it.
    fn way(&self, machine: &Machine, cpu: usize, kind: Kind) -> Way {
        let costs: &LineCosts = &machine.line;
        if let Some(owner) = self.owner.map(usize::from) {
            let distance = machine.distance(cpu, owner);
            let time = costs.transfer(distance).ps();
            return Way { time, moves: true, from_others: Some(distance) };
        }
        let others = self.holders.iter().filter(|holder| *holder != cpu);
        let mut distances = others.map(|other| machine.distance(cpu, other));
        let Some(first) = distances.next() else {
            let (holds, near) =
                (self.holders.contains(cpu), usize::from(self.home) == machine.socket_of(cpu));
            let time = match (holds, near) {
                (true, _) => costs.hit,
                (false, true) => costs.memory,
                (false, false) => costs.memory_remote,
            };
            return Way { time: time.ps(), moves: !holds, from_others: None };
        };
        if kind == Kind::Load {
            let nearest = distances.fold(first, Distance::min);
            return Way { time: costs.shared(nearest).ps(), moves: false, from_others: Some(nearest) };
        }
        let farthest = distances.fold(first, Distance::max);
        Way { time: costs.upgrade(farthest).ps(), moves: true, from_others: Some(farthest) }
    }
}

/// How a line comes to a processor.
struct Way {
    time: u64,
    /// It is nowhere else meanwhile.
    moves: bool,
    /// Other processors have it, or had it, that far away.
    from_others: Option<Distance>,
}

/// Addresses are spread by a multiplication. Nothing depends on the order that comes of it.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        // The table looks at the highest and at the lowest bits.
        self.0 ^ self.0 >> 32
    }
}
