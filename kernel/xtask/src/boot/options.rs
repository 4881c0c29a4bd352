//! The arguments of `cargo xtask boot`. The documentation comments of the fields are the help text of the
//! command, so they follow the style of help texts. `kernel_bench` uses the same arguments. The tests below
//! check which arguments exclude each other.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

/// Boot the kernel under QEMU and run a Linux program on it.
///
/// The program is taken from this machine with the libraries that it links to, or from the folder --root. The
/// command has the program's output and its exit status. Exit status 127: the program, or a file that it
/// names, does not exist; 126: the kernel refuses the program; 125: the kernel panicked, or could not be
/// started; 124: the time limit was exceeded; 130: ^C.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "cargo xtask boot", bin_name = "cargo xtask boot", disable_version_flag = true)]
pub struct Options {
    /// Number of CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub cpus: u32,
    /// Memory of the machine: a number with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub memory: String,
    /// CPU model of QEMU; the default is max, or qemu64 with --bench
    #[arg(long, value_name = "MODEL")]
    pub cpu: Option<String>,
    /// Use a folder as the root of the file system
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Copy a file or folder of this machine to the same path
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,
    /// Set a variable of the program's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Run a script with busybox's shell instead of a program
    #[arg(long, value_name = "TEXT", conflicts_with = "program")]
    pub script: Option<String>,
    /// End the run after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub limit: Option<Duration>,
    /// Wait for a debugger, and print how to start one
    #[arg(long)]
    pub gdb: bool,
    /// Show the kernel's log: 1 unusual events, 2 everything
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_value_t = 0, default_missing_value = "1",
        require_equals = true)]
    pub log: u8,
    /// Pass an option to the kernel; `kernel/README.md` lists them
    #[arg(long, value_name = "WORD")]
    pub option: Vec<String>,
    /// Pass an argument to QEMU
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub qemu: Vec<String>,
    /// Boot this kernel instead of building one
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Record what the program does to its memory, in FILE.trace and FILE.snap, for
    /// `freehold replay FILE.trace`
    #[arg(long, value_name = "FILE", conflicts_with = "bench")]
    pub record: Option<PathBuf>,
    /// Measure what operations cost instead of running a program, and print a table
    #[arg(long, conflicts_with_all = ["program", "script", "gdb", "root", "with", "env"])]
    pub bench: bool,
    /// Measure Debian's cloud kernel, too; it is downloaded once
    #[arg(long, requires = "bench", conflicts_with_all = ["program", "script"])]
    pub linux: bool,
    /// Write the tables to their place in a document
    #[arg(long, value_name = "FILE", requires = "bench", conflicts_with_all = ["program", "script"])]
    pub markdown: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM", required_unless_present_any = ["script", "bench"])]
    pub program: Vec<String>,
}

fn memory(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let fits = text.len() == digits.len() + 1 && digits.parse::<u32>().is_ok_and(|number| number > 0);
    if fits { Ok(text.into()) } else { Err("expected a number with K, M or G, such as 512M".into()) }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected a number of seconds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Options, String> {
        Options::try_parse_from([&["boot"], words].concat()).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_after_dashes_belong_to_the_program() {
        let options = read(&["--cpus", "4", "--memory", "512M", "--", "./x", "--cpus", "-a b"]);
        let options = options.expect("valid options");
        assert_eq!((options.cpus, options.memory.as_str()), (4, "512M"));
        assert_eq!(options.program, ["./x", "--cpus", "-a b"]);
        assert_eq!((options.cpu, options.log, options.gdb), (None, 0, false));
    }

    #[test]
    fn variable_needs_a_name_and_takes_any_value() {
        let options = read(&["--env", "A=b=c", "--env", "D=", "--log", "--", "x"]).expect("valid options");
        assert_eq!(options.env, [("A".into(), "b=c".into()), ("D".into(), String::new())]);
        assert_eq!(options.log, 1);
        assert_eq!(read(&["--log=2", "--", "x"]).expect("valid options").log, 2);
    }

    #[test]
    fn script_replaces_the_program() {
        let options = read(&["--script", "echo; true", "--limit", "1.5"]).expect("valid options");
        assert_eq!(options.script.as_deref(), Some("echo; true"));
        assert_eq!(options.limit, Some(Duration::from_millis(1500)));
        assert!(read(&["--script", "true", "--", "x"]).is_err());
    }

    #[test]
    fn invalid_options_are_reported() {
        let wrong: [(&[&str], &str); 9] = [
            (&["--linux", "--", "x"], "cannot be used with"),
            (&["--bench", "--", "x"], "cannot be used with"),
            (&[], "required"),
            (&["x"], "unexpected argument"),
            (&["--cpus", "0", "--", "x"], "not in 1..=255"),
            (&["--memory", "lots", "--", "x"], "512M"),
            (&["--memory", "0M", "--", "x"], "512M"),
            (&["--env", "=b", "--", "x"], "NAME=VALUE"),
            (&["--limit", "soon", "--", "x"], "seconds"),
        ];
        for (words, said) in wrong {
            let error = read(words).expect_err("invalid options");
            assert!(error.contains(said), "{words:?}: {error}");
        }
    }
}
