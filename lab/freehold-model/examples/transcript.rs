//! Makes random memory calls on the running kernel and prints a transcript, so that two kernels can be
//! compared.
//!
//! The calls depend only on the seed and not on the kernel: the generator tracks them in a world that is the
//! same everywhere. If the transcripts of Linux and of another kernel differ, one of the two kernels has a
//! bug. `cargo xtask kernel-tests transcript` runs this comparison.
//!
//! `cargo run -p freehold-model --release --example transcript -- --calls 100000`
//!
//! Options:
//! - `--calls N`, `--seed N`, `--per-run N`: number of calls, in runs that each begin with empty address
//!   spaces
//! - `--maps-every N`: number of calls between reports of maps and counters; 0: no reports
//! - `--every N`: number of calls between two printed lines; a line has the number of calls so far, and a
//!   hash of all their results
//! - `--show A..B`: prints the calls of that part and their results, in place of hashes
//!
//! Like `freehold_model::compare`, the transcript leaves out which pages of files are resident, because Linux
//! may choose. The transcript also leaves out calls that install or remove guards, because these changed
//! between versions of Linux.

use std::ops::Range;
use std::process::ExitCode;

use freehold_model::generate::Generator;
use freehold_model::linux::{self, Linux};
use freehold_model::model::MAX_PROCS;
use freehold_model::op::{Counters, PAGE, vmflag};
use freehold_model::world::Quirks;
use freehold_model::{Call, Model, Op, Outcome, Subject, World, text};

