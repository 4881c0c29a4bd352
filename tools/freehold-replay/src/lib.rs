//! Replays recordings on the engine and checks every answer against Linux's.
//!
//! [`replay`] replays a [`Source`] and returns an [`outcome`](mod@outcome). [`report`] writes an outcome for
//! people and programs. [`analysis`] has the facts of a recording as data, and [`page`] shows both in a page
//! for browsers. [`picture`] draws the recording itself. [`Tasks`] lists the tasks with their lifetimes.
//! [`maps_at`] returns the VMAs of one address space at one time. `freehold-cli` has the command;
//! `docs/reference/replay.md` has the rules of the comparison.
//!
//! ```text
//! recording -> plan (freehold-trace), a segment at a time
//!           -> run: tasks in parallel on virtual CPUs           run.rs
//!              each step: a call, a fault, a fork, an exec      perform.rs, calls.rs, start.rs
//!              its answer against Linux's                       perform.rs, place.rs, compare.rs, resident.rs
//!           -> outcome                                          outcome.rs
//! ```
//!
//! | term of this crate | meaning |
//! | --- | --- |
//! | step, segment | a step is one action of a task in the plan; a segment is a part of the plan that is made and run before the next part is made |
//! | text | the output of strace: calls only, without faults, snapshots and locks |
//! | snapshot | the kernel's list of the VMAs and pages of one process; a snapshot *taken in haste* has no flags, sizes and pages |
//! | difference | an answer of the engine that Linux cannot have given, according to the recording |
//! | set aside, not checked | left out of the comparison and counted with a reason, because the recording does not determine the answer (`freehold_trace::plan::aside`) |
//! | image | an address space of the replay, with the facts about its memory that comparisons need (`image.rs`) |
//!
//! A new call is replayed in `calls.rs`, and a new kind of step in `perform.rs`. A new rule about answers
//! belongs in `refused.rs`, and a new rule about snapshots in `compare.rs` or `resident.rs`. `tests/main.rs`
//! lists the tests; each rule needs a recording that matches Linux and a recording that differs.
#![deny(unsafe_code)]

pub mod analysis;
mod answers;
mod calls;
mod compare;
mod contents;
mod files;
mod findings;
mod grown;
mod image;
mod layout;
mod length;
mod lock_waits;
pub mod locking;
mod maps;
mod opened;
mod options;
pub mod outcome;
pub mod page;
mod pagers;
mod perform;
pub mod picture;
mod place;
mod prctl;
mod reached;
mod refused;
pub mod report;
mod resident;
mod run;
mod runs;
mod shmem_sizes;
pub mod short;
mod source;
mod start;
pub mod table;
mod tasks;
mod touched;
mod transfer;
pub mod units;
mod untold;
mod workers;
mod world;

pub use options::Options;
pub use source::{STDIN, Source};
pub use tasks::{NoTask, Tasks};
pub use workers::Workers;

use findings::Findings;
use freehold_machine::{Cpu, Machine};
use freehold_pagetable::X86_4;
use freehold_sync::Host;
use freehold_sync::stats::{Histogram, LockSnapshot};
use freehold_trace::plan::{Frozen, Planner, Recorded, Segment};
use freehold_trace::{Format, ReadError};
use lock_waits::LockWaits;
use maps::TASK_SIZE;
use outcome::{Beside, FlushCount, KindTime, LinuxTime, Outcome, Rungs, Spread};
use run::Run;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};
use world::World;

const PAGE: u64 = 4096;

/// Callbacks that report the progress of a replay.
pub trait Progress {
    /// Reports that `events` events of the recording are read and planned.
    fn planned(&self, events: u64);
    /// Reports that `events` of the planned events have run.
    fn ran(&self, events: u64);
}

/// Ignores all progress.
impl Progress for () {
    fn planned(&self, _: u64) {}
    fn ran(&self, _: u64) {}
}

/// Reason why a recording could not be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// The recording cannot be read.
    Read(ReadError),
    /// The machine could not be created, or its memory ran out.
    Machine(io::Error),
    /// No address space is known for the requested task at the requested time.
    NoTask(Box<NoTask>),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Read(error) => error.fmt(f),
            ReplayError::Machine(error) => write!(f, "cannot create the machine for the replay: {error}"),
            ReplayError::NoTask(absent) => absent.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<ReadError> for ReplayError {
    fn from(error: ReadError) -> Self {
        ReplayError::Read(error)
    }
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> Self {
        ReplayError::Machine(error)
    }
}

