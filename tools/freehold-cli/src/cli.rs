//! The command line.

use crate::help;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use freehold_machine::MachineConfig;
use freehold_replay::{STDIN, locking};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a user asked for.
#[derive(Debug, Parser)]
#[command(name = "freehold", version, about = help::ABOUT_SHORT, long_about = help::ABOUT, after_help = help::MORE, arg_required_else_help = true)]
pub struct Cli {
    /// The job.
    #[command(subcommand)]
    pub command: Command,
}

/// The jobs there are.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay recordings, and check every answer against Linux's
    #[command(long_about = help::replay(), after_help = help::REPLAY_MORE, after_long_help = help::REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Run a command, and make a recording of it
    #[command(long_about = help::record(), after_help = help::RECORD_MORE, after_long_help = help::RECORD_EXAMPLES)]
    Record(RecordArgs),
    /// Measure what Linux's steps were judged by, each design beside the others
    #[command(long_about = help::REPRODUCE, after_help = help::REPRODUCE_MORE, after_long_help = help::REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
    /// Print what completes this command's words in a shell
    #[command(long_about = help::COMPLETIONS, after_help = help::COMPLETIONS_MORE, after_long_help = help::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all jobs
    #[command(long_about = help::MAN, after_help = help::MAN_MORE, after_long_help = help::MAN_EXAMPLES)]
    Man(ManArgs),
}

/// What to record, and how.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// Name of the recording [default: the command's name, here]
    #[arg(short, long, value_name = "NAME")]
    pub output: Option<PathBuf>,

    /// Stop everything this often for snapshots
    ///
    /// Those where a process execs or exits are taken besides.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub snapshot_every: Duration,

    /// At most this many times
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub snapshots: u32,

    /// Kernel buffer for each processor
    ///
    /// The command says when events were lost, which a larger one keeps.
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
    /// NAME.trace[.zst|.xz] with NAME.snap beside it, text by strace, - (standard input)
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The snapshots of a NAME.trace where they do not lie beside it
    #[arg(long, value_name = "FILE")]
    pub snap: Option<PathBuf>,

    /// Virtual CPUs, each a thread [default: as many as this machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: Option<u16>,

    /// Give memory contents, and compare the bytes that the recording shows
    ///
    /// Texts by strace that show bytes always have them.
    #[arg(long)]
    pub backed: bool,

    /// How to lock: unmap=, fault=, write=, hugetlb=, file-rmap=, with commas
    #[arg(long, value_name = "SPEC", value_parser = locking::parse, long_help = help::LOCKING)]
    pub locking: Option<locking::Design>,

    /// Replay on every design of locking, side by side
    #[arg(long, conflicts_with = "locking")]
    pub compare: bool,

    /// Vary which task runs first where that is open
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Look for stale translations all the time; slower
    #[arg(long)]
    pub oracles: bool,

    /// Write the findings for programs; to standard output (-) without text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw address spaces over time: kinds of memory, faults, forks
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    /// Only print an address space at a time, as /proc/PID/maps would
    ///
    /// TIME counts from the recording's first event: 1.5s, 200ms, 30us, 7ns, or plain seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["compare", "json", "picture"])]
    pub maps_at: Option<u64>,

    /// Only list the tasks: when each lived, its calls and faults
    #[arg(long, conflicts_with_all = ["compare", "json", "picture", "maps_at"])]
    pub tasks: bool,

    /// Whose address space that is [default: the first task's alive then]
    #[arg(long, value_name = "N", requires = "maps_at")]
    pub task: Option<u32>,

    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// For which shell.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Where manual pages go.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write freehold.1 and a page of each job into this folder
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
}

/// Which experiments to do, how large, and where to write what they find.
#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// Experiments [default: all, in the order of the steps]
    #[arg(
        value_name = "EXPERIMENT",
        value_parser = PossibleValuesParser::new(freehold_reproduce::experiments().map(|(name, _)| name)),
        hide_possible_values = true,
        long_help = help::experiments()
    )]
    pub experiments: Vec<String>,

    /// Small sizes: all of them in less than two minutes
    #[arg(long)]
    pub quick: bool,

    /// Of what an experiment maps, no more than this: 64GiB, 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub at_most: Option<u64>,

    /// Turns of each design [default: 5, or 3 where one takes long]
    ///
    /// With --quick always 3.
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

    /// Write the figures for programs; to standard output (-) without text
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
        if many > 1 && self.snap.is_some() {
            return Err(format!("--snap is of one recording, but {many} are named"));
        }
        if self.recordings.iter().filter(|path| *path == Path::new(STDIN)).count() > 1 {
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