/// The options of the command line; see the head of the file.
struct Options {
    calls: u64,
    seed: u64,
    per_run: usize,
    maps_every: usize,
    every: u64,
    show: Option<Range<u64>>,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { calls: 100_000, seed: 1, per_run: 256, maps_every: 32, every: 1000, show: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{arg} needs a number"));
        match arg.as_str() {
            "--calls" => options.calls = number(&value)?,
            "--seed" => options.seed = number(&value)?,
            "--per-run" => options.per_run = number(&value)?.max(1) as usize,
            "--maps-every" => options.maps_every = number(&value)? as usize,
            "--every" => options.every = number(&value)?.max(1),
            "--show" => {
                let (from, to) = value.split_once("..").ok_or("--show needs two numbers, A..B")?;
                options.show = Some(number(from)?..number(to)?);
            }
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    Ok(options)
}

/// Returns the world in which calls are drawn. No value of this world depends on the kernel.
fn drawn_in() -> World {
    let outside = Counters {
        map_count: 16,
        total_vm: ((1 << 47) / PAGE - World::PAGES) as i64,
        locked_vm: 0,
        data_vm: 64,
        stack_vm: 33,
    };
    World { outside, outside_lockable: 512, quirks: Quirks::Avoided, ..World::bare() }
}

/// Returns true if all versions of Linux give the same result for a call.
fn settled(op: &Op) -> bool {
    !matches!(op.call, Call::Madvise { advice, .. } if matches!(advice as u32, 102 | 103))
}

/// Prints a hash of many lines at intervals, or the lines themselves.
struct Transcript {
    calls: u64,
    /// FNV-1a of the lines since the start.
    hash: u64,
    every: u64,
    show: Option<Range<u64>>,
}

impl Transcript {
    /// Adds a line to the hash. Prints the line if it belongs to the part that is shown.
    fn line(&mut self, line: &str) {
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.show.as_ref().is_some_and(|show| show.contains(&self.calls)) {
            println!("{line}");
        }
    }

    /// Adds the line of a call, and prints the hash at intervals.
    fn call(&mut self, line: &str) {
        self.line(line);
        self.calls += 1;
        if self.show.is_none() && self.calls.is_multiple_of(self.every) {
            println!("{} {:016x}", self.calls, self.hash);
        }
    }

    /// Returns true if all calls of the part to show were printed.
    fn is_over(&self) -> bool {
        self.show.as_ref().is_some_and(|show| self.calls >= show.end)
    }
}

/// Runs calls, reports maps at intervals, and reports contents at the end.
fn run(linux: &mut Linux, seed: u64, options: &Options, transcript: &mut Transcript) {
    let world = drawn_in();
    let mut generator = Generator::new(world.clone(), seed);
    let mut model = Model::new(world.clone());
    let drawn = std::iter::repeat_with(|| generator.next_op()).filter(settled);
    let ops: Vec<Op> = drawn.take(options.per_run).collect();
    linux.reset();
    let part = if options.maps_every == 0 { options.per_run } else { options.maps_every };
    for ops in ops.chunks(part) {
        for (op, outcome) in ops.iter().zip(linux.apply_all(ops)) {
            let outcome = freed_of_choice(model.apply(op), outcome, &op.call);
            transcript.call(&format!("{} -> {}", text::op(&world, op), text::outcome(&world, &outcome)));
        }
        if options.maps_every != 0 {
            report_maps(linux, &world, transcript);
        }
    }
    if options.maps_every != 0 {
        report_contents(linux, &world, transcript);
    }
}

/// Returns the result of Linux without the choices of Linux. Linux may evict pages of files, so a page counts
/// as resident in the result of mincore if it is resident in the model.
fn freed_of_choice(model: Outcome, real: Outcome, call: &Call) -> Outcome {
    match (call, model, real) {
        (Call::Mincore { .. }, Outcome::Bytes(may), Outcome::Bytes(is)) if may.len() == is.len() => {
            Outcome::Bytes(may.iter().zip(is).map(|(may, is)| if *may == 1 { 1 } else { is }).collect())
        }
        (_, _, real) => real,
    }
}

/// Adds the maps and counters of all processes to the transcript.
fn report_maps(linux: &mut Linux, world: &World, transcript: &mut Transcript) {
    for proc in 0..MAX_PROCS as u8 {
        for mut map in linux.maps(proc) {
            // Some versions of Linux do not have these flags.
            map.flags &= !(vmflag::MAYBE_GUARD | vmflag::SEALED);
            transcript.line(&format!("  p{proc} {}", text::map_line(world, &map)));
        }
        if let Some(counters) = linux.counters(proc) {
            transcript.line(&format!("  p{proc} {counters:?}"));
        }
    }
}

/// Adds a hash of the contents of each page to the transcript.
fn report_contents(linux: &mut Linux, world: &World, transcript: &mut Transcript) {
    for proc in 0..MAX_PROCS as u8 {
        let pages = linux.maps(proc).into_iter().flat_map(|map| (map.start..map.end).step_by(PAGE as usize));
        let ops: Vec<Op> = pages.map(|addr| Op { proc, call: Call::Read { addr, len: PAGE } }).collect();
        for (op, outcome) in ops.iter().zip(linux.apply_all(&ops)) {
            let brief = match outcome {
                Outcome::Bytes(bytes) => {
                    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
                    });
                    format!("{hash:016x}")
                }
                other => text::outcome(world, &other),
            };
            transcript.line(&format!("  {} -> {brief}", text::op(world, op)));
        }
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let mut linux = match Linux::new(linux::Options::default()) {
        Ok(linux) => linux,
        Err(why) => {
            println!("cannot drive the kernel here: {why}");
            return ExitCode::from(2);
        }
    };
    let mut transcript = Transcript {
        calls: 0,
        hash: 0xcbf2_9ce4_8422_2325,
        every: options.every,
        show: options.show.clone(),
    };
    let mut seed = options.seed;
    while transcript.calls < options.calls && !transcript.is_over() {
        run(&mut linux, seed, &options, &mut transcript);
        seed += 1;
    }
    if options.show.is_none() {
        println!("{} calls, hash {:016x}", transcript.calls, transcript.hash);
    }
    ExitCode::SUCCESS
}
