//! The definition of the command line: subcommands, arguments, their short help, and checks of their values.
//!
//! The doc comments of arguments are written for users, because `-h` and `--help` print them: no full stop at
//! the end of the first line, and at most 100 columns (`help_tests.rs`). The longer help texts are in
//! `help.rs`, the work is in `command/`. Shell completions and manual pages are made from this definition
//! (`command/manual.rs`). An invalid value is refused here; a combination that clap cannot express is refused
//! in `check`. A new argument needs a field in the struct of its subcommand, and a case in `cli_tests.rs`. A
//! new subcommand also needs a variant of [`Command`]; `command/mod.rs` lists the other places.

use crate::help;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use freehold_machine::MachineConfig;
use freehold_replay::short::Memory;
use freehold_replay::{STDIN, locking};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size in bytes of the smallest memory of a replay.
const LEAST_MEMORY: u64 = 1 << 20;

/// The command line that a user typed.
#[derive(Debug, Parser)]
#[command(name = "freehold", version, about = help::ABOUT_SHORT, long_about = help::ABOUT, after_help = help::MORE, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `freehold`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay recordings and compare every answer with Linux's
    #[command(long_about = help::replay(), after_help = help::REPLAY_MORE, after_long_help = help::REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Run a command and record its memory operations
    #[command(long_about = help::record(), after_help = help::RECORD_MORE, after_long_help = help::RECORD_EXAMPLES)]
    Record(RecordArgs),
    /// Measure the locking designs against each other and against the host's kernel
    #[command(long_about = help::REPRODUCE, after_help = help::REPRODUCE_MORE, after_long_help = help::REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
    /// Generate shell completions
    #[command(long_about = help::COMPLETIONS, after_help = help::COMPLETIONS_MORE, after_long_help = help::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Generate manual pages
    #[command(long_about = help::MAN, after_help = help::MAN_MORE, after_long_help = help::MAN_EXAMPLES)]
    Man(ManArgs),
}

