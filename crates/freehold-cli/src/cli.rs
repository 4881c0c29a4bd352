//! The command line.

use crate::locking;
use crate::reproduce::experiments;
use crate::source;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use freehold_machine::MachineConfig;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a user asked for.
#[derive(Debug, Parser)]
#[command(name = "freehold", version, about, long_about = ABOUT, arg_required_else_help = true)]
pub struct Cli {
    /// The job.
    #[command(subcommand)]
    pub command: Command,
}

/// The jobs there are.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay recordings, and check every answer against Linux's
    #[command(long_about = REPLAY, after_help = SEE_MORE, after_long_help = EXAMPLES)]
    Replay(ReplayArgs),
    /// Run a command, and make a recording of it
    #[command(long_about = RECORD)]
    Record(RecordArgs),
    /// Measure what the seeds have measured, every design side by side
    #[command(long_about = REPRODUCE, after_long_help = REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
}

const ABOUT: &str = "Replays what real programs did to their memory on Freehold's address spaces, and checks every answer \
    against the one that Linux gave; measures what the designs of locking differ in.";

const REPLAY: &str = "\
Runs what a recorded program did to its memory (mmap, munmap, page faults, fork, ...) on Freehold's address spaces, its
tasks side by side on virtual CPUs, as fast as they go. Each call's result, the end of each page fault, and each snapshot
of the kernel's own lists of VMAs is compared with what Linux did.

A recording is a NAME.trace (also .xz or .zst) with its NAME.snap beside it, or a plain text by
  strace -f -ttt -T -y -s 64 -e trace=memory,process,process_vm_readv,process_vm_writev,ftruncate,memfd_create
docs/trace-format.md describes both.

Exit status: 0 when all was as on Linux, 1 when something differed, 2 when a recording could not be replayed or the
arguments make no sense.";

const RECORD: &str = "\
Runs a command and records what it and all it forks do to their memory: their calls of memory management, their page
faults, and snapshots of the kernel's own lists of their VMAs where a process execs or exits.

This takes root, tracefs, perf events and Linux 6.7. Without them the calls alone are recorded, by the program strace.

The recording is NAME.trace.zst and NAME.snap.zst (NAME.strace, where strace makes it), to be replayed by
  freehold replay NAME.trace.zst

The command is told of SIGTERM, and of a SIGINT that was sent to the recorder alone; it is recorded until it ends, and killed at the
second. Existing files are left alone without --force.

Exit status: that of the command, 128 + N if signal N ended it; 127 when there is no such command, 126 when it cannot be run, 125 when
it could not be recorded; 2 when the arguments make no sense.";

const REPRODUCE: &str = "\
Does the experiments by which the seeds were judged, on this engine: for each the designs of locking that it compares, in turns in
one run, and the host's own kernel beside them where it can do the same. Prints tables in the shape of the seeds', with what they
published beside what was measured.

Without --quick the sizes are the seeds' own, on phantom memory (page tables and records are real, contents are not), and take
about twenty minutes and 6 GiB. docs/measuring.md says what each experiment does, and what phantom memory leaves out.

Exit status: 0; 2 when an experiment could not be done, a file not be written, or the arguments make no sense.";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  freehold reproduce --quick --report report.html
      everything small, in less than two minutes; with plots for a browser
  freehold reproduce munmap-hold munmap-stall
      two of them, at the seeds' sizes: up to 320 GiB
  freehold reproduce hugetlb --at-most 64GiB --turns 9
      smaller, and more often
  freehold reproduce --markdown docs/results.md
      writes the tables of a full run as a document";

const SEE_MORE: &str = "More, with examples: freehold replay --help";

