//! Cache lines: which processors have them, and the cost of getting a line.
//!
//! | state | owner | holders | ends by |
//! | --- | --- | --- | --- |
//! | in memory | none | none | the first access |
//! | changed | the processor that wrote it last | that processor | a read by another processor: shared; a write by another processor: changed by that processor |
//! | shared | none | all processors that have read it since | a write: changed by the writer |
//!
//! Exclusive transfers of a line follow one another. A processor that needs the line during a transit waits
//! in the line's queue, and makes its access when the line has arrived at that processor. A processor that
//! has got the line keeps it for a moment ([`LineCosts::hold`]), so that a failed compare-and-exchange can be
//! repeated at once. Copies of an unchanged line are transferred concurrently.
//!
//! `world.rs` calls [`Line::request`] for each access, and [`Line::arrive`] when an exclusive transfer ends.
//! Times are picoseconds. `tests/main.rs` calculates the times of small programs, so a changed rule fails
//! there.

use crate::machine::{Distance, LineCosts, Machine};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

/// Bytes of a line.
pub const LINE: usize = 64;

/// Bytes of a part of a line: the size of the smallest words that are distinguished.
pub const PART: usize = 4;
/// Number of parts of a line.
const PARTS: usize = LINE / PART;

/// Words of a [`CpuSet`], one bit for each processor.
const WORDS: usize = Machine::MAX_CPUS / 64;

/// A set of processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// Returns the set of one processor.
    pub fn only(cpu: usize) -> CpuSet {
        let mut set = CpuSet::default();
        set.insert(cpu);
        set
    }

    /// Adds a processor.
    pub fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Returns true if the processor is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64] & 1 << (cpu % 64) != 0
    }

    /// Returns the processors in ascending order.
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

/// The state of a line.
#[derive(Debug)]
pub struct Line {
    /// The processor that changed the line and has it exclusively.
    owner: Option<u16>,
    /// The processors that have the current value.
    holders: CpuSet,
    /// The socket whose memory contains the line: the socket of the first access.
    home: u16,
    /// Set while the line is in transit to another processor.
    transit: Option<Transit>,
    /// Processors that wait for the line while it is in transit.
    queue: VecDeque<Request>,
    /// Number of changes.
    pub version: u64,
    /// Tasks that are parked until the line changes.
    pub spinners: Vec<usize>,
    /// The place of the last access.
    last: Option<&'static Location<'static>>,
    /// The counts of the line.
    pub count: LineCount,
}

/// An exclusive transfer that has not ended.
#[derive(Clone, Copy, Debug)]
struct Transit {
    /// The time at which the line leaves its current processors, in picoseconds.
    departs: u64,
    /// The access that the line is transferred for.
    place: &'static Location<'static>,
}

/// A request of a processor for a line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub cpu: usize,
    pub address: usize,
    pub kind: Kind,
    /// The time since which the processor waits, in picoseconds.
    pub since: u64,
    pub place: &'static Location<'static>,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The access can be made at this time, in picoseconds.
    Has(u64),
    /// The line is in transit and arrives at this time. [`Line::arrive`] must be called then.
    Comes(u64),
    /// The request is in the queue. A later [`Line::arrive`] grants it.
    Queued,
}

/// A line that is granted to a processor from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub cpu: usize,
    /// The time at which the line arrives, in picoseconds.
    pub at: u64,
    /// The transfer is exclusive: [`Line::arrive`] must be called at that time.
    pub comes: bool,
}

/// The costs that the users of a line cause each other.
#[derive(Clone, Debug, Default)]
pub struct LineCount {
    /// Accesses of any kind.
    pub accesses: u64,
    /// Number of times that the line came from another processor, or its copies were invalidated.
    pub transfers: u64,
    /// Picoseconds that processors waited for the line, including its transit.
    pub lost: u64,
    /// The part of `lost` in which other processors had the line.
    pub queued: u64,
    /// Accesses to each part of the line.
    pub parts: [u32; PARTS],
    /// The transfers of the line; equal transfers are combined.
    pub moves: Vec<Move>,
}