/// Arguments of `freehold record`.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// Name of the recording [default: the command's name, here]
    #[arg(short, long, value_name = "NAME")]
    pub output: Option<PathBuf>,

    /// Interval between snapshots, which stop all processes
    ///
    /// Snapshots at each exec and exit of a process are taken in addition.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub snapshot_every: Duration,

    /// Maximum number of snapshots taken at these intervals
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub snapshots: u32,

    /// Also sample at this interval how much of each VMA was accessed
    ///
    /// A sample is a snapshot, after which the accessed bits of all pages are cleared.
    ///
    /// Samples replace the snapshots at intervals.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with_all = ["snapshot_every", "snapshots", "calls_only"])]
    pub accesses: Option<Duration>,

    /// Size of the kernel buffer of each CPU
    ///
    /// The recorder reports lost events; a larger buffer avoids the loss.
    #[arg(long, value_name = "KIB", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(64..=4_194_304))]
    pub buffer_kb: u32,

    /// Replace the prefix FROM of recorded paths by TO
    #[arg(long, value_name = "FROM=TO", value_parser = parse_rename)]
    pub rename: Vec<(String, String)>,

    /// Overwrite the files of an older recording
    #[arg(long)]
    pub force: bool,

    /// Replay the recording, and write a page for browsers about it
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Record only calls, with strace: no faults, no snapshots
    #[arg(long)]
    pub calls_only: bool,

    /// Command to record, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `freehold replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// NAME.trace[.zst|.xz] with NAME.snap next to it, strace output, or - (stdin)
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// File with the snapshots, if it is not next to NAME.trace
    #[arg(long, value_name = "FILE")]
    pub snap: Option<PathBuf>,

    /// Virtual CPUs, one thread each [default: the CPUs of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: Option<u16>,

    /// Keep memory contents, and compare the bytes that the recording shows
    ///
    /// Implied for strace output that shows bytes.
    #[arg(long)]
    pub backed: bool,

    /// Locking design, as comma-separated KNOB=VALUE; see --help
    #[arg(long, value_name = "SPEC", value_parser = locking::parse, long_help = help::LOCKING)]
    pub locking: Option<locking::Design>,

    /// Replay on every locking design and compare the designs
    #[arg(long, conflicts_with = "locking")]
    pub compare: bool,

    /// Seed for the order of tasks that the recording leaves open
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Check for stale TLB entries on every access (slower)
    #[arg(long)]
    pub oracles: bool,

    /// Write a JSON report; - is standard output, without the text report
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw address spaces over time as SVG: memory, faults, forks
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    /// Write a page for browsers: waits between tasks, memory, faults
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Replay in memory of this size, and compare policies of reclaim
    ///
    /// SIZE: 64M, 50% of the recording's peak, or 25%..100% for four sizes.
    ///
    /// Recordings contain faults, not accesses: the hot pages are a lower bound.
    ///
    /// docs/guide/reclaim.md describes the figures.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, conflicts_with_all = ["compare", "picture", "report", "cpus"])]
    pub memory: Option<MemorySizes>,

    /// Policies of reclaim, comma-separated [default: all]
    ///
    /// The policies are clock, two-lists and generations.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(Memory::POLICIES.map(|(name, _)| name)), hide_possible_values = true, requires = "memory")]
    pub policy: Vec<String>,

    /// Size of the swap device for --memory; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = parse_swap, default_value = "1GiB", requires = "memory")]
    pub swap: u64,

    /// Print an address space at TIME like /proc/PID/maps, and no report
    ///
    /// TIME counts from the recording's first event: 1.5s, 200ms, 30us, 7ns, or plain seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["compare", "json", "picture", "report", "memory"])]
    pub maps_at: Option<u64>,

    /// List tasks with their lifetime, calls and faults; do not replay
    #[arg(long, conflicts_with_all = ["compare", "json", "picture", "report", "maps_at", "memory"])]
    pub tasks: bool,

    /// Task for --maps-at [default: the first task alive at that time]
    #[arg(long, value_name = "N", requires = "maps_at")]
    pub task: Option<u32>,

    /// Do not show progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `freehold completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to generate completions for
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Arguments of `freehold man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write freehold.1 and one page per subcommand to this folder
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
}

/// Arguments of `freehold reproduce`.
#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// Experiments to run [default: all, in the order of Linux's changes]
    #[arg(
        value_name = "EXPERIMENT",
        value_parser = PossibleValuesParser::new(freehold_reproduce::experiments().map(|(name, _)| name)),
        hide_possible_values = true,
        long_help = help::experiments()
    )]
    pub experiments: Vec<String>,

    /// Use small sizes: all experiments run in less than two minutes
    #[arg(long)]
    pub quick: bool,

    /// Maximum memory that an experiment maps, such as 64GiB or 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub at_most: Option<u64>,

    /// Measurements of each design [default: 5, or 3 for long experiments]
    ///
    /// With --quick the default is always 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub turns: Option<u16>,

    /// CPUs to use [default: the CPUs of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: Option<u16>,

    /// Do not measure the host's kernel
    #[arg(long)]
    pub no_host: bool,

    /// Write an HTML report with plots
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Write the tables as a Markdown document
    #[arg(long, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,

    /// Write the figures as JSON; - is standard output, without the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Do not show progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl ReproduceArgs {
    /// Checks the arguments that are valid only in certain combinations.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if the combination is invalid.
    pub fn check(&self) -> Result<(), String> {
        let files: Vec<&PathBuf> = [&self.report, &self.markdown, &self.json].into_iter().flatten().collect();
        let dash = PathBuf::from("-");
        if [&self.report, &self.markdown].into_iter().flatten().any(|path| *path == dash) {
            return Err("only --json can be written to standard output (-)".to_owned());
        }
        match files.iter().enumerate().find(|(index, path)| files[..*index].contains(path)) {
            Some((_, path)) => Err(format!("output file {} is given twice", path.display())),
            None => Ok(()),
        }
    }

    /// Returns the number of CPUs to use.
    pub fn cpus(&self) -> usize {
        let here =
            || std::thread::available_parallelism().map_or(1, usize::from).min(MachineConfig::MAX_CPUS);
        self.cpus.map_or_else(here, usize::from)
    }
}

impl ReplayArgs {
    /// Checks the arguments that are valid only in certain combinations.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if the combination is invalid.
    pub fn check(&self) -> Result<(), String> {
        let many = self.recordings.len();
        if let Some(picture) = &self.picture
            && picture.extension().is_some_and(|ending| !ending.eq_ignore_ascii_case("svg"))
        {
            return Err(format!("--picture writes SVG, but {} does not end in .svg", picture.display()));
        }
        if many > 1 && self.picture.is_some() {
            return Err(format!("--picture takes one recording, but {many} are given"));
        }
        if many > 1 && self.report.is_some() {
            return Err(format!("--report takes one recording, but {many} are given"));
        }
        if many > 1 && self.maps_at.is_some() {
            return Err(format!("--maps-at takes one recording, but {many} are given"));
        }
        if many > 1 && self.snap.is_some() {
            return Err(format!("--snap takes one recording, but {many} are given"));
        }
        if self.recordings.iter().filter(|path| *path == Path::new(STDIN)).count() > 1 {
            return Err("standard input (-) can be given only once".to_owned());
        }
        Ok(())
    }
}

/// Parses a time such as `1.5s`, `200ms`, `30us`, `7ns` or plain seconds, and returns nanoseconds.
fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        other => return Err(format!("`{other}` is not a unit of time: expected s, ms, us or ns")),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| plain);
    let time = number.map(|number| (number * unit).round()).filter(|time| *time < u64::MAX as f64);
    time.map(|time| time as u64)
        .ok_or_else(|| format!("`{text}` is not a time: expected for example 1.5s, 200ms, or seconds"))
}

/// Parses a size such as `64GiB`, and returns bytes, rounded down to whole pages.
fn parse_size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 2 << 20;
    match locking::parse_bytes(text) {
        Some(bytes) if bytes >= LEAST => Ok(bytes / 4096 * 4096),
        Some(_) => Err("the size must be at least 2MiB".to_owned()),
        None => Err(format!("`{text}` is not a size: expected bytes, or a size such as 64MiB or 80GiB")),
    }
}

/// Sizes of memory, absolute or as shares of a recording's peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySizes {
    /// Bytes, whole pages.
    Bytes(u64),
    /// Percent of the peak, ascending.
    Shares(Vec<u64>),
}

impl MemorySizes {
    /// Returns the sizes in bytes, whole pages, for a recording with this peak.
    pub fn of_peak(&self, peak: u64) -> Vec<u64> {
        match self {
            MemorySizes::Bytes(bytes) => vec![*bytes],
            MemorySizes::Shares(shares) => shares
                .iter()
                .map(|share| (peak.saturating_mul(*share) / 100).max(LEAST_MEMORY) / 4096 * 4096)
                .collect(),
        }
    }
}

/// Parses sizes of memory: `64M`, `50%` or `25%..100%`.
fn parse_memory(text: &str) -> Result<MemorySizes, String> {
    const STEPS: u64 = 3;
    let share = |text: &str| {
        let number = text.strip_suffix('%').and_then(|number| number.parse::<u64>().ok());
        number.filter(|share| (1..=1000).contains(share))
    };
    if let Some((from, to)) = text.split_once("..") {
        let (from, to) = share(from)
            .zip(share(to))
            .filter(|(from, to)| from < to)
            .ok_or_else(|| format!("`{text}` is not a range of shares: expected for example 25%..100%"))?;
        return Ok(MemorySizes::Shares((0..=STEPS).map(|step| from + (to - from) * step / STEPS).collect()));
    }
    if let Some(share) = share(text) {
        return Ok(MemorySizes::Shares(vec![share]));
    }
    match locking::parse_bytes(text) {
        Some(bytes) if bytes >= LEAST_MEMORY => Ok(MemorySizes::Bytes(bytes / 4096 * 4096)),
        Some(_) => Err("memory must have at least 1MiB".to_owned()),
        None => Err(format!("`{text}` is not a size: expected for example 64M, 50%, or 25%..100%")),
    }
}

/// Parses the size of a swap device, and returns bytes.
fn parse_swap(text: &str) -> Result<u64, String> {
    let bytes = locking::parse_bytes(text).filter(|bytes| *bytes <= 1 << 40);
    bytes.ok_or_else(|| {
        format!("`{text}` is not the size of a swap device: expected for example 256M, at most 1024G")
    })
}

/// Parses a time like [`parse_time`].
fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_time(text).map(Duration::from_nanos)
}

/// Parses `FROM=TO`. FROM must not be empty.
fn parse_rename(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(from, _)| !from.is_empty());
    parts
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .ok_or_else(|| format!("`{text}` does not have the form FROM=TO"))
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