/// State of a replay in progress.
struct Replay {
    world: World,
    cpus: Vec<Cpu<X86_4>>,
    tasks: run::Tasks,
    found: Vec<Findings>,
    seed: u64,
    wall: Duration,
    waits: LockWaits,
}

impl Replay {
    fn new(options: &Options, planner: &Planner) -> io::Result<Replay> {
        let mut world = World::new(options)?;
        world.tells_personalities = planner.recording().follows_personalities();
        world.has_faults = planner.recording().format() != Format::Strace;
        Ok(Replay {
            cpus: (0..world.options.cpus).map(|number| world.machine.cpu(number)).collect(),
            found: vec![Findings::new(); world.options.cpus],
            tasks: run::Tasks::default(),
            seed: options.seed,
            wall: Duration::ZERO,
            waits: LockWaits::default(),
            world,
        })
    }

    /// Runs a segment, then compares the snapshots of the processes that were frozen at its end.
    fn run(&mut self, segment: &Segment) -> io::Result<()> {
        self.world.open(&segment.files).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let (world, tasks) = (&self.world, &mut self.tasks);
        let begun = (<Machine as Host>::now_ns(), self.wall);
        self.wall += Run::segment(world, segment, tasks, &mut self.cpus, &mut self.found, self.seed);
        let logs = self.found.iter_mut().map(|found| &mut found.locks);
        self.waits.segment(segment, logs, begun);
        self.tasks.adopt(&self.world);
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for Frozen { line, task, snapshot, samples } in &segment.frozen {
            if let Some(image) = self.tasks.image(*task) {
                let compared = compare::compare(&self.world, image, snapshot);
                compare::report(&mut self.found[0], *task, snapshot, *line, compared);
                if let Some(every) = samples {
                    short::add_sample(&self.world, &mut self.cpus[0], image, snapshot, *every);
                }
            }
        }
        Ok(())
    }
}