/// Equal transfers of a line.
#[derive(Clone, Debug)]
pub struct Move {
    /// The part of the line that was accessed.
    pub part: u8,
    /// Distance from the processor that made the access to another processor: for a read, to the nearest
    /// processor with a copy; for a write, to the farthest processor that lost the line.
    pub distance: Distance,
    /// The access that the line was transferred for.
    pub place: &'static Location<'static>,
    /// The previous access to the line.
    pub from: Option<&'static Location<'static>>,
    pub times: u64,
    /// Picoseconds, defined like the fields of [`LineCount`].
    pub lost: u64,
    pub queued: u64,
}

impl Move {
    /// Returns true if the two transfers can be counted as one entry.
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

/// Kinds of access. `Rmw` is a read-modify-write: an exchange, or an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Load,
    Store,
    Rmw,
}

/// All lines that were accessed.
#[derive(Debug, Default)]
pub struct Lines(HashMap<usize, Line, BuildHasherDefault<AddressHasher>>);

impl Lines {
    /// Returns the line of an address. `home` is the socket of its memory if this is the first access.
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

    /// Returns the counts of each line, by the address of its first byte, in no particular order.
    pub fn into_counts(self) -> impl Iterator<Item = (usize, LineCount)> {
        self.0.into_iter().map(|(line, state)| (line * LINE, state.count))
    }
}

impl Line {
    /// Returns true if a processor can make an access of `kind` to the line at a time without a transfer: it
    /// has the line exclusively and the line has not departed, or it only reads and has a copy.
    pub fn is_at(&self, cpu: usize, kind: Kind, at: u64) -> bool {
        let alone = self.owner == Some(cpu as u16) && self.transit.is_none_or(|way| at < way.departs);
        alone || kind == Kind::Load && self.holders.contains(cpu) && self.owner.is_none()
    }

    /// Requests the line for a processor.
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

    /// Ends the transit of the line to processor `cpu`. The processor keeps the line for `hold` picoseconds
    /// if its access changes the line. Then serves the queue until the line is in transit again, and adds a
    /// grant for each processor that was served.
    pub fn arrive(
        &mut self,
        machine: &Machine,
        cpu: usize,
        kind: Kind,
        now: u64,
        hold: u64,
        grants: &mut Vec<Grant>,
    ) {
        let way = self.transit.take().expect("a line that arrives was in transit");
        self.change(cpu, kind, way.place);
        let hold = if kind == Kind::Load { 0 } else { hold };
        while self.transit.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            grants.push(self.grant(machine, next, now + hold));
        }
    }

    /// Begins the transfer of the line to a processor: at `begin`, or at the time of the processor's request
    /// if the request is later. Counts the transfer and the time.
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

    /// Records an access of a processor that has the line.
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

    /// Returns the transfer that brings the line to `cpu`. This processor does not have the line, or does not
    /// have it exclusively.
    fn way(&self, machine: &Machine, cpu: usize, kind: Kind) -> Transfer {
        let costs: &LineCosts = &machine.line;
        if let Some(owner) = self.owner.map(usize::from) {
            let distance = machine.distance(cpu, owner);
            let time = costs.transfer(distance).ps();
            return Transfer { time, moves: true, from_others: Some(distance) };
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
            return Transfer { time: time.ps(), moves: !holds, from_others: None };
        };
        if kind == Kind::Load {
            let nearest = distances.fold(first, Distance::min);
            return Transfer { time: costs.shared(nearest).ps(), moves: false, from_others: Some(nearest) };
        }
        let farthest = distances.fold(first, Distance::max);
        Transfer { time: costs.upgrade(farthest).ps(), moves: true, from_others: Some(farthest) }
    }
}

/// The transfer of a line to a processor.
struct Transfer {
    /// In picoseconds.
    time: u64,
    /// The transfer is exclusive: no other processor has the line until it arrives.
    moves: bool,
    /// The distance of the other processors that have the line, or had the line before the transfer.
    from_others: Option<Distance>,
}

/// A hasher that spreads addresses by a multiplication. No result depends on the resulting order.
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
        // The table uses the highest and the lowest bits.
        self.0 ^ self.0 >> 32
    }
}
