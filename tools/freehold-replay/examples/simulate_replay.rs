//! Replays a recording on many processors in virtual time. For each number of processors, prints the virtual
//! time, the speedup, the moved cache lines and the waits. At the end, prints the fields whose cache lines
//! moved most between processors. With `--report`, also writes the page of `freehold replay --report`, with
//! its section about other numbers of processors and other designs; `--json` writes the figures of that
//! section.
//!
//! ```sh
//! cargo xtask simulate replay recordings/git.trace.zst --machine e5-2690v4 --cpus 1,4,16 --locking fault=mmap-lock
//! cargo xtask simulate replay recordings/git.trace.zst --report git.html
//! ```
//!
//! `cargo xtask simulate replay` builds this program with `cfg(sim)`: the atomics of the engine then take
//! virtual time (`freehold-sim`), and `src/workers/virtual_time.rs` runs the workers. The answers are
//! compared with Linux's as in `freehold replay`. The exit status is 1 if an answer differs, and 2 after an
//! error. `tests/sim_replay.rs` tests such replays. A new option needs a field of `Wanted`, an arm in
//! `Wanted::of`, and a place in both usage texts (here and in `xtask/src/main.rs`).

/// Refuses to run: without the atomics of the simulation, no step takes virtual time.
#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim: run `cargo xtask simulate replay`");
    std::process::exit(2);
}

#[cfg(sim)]
fn main() -> std::process::ExitCode {
    match simulate::main(std::env::args().skip(1)) {
        Ok(as_linux) => std::process::ExitCode::from(u8::from(!as_linux)),
        Err(why) => {
            eprintln!("simulate replay: {why}");
            std::process::ExitCode::from(2)
        }
    }
}

#[cfg(sim)]
mod simulate {
    use freehold_replay::outcome::Outcome;
    use freehold_replay::page::{self, Curve, HotLine, Point, WhatIf};
    use freehold_replay::table::{Layout, row};
    use freehold_replay::{Options, Source, Workers, locking, replay, units};
    use freehold_sim::{HotField, Machine, Report};
    use std::path::Path;

    const USAGE: &str = "cargo xtask simulate replay FILE [--machine NAME] [--cpus N,N,...] \
                         [--locking CHOICES]... [--seed N] [--report FILE] [--json FILE]";
    /// Number of the most contended fields that are printed.
    const SHOWN: usize = 8;
    /// Machine and numbers of processors of a page.
    const MACHINE_OF_PAGE: &str = "epyc-9654";
    const CPUS_OF_PAGE: &str = "2,4,8,16,32,64";

    /// The replays on one design, each with the report of its machine.
    type Replays = Vec<(Outcome, Report)>;

    /// The parsed command line.
    struct Wanted {
        file: String,
        machine: Machine,
        cpus: Vec<usize>,
        designs: Vec<locking::Design>,
        seed: u64,
        report: Option<String>,
        json: Option<String>,
    }

    /// Returns true if every answer matched Linux's.
    pub fn main(args: impl Iterator<Item = String>) -> Result<bool, String> {
        let wanted = Wanted::of(args)?;
        let source = Source::of_argument(Path::new(&wanted.file), None).map_err(|error| error.to_string())?;
        let mut as_linux = true;
        let mut designs: Vec<Replays> = Vec::new();
        for design in &wanted.designs {
            let mut all = Vec::new();
            for &cpus in &wanted.cpus {
                // Drops the names that the previous run registered.
                freehold_sim::names::clear();
                let workers = Workers::on(wanted.machine.clone());
                // A task keeps its processor until it waits, and a call waits only for calls whose effects it
                // needs.
                let (turn, places) = (u32::MAX, false);
                let options = Options {
                    cpus,
                    design: *design,
                    seed: wanted.seed,
                    workers,
                    turn,
                    places,
                    ..Options::default()
                };
                let outcome = replay(source.clone(), &options, &())
                    .map_err(|error| format!("{}: {error}", wanted.file))?;
                let report = options.workers.report().ok_or("the recording has no steps")?;
                as_linux &= outcome.is_as_linux();
                all.push((outcome, report));
            }
            print(&wanted.machine, &all);
            designs.push(all);
        }
        let what_if = what_if(&wanted.machine, &designs);
        let outcomes = designs.into_iter().filter_map(|all| Some(all.into_iter().next_back()?.0));
        let outcomes: Vec<Outcome> = outcomes.collect();
        if let Some(path) = &wanted.report {
            let page = page::html(&source, &outcomes, Some(&what_if)).map_err(|error| error.to_string())?;
            write(path, &page)?;
        }
        if let Some(path) = &wanted.json {
            let json = serde_json::to_string_pretty(&what_if).map_err(|error| error.to_string())?;
            write(path, &json)?;
        }
        Ok(as_linux)
    }

    fn write(path: &str, text: &str) -> Result<(), String> {
        std::fs::write(path, text).map_err(|error| format!("cannot write {path}: {error}"))
    }