/// Replays a recording once.
///
/// Fails if the recording cannot be read or if the machine cannot be created. A difference from Linux is not
/// an error; the outcome lists it.
pub fn replay(
    source: impl Into<Source>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Outcome, ReplayError> {
    let (source, mut options) = (source.into(), options.clone());
    loop {
        match attempt(&source, &options, progress)? {
            Attempt::Ended(outcome) => return Ok(*outcome),
            Attempt::Wants(better) => options = better,
        }
    }
}

/// Result of one attempt to replay.
enum Attempt {
    /// The replay reached the end of the recording.
    Ended(Box<Outcome>),
    /// The replay must start again with these options: the machine lacked a feature that the recording needs.
    Wants(Options),
}

/// Replays a recording until its end, or until the recording needs a feature that the machine lacks. Recorded
/// bytes can be compared only on memory with contents, and protection keys need a machine that has protection
/// keys.
fn attempt(source: &Source, options: &Options, progress: &dyn Progress) -> Result<Attempt, ReplayError> {
    let planner = Planner::new(source.open()?).with_segments_of(options.segment);
    let mut planner = planner.keeping_layout(options.places);
    let mut replay = Replay::new(options, &planner)?;
    let shown = source.shown_thp(planner.recording())?;
    let (mut events, mut planning) = (0, Duration::ZERO);
    loop {
        let begun = Instant::now();
        let Some(segment) = planner.next_segment() else { break };
        let (backed, keys) = (options.backed || planner.shows_bytes(), options.keys || planner.uses_keys());
        if (backed, keys) != (options.backed, options.keys) {
            return Ok(Attempt::Wants(Options { backed, keys, ..options.clone() }));
        }
        planning += begun.elapsed();
        if events == 0 {
            replay.world.set_up(planner.recording(), shown);
        }
        events += segment.events;
        replay.world.shows_seals = planner.shows_seals();
        replay.world.unseen_writes = planner.has_unseen_writes();
        progress.planned(events);
        replay.run(&segment)?;
        progress.ran(events);
    }
    // Without its snapshots, which are in a separate file, a recording determines almost nothing.
    let refused = events == 0 || matches!(planner.cut_off(), Some(ReadError::NoSnapshot { .. }));
    if refused && let Some(error) = planner.take_cut_off() {
        return Err(error.into());
    }
    // Drops the remaining address spaces before the statistics are read, because their unmapping counts too.
    replay.tasks.clear();
    if let Some(short) = &replay.world.short {
        short.finish_all();
    }
    Ok(Attempt::Ended(Box::new(outcome(&planner, replay, options, (events, planning)))))
}

/// Returns the address space of `task` as /proc/PID/maps shows it, at `time` nanoseconds after the first
/// event. Without a task, returns the address space of the first task that is alive.
///
/// # Errors
///
/// Fails like [`replay`], or with [`ReplayError::NoTask`] if no such task has an address space at that time.
pub fn maps_at(
    source: impl Into<Source>,
    time: u64,
    task: Option<u32>,
    options: &Options,
) -> Result<String, ReplayError> {
    let source = source.into();
    let planner = Planner::new(source.open()?).until(time);
    let mut planner = planner.keeping_layout(options.places);
    let mut replay = Replay::new(options, &planner)?;
    let shown = source.shown_thp(planner.recording())?;
    while let Some(segment) = planner.next_segment() {
        replay.world.set_thp(planner.recording(), shown);
        replay.run(&segment)?;
    }
    let image = match task {
        Some(task) => replay.tasks.image(task),
        None => replay.tasks.first(),
    };
    let Some(image) = image else {
        let tasks = Tasks::of(source)?;
        return Err(ReplayError::NoTask(Box::new(NoTask { task, time, tasks })));
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = image.process().write_maps(&mut text);
    Ok(text)
}

fn outcome(planner: &Planner, replay: Replay, options: &Options, planned: (u64, Duration)) -> Outcome {
    let mut found = Findings::new();
    replay.found.into_iter().for_each(|part| found.merge(part));
    let recorded = planner.recorded();
    let locks = replay.world.engine.lock_stats().unwrap_or_default();
    let stats = replay.world.machine.stats();
    let (vma_lock, mmap_lock) = replay.world.totals.rungs();
    let aside = planner.set_aside().iter().chain(&found.aside);
    let figures = replay.world.short.as_ref().map(|short| short.figures());
    Outcome {
        name: planner.recording().name().to_owned(),
        calls_only: planner.recording().format() == Format::Strace,
        design: options.design,
        cpus: replay.world.options.cpus,
        peak: stats.frames.peak * PAGE,
        memory: options.memory.zip(figures),
        backed: options.backed,
        seed: options.seed,
        calls: found.calls,
        faults: found.faults,
        snapshots: found.snapshots,
        file_vmas: found.file_vmas,
        placed: found.placed,
        kinds: kinds(&found, recorded),
        unread: planner.recording().unread().count(),
        unread_lines: planner.recording().unread().first().iter().map(ToString::to_string).collect(),
        cut_off: planner.cut_off().map(ToString::to_string),
        set_aside: aside.map(|(why, count)| ((*why).to_owned(), *count)).collect(),
        rungs: Rungs { vma_lock, mmap_lock, already_there: found.already_there },
        exclusive_hold: beside(&locks.write.held, recorded, &recorded.exclusive_hold),
        mmap_lock_wait: beside(&waits(&locks), recorded, &recorded.lock_wait),
        waits: replay.waits.finish(),
        flushes: FlushCount {
            freehold: stats.range_flushes + stats.full_flushes,
            remote: stats.remote_visits,
            linux: recorded.has_locks.then_some(recorded.interrupts),
        },
        wall: replay.wall,
        checking: found.checking,
        recorded: Duration::from_nanos(recorded.active),
        planned,
        differences: found.differences,
        difference_count: found.difference_count,
    }
}

/// Returns the waits of readers and writers for the lock. An acquisition that did not wait counts as a wait
/// of 0.
fn waits(locks: &LockSnapshot) -> Histogram {
    let mut waits = locks.read.waited.clone();
    waits.merge(&locks.write.waited);
    waits
}

fn spread(histogram: &Histogram) -> Spread {
    Spread {
        count: histogram.count(),
        p50: histogram.percentile(5_000),
        p99: histogram.percentile(9_900),
        max: histogram.max(),
    }
}

fn beside(ours: &Histogram, recorded: &Recorded, linux: &Histogram) -> Beside {
    Beside { freehold: spread(ours), linux: recorded.has_locks.then(|| spread(linux)) }
}

fn kinds(found: &Findings, recorded: &Recorded) -> Vec<KindTime> {
    let mut kinds: Vec<KindTime> = found
        .kinds()
        .map(|(name, count, ns)| KindTime {
            name: name.to_owned(),
            count,
            freehold: Duration::from_nanos(ns),
            linux: recorded
                .kinds
                .get(name)
                .map(|(count, ns)| LinuxTime { all: Duration::from_nanos(*ns), count: *count }),
        })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse((kind.linux, kind.freehold)));
    kinds
}