const EXAMPLES: &str = "\
Examples:
  freehold replay recordings/git.trace.zst
      replays it, and says how long anyone waited for the mmap lock, beside what it was on Linux
  freehold replay --compare recordings/git.trace.zst
      the same on every design of locking, side by side
  freehold replay --locking unmap=sectioned:64MiB,fault=mmap-lock --cpus 4 recordings/git.trace.zst
      on one design, on four virtual CPUs
  freehold replay --picture git.svg recordings/git.trace.zst
      draws the program's address spaces over time, too
  freehold replay --maps-at 1.5s --task 3 recordings/git.trace.zst
      prints the address space of task 3 after a second and a half, as /proc/PID/maps would
  freehold replay --json result.json *.trace.zst
      for programs: times in nanoseconds, differences with both answers";

/// What to record, and how.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// Name of the recording, with its folder [default: the command's name, here]
    #[arg(short, long, value_name = "NAME")]
    pub output: Option<PathBuf>,

    /// Stop everything this often for snapshots between exec and exit, too
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub snapshot_every: Duration,

    /// At most this many times
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub snapshots: u32,

    /// Kernel buffer for each processor; larger when events are lost
    #[arg(long, value_name = "KIB", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(64..=4_194_304))]
    pub buffer_kb: u32,

    /// Write paths that begin with FROM as if they began with TO
    #[arg(long, value_name = "FROM=TO", value_parser = parse_rename)]
    pub rename: Vec<(String, String)>,

    /// Replace files of an older recording
    #[arg(long)]
    pub force: bool,

    /// Only calls, by strace: no faults, no snapshots
    #[arg(long)]
    pub calls_only: bool,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What to replay, how, and what to show of it.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// Recordings: NAME.trace[.xz|.zst] with NAME.snap beside it, or text by strace; `-` is standard input
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The snapshots of a NAME.trace that do not lie beside it
    #[arg(long, value_name = "FILE")]
    pub snapshots: Option<PathBuf>,

    /// Virtual CPUs, each a thread [default: as many as this machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: Option<u16>,

    /// Give memory contents, and compare the bytes that the recording shows; texts by strace that show bytes always have them
    #[arg(long)]
    pub backed: bool,

    /// How to lock: unmap=..., fault=..., hugetlb=..., file-rmap=..., with commas between
    ///
    /// unmap=exclusive holds the mmap lock for all of a munmap, sectioned (or sectioned:BYTES) lets it go after every so many bytes
    /// (1GiB), downgraded lets readers in while pages are freed (as Linux does), released lets everyone in.
    /// fault=mmap-lock takes the mmap lock for every page fault, vma-lock just that of the VMA. hugetlb=file-lock keeps shared tables
    /// of huge pages by a lock of the file in every fault (as Linux did before 6.1), vma-lock by one of the VMA. file-rmap=exclusive lets one
    /// at a time look up who maps a file (as Linux did before 3.19), shared all.
    ///
    /// [default: unmap=released,fault=vma-lock,file-rmap=shared]
    #[arg(long, value_name = "SPEC", value_parser = locking::parse)]
    pub locking: Option<locking::Design>,

    /// Replay on every design of locking, side by side
    #[arg(long, conflicts_with = "locking")]
    pub compare: bool,

    /// Vary which task runs first where the recording leaves it open
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Look for stale translations all the time; slower
    #[arg(long)]
    pub oracles: bool,

    /// Write the findings for programs; to standard output (-) without the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw address spaces over time: kinds of memory, faults, forks
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    /// Only print an address space at a time, as /proc/PID/maps would
    ///
    /// TIME counts from the first event of the recording: 1.5s, 200ms, 30us, 7ns, or plain seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["compare", "json", "picture"])]
    pub maps_at: Option<u64>,

    /// Only list the tasks: process, command, from when to when they lived, calls, faults
    #[arg(long, conflicts_with_all = ["compare", "json", "picture", "maps_at"])]
    pub tasks: bool,

    /// Whose address space that is; --tasks lists them [default: that of the first task alive then]
    #[arg(long, value_name = "N", requires = "maps_at")]
    pub task: Option<u32>,

    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Which experiments to do, how large, and where to write what they find.
