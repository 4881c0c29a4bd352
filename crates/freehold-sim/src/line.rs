//! Cache lines: who has them, and what it takes to get one.
//!
//! | state | owner | holders | left by |
//! | --- | --- | --- | --- |
//! | in memory | none | none | the first access |
//! | changed | the processor that wrote it last | that one | another's read: shared; another's write: changed by that one |
//! | shared | none | all that have read it since | a write: changed by the writer |
//!
//! A line passes from hand to hand one after the other: who wants it while it is under way waits until it has
//! arrived, and then for a way of its own. Reads of a line that nobody changes hinder each other by no more
//! than what its home needs to serve one.

use crate::machine::{LineCosts, Machine};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

/// Bytes of a line.
pub const LINE: usize = 64;

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
    /// Until then it is under way, in picoseconds.
    busy: u64,
    /// Counts its changes.
    pub version: u64,
    /// Tasks that spin until it changes.
    pub spinners: Vec<usize>,
    /// What became of it.
    pub count: LineCount,
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
    /// Where in the program it was transferred, and how often.
    pub places: Vec<(&'static Location<'static>, u64)>,
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
            busy: 0,
            version: 0,
            spinners: Vec::new(),
            count: LineCount::default(),
        })
    }

    pub fn into_counts(self) -> impl Iterator<Item = (usize, LineCount)> {
        self.0.into_iter().map(|(line, state)| (line * LINE, state.count))
    }
}

impl Line {
    /// Processor `cpu` asks for the line at `now`. When it has it, in picoseconds.
    pub fn access(
        &mut self,
        machine: &Machine,
        cpu: usize,
        kind: Kind,
        now: u64,
        place: &'static Location<'static>,
    ) -> u64 {
        let costs = &machine.line;
        self.count.accesses += 1;
        let base = costs.hit.ps() + if kind == Kind::Rmw { costs.rmw.ps() } else { 0 };
        let alone = self.owner == Some(cpu as u16);
        let has = alone || kind == Kind::Load && self.holders.contains(cpu);
        let mut at = now;
        if !has {
            let begin = now.max(self.busy);
            let way = self.way(machine, cpu, kind);
            at = begin + way.time;
            // What passes from processor to processor is in one place at a time.
            self.busy = if way.moves { at } else { begin + costs.serve.ps() };
            self.count.queued += begin - now;
            self.count.lost += at - now;
            if way.from_others {
                self.count.transfers += 1;
                match self.count.places.iter_mut().find(|(known, _)| *known == place) {
                    Some((_, times)) => *times += 1,
                    None => self.count.places.push((place, 1)),
                }
            }
        }
        match kind {
            Kind::Load if !has => {
                self.owner = None;
                self.holders.insert(cpu);
            }
            Kind::Load => {}
            Kind::Store | Kind::Rmw => {
                self.owner = Some(cpu as u16);
                self.holders = CpuSet::only(cpu);
                self.version += 1;
            }
        }
        at + base
    }

    /// How a line that `cpu` has not, or not alone, comes to it.
    fn way(&self, machine: &Machine, cpu: usize, kind: Kind) -> Way {
        let costs: &LineCosts = &machine.line;
        let (socket, core) = (machine.socket_of(cpu), machine.core_of(cpu));
        let near = |other: usize| machine.socket_of(other) == socket;
        if let Some(owner) = self.owner.map(usize::from) {
            // The other processor of the same core has the same cache.
            let time = match (machine.core_of(owner) == core, near(owner)) {
                (true, _) => costs.hit,
                (false, true) => costs.transfer,
                (false, false) => costs.transfer_remote,
            };
            return Way { time: time.ps(), moves: true, from_others: true };
        }
        let mut others = self.holders.iter().filter(|holder| *holder != cpu).peekable();
        if others.peek().is_none() {
            let holds = self.holders.contains(cpu);
            let time = match (holds, usize::from(self.home) == socket) {
                (true, _) => costs.hit,
                (false, true) => costs.memory,
                (false, false) => costs.memory_remote,
            };
            return Way { time: time.ps(), moves: false, from_others: false };
        }
        if kind == Kind::Load {
            let time = if others.any(near) { costs.shared } else { costs.shared_remote };
            return Way { time: time.ps(), moves: false, from_others: true };
        }
        let time = if others.all(near) { costs.upgrade } else { costs.upgrade_remote };
        Way { time: time.ps(), moves: true, from_others: true }
    }
}

/// How a line comes to a processor.
struct Way {
    time: u64,
    /// It is nowhere else meanwhile.
    moves: bool,
    /// Other processors have it, or had it.
    from_others: bool,
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
