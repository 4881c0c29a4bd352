//! An execution as a graph of events, and the axioms of the memory model that the graph must satisfy.
//!
//! `explore` in `mod.rs` builds graphs: [`Graph::extend`] adds one operation of a thread in every possible
//! way, [`Graph::order`] rejects a graph that the model forbids, and [`Graph::race`] finds a data race. The
//! [module above](super) names the model and its source. An event is an access or a fence; an *update* is a
//! read-modify-write.
//!
//! Relations are sets of bits, one row for each event: bit `b` of row `a` is set if `a` precedes `b`. The
//! tests in `litmus.rs` fail if an axiom is too weak or too strong. A new operation is a variant of
//! [`Action`], with its effect in [`Graph::extend`] and in `after` in `run.rs`.

use crate::atomic::Ordering;
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

/// Maximum number of events of an execution, with initial values: a row of a relation is a `u64`.
pub(super) const MAX_EVENTS: usize = 64;

/// The next operation of a thread: an access to a word, or a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Address of the word; 0 for a fence.
    pub word: usize,
    /// Initial value of the word.
    pub initial: u64,
    pub action: Action,
    /// The order of the access. The order of an exchange that fails is `failure` in `Action::Exchange`.
    pub order: Ordering,
    /// True if the access is not atomic.
    pub plain: bool,
}

/// The effect of an operation on its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Fence,
    Load,
    /// A load that waits until it reads a value other than this one.
    LoadNot(u64),
    Store(u64),
    /// Addition of the first value; the second value is a mask for the result.
    Add(u64, u64),
    And(u64),
    Or(u64),
    Swap(u64),
    Exchange {
        from: u64,
        to: u64,
        failure: Ordering,
    },
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    Fence,
    Read,
    Write,
    Update,
}

/// An operation that has been performed, or the initial value of a word.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// `None` for an initial value.
    pub thread: Option<usize>,
    word: usize,
    kind: Kind,
    order: Ordering,
    plain: bool,
    /// The event that wrote the value that this event reads.
    from: Option<usize>,
    pub read: u64,
    written: u64,
}

/// Events in an order in which they could have occurred, and the modification order of each word.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub events: Vec<Event>,
    words: BTreeMap<usize, Vec<usize>>,
}

/// A relation: for each event the set of events that follow it.
type Relation = Vec<u64>;

