//! Runs the experiments of `freehold reproduce` on simulated machines, in virtual time.
//!
//! ```sh
//! cargo xtask simulate page-fault --cpus 1,7,21,56 --report page-fault.html
//! ```
//!
//! `cargo xtask simulate` builds this program with `cfg(sim)`: the atomics of the engine then take virtual
//! time (`freehold-sim`), and `src/executor/fibers.rs` runs the loads. Each experiment has a default machine
//! and smaller sizes than on a host (`USUAL`); a new experiment needs an entry there.
//! `tests/sim_experiments.rs` checks that equal seeds give equal figures.

/// Refuses to run: without the atomics of the simulation, no step takes virtual time.
#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim: run `cargo xtask simulate`");
    std::process::exit(2);
}

#[cfg(sim)]
#[global_allocator]
static ALLOCATOR: freehold_sim::Apart = freehold_sim::Apart;

#[cfg(sim)]
fn main() {
    freehold_sim::same_addresses();
    if let Err(error) = simulate::main(std::env::args().skip(1)) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

#[cfg(sim)]
mod simulate {
    use anyhow::{Context, bail, ensure};
    use freehold_replay::locking::{self, Design};
    use freehold_reproduce::{Place, Plan, Scale, experiments};
    use freehold_sim::Machine;
    use std::fs;
    use std::time::Duration;

    const USAGE: &str = "usage: cargo xtask simulate [EXPERIMENT...] [--machine NAME] [--set SECTION.KEY=VALUE]... [--cpus N,N,...]
           [--locking CHOICES] [--seed N] [--at-most MIB] [--turn MICROSECONDS] [--report FILE] [--markdown FILE] [--json FILE]
       cargo xtask simulate replay FILE ...";

    /// Default setting of an experiment: the machine of the published step, changes to that machine, the
    /// largest size in MiB, and the length of a turn in microseconds.
    struct Usual {
        experiment: &'static str,
        machine: &'static str,
        changes: &'static [&'static str],
        mib: u64,
        turn: u64,
    }

    const USUAL: &[Usual] = &[
        Usual { experiment: "munmap-hold", machine: "e5-2680", changes: &[], mib: 2048, turn: 1000 },
        Usual { experiment: "munmap-stall", machine: "e5-2680", changes: &[], mib: 256, turn: 16_000 },
        Usual { experiment: "fault-throughput", machine: "e5-2680", changes: &[], mib: 64, turn: 2000 },
        Usual { experiment: "i-mmap", machine: "e7-4890v2", changes: &[], mib: 1024, turn: 20_000 },
        Usual { experiment: "hugetlb", machine: "vm-48", changes: &[], mib: 8192, turn: 10_000 },
        Usual { experiment: "page-fault", machine: "e5-2690v4", changes: &[], mib: 4, turn: 1 },
        Usual { experiment: "mmap-churn", machine: "e5-2690v4", changes: &[], mib: 1024, turn: 2000 },
        Usual { experiment: "file-reads", machine: "e5-2690v4", changes: &[], mib: 16, turn: 2000 },
        Usual { experiment: "reclaim", machine: "e5-2690v4", changes: &[], mib: 16, turn: 8000 },
        Usual { experiment: "writers", machine: "epyc-9654", changes: APART, mib: 1024, turn: 160 },
    ];

    /// Changes to a machine. On the changed machine, processors slow each other down only by sharing data of
    /// the engine. Each processor has its own core, TLBs are flushed by broadcast, and there are enough
    /// frames and memory for all.
    const APART: &[&str] = &[
        "cost.smt=1",
        "cost.interrupt_each=0",
        "cost.interrupt_handle=0",
        "memory.frame=0",
        "memory.socket=5000",
    ];

    /// The parsed command line.
    #[derive(Default)]
    struct Wanted {
        names: Vec<String>,
        machine: Option<String>,
        changes: Vec<String>,
        cpus: Option<String>,
        design: Option<Design>,
        seed: Option<u64>,
        mib: Option<u64>,
        turn: Option<u64>,
        report: Option<String>,
        markdown: Option<String>,
        json: Option<String>,
    }

    pub fn main(args: impl Iterator<Item = String>) -> anyhow::Result<()> {
        let args: Vec<String> = args.collect();
        let command = args.iter().fold("cargo xtask simulate".to_owned(), |line, word| line + " " + word);
        let wanted = Wanted::of(args.into_iter())?;
        let asked = |usual: &&Usual| {
            wanted.names.is_empty() || wanted.names.iter().any(|name| name == usual.experiment)
        };
        let scales = USUAL.iter().filter(asked).map(|usual| Ok((usual.experiment, wanted.scale(usual)?)));
        let scales: Vec<(&str, Scale)> = scales.collect::<anyhow::Result<_>>()?;
        let plan = Plan::each(&wanted.names, |name| {
            let known = scales.iter().find(|(known, _)| *known == name);
            known.expect("every experiment has a default machine").1.clone()
        });
        plan.check().map_err(anyhow::Error::msg)?;
        let report = plan.run(false, command, |found| match found {
            Ok(found) => print!("{}", found.text()),
            Err(why) => eprintln!("{why}"),
        })?;
        let write = |path: &Option<String>, text: String| match path {
            Some(path) => fs::write(path, text).with_context(|| format!("cannot write {path}")),
            None => Ok(()),
        };
        write(&wanted.report, report.html()?)?;
        write(&wanted.markdown, report.markdown())?;
        write(&wanted.json, serde_json::to_string_pretty(&report)? + "\n")?;
        ensure!(
            report.failed.is_empty() && report.interrupted.is_none(),
            "some experiments were not finished"
        );
        Ok(())
    }

    impl Wanted {
        fn of(mut args: impl Iterator<Item = String>) -> anyhow::Result<Wanted> {
            let mut wanted = Wanted::default();
            while let Some(word) = args.next() {
                if !word.starts_with("--") {
                    let known = experiments().map(|(name, _)| name);
                    ensure!(
                        known.contains(&word.as_str()),
                        "unknown experiment {word}: expected {}",
                        known.join(", ")
                    );
                    wanted.names.push(word);
                    continue;
                }
                let value = args.next().with_context(|| format!("{word} needs a value\n{USAGE}"))?;
                let number =
                    |text: &str| text.parse::<u64>().with_context(|| format!("{text:?} is not a number"));
                match word.as_str() {
                    "--machine" => wanted.machine = Some(value),
                    "--set" => wanted.changes.push(value),
                    "--cpus" => wanted.cpus = Some(value),
                    "--locking" => {
                        wanted.design = Some(locking::parse(&value).map_err(anyhow::Error::msg)?);
                    }
                    "--seed" => wanted.seed = Some(number(&value)?),
                    "--at-most" => wanted.mib = Some(number(&value)?.max(1)),
                    "--turn" => wanted.turn = Some(number(&value)?.max(1)),
                    "--report" => wanted.report = Some(value),
                    "--markdown" => wanted.markdown = Some(value),
                    "--json" => wanted.json = Some(value),
                    _ => bail!("unknown option {word}\n{USAGE}"),
                }
            }
            Ok(wanted)
        }

        fn scale(&self, usual: &Usual) -> anyhow::Result<Scale> {
            let name = self.machine.as_deref().unwrap_or(usual.machine);
            let usual_changes = if name == usual.machine { usual.changes } else { &[] };
            let changes = usual_changes.iter().map(|change| (*change).to_owned());
            let changes: Vec<String> = changes.chain(self.changes.iter().cloned()).collect();
            let machine = Machine::changed(name, &changes).map_err(anyhow::Error::msg)?;
            let threads = self.cpus.as_ref().map(|list| machine.some_cpus(list)).transpose();
            let threads = threads.map_err(anyhow::Error::msg)?;
            let cpus = threads.iter().flatten().max().copied().unwrap_or(machine.cpus());
            let seed = self.seed.unwrap_or(1);
            Ok(Scale {
                turns: Some(1),
                turn: Duration::from_micros(self.turn.unwrap_or(usual.turn)),
                at_most: self.mib.unwrap_or(usual.mib) << 20,
                host: false,
                threads,
                design: self.design,
                place: Place { machine, seed },
                ..Scale::full(cpus)
            })
        }
    }
}
