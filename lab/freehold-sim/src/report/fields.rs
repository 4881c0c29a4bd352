//! Transfers by field, summed over all records of a type.
//!
//! `report.rs` passes each line that was transferred to [`Fields::count`]. The name of a field comes from
//! `names.rs` if the program announced its records. Otherwise the field is named after the place in the
//! program at which most of its transfers happened. The result is the list `Report::fields` and its table,
//! which `freehold reproduce` prints. Times are picoseconds inside the map, and nanoseconds in a
//! [`HotField`]. `tests/names.rs` checks the sums. A new figure is a field of [`HotField`], which
//! `HotField::add` sums, and a column in `table`.

use crate::line::{LineCount, Move, PART};
use crate::machine::Distance;
use crate::names;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::Location;

/// A place in the program: the call of an atomic.
type Place = &'static Location<'static>;

/// A field of all records of one type, or a word that was not announced, and the transfers that accesses to
/// this field caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotField {
    /// The announced name (`Vma.count`), or the place in the program that caused most transfers of the word.
    pub name: String,
    /// True if the name was announced.
    pub announced: bool,
    /// Lines that were transferred for the field. A line of several runs counts once per run.
    pub lines: u64,
    /// Accesses to the field on these lines.
    pub accesses: u64,
    /// Accesses for which a line came from another processor, or its copies were invalidated.
    pub transfers: u64,
    /// Time that processors waited for these transfers.
    pub lost_ns: u64,
    /// The part of `lost_ns` in which the line was in transit to other processors.
    pub queued_ns: u64,
    /// Transfers between processors of one core, of one cluster, of one socket, and of different sockets.
    pub between: [u64; 4],
    /// Pairs of places, the most frequent first: the access that caused a transfer, the previous access to
    /// the line, and the number of transfers with these two places.
    pub pairs: Vec<(Place, Option<Place>, u64)>,
}

impl HotField {
    /// Returns the field of one transfer.
    fn of_move(name: String, announced: bool, moved: &Move) -> HotField {
        let Move { distance, place, from, times, lost, queued, .. } = *moved;
        let mut between = [0; 4];
        between[match distance {
            Distance::Core => 0,
            Distance::Cluster => 1,
            Distance::Socket => 2,
            Distance::Remote => 3,
        }] = times;
        HotField {
            name,
            announced,
            lines: 0,
            accesses: 0,
            transfers: times,
            lost_ns: lost,
            queued_ns: queued,
            between,
            pairs: vec![(place, from, times)],
        }
    }

    /// Adds the counts of the same field.
    fn add(&mut self, other: HotField) {
        self.lines += other.lines;
        self.accesses += other.accesses;
        self.transfers += other.transfers;
        self.lost_ns += other.lost_ns;
        self.queued_ns += other.queued_ns;
        self.between.iter_mut().zip(other.between).for_each(|(sum, more)| *sum += more);
        for (place, from, times) in other.pairs {
            match self.pairs.iter_mut().find(|pair| (pair.0, pair.1) == (place, from)) {
                Some((_, _, all)) => *all += times,
                None => self.pairs.push((place, from, times)),
            }
        }
    }
}

/// Fields by name. Times in this map are in picoseconds.
#[derive(Default)]
pub(super) struct Fields(BTreeMap<String, HotField>);

impl Fields {
    /// Adds the transfers of a line.
    pub(super) fn count(&mut self, address: usize, line: &LineCount) {
        let mut parts: BTreeMap<u8, Vec<&Move>> = BTreeMap::new();
        line.moves.iter().for_each(|moved| parts.entry(moved.part).or_default().push(moved));
        let mut of_line: BTreeMap<String, HotField> = BTreeMap::new();
        for (part, moves) in parts {
            let announced = names::of(address + usize::from(part) * PART);
            let known = announced.is_some();
            let name = announced.unwrap_or_else(|| most_frequent(&moves));
            let accesses = u64::from(line.parts[usize::from(part)]);
            let all = moves.into_iter().map(|moved| HotField::of_move(name.clone(), known, moved));
            let sum = all.reduce(|mut sum, more| {
                sum.add(more);
                sum
            });
            if let Some(field) = sum {
                join(&mut of_line, HotField { accesses, lines: 1, ..field });
                // Several parts of one field are on one line.
                of_line.get_mut(&name).expect("just added").lines = 1;
            }
        }
        of_line.into_values().for_each(|field| join(&mut self.0, field));
    }

