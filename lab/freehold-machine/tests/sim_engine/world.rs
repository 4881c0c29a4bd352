//! A machine with its engine, and work that its CPUs do. All tests of this program use it.
//!
//! [`World`] builds a machine with an engine, and [`World::all`] runs work on all CPUs in virtual time, on
//! the simulated machine `e5-2690v4`. [`more`] returns the cost of each additional repetition: it runs the
//! work with `times` and ten times `times` repetitions, and divides the difference. Addresses must be the
//! same in each run, so a test runs in a process of its own ([`ran_alone`]).

use freehold::counted::Counted;
use freehold::engine::{Config, Engine};
use freehold::space::{Locking, MapFlags, Placement, Prot, SpaceConfig};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_sim::{HotLine, Machine as Model, Report, run, task::sleep_until};
use std::{any::type_name, env, process::Command};

pub const PAGE: u64 = 4096;
pub const GIB: u64 = 1 << 30;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);
pub const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);

/// Runs a test again in a process of its own, and returns true. In that process, returns false, and the test
/// continues.
///
/// The addresses that the allocator returns decide which objects share a cache line, and depend on all
/// earlier allocations of the process. In a process of its own, a test has the same counts in every run.
pub fn ran_alone<T>(_test: T) -> bool {
    const ALONE: &str = "FREEHOLD_SIM_ALONE";
    if env::var_os(ALONE).is_some() {
        freehold_sim::same_addresses();
        return false;
    }
    let path = type_name::<T>();
    let (_, name) = path.split_once("::").expect("a test of this program");
    let this = env::current_exe().expect("this program");
    let args = ["--exact", name, "--nocapture", "--test-threads=1"];
    let output = Command::new(this).args(args).env(ALONE, "").output().expect("it runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    true
}

/// A machine with an engine.
pub struct World {
    /// The machine.
    pub machine: Machine,
    /// The engine.
    pub engine: Counted<Engine<Machine>>,
    /// Number of CPUs that work.
    pub cpus: usize,
}

/// The cost of each additional repetition.
pub struct More {
    /// Number of transfers per repetition, by the place in the source whose access caused the transfer, most
    /// frequent first. Accesses of the machine do not count.
    pub places: Vec<(String, f64)>,
}

impl More {
    /// Returns the number of transfers at the most frequent place.
    pub fn most(&self) -> f64 {
        self.places.first().map_or(0.0, |place| place.1)
    }
}

impl World {
    /// Creates a machine with an engine, for this number of CPUs.
    pub fn new(cpus: usize) -> World {
        Self::with(cpus, |config| config)
    }

    /// Creates a machine like [`new`](Self::new), with a changed configuration.
    pub fn with(cpus: usize, change: impl FnOnce(MachineConfig) -> MachineConfig) -> World {
        let config = change(MachineConfig::phantom(64 * GIB).cpus(cpus).fast());
        let machine = Machine::new(config).expect("a machine");
        let engine = Engine::new(machine.clone(), Config::default()).expect("an engine");
        World { machine, engine, cpus }
    }

    /// Creates an empty process.
    pub fn process(&self, locking: Locking) -> Process {
        self.process_placed(locking, Placement::default())
    }

    /// Creates an empty process with a placement of mappings.
    pub fn process_placed(&self, locking: Locking, placement: Placement) -> Process {
        let config = SpaceConfig::new().locking(locking).placement(placement);
        Process::new(&self.engine, &config).expect("a process")
    }

    /// Makes every CPU run `work` with its number. Returns the report of the run.
    pub fn all(&self, work: impl Fn(usize)) -> Report {
        self.all_on(&Model::named("e5-2690v4").expect("a machine"), work)
    }

    /// Makes every CPU of another machine run `work`.
    pub fn all_on(&self, model: &Model, work: impl Fn(usize)) -> Report {
        let work = &work;
        run(model, self.cpus, 1, (0..self.cpus).map(|cpu| move || work(cpu)))
    }
}

/// Makes the CPUs run `prepare` one after the other, and then continue at the same time.
pub fn in_turn(number: usize, cpus: usize, prepare: impl FnOnce()) {
    /// Virtual time in nanoseconds, longer than a preparation takes.
    const TURN: u64 = 1_000_000;
    sleep_until(number as u64 * TURN);
    prepare();
    sleep_until(cpus as u64 * TURN);
}

/// Runs `work` with `times` repetitions per CPU in one world, and with ten times as many repetitions in
/// another world. Returns the cost of each additional repetition.
pub fn more(times: u64, work: impl Fn(u64) -> (World, Report)) -> More {
    let ((_, few), (world, many)) = (work(times), work(10 * times));
    let mut places: Vec<(String, f64)> = Vec::new();
    let each = (9 * times * world.cpus as u64) as f64;
    for (report, sign) in [(many, 1.0), (few, -1.0)] {
        for (place, count) in report.lines.iter().flat_map(|HotLine { places, .. }| places) {
            // Transfers inside the platform do not count as the engine's.
            if place.file().contains("host_sim") {
                continue;
            }
            let name = format!("{}:{}", place.file(), place.line());
            let share = sign * *count as f64 / each;
            match places.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += share,
                None => places.push((name, share)),
            }
        }
    }
    places.sort_by(|a, b| b.1.total_cmp(&a.1));
    More { places }
}