impl Event {
    fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Update)
    }

    fn writes(&self) -> bool {
        matches!(self.kind, Kind::Initial | Kind::Write | Kind::Update)
    }

    /// Returns true if the event is a release by itself, without a fence.
    fn releases(&self) -> bool {
        !self.plain
            && self.kind != Kind::Read
            && matches!(self.order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
    }

    /// Returns true if the event is an acquire by itself, without a fence.
    fn acquires(&self) -> bool {
        !self.plain
            && self.kind != Kind::Write
            && matches!(self.order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
    }

    /// Returns true if the event is part of the total order of `SeqCst`.
    fn is_total(&self) -> bool {
        !self.plain && self.kind != Kind::Initial && self.order == Ordering::SeqCst
    }

    fn is_fence(&self) -> bool {
        self.kind == Kind::Fence
    }
}

impl Graph {
    /// Returns all graphs with one more event, in which `thread` performs `op`: one graph for each write that
    /// the event may read from and each place that it may take in the modification order.
    pub fn extend(&self, thread: usize, op: &Op) -> Vec<Graph> {
        let mut base = self.clone();
        if op.word != 0 && !base.words.contains_key(&op.word) {
            base.words.insert(op.word, Vec::from([base.events.len()]));
            base.events.push(Event {
                thread: None,
                word: op.word,
                kind: Kind::Initial,
                order: Ordering::Relaxed,
                plain: op.plain,
                from: None,
                read: 0,
                written: op.initial,
            });
        }
        assert!(base.events.len() < MAX_EVENTS, "the program has too many events");
        let modifications = base.words.get(&op.word).cloned().unwrap_or_default();
        let event = |kind, order, from, read, written| Event {
            thread: Some(thread),
            word: op.word,
            kind,
            order,
            plain: op.plain,
            from,
            read,
            written,
        };
        let from_each = |make: &dyn Fn(usize, u64) -> Option<Event>| {
            let mut graphs = Vec::new();
            for (place, &from) in modifications.iter().enumerate() {
                let Some(event) = make(from, base.events[from].written) else { continue };
                let place = (event.kind == Kind::Update).then_some(place + 1);
                graphs.extend(base.with(event, place));
            }
            graphs
        };
        let update = |from, read, new| Some(event(Kind::Update, op.order, Some(from), read, new));
        match op.action {
            Action::Fence => base.with(event(Kind::Fence, op.order, None, 0, 0), None).into_iter().collect(),
            Action::Store(value) => (1..=modifications.len())
                .filter_map(|place| base.with(event(Kind::Write, op.order, None, 0, value), Some(place)))
                .collect(),
            Action::Load => from_each(&|from, read| Some(event(Kind::Read, op.order, Some(from), read, 0))),
            Action::LoadNot(value) => from_each(&|from, read| {
                (read != value).then(|| event(Kind::Read, op.order, Some(from), read, 0))
            }),
            Action::Add(by, mask) => {
                from_each(&|from, read| update(from, read, read.wrapping_add(by) & mask))
            }
            Action::And(bits) => from_each(&|from, read| update(from, read, read & bits)),
            Action::Or(bits) => from_each(&|from, read| update(from, read, read | bits)),
            Action::Swap(value) => from_each(&|from, read| update(from, read, value)),
            Action::Exchange { from: expected, to, failure } => from_each(&|from, read| {
                if read == expected {
                    update(from, read, to)
                } else {
                    Some(event(Kind::Read, failure, Some(from), read, 0))
                }
            }),
        }
    }

    /// Appends the event, at `place` in modification order. Returns `None` if that place lies between an
    /// update and the event that the update has read from, because an update is atomic.
    fn with(&self, event: Event, place: Option<usize>) -> Option<Graph> {
        let mut graph = self.clone();
        let id = graph.events.len();
        if let Some(place) = place {
            let modifications = graph.words.get_mut(&event.word).expect("made before");
            if modifications.get(place).is_some_and(|&next| self.events[next].kind == Kind::Update) {
                return None;
            }
            modifications.insert(place, id);
        }
        graph.events.push(event);
        Some(graph)
    }

    /// Returns a key of the execution that does not depend on the order in which the events were added.
    pub fn key(&self) -> Vec<u64> {
        let mut places = [0; 8];
        let name = self.events.iter().map(|event| match event.thread {
            None => event.word as u64,
            Some(thread) => {
                places[thread] += 1;
                (thread as u64) << 56 | places[thread]
            }
        });
        let names: Vec<u64> = name.collect();
        let mut reads: Vec<(u64, u64)> = names
            .iter()
            .zip(&self.events)
            .filter(|(_, event)| event.thread.is_some())
            .map(|(&name, event)| (name, event.from.map_or(0, |from| names[from])))
            .collect();
        reads.sort_unstable();
        let mut key: Vec<u64> = reads.into_iter().flat_map(|(name, from)| [name, from]).collect();
        for modifications in self.words.values() {
            key.push(0);
            key.extend(modifications.iter().map(|&id| names[id]));
        }
        key
    }

    /// Returns the relation between the events for which `related` returns true.
    fn relation(&self, related: impl Fn(usize, &Event, usize, &Event) -> bool) -> Relation {
        let row = |(a, first): (usize, &Event)| {
            let mut row = 0;
            for (b, second) in self.events.iter().enumerate() {
                row |= u64::from(related(a, first, b, second)) << b;
            }
            row
        };
        self.events.iter().enumerate().map(row).collect()
    }

    /// Returns the relation happens-before if the model allows the execution, and `None` otherwise.
    pub fn order(&self) -> Option<Relation> {
        let before = self.relation(|a, first, b, second| {
            second.thread.is_some() && (first.thread.is_none() || (first.thread == second.thread && a < b))
        });
        let none: Relation = self.events.iter().map(|_| 0).collect();
        let (mut reads, mut modifications, mut from_reads) = (none.clone(), none.clone(), none);
        for (read, event) in self.events.iter().enumerate() {
            let Some(from) = event.from else { continue };
            reads[from] |= 1 << read;
        }
        for order in self.words.values() {
            for (place, &write) in order.iter().enumerate() {
                let later = order[place + 1..].iter().fold(0, |row, &id| row | 1 << id);
                modifications[write] |= later;
                for (read, _) in self.events.iter().enumerate().filter(|(_, event)| event.from == Some(write))
                {
                    from_reads[read] |= later & !(1 << read);
                }
            }
        }
        let communication = closure(union(&union(&reads, &modifications), &from_reads));
        let happens = closure(union(&before, &self.synchronizes(&before)));
        let back = transpose(&happens);
        let coherent = |a: usize| happens[a] & 1 << a == 0 && communication[a] & (back[a] | 1 << a) == 0;
        if !(0..self.events.len()).all(coherent) {
            return None;
        }
        let total = self.total(&before, &happens, &modifications, &from_reads, &communication);
        (0..total.len()).all(|a| total[a] & 1 << a == 0).then_some(happens)
    }

    /// Returns the relation synchronizes-with, from releases to the acquires that read from them.
    fn synchronizes(&self, before: &Relation) -> Relation {
        let mut found = Relation::from_iter(self.events.iter().map(|_| 0));
        for (write, event) in
            self.events.iter().enumerate().filter(|(_, event)| event.writes() && !event.plain)
        {
            let fences = |a: usize, f: &Event| f.is_fence() && f.releases() && before[a] & 1 << write != 0;
            let sources = self.events.iter().enumerate().filter(|&(a, source)| {
                (a == write && event.thread.is_some() && event.releases()) || fences(a, source)
            });
            let sources: Vec<usize> = sources.map(|(a, _)| a).collect();
            if sources.is_empty() {
                continue;
            }
            // The release sequence: the write, and the chain of updates that read from it.
            let mut sequence = 1_u64 << write;
            let mut targets = 0;
            for (read, event) in
                self.events.iter().enumerate().filter(|(_, event)| event.reads() && !event.plain)
            {
                if event.from.is_none_or(|from| sequence & 1 << from == 0) {
                    continue;
                }
                if event.kind == Kind::Update {
                    sequence |= 1 << read;
                }
                if event.acquires() {
                    targets |= 1 << read;
                }
                let fences =
                    self.events.iter().enumerate().filter(|&(b, fence)| {
                        fence.is_fence() && fence.acquires() && before[read] & 1 << b != 0
                    });
                targets |= fences.fold(0, |row, (b, _)| row | 1 << b);
            }
            for source in sources {
                found[source] |= targets & !(1 << source);
            }
        }
        found
    }

    /// Returns the relation that the total order of `SeqCst` must agree with: RC11's psc, transitively
    /// closed.
    fn total(
        &self,
        before: &Relation,
        happens: &Relation,
        modifications: &Relation,
        from_reads: &Relation,
        communication: &Relation,
    ) -> Relation {
        let set = |test: &dyn Fn(&Event) -> bool| {
            let each = self.events.iter().enumerate();
            each.filter(|(_, event)| test(event)).fold(0_u64, |set, (id, _)| set | 1 << id)
        };
        let all = set(&Event::is_total);
        let fences = all & set(&Event::is_fence);
        let same = self.relation(|_, a, _, b| a.word != 0 && a.word == b.word);
        let elsewhere: Relation = before.iter().zip(&same).map(|(row, same)| row & !same).collect();
        let around = compose(&compose(&elsewhere, happens), &elsewhere);
        let at_word: Relation = happens.iter().zip(&same).map(|(row, same)| row & same).collect();
        let base = [&around, &at_word, modifications, from_reads]
            .into_iter()
            .fold(before.clone(), |sum, part| union(&sum, part));
        // In the notation of RC11, `first` is the union of [SC] and [fence]; hb?, and `last` is the union of
        // [SC] and hb?; [fence].
        let identity = self.relation(|a, _, b, _| a == b);
        let maybe = union(&identity, happens);
        let first: Relation = (0..self.events.len())
            .map(|a| (identity[a] * (all >> a & 1)) | (maybe[a] * (fences >> a & 1)))
            .collect();
        let last: Relation =
            (0..self.events.len()).map(|a| (identity[a] & all) | (maybe[a] & fences)).collect();
        let accesses = compose(&compose(&first, &base), &last);
        let through = union(happens, &compose(&compose(happens, communication), happens));
        let between: Relation =
            (0..self.events.len()).map(|a| (through[a] * (fences >> a & 1)) & fences).collect();
        closure(union(&accesses, &between))
    }

    /// Describes a data race of the last event, if there is one: an unordered access to the same word, where
    /// at least one of the two accesses is not atomic and at least one writes.
    pub fn race(&self, happens: &Relation) -> Option<String> {
        let (last, rest) = self.events.split_last()?;
        let races = |(id, other): (usize, &Event)| {
            other.word == last.word
                && last.word != 0
                && other.thread.is_some()
                && (other.plain || last.plain)
                && (other.writes() || last.writes())
                && happens[id] & 1 << rest.len() == 0
        };
        let racing = rest.iter().enumerate().find(|&pair| races(pair))?;
        Some(std::format!("event {} and the last event are a data race in\n{self:?}", racing.0))
    }
}

/// Returns the pairs that are in one of the relations.
fn union(a: &Relation, b: &Relation) -> Relation {
    a.iter().zip(b).map(|(a, b)| a | b).collect()
}

/// Returns the relation with each pair reversed.
fn transpose(relation: &Relation) -> Relation {
    let column = |b: usize| (0..relation.len()).fold(0, |row, a| row | (relation[a] >> b & 1) << a);
    (0..relation.len()).map(column).collect()
}

/// Returns the pairs that lead from an event by `a` and then by `b`.
fn compose(a: &Relation, b: &Relation) -> Relation {
    a.iter().map(|&row| members(row).fold(0, |sum, through| sum | b[through])).collect()
}

/// Returns the transitive closure: the pairs that one or more steps connect.
fn closure(mut relation: Relation) -> Relation {
    for through in 0..relation.len() {
        for a in 0..relation.len() {
            if relation[a] & 1 << through != 0 {
                relation[a] |= relation[through];
            }
        }
    }
    relation
}

/// Returns the events in a row of a relation.
fn members(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(first)
    })
}