    /// Returns the fields, the most expensive first, in nanoseconds.
    pub(super) fn sorted(self) -> Vec<HotField> {
        let in_ns = |field: HotField| {
            let (lost_ns, queued_ns) = (field.lost_ns / 1000, field.queued_ns / 1000);
            HotField { lost_ns, queued_ns, ..field }
        };
        sorted(self.0.into_values().map(in_ns).collect())
    }
}

/// Adds a field to the map.
fn join(all: &mut BTreeMap<String, HotField>, field: HotField) {
    match all.get_mut(&field.name) {
        Some(known) => known.add(field),
        None => drop(all.insert(field.name.clone(), field)),
    }
}

/// Returns the place in the program that caused most of these transfers.
fn most_frequent(moves: &[&Move]) -> String {
    let mut places: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    moves.iter().for_each(|moved| {
        *places.entry((moved.place.file(), moved.place.line())).or_default() += moved.times
    });
    let most = places.into_iter().max_by_key(|(place, times)| (*times, Reverse(*place)));
    most.map_or_else(String::new, |((file, line), _)| format!("{}:{line}", short(file)))
}

/// Sorts fields, the most expensive first.
fn sorted(mut fields: Vec<HotField>) -> Vec<HotField> {
    let order = |place: &Location<'_>| (place.file().to_owned(), place.line(), place.column());
    for field in &mut fields {
        field
            .pairs
            .sort_by_cached_key(|(place, from, times)| (Reverse(*times), order(place), from.map(order)));
    }
    fields.sort_by(|a, b| b.lost_ns.cmp(&a.lost_ns).then_with(|| a.name.cmp(&b.name)));
    fields
}

/// Adds the fields of a later run.
pub(super) fn add(all: &mut Vec<HotField>, later: Vec<HotField>) {
    let mut sum: BTreeMap<String, HotField> = BTreeMap::new();
    all.drain(..).chain(later).for_each(|field| join(&mut sum, field));
    *all = sorted(sum.into_values().collect());
}

/// Returns the name of a file without the folders that all crates have.
fn short(file: &str) -> String {
    let below = ["engine/", "lab/", "tools/"].iter().find_map(|wing| file.strip_prefix(wing));
    below.unwrap_or(file).replacen("/src/", "/", 1)
}

/// See [`Report::hottest`](crate::Report::hottest).
pub(super) fn table<'a>(fields: impl Iterator<Item = &'a HotField>, transfers: u64) -> String {
    let mut text =
        "| field | lines | transfers | of all | for each access | lost ns each | core, socket, across \
                    | wanted at, after an access at |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    let place = |place: Place| format!("{}:{}", short(place.file()), place.line());
    for field in fields {
        let all = field.transfers.max(1);
        let percent = |part: u64| (100.0 * part as f64 / all as f64).round();
        let [core, cluster, socket, across] = field.between;
        let pair = field.pairs.first().map_or_else(String::new, |(wanted, from, _)| {
            format!("{}, {}", place(wanted), from.map_or_else(|| "-".to_owned(), place))
        });
        let share = 100.0 * field.transfers as f64 / transfers.max(1) as f64;
        let each = field.transfers as f64 / field.accesses.max(1) as f64;
        let name = if field.announced { format!("`{}`", field.name) } else { field.name.clone() };
        let (near, far) = (percent(cluster + socket), percent(across));
        let lost = field.lost_ns / all;
        writeln!(
            text,
            "| {name} | {} | {} | {share:.1} % | {each:.2} | {lost} | {} %, {near} %, {far} % | {pair} |",
            field.lines,
            field.transfers,
            percent(core),
        )
        .expect("a string takes all");
    }
    text
}
