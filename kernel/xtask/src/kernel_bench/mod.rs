//! `cargo xtask boot --bench`: measures what operations cost on the kernel, and with `--linux` on Debian's
//! cloud kernel. Both kernels run the same program (`kernel/tests/programs/bench.rs`) on the same machine.
//!
//! - [`rows`]: the measured operations and their targets. [`document`]: figures as tables.
//! - [`linux`]: the other kernel.
//!
//! Counts of instructions are exact on this project's kernel: with `-icount shift=0` the machine's clock
//! counts instructions, and two runs of one build give equal numbers. On Linux the counts of two runs differ
//! by some percent. Times are those of a machine that interprets instructions, on a host that may have other
//! load. To add an operation, print its figure in `bench.rs` and add a line to `rows.rs`.

pub mod document;
pub mod linux;
pub mod rows;

use std::time::Duration;

use self::{
    document::{Figures, Measured},
    linux::Linux,
};
use crate::{
    boot::{
        kernel,
        options::Options,
        pack::Program,
        qemu::{COUNTING, Console, Machine, Ran},
        report::End,
        scratch::Scratch,
        tree::Node,
        write_archive,
    },
    kernel_tests::{
        programs::Trouble,
        table::{By, Source},
    },
};

/// The default CPU model. On this model Linux needs no mitigations, which would slow Linux down more than
/// this kernel.
const PROCESSOR: &str = "qemu64";
/// Path of the program.
const PROGRAM: &str = "/bench";
/// Seconds that the program sleeps before it measures: for counts, and for times. Linux still checks
/// certificates for some seconds after the program has started. When instructions are counted, the sleep
/// takes no real time.
const REST: [u32; 2] = [60, 10];
/// The default time limit of one run.
const LIMIT: Duration = Duration::from_secs(1200);

/// One run of the program.
#[derive(Clone, Copy)]
enum Kind {
    /// Counts of instructions.
    Counts,
    /// Nanoseconds and rates, on a machine with this number of CPUs.
    Times(u32),
    /// The longest time with interrupts off.
    Long,
}

/// Measures and prints the tables.
///
/// # Errors
///
/// Fails if something cannot be built or started, or if a run does not reach its end.
pub fn run(options: &Options) -> Result<(), String> {
    let image = match &options.kernel {
        Some(image) => image.clone(),
        None => kernel::build()?,
    };
    let ours = Subject { options, image, linux: None };
    let linux = if options.linux { Some(Linux::find()?) } else { None };
    let mut measured = ours.measure("Freehold")?;
    let told = ours.run(Kind::Long)?;
    measured.longest = told
        .report
        .longest_irq_off()
        .map(|(ns, place)| format!("{}, {place}", document::whole(Some(ns as f64))));
    let linux = linux.map(|linux| {
        let name = linux.name();
        Subject { options, image: linux.image.clone(), linux: Some(linux) }.measure(&name)
    });
    let tables = document::tables(&measured, linux.transpose()?.as_ref());
    print!("{tables}");
    options.markdown.iter().try_for_each(|path| document::write(path, &tables))
}

/// A kernel to measure.
struct Subject<'a> {
    options: &'a Options,
    image: std::path::PathBuf,
    /// The version of Linux; `None` for the kernel of this project.
    linux: Option<Linux>,
}

impl Subject<'_> {
    /// Measures all figures of the kernel, except the longest time with interrupts off.
    fn measure(&self, name: &str) -> Result<Measured, String> {
        let figures = |kind| self.run(kind).map(|ran| Figures::read(&String::from_utf8_lossy(&ran.output)));
        Ok(Measured {
            name: name.into(),
            counts: figures(Kind::Counts)?,
            times: [figures(Kind::Times(1))?, figures(Kind::Times(2))?],
            longest: None,
        })
    }

    /// Runs the program once. Fails if the program does not reach its end.
    fn run(&self, kind: Kind) -> Result<Ran, String> {
        let folder = Scratch::new("bench")?;
        let archive = folder.path().join("archive");
        let arguments = self.arguments(kind);
        write_archive(&program(&arguments)?, &archive)?;
        let machine = self.machine(kind, archive, &arguments);
        let ran = machine.run(Console::Kept)?;
        let output = String::from_utf8_lossy(&ran.output);
        let right = match &self.linux {
            // At the end Linux restarts, which ends the machine.
            Some(_) => ran.end == End::Silent,
            None => ran.end == End::Status(0),
        };
        if right && Figures::read(&output).is_whole() {
            return Ok(ran);
        }
        Err(format!("the program did not reach its end ({:?}):\n{output}", ran.end))
    }

    /// Returns the arguments of the program.
    fn arguments(&self, kind: Kind) -> String {
        let (word, rest) = match kind {
            Kind::Counts => ("counts", REST[0]),
            Kind::Times(_) => ("times", REST[1]),
            Kind::Long => ("long", 0),
        };
        let end = if self.linux.is_some() { " end" } else { "" };
        format!("{word} rest {rest}{end}")
    }

    /// Returns the machine for a run. All runs use the counting clock, except those that measure times.
    fn machine(&self, kind: Kind, archive: std::path::PathBuf, arguments: &str) -> Machine {
        let counting: &[&str] = if matches!(kind, Kind::Times(_)) { &[] } else { &COUNTING };
        let mut more: Vec<String> = counting.iter().map(ToString::to_string).collect();
        more.extend(self.options.qemu.clone());
        let mut options = self.options.option.clone();
        if matches!(kind, Kind::Long) {
            options.push("irqoff".into());
        }
        Machine {
            cpus: if let Kind::Times(cpus) = kind { cpus } else { 1 },
            memory: "2G".into(),
            cpu: self.options.cpu.clone().unwrap_or(PROCESSOR.into()),
            limit: Some(self.options.limit.unwrap_or(LIMIT)),
            command_line: self.linux.as_ref().map(|_| linux::command_line(PROGRAM, arguments)),
            options,
            more,
            ..Machine::new(self.image.clone(), archive)
        }
    }
}

/// Packs the program in a tree of its own.
fn program(arguments: &str) -> Result<Program, String> {
    let source = Source { source: "bench.rs".into(), by: By::Rustc };
    let made = source.make().map_err(|trouble| match trouble {
        Trouble::Missing(what) => format!("missing {what}"),
        Trouble::Broken(why) => why,
    })?;
    let mut program = Program::empty();
    program.add_as(&made, PROGRAM.as_ref())?;
    // Linux opens this device for the first process.
    program.tree.put("/dev/console".as_ref(), Node::Device(0o600, 5, 1))?;
    program.args = [PROGRAM].into_iter().chain(arguments.split(' ')).map(str::to_owned).collect();
    program.finish()?;
    Ok(program)
}
