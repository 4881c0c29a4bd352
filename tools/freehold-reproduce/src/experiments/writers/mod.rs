//! CPUs that change different parts of one address space at the same time. Compares changes that run one
//! after the other with concurrent changes of disjoint ranges.
//!
//! `loads.rs` has the address space and the operations of the CPUs; `tables.rs` makes the findings. There are
//! two measurements for each layout of areas: the rate of all CPUs together ([`Rate`], for each load and
//! number of CPUs), and the times of one CPU's operations while the other CPUs run a load ([`Times`]). On a
//! simulated machine up to 384 CPUs run in virtual time.

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

/// The sides of the comparison.
const SIDES: [(&str, Write); 3] =
    [("Whole", Write::Whole), ("Ranges", Write::Ranges), ("RangesOnly", Write::RangesOnly)];
/// Index of the side with range writers, the default.
const RANGES: usize = 1;
/// Number of sides, counted from the first, on which one CPU is watched.
const WATCHED_SIDES: usize = 2;

/// Numbers of CPUs on a simulated machine.
const CPUS: [usize; 4] = [1, 14, 56, 384];
/// Largest number of CPUs if CPUs share leaves, or if one CPU is watched. More CPUs would take too long to
/// simulate.
const MAX_CPUS: usize = 56;
/// Warm-up time for each CPU: all CPUs read the shared words once, and leaves in which CPUs conflict are
/// split.
const FIRST: Duration = Duration::from_micros(4);
/// Number of turns for which one CPU is watched.
const WATCHED_TURNS: u32 = 3;
/// Loads of the other CPUs while one CPU is watched. With `None`, no other CPU works.
const BESIDE: [Option<Load>; 3] = [None, Some(Load::Touch), Some(Load::Protect)];

/// Operations per second of each side.
struct Rate {
    /// The layout of the areas.
    areas: Areas,
    /// The operation.
    load: Load,
    /// Number of CPUs.
    cpus: usize,
    /// The rate by side.
    rates: Vec<Figure>,
}

/// Times of one CPU's operations on each side, with or without other CPUs at work.
struct Times {
    /// The layout of the areas.
    areas: Areas,
    /// The timed operation.
    watched: Watched,
    /// The load of the other CPUs; `None` if the CPU runs alone.
    beside: Option<Load>,
    /// The median in nanoseconds, by side.
    median: Vec<Figure>,
    /// The 99th percentile in nanoseconds, by side.
    most: Vec<Figure>,
    /// The mean in nanoseconds, by side.
    mean: Vec<Figure>,
}

/// Returns true if loads run on a simulated machine.
fn is_simulated(scale: &Scale) -> bool {
    scale.place.simulated().is_some()
}

/// Returns the layouts. On a host there are always many areas, and no CPU is watched, because the times of a
/// watched CPU would measure the host's scheduler.
fn areas(scale: &Scale) -> &'static [Areas] {
    if is_simulated(scale) { &Areas::ALL } else { &Areas::ALL[..1] }
}

/// Returns the operations that are timed on one CPU.
fn watched(scale: &Scale) -> &'static [Watched] {
    if is_simulated(scale) { &Watched::ALL } else { &[] }
}

/// Returns the numbers of CPUs: the user's choice, or those that the machine has.
fn cpus(scale: &Scale, areas: Areas) -> Vec<usize> {
    if !is_simulated(scale) || scale.threads.is_some() {
        return scale.threads();
    }
    let most = if areas == Areas::Few { MAX_CPUS.min(scale.cpus) } else { scale.cpus };
    CPUS.into_iter().filter(|cpus| *cpus <= most).collect()
}

/// Returns the warm-up time. A shared word reaches one CPU after the other, so the time grows with the number
/// of CPUs.
fn warm(scale: &Scale, cpus: usize) -> Duration {
    scale.turn / 4 + FIRST * cpus as u32
}

/// Returns the measured time. The time is longer for a small number of CPUs, which do less work in the same
/// time and are simulated faster.
fn turn(scale: &Scale, cpus: usize) -> Duration {
    let times = if is_simulated(scale) { 16 / cpus.clamp(1, 16) } else { 1 };
    scale.turn * times as u32
}

/// Returns the number of CPUs that work while another CPU is watched.
fn others(scale: &Scale) -> usize {
    (scale.cpus.min(MAX_CPUS) - 1).max(1)
}

impl Experiment for Writers {
    fn name(&self) -> &'static str {
        "writers"
    }

    fn title(&self) -> &'static str {
        "CPUs that change one address space concurrently, each its own part"
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
            let sides = SIDES.map(|(_, write)| Shared::new(&world, locking.write(write), areas, most));
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

/// Returns the name of a step with this number of CPUs.
fn of_cpus(areas: Areas, cpus: usize) -> String {
    format!("{}, {cpus} CPUs", areas.name())
}

/// Measures the rates of all sides in turns.
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

/// Measures the times of one CPU on the watched sides in turns.
fn watch(
    world: &World,
    sides: &mut [Shared],
    (areas, watched, beside): (Areas, Watched, Option<Load>),
    scale: &Scale,
    steps: &Steps,
) -> anyhow::Result<Times> {
    let (warm, time) = (warm(scale, 1 + others(scale)), scale.turn * WATCHED_TURNS);
    let name = beside.map_or("no other load", Load::name);
    let beside_it = beside.map(|load| (load, others(scale)));
    let found = in_turns(scale.turns(), sides, |side, turn| {
        let what = format!("{} with {name}, {}, turn {}", watched.name(), areas.name(), turn + 1);
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
