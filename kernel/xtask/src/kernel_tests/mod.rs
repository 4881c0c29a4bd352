//! `cargo xtask kernel-tests`: runs the programs that the kernel must run, each in a machine of its own.
//!
//! - [`table`]: the tests, as data. [`programs`]: builds their programs. [`verdict`]: judges a run.
//! - [`on_linux`]: runs the same tests on this machine's Linux.
//! - [`transcript`]: finds where two transcripts of memory calls differ. [`ltp`]: the Linux Test Project.
//! - [`suite`]: programs of other projects' test suites.
//!
//! A test is an entry of `kernel/tests/tests.toml`; to add one, add an entry and, if necessary, a program in
//! `kernel/tests/programs`. `kernel/tests/README.md` describes entries and programs. The expected output is
//! written in the table, or is the output of the same run on this machine's Linux. The module `boot` runs the
//! machine. Two tests run at a time; each has its own temporary folder.
//!
//! A new way to judge a run is a field in `table.rs` and a check in `verdict.rs`.
//! `cargo test --package kernel-xtask` tests these files without a machine.

pub mod ltp;
pub mod on_linux;
pub mod programs;
pub mod suite;
pub mod table;
pub mod transcript;
pub mod verdict;

use std::{
    cmp::Reverse,
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;

use self::{
    programs::Trouble,
    table::Test,
    verdict::{Seen, judge, tail},
};
use crate::boot::{
    kernel,
    pack::Program,
    qemu::{COUNTING, Console, Machine, Ran},
    recording,
    report::{End, call_name},
    scratch::Scratch,
    tree::{Content, Node},
    write_archive,
};

/// Run the kernel's tests of `kernel/tests/tests.toml`: those that take only seconds, or those whose names
/// begin with one of the words.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "cargo xtask kernel-tests",
    bin_name = "cargo xtask kernel-tests",
    disable_version_flag = true
)]
pub struct Options {
    /// Also run the long tests
    #[arg(long)]
    pub full: bool,
    /// Run the tests on this machine's Linux
    #[arg(long)]
    pub linux: bool,
    /// List the names of the tests
    #[arg(long)]
    pub list: bool,
    /// Number of CPUs of the machine, overriding the table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub cpus: Option<u32>,
    /// Show the output of the tests and the kernel's log
    #[arg(long)]
    pub verbose: bool,
    /// Boot this kernel instead of building one
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Pass an option to the kernel; `kernel/README.md` lists them
    #[arg(long, value_name = "WORD")]
    pub option: Vec<String>,
    /// Run each test this many times, with different random delays each time
    #[arg(long, value_name = "N", conflicts_with = "linux")]
    pub times: Option<u32>,
    /// Run the Linux Test Project instead of the table, from a folder with its programs or their archive
    #[arg(long, value_name = "DIR")]
    pub ltp: Option<PathBuf>,
    /// Run programs of a test suite instead of the table, from a folder with static programs, and compare
    /// with the list of the folder's name in `kernel/tests/suites`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ltp", "times", "list"])]
    pub suite: Option<PathBuf>,
    /// Write the outcomes to the list of the suite
    #[arg(long, requires = "suite")]
    pub save: bool,
    /// Beginnings of test names
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
}

/// Runs the command. Returns its exit status.
pub fn command(words: &[&str]) -> u8 {
    let words = ["cargo xtask kernel-tests"].iter().chain(words).map(OsString::from);
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output. A closed standard output is not an error.
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    let done = match &options.suite {
        Some(folder) => suite::run(folder, &options),
        None if options.ltp.is_some() => ltp::run(&options),
        None => run(&options),
    };
    match done {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("xtask: {why}");
            1
        }
    }
}

/// The outcome of a test.
enum Outcome {
    /// The test passed.
    Passed,
    /// This machine lacks something that the test needs.
    LeftOut(String),
    /// The test failed, for this reason.
    Failed(String),
}

/// Number of tests that run at the same time. Most machines of tests have one CPU and keep one CPU of the
/// host busy.
const AT_A_TIME: usize = 2;

/// Runs the tests of the table, those with the longest limits first.
///
/// # Errors
///
/// Fails with the number of failed tests, or if the kernel does not compile.
pub fn run(options: &Options) -> Result<(), String> {
    let mut tests = table::select(table::read()?, &options.names, options.full || options.list)?;
    if options.list {
        tests.iter().for_each(|test| println!("{}", test.name));
        return Ok(());
    }
    let kernel = options.image()?;
    tests.sort_by_key(|test| Reverse(test.limit()));
    let passes = |test: &Test| passes(test, options, kernel.as_deref());
    match failures(&tests, options.verbose, passes) {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} kernel tests failed", tests.len())),
    }
}