    /// Returns the figures of all replays for the page.
    fn what_if(machine: &Machine, designs: &[Replays]) -> WhatIf {
        let point = |(outcome, report): &(Outcome, Report)| Point {
            cpus: outcome.cpus,
            operations: outcome.calls.all + outcome.faults.all,
            ns: report.elapsed_ns,
            waits: outcome.waits.all.count,
            waited_ns: outcome.waits.all.total_ns,
            transfers: report.transfers,
        };
        let curve = |all: &Replays| {
            let (first, _) = all.first()?;
            Some(Curve { locking: first.design, points: all.iter().map(point).collect() })
        };
        let hot = |field: &HotField| HotLine {
            field: field.name.clone(),
            transfers: field.transfers,
            lost_ns: field.lost_ns,
        };
        let fields = designs.last().and_then(|all| all.last()).map_or(&[][..], |(_, report)| &report.fields);
        WhatIf {
            machine: machine.title.clone(),
            curves: designs.iter().filter_map(curve).collect(),
            hottest: fields.iter().filter(|field| !is_of_replayer(field)).take(SHOWN).map(hot).collect(),
        }
    }

    impl Wanted {
        fn of(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
            let (mut file, mut machine, mut seed) = (None, None, 0);
            let (mut cpus, mut designs) = (None, Vec::new());
            let (mut report, mut json) = (None, None);
            while let Some(word) = args.next() {
                if !word.starts_with("--") {
                    match file.replace(word) {
                        None => continue,
                        Some(_) => return Err(format!("expected one recording\n{USAGE}")),
                    }
                }
                let value = args.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
                match word.as_str() {
                    "--machine" => machine = Some(value),
                    "--cpus" => cpus = Some(value),
                    "--locking" => designs.push(locking::parse(&value)?),
                    "--seed" => seed = value.parse().map_err(|_| format!("{value:?} is not a number"))?,
                    "--report" => report = Some(value),
                    "--json" => json = Some(value),
                    _ => return Err(format!("unknown option {word}\n{USAGE}")),
                }
            }
            if report.is_some() || json.is_some() {
                cpus = cpus.or_else(|| Some(CPUS_OF_PAGE.to_owned()));
                machine = machine.or_else(|| Some(MACHINE_OF_PAGE.to_owned()));
                if designs.is_empty() {
                    designs.extend(WhatIf::designs());
                }
            }
            let machine = machine.unwrap_or_else(|| "e5-2690v4".to_owned());
            let machine = Machine::named(&machine).map_err(|error| error.to_string())?;
            let most = machine.cpus();
            let usual = || {
                let fourfold = std::iter::successors(Some(1), |cpus| Some(cpus * 4));
                Ok(fourfold.take_while(|cpus| *cpus <= most).collect())
            };
            let cpus = cpus.map_or_else(usual, |list| machine.some_cpus(&list));
            let cpus = cpus.map_err(|error| error.to_string())?;
            if designs.is_empty() {
                designs.push(locking::Design::default());
            }
            let file = file.ok_or_else(|| format!("no recording given\n{USAGE}"))?;
            Ok(Wanted { file, machine, cpus, designs, seed, report, json })
        }
    }

    /// Returns true if `field` belongs to the replayer and not to the engine: workers wait on such fields for
    /// work.
    fn is_of_replayer(field: &HotField) -> bool {
        field.pairs.first().is_some_and(|(place, ..)| place.file().contains("freehold-replay"))
    }

    /// Prints the table of one design, with a row for each number of processors. Then prints the most
    /// contended fields of the last run.
    fn print(machine: &Machine, all: &[(Outcome, Report)]) {
        let Some((first, last)) = all.first().zip(all.last()) else { return };
        let verdict = match all.iter().map(|(outcome, _)| outcome.difference_count).sum() {
            0 => "all match Linux".to_owned(),
            differences => units::counted(differences, "difference"),
        };
        println!("{}: {verdict}, on {}, {}\n", first.0.name, machine.title, locking::name(first.0.design));
        let mut rows = vec![row(["", "virtual", "", "line transfers", "waits for mmap lock", ""])];
        rows.push(row(["CPUs", "time", "speedup", "per step", "count / longest", "sleeps"]));
        for (outcome, report) in all {
            let waited = outcome.mmap_lock_wait.freehold;
            let steps = (outcome.calls.all + outcome.faults.all).max(1);
            rows.push(row([
                &outcome.cpus.to_string(),
                &units::duration(outcome.wall),
                &format!("{:.2}", first.1.elapsed_ns as f64 / report.elapsed_ns as f64),
                &format!("{:.2}", report.transfers as f64 / steps as f64),
                &format!("{} / {}", units::count(waited.count), units::nanoseconds(waited.max)),
                &units::count(report.sleeps),
            ]));
        }
        println!("{}", Layout { indent: 2, gap: 2, left: 1 }.text(rows));
        let (outcome, report) = last;
        println!("Most contended fields, {}:\n", units::counted(outcome.cpus as u64, "CPU"));
        println!("{}", report.hottest_of(|field| !is_of_replayer(field), SHOWN));
    }
}
