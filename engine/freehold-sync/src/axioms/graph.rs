//! An execution as a graph of events, and the axioms that it has to meet.

use crate::atomic::Ordering;
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

/// Most events of an execution, the initial values included: a row of a relation is a `u64`.
pub(super) const MAX_EVENTS: usize = 64;

/// What a thread is about to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Address of the word; 0 for a fence.
    pub word: usize,
    /// What the word holds at first.
    pub initial: u64,
    pub action: Action,
    /// For a failing exchange: see `Action::Exchange`.
    pub order: Ordering,
    /// Not an atomic access.
    pub plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Fence,
    Load,
    /// Of any value but this.
    LoadNot(u64),
    Store(u64),
    /// Addition, within the bits of the mask.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    Fence,
    Read,
    Write,
    Update,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Of the initial value: none.
    pub thread: Option<usize>,
    word: usize,
    kind: Kind,
    order: Ordering,
    plain: bool,
    /// The write that is read.
    from: Option<usize>,
    pub read: u64,
    written: u64,
}

/// Events in an order in which they could have come; modification order by word.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub events: Vec<Event>,
    words: BTreeMap<usize, Vec<usize>>,
}

/// A relation: for each event those that it is followed by.
type Relation = Vec<u64>;

impl Event {
    fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Update)
    }

    fn writes(&self) -> bool {
        matches!(self.kind, Kind::Initial | Kind::Write | Kind::Update)
    }

    fn releases(&self) -> bool {
        !self.plain
            && self.kind != Kind::Read
            && matches!(self.order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
    }

    fn acquires(&self) -> bool {
        !self.plain
            && self.kind != Kind::Write
            && matches!(self.order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
    }

    fn is_total(&self) -> bool {
        !self.plain && self.kind != Kind::Initial && self.order == Ordering::SeqCst
    }

    fn is_fence(&self) -> bool {
        self.kind == Kind::Fence
    }
}

impl Graph {
    /// The graphs with one event more: `op` by `thread`, reading from any write, going anywhere in
    /// modification order.
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
        assert!(base.events.len() < MAX_EVENTS, "a program with too many events");
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

    /// The event at its end, in modification order at `place`. None: an update stands there, and next to what
    /// it has read.
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

    /// What it has in common with the same execution built in another order.
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

    /// Happens-before, if the execution is one that the model allows; see the [module above](super).
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

    /// Releases and the acquires that find them.
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
            // The release sequence: the write, and updates that read from it in a chain.
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

    /// What the total order of `SeqCst` has to agree with: RC11's psc, closed.
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
        // ([SC] or [fence]; hb?) before, (SC or hb?; [fence]) behind.
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

    /// Whether the last event and another access one word, one of them not atomically and one of them
    /// changing it, in no order.
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
        Some(std::format!("a data race of event {} and the last of\n{self:?}", racing.0))
    }
}

fn union(a: &Relation, b: &Relation) -> Relation {
    a.iter().zip(b).map(|(a, b)| a | b).collect()
}

fn transpose(relation: &Relation) -> Relation {
    let column = |b: usize| (0..relation.len()).fold(0, |row, a| row | (relation[a] >> b & 1) << a);
    (0..relation.len()).map(column).collect()
}

fn compose(a: &Relation, b: &Relation) -> Relation {
    a.iter().map(|&row| members(row).fold(0, |sum, through| sum | b[through])).collect()
}

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

fn members(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(first)
    })
}