#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// Experiments [default: all, in the order of the seeds]
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(experiments::ALL.map(|experiment| experiment.name())))]
    pub experiments: Vec<String>,

    /// Small sizes: all of them in less than two minutes
    #[arg(long)]
    pub quick: bool,

    /// Of what a seed maps, no more than this: 64GiB, 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub at_most: Option<u64>,

    /// How often each design does its work [default: 5; 3 with --quick, and where once takes seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub turns: Option<u16>,

    /// Processors to use [default: as many as this machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: Option<u16>,

    /// Leave out the host's kernel
    #[arg(long)]
    pub no_host: bool,

    /// Write a report with plots for a browser
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Write the tables as a document
    #[arg(long, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,

    /// Write all figures, every turn of them, for programs; to standard output (-) without the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl ReproduceArgs {
    /// What the arguments ask for together that each of them does not.
    ///
    /// # Errors
    ///
    /// What makes no sense, for the user.
    pub fn check(&self) -> Result<(), String> {
        let files: Vec<&PathBuf> = [&self.report, &self.markdown, &self.json].into_iter().flatten().collect();
        let dash = PathBuf::from("-");
        if [&self.report, &self.markdown].into_iter().flatten().any(|path| *path == dash) {
            return Err("only --json goes to standard output (-)".to_owned());
        }
        match files.iter().enumerate().find(|(index, path)| files[..*index].contains(path)) {
            Some((_, path)) => Err(format!("{} is named twice", path.display())),
            None => Ok(()),
        }
    }

    /// Processors to use.
    pub fn cpus(&self) -> usize {
        let here =
            || std::thread::available_parallelism().map_or(1, usize::from).min(MachineConfig::MAX_CPUS);
        self.cpus.map_or_else(here, usize::from)
    }
}

impl ReplayArgs {
    /// What the arguments ask for together that each of them does not.
    ///
    /// # Errors
    ///
    /// What makes no sense, for the user.
    pub fn check(&self) -> Result<(), String> {
        let many = self.recordings.len();
        if let Some(picture) = &self.picture
            && picture.extension().is_some_and(|ending| !ending.eq_ignore_ascii_case("svg"))
        {
            return Err(format!("--picture draws SVG, which {} does not look like", picture.display()));
        }
        if many > 1 && self.picture.is_some() {
            return Err(format!("--picture draws one recording, but {many} are named"));
        }
        if many > 1 && self.maps_at.is_some() {
            return Err(format!("--maps-at looks into one recording, but {many} are named"));
        }
        if many > 1 && self.snapshots.is_some() {
            return Err(format!("--snapshots are those of one recording, but {many} are named"));
        }
        if self.recordings.iter().filter(|path| *path == Path::new(source::STDIN)).count() > 1 {
            return Err("standard input (-) can be read once".to_owned());
        }
        Ok(())
    }
}

/// Nanoseconds of `1.5s`, `200ms`, `30us`, `7ns`, or plain seconds.
fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        other => return Err(format!("`{other}` is no unit of time: there are s, ms, us, ns")),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| plain);
    let time = number.map(|number| (number * unit).round()).filter(|time| *time < u64::MAX as f64);
    time.map(|time| time as u64).ok_or_else(|| format!("`{text}` is no time: say 1.5s, 200ms, or seconds"))
}

/// Bytes of `64GiB`, in whole pages.
fn parse_size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 2 << 20;
    match locking::parse_bytes(text) {
        Some(bytes) if bytes >= LEAST => Ok(bytes / 4096 * 4096),
        Some(_) => Err("nothing can be measured on less than 2MiB".to_owned()),
        None => Err(format!("`{text}` is no size: say bytes, or as 64MiB, 80GiB")),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_time(text).map(Duration::from_nanos)
}

/// `FROM=TO`.
fn parse_rename(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(from, _)| !from.is_empty());
    parts.map(|(from, to)| (from.to_owned(), to.to_owned())).ok_or_else(|| format!("`{text}` is not FROM=TO"))
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