/// Runs tests in this order, several at the same time. Returns the number of failed tests. With `verbose` one
/// test runs at a time, because printed lines do not name their test.
fn failures<T: Sync>(tests: &[T], verbose: bool, passes: impl Fn(&T) -> bool + Sync) -> usize {
    let left = Mutex::new(tests.iter());
    let next = || left.lock().expect("no test panics").next();
    let failed = AtomicUsize::new(0);
    let work = || {
        while let Some(test) = next() {
            if !passes(test) {
                failed.fetch_add(1, Relaxed);
            }
        }
    };
    let at_a_time = if verbose { 1 } else { AT_A_TIME };
    thread::scope(|scope| (0..at_a_time).for_each(|_| drop(scope.spawn(work))));
    failed.into_inner()
}

/// Runs a test and prints its outcome. Returns false if the test failed.
fn passes(test: &Test, options: &Options, kernel: Option<&Path>) -> bool {
    let started = Instant::now();
    let outcome = repeatedly(test, options, kernel);
    let took = started.elapsed().as_secs_f64();
    match outcome {
        Outcome::Passed => println!("passed   {} ({took:.1} s)", test.name),
        Outcome::LeftOut(why) => println!("left out {}: {why}", test.name),
        Outcome::Failed(why) => {
            println!("FAILED   {} ({took:.1} s): {why}", test.name);
            return false;
        }
    }
    true
}

impl Options {
    /// Returns the kernel to boot, or `None` if the tests run on Linux.
    fn image(&self) -> Result<Option<PathBuf>, String> {
        match &self.kernel {
            _ if self.linux => Ok(None),
            Some(image) => Ok(Some(image.clone())),
            None => kernel::build().map(Some),
        }
    }
}

/// Runs a test the requested number of times, until it fails.
fn repeatedly(test: &Test, options: &Options, kernel: Option<&Path>) -> Outcome {
    let Some(times) = options.times else { return one(test, options, kernel) };
    for seed in 1..=times {
        let mut options = options.clone();
        options.option.push(format!("jitter={seed}"));
        match one(test, &options, kernel) {
            Outcome::Passed => {}
            Outcome::Failed(why) => return Outcome::Failed(format!("with jitter={seed}: {why}")),
            left_out => return left_out,
        }
    }
    Outcome::Passed
}

/// Runs a test once.
fn one(test: &Test, options: &Options, kernel: Option<&Path>) -> Outcome {
    let program = match test.program(options.linux) {
        Ok(program) => program,
        Err(Trouble::Missing(what)) => return Outcome::LeftOut(format!("missing {what}")),
        Err(Trouble::Broken(why)) => return Outcome::Failed(why),
    };
    let done = match kernel {
        None => on_linux::run(&program, test.limit()).and_then(|seen| {
            options.show(&seen.output);
            judge(test, &seen, None)
        }),
        Some(image) => on_kernel(test, &program, options, image),
    };
    done.map_or_else(Outcome::Failed, |()| Outcome::Passed)
}

/// Runs a test on the kernel, and also on Linux if the two must agree.
fn on_kernel(test: &Test, program: &Program, options: &Options, image: &Path) -> Result<(), String> {
    let linux = if test.same_as_linux {
        let seen = on_linux::run(program, test.limit());
        Some(seen.map_err(|why| format!("on Linux: {why}"))?)
    } else {
        None
    };
    let boot = |program: &Program| boot(test, program, options, image);
    let seen = boot(program)?;
    judge(test, &seen, linux.as_ref()).map_err(|why| match &linux {
        Some(linux) if test.name.starts_with("transcript") => {
            transcript::narrow(program, linux, &seen, test.limit(), boot).unwrap_or(why)
        }
        _ => why,
    })
}

