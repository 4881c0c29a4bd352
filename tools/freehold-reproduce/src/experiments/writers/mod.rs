//! CPUs that change one address space at the same time, each a part of its own: all changes one after the
//! other, and changes of disjoint ranges side by side.

mod loads;
mod tables;

use self::loads::{Areas, Load, Shared, Watched};
use super::Experiment;
use crate::findings::Findings;
use crate::load::{GIB, World};
use crate::measure::{Figure, figures, in_turns};
use crate::{scale::Scale, steps::Steps};
use freehold::space::{Locking, Write};
use std::time::Duration;

/// See the [module](self).
pub struct Writers;

/// What is compared.
const SIDES: [(&str, Write); 3] =
    [("Whole", Write::Whole), ("Ranges", Write::Ranges), ("RangesOnly", Write::RangesOnly)];
/// Of these: side by side, as is the default.
const RANGES: usize = 1;
/// Of these, from the first on: those for which one CPU is watched.
const WATCHED_SIDES: usize = 2;

/// Numbers of CPUs on a simulated machine.
const CPUS: [usize; 4] = [1, 14, 56, 384];
/// The most of those that share leaves, which takes long to simulate; and of those of which one is watched.
const MOST: usize = 56;
/// For each CPU that works: time for the words that all look at, and for leaves to be split where CPUs meet.
const FIRST: Duration = Duration::from_micros(4);
/// Turns that one is watched for.
const WATCHED_TURNS: u32 = 3;
/// What others do meanwhile; nothing at first.
const BESIDE: [Option<Load>; 3] = [None, Some(Load::Touch), Some(Load::Protect)];

/// Operations a second: of each side.
struct Rate {
    areas: Areas,
    load: Load,
    cpus: usize,
    rates: Vec<Figure>,
}

/// What one CPU's operations took, without others or beside them: of each side.
struct Times {
    areas: Areas,
    watched: Watched,
    beside: Option<Load>,
    median: Vec<Figure>,
    /// What 99 % take at most.
    most: Vec<Figure>,
    mean: Vec<Figure>,
}

fn is_simulated(scale: &Scale) -> bool {
    scale.place.simulated().is_some()
}

/// On a host all CPUs have areas enough, and none is watched: its scheduler would be.
fn areas(scale: &Scale) -> &'static [Areas] {
    if is_simulated(scale) { &Areas::ALL } else { &Areas::ALL[..1] }
}

fn watched(scale: &Scale) -> &'static [Watched] {
    if is_simulated(scale) { &Watched::ALL } else { &[] }
}

/// Numbers of CPUs: as the user says, or those that the machine has.
fn cpus(scale: &Scale, areas: Areas) -> Vec<usize> {
    if !is_simulated(scale) || scale.threads.is_some() {
        return scale.threads();
    }
    let most = if areas == Areas::Few { MOST.min(scale.cpus) } else { scale.cpus };
    CPUS.into_iter().filter(|cpus| *cpus <= most).collect()
}

/// How long so many CPUs work, and nothing is counted: a word that all look at comes to one after the other.
fn warm(scale: &Scale, cpus: usize) -> Duration {
    scale.turn / 4 + FIRST * cpus as u32
}

/// How long they work and are counted. A few do less than many in the same time, and are simulated sooner.
fn turn(scale: &Scale, cpus: usize) -> Duration {
    let times = if is_simulated(scale) { 16 / cpus.clamp(1, 16) } else { 1 };
    scale.turn * times as u32
}

/// How many are beside the one that is watched.
fn others(scale: &Scale) -> usize {
    (scale.cpus.min(MOST) - 1).max(1)
}

impl Experiment for Writers {
    fn name(&self) -> &'static str {
        "writers"
    }

    fn title(&self) -> &'static str {
        "CPUs that change one address space side by side, each a part of its own"
    }

    fn sides(&self) -> Vec<String> {
        SIDES.map(|(name, _)| name.to_owned()).into()
    }

    fn memory(&self, _: &Scale) -> u64 {
        1 << 30
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let rates = |areas: Areas| -> f64 {
            let time = |cpus| warm(scale, cpus) + turn(scale, cpus);
            let turns = cpus(scale, areas).into_iter().map(|cpus| time(cpus).as_secs_f64());
            turns.sum::<f64>() * (Load::ALL.len() * SIDES.len()) as f64
        };
        let times = watched(scale).len() * BESIDE.len() * WATCHED_SIDES;
        let times = (scale.turn * WATCHED_TURNS).as_secs_f64() * times as f64;
        areas(scale).iter().map(|areas| rates(*areas) + times).sum::<f64>() * scale.turns() as f64
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let most = scale.cpus.max(2);
        let world = World::new(4 * GIB, most, scale.config())?;
        let locking = scale.locking(Locking::default());
        let (mut rates, mut times) = (Vec::new(), Vec::new());
        for &areas in areas(scale) {
            let sides =
                SIDES.map(|(_, write)| Shared::new(&world, Locking { write, ..locking }, areas, most));
            let mut sides: Vec<Shared> = sides.into_iter().collect::<anyhow::Result<_>>()?;
            for load in Load::ALL {
                for cpus in cpus(scale, areas) {
                    rates.push(rate(&world, &mut sides, (areas, load, cpus), scale, steps)?);
                }
            }
            for &watched in watched(scale) {
                for beside in BESIDE {
                    let sides = &mut sides[..WATCHED_SIDES];
                    times.push(watch(&world, sides, (areas, watched, beside), scale, steps)?);
                }
            }
        }
        Ok(tables::findings(&rates, &times, scale))
    }
}

/// What a step of so many CPUs is of.
fn of_cpus(areas: Areas, cpus: usize) -> String {
    format!("{}, {cpus} CPUs", areas.name())
}

fn rate(
    world: &World,
    sides: &mut [Shared],
    (areas, load, cpus): (Areas, Load, usize),
    scale: &Scale,
    steps: &Steps,
) -> anyhow::Result<Rate> {
    let (warm, time) = (warm(scale, cpus), turn(scale, cpus));
    let found = in_turns(scale.turns(), sides, |side, turn| {
        let what = format!("{}, {}, turn {}", load.name(), of_cpus(areas, cpus), turn + 1);
        steps.step(what, (warm + time).as_secs_f64(), || side.rate(world, load, cpus, (warm, time)))
    })?;
    Ok(Rate { areas, load, cpus, rates: figures(&found, |rate| *rate) })
}

fn watch(
    world: &World,
    sides: &mut [Shared],
    (areas, watched, beside): (Areas, Watched, Option<Load>),
    scale: &Scale,
    steps: &Steps,
) -> anyhow::Result<Times> {
    let (warm, time) = (warm(scale, 1 + others(scale)), scale.turn * WATCHED_TURNS);
    let name = beside.map_or("nothing", Load::name);
    let beside_it = beside.map(|load| (load, others(scale)));
    let found = in_turns(scale.turns(), sides, |side, turn| {
        let what = format!("{} beside {name}, {}, turn {}", watched.name(), areas.name(), turn + 1);
        let times = || side.times(world, watched, beside_it, (warm, time));
        steps.step(what, (warm + time).as_secs_f64(), times)
    })?;
    let at = |times: &[u64], part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0) as f64;
    let mean = |times: &[u64]| times.iter().sum::<u64>() as f64 / times.len().max(1) as f64;
    Ok(Times {
        areas,
        watched,
        beside,
        median: figures(&found, |times| at(times, 50)),
        most: figures(&found, |times| at(times, 99)),
        mean: figures(&found, |times| mean(times)),
    })
}
