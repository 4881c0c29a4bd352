//! Faults of many processors in one VMA, in virtual time, by the lock that faults take: a table, and the lines
//! that were passed around most.
//!
//! ```sh
//! cargo xtask simulate --machine e5-2690v4 --cpus 1,7,21,56 --pages 1000
//! ```

/// Without the simulation's atomics nothing takes virtual time.
#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim: run `cargo xtask simulate`");
    std::process::exit(2);
}

#[cfg(sim)]
fn main() -> Result<(), String> {
    simulate::main(std::env::args().skip(1))
}

#[cfg(sim)]
mod simulate {
    use freehold::engine::{Config, Engine};
    use freehold::fault::Access;
    use freehold::space::{FaultLock, Locking, MapFlags, Prot, SpaceConfig};
    use freehold_machine::{Machine, MachineConfig, Process};
    use freehold_sim::{Machine as Model, Report, run};

    const PAGE: u64 = 4096;
    const GIB: u64 = 1 << 30;

    pub fn main(mut args: impl Iterator<Item = String>) -> Result<(), String> {
        let (mut name, mut pages) = ("e5-2690v4".to_owned(), 1000);
        let mut cpus = None;
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option} takes a value"))?;
            let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no number"));
            match option.as_str() {
                "--machine" => name = value,
                "--cpus" => cpus = Some(value),
                "--pages" => pages = number(&value)? as u64,
                _ => return Err(format!("no option {option}: there are --machine, --cpus, --pages")),
            }
        }
        let model = Model::named(&name).map_err(|error| error.to_string())?;
        let cpus = model.cpus_from(cpus.as_deref().unwrap_or("1,4,7,12,21,30,48,56"))?;
        println!(
            "Faults a second of one processor, threads in one VMA: {}, {pages} pages each\n",
            model.title
        );
        print!("| processors |");
        FaultLock::ALL.iter().for_each(|fault| print!(" `{fault:?}` |"));
        println!("\n| --- | --- | --- | --- | --- |");
        let mut last = Vec::new();
        for cpus in cpus {
            print!("| {cpus} |");
            last.clear();
            for fault in FaultLock::ALL {
                let report = faults(&model, fault, cpus, pages)?;
                print!(" {:.0} |", pages as f64 * 1e9 / report.elapsed_ns as f64);
                last.push((fault, report));
            }
            println!();
        }
        println!("\nThe fields whose lines cost most, with the most processors:");
        for (fault, report) in last {
            println!("\n{fault:?}: {} transfers of {} accesses", report.transfers, report.accesses);
            println!("\n{}", report.hottest(5));
        }
        Ok(())
    }

    /// Every processor faults in so many pages of a part of its own.
    fn faults(model: &Model, fault: FaultLock, cpus: usize, pages: u64) -> Result<Report, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let bytes = cpus as u64 * pages * PAGE + GIB;
        let machine: Machine =
            Machine::new(MachineConfig::phantom(bytes).cpus(cpus).fast()).map_err(|error| said(&error))?;
        let engine = Engine::new(machine.clone(), Config::default()).map_err(|error| said(&error))?;
        let locking = Locking { fault, ..Locking::default() };
        let config = SpaceConfig { locking, ..SpaceConfig::default() };
        let process = Process::new(&engine, &config).map_err(|error| said(&error))?;
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::NORESERVE;
        // Parts begin at tables of their own.
        let part = (pages * PAGE).next_multiple_of(GIB);
        let at = process
            .mmap(0, part * cpus as u64, Prot::READ | Prot::WRITE, flags, None, 0)
            .map_err(|error| said(&error))?;
        let tasks = (0..cpus).map(|number| {
            let (process, machine) = (&process, &machine);
            move || {
                let mut cpu = machine.cpu(number);
                let begin = at + number as u64 * part;
                for page in 0..pages {
                    let done = process.touch(&mut cpu, begin + page * PAGE, Access::WRITE);
                    done.expect("memory for every page");
                }
            }
        });
        Ok(run(model, cpus, 1, tasks))
    }
}