/// Runs a test's program on the kernel. If the test is to be replayed, also replays the run.
fn boot(test: &Test, program: &Program, options: &Options, image: &Path) -> Result<Seen, String> {
    let folder = Scratch::new("boot")?;
    let archive = folder.path().join("archive");
    write_archive(program, &archive)?;
    let image = match test.five_levels {
        true => kernel::build_for_five_levels()?,
        false => image.into(),
    };
    let mut machine = Machine {
        cpus: options.cpus.or(test.cpus).unwrap_or(1),
        memory: test.memory.clone().unwrap_or("512M".into()),
        log: 1,
        limit: Some(test.limit()),
        options: [&test.options[..], &options.option].concat(),
        ..Machine::new(image, archive)
    };
    if let Some(cpu) = &test.cpu {
        machine.cpu.clone_from(cpu);
    }
    if test.counted {
        machine.more.extend(COUNTING.map(str::to_owned));
    }
    if test.irq_off_limit.is_some() {
        machine.options.push("irqoff".into());
    }
    let recording = folder.path().join("recording");
    if test.replayed {
        machine.record_to(&recording);
    }
    let ran = machine.run(Console::Kept)?;
    options.show(&String::from_utf8_lossy(&ran.output));
    options.show_log(&ran);
    let seen = seen(&ran, &test.last_words)?;
    let is_logged = |text: &&String| ran.report.log.iter().any(|line| line.contains(text.as_str()));
    if let Some(text) = test.logged.iter().find(|text| !is_logged(text)) {
        return Err(format!("the kernel's log lacks {text:?}"));
    }
    if let Some(limit) = test.irq_off_limit {
        let (ns, place) = ran.report.longest_irq_off().ok_or("the kernel did not report the longest time")?;
        if ns > limit {
            return Err(format!(
                "interrupts were off for {ns} ns, more than {limit}, {place}{}",
                tail(&seen.output)
            ));
        }
    }
    if test.replayed {
        recording::write(&recording, &folder.path().join(&test.name))?;
        replay(&folder.path().join(format!("{}.trace", test.name)))?;
    }
    Ok(seen)
}

/// Replays a recording. Fails if the replay finds a difference.
fn replay(trace: &Path) -> Result<(), String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["run", "--quiet", "--release", "--bin", "freehold", "--", "replay"])
        .arg(trace)
        .current_dir(xtask::root());
    let done = cargo.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if done.status.success() { Ok(()) } else { Err(format!("the replay differs:\n{}", said.trim())) }
}

/// Returns the status and the output of a run, if the machine ended in the expected way. `last_words` are
/// texts that the last report must contain.
fn seen(ran: &Ran, last_words: &[String]) -> Result<Seen, String> {
    let output = String::from_utf8_lossy(&ran.output).into_owned();
    let is_said = |text: &str| !last_words.is_empty() && last_words.iter().all(|word| text.contains(word));
    match &ran.end {
        End::Status(status) if last_words.is_empty() => {
            Ok(Seen { status: *status, output, note: missing(ran) })
        }
        End::Status(status) => Err(format!("the program ended with status {status}{}", tail(&output))),
        End::Panic(text) | End::Limit(Some(text)) if is_said(text) => {
            Ok(Seen { status: 0, output, note: String::new() })
        }
        end => {
            let what = end.message().unwrap_or("interrupted".into());
            Err(format!("{what}{}{}", tail(&output), missing(ran)))
        }
    }
}

/// Returns a note about the system calls that the run called and the kernel lacks.
fn missing(ran: &Ran) -> String {
    let names: Vec<String> = ran.report.missing.iter().map(|number| call_name(*number)).collect();
    if names.is_empty() { String::new() } else { format!("\n  missing system calls: {}", names.join(", ")) }
}

impl Options {
    /// Prints the output of a test, with `--verbose`.
    fn show(&self, output: &str) {
        if self.verbose {
            output.lines().for_each(|line| println!("  | {line}"));
        }
    }

    /// Prints the kernel's log, with `--verbose`.
    fn show_log(&self, ran: &Ran) {
        if self.verbose {
            ran.report.log.iter().for_each(|line| println!("  kernel: {line}"));
            let missing = ran.report.missing.iter();
            missing.for_each(|number| println!("  kernel: missing system call {}", call_name(*number)));
        }
    }
}

impl Test {
    /// Returns the time limit.
    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit.unwrap_or(240))
    }

    /// Builds the test's programs and packs its files.
    fn program(&self, on_linux: bool) -> Result<Program, Trouble> {
        let broken = Trouble::Broken;
        let mut program = Program::empty();
        for source in &self.programs {
            let made = source.make()?;
            let at = Path::new("/tests").join(source.name());
            program.add_as(&made, &at).map_err(broken)?;
        }
        for file in &self.files {
            let content = Content::Host(programs::sources().join(file));
            let at = Path::new("/tests").join(file);
            program.tree.put(&at, Node::File(0o755, 0, content)).map_err(broken)?;
        }
        for path in &self.host {
            if !path.exists() {
                return Err(Trouble::Missing(format!("{} on this machine", path.display())));
            }
            program.add(path).map_err(broken)?;
        }
        let busybox = |program: &mut Program| program.add_busybox().map_err(Trouble::Missing);
        match &self.script {
            Some(script) => {
                busybox(&mut program)?;
                program.args = ["/bin/sh", "-c", script].map(str::to_owned).into();
            }
            None if self.busybox => busybox(&mut program)?,
            None => {}
        }
        if self.script.is_none() {
            let other = on_linux && !self.command_on_linux.is_empty();
            program.args = if other { &self.command_on_linux } else { &self.command }.clone();
        }
        program.env.extend(self.env.clone());
        program.finish().map_err(broken)?;
        Ok(program)
    }
}
