//! Runs tests of the Linux Test Project (LTP), many in one machine: `cargo xtask kernel-tests --ltp DIR`.
//!
//! The folder DIR has the tests as static programs, and the list `tests.tsv`: name, folder, time limit in
//! seconds, command. DIR may instead have one archive of the programs and the list, `ltp-mm-static.tar.xz`.
//! In the machine a script runs one test after another and prints a line before and after each test. If the
//! machine stops, or prints nothing for too long, another machine continues with the next test. The tests are
//! not part of this repository, so a missing folder is not an error. `kernel/LTP.md` has the results.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{Options, on_linux};
use crate::boot::{
    pack::Program,
    qemu::{Console, Machine},
    report::End,
    scratch::Scratch,
    tree::Node,
    write_archive,
};

/// The name of the archive.
const ARCHIVE: &str = "ltp-mm-static.tar.xz";
/// The folder in which the archive is unpacked, from the repository's root.
const UNPACKED: &str = "target/ltp";
/// Number of tests in one machine.
const AT_ONCE: usize = 24;
/// Factor by which a test may be slower than on a real machine.
const SLOWER: u64 = 4;

/// A test of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Case {
    name: String,
    folder: String,
    /// Time limit on a real machine, in seconds.
    limit: u64,
    command: String,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// The test succeeded.
    Passed,
    /// The test does not apply to this configuration.
    Unfit,
    /// The test failed, for this reason.
    Failed(String),
}

/// Runs the tests whose names begin with one of the words, or all tests.
///
/// # Errors
///
/// Fails with the number of failed tests.
pub fn run(options: &Options) -> Result<(), String> {
    let Some(folder) = &options.ltp else { return Ok(()) };
    let Some(folder) = unpacked(folder)? else {
        println!("== left out: {} contains neither tests.tsv nor {ARCHIVE}", folder.display());
        return Ok(());
    };
    let list = fs::read_to_string(folder.join("tests.tsv")).map_err(|error| format!("tests.tsv: {error}"))?;
    let mut cases = parse(&list)?;
    if !options.names.is_empty() {
        cases.retain(|case| options.names.iter().any(|word| case.name.starts_with(word)));
    }
    let image = options.image()?;
    let mut results = BTreeMap::new();
    let mut rest = cases.as_slice();
    while !rest.is_empty() {
        let now = &rest[..rest.len().min(AT_ONCE)];
        let done = some(now, &folder, options, image.as_deref(), &mut results)?;
        rest = &rest[done..];
    }
    report(&cases, &results)
}

/// Returns the folder with the programs. Unpacks the archive if necessary. Returns `None` if the folder has
/// neither the list of tests nor the archive.
fn unpacked(folder: &Path) -> Result<Option<PathBuf>, String> {
    if folder.join("tests.tsv").is_file() {
        return Ok(Some(folder.into()));
    }
    let archive = folder.join(ARCHIVE);
    if !archive.is_file() {
        return Ok(None);
    }
    let to = xtask::root().join(UNPACKED);
    if !to.join("tests.tsv").is_file() {
        fs::create_dir_all(&to).map_err(|error| format!("{UNPACKED}: {error}"))?;
        let status = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&to).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("cannot unpack {}", archive.display()));
        }
    }
    Ok(Some(to))
}

/// Parses the list of tests.
fn parse(list: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, folder, limit, command] = fields[..] else {
            return Err(format!("tests.tsv: expected four fields: {line}"));
        };
        let limit = limit.parse().map_err(|_| format!("tests.tsv: expected a time limit: {line}"))?;
        let [name, folder, command] = [name, folder, command].map(str::to_owned);
        cases.push(Case { name, folder, limit, command });
    }
    Ok(cases)
}

/// Runs tests in one machine. Returns the number of tests that have a result.
fn some(
    cases: &[Case],
    folder: &Path,
    options: &Options,
    image: Option<&Path>,
    results: &mut BTreeMap<String, Verdict>,
) -> Result<usize, String> {
    let program = pack(cases, folder)?;
    let (output, end) = match image {
        Some(image) => on_kernel(&program, cases, options, image)?,
        None => {
            let limit = Duration::from_secs(cases.iter().map(|case| case.limit).sum());
            (on_linux::run(&program, limit)?.output, "the shell ended".into())
        }
    };
    let mut done = 0;
    for (case, text) in cases.iter().zip(parts(&output, cases)) {
        let Some(text) = text else { break };
        let result = judge(&text, &end);
        let (word, why) = match &result {
            Verdict::Passed => ("passed", ""),
            Verdict::Unfit => ("unfit ", ""),
            Verdict::Failed(why) => ("FAILED", why.as_str()),
        };
        println!("{word} {} {why}", case.name);
        if options.verbose && word != "passed" {
            text.lines().for_each(|line| println!("  | {line}"));
        }
        results.insert(case.name.clone(), result);
        done += 1;
    }
    if done == 0 {
        return Err(format!("no test started: {end}{}", super::tail(&output)));
    }
    Ok(done)
}

/// Runs tests on the kernel. Returns the output and a text about the end of the machine.
fn on_kernel(
    program: &Program,
    cases: &[Case],
    options: &Options,
    image: &Path,
) -> Result<(String, String), String> {
    let scratch = Scratch::new("ltp")?;
    let archive = scratch.path().join("archive");
    write_archive(program, &archive)?;
    let longest = cases.iter().map(|case| case.limit).max().unwrap_or(0);
    let machine = Machine {
        cpus: options.cpus.unwrap_or(2),
        memory: "3G".into(),
        log: 1,
        silence: Some(Duration::from_secs(longest + 60)),
        ..Machine::new(image.into(), archive)
    };
    let ran = machine.run(Console::Kept)?;
    options.show_log(&ran);
    let end = match &ran.end {
        End::Status(status) => format!("the shell ended with status {status}"),
        End::Interrupted => return Err("interrupted".into()),
        end => end.message().unwrap_or_default(),
    };
    Ok((String::from_utf8_lossy(&ran.output).into_owned(), end))
}

/// Packs the tests' folders, and a script that runs the tests.
fn pack(cases: &[Case], folder: &Path) -> Result<Program, String> {
    let mut program = Program::empty();
    program.add_busybox()?;
    for case in cases {
        let at = Path::new("/ltp").join(&case.folder);
        program.tree.put(&at, Node::Folder(0o755))?;
        program.tree.take_all(&folder.join(&case.folder), &at)?;
    }
    program.tree.write("/ltp/run", 0o755, script(cases))?;
    let variables = [("TMPDIR", "/tmp"), ("LTP_COLORIZE_OUTPUT", "n")];
    program.env.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    program.env.insert("LTP_TIMEOUT_MUL".into(), SLOWER.to_string());
    // The kernel, and some Linux systems, have no configuration that LTP could check.
    program.env.insert("KCONFIG_SKIP_CHECK".into(), "1".into());
    program.args = ["/bin/sh", "/ltp/run"].map(str::to_owned).into();
    program.finish()?;
    Ok(program)
}

/// Returns the script that runs the tests, with a line before and after each.
fn script(cases: &[Case]) -> String {
    let mut script = String::from("path=$PATH\n");
    for Case { name, folder, limit, command } in cases {
        let limit = limit * SLOWER;
        let _ = write!(
            script,
            "echo; echo '@@ begin {name}'\ncd /ltp/{folder}\n\
             PATH=/ltp/{folder}:$path timeout -s KILL {limit} /ltp/{command} < /dev/null 2>&1\n\
             status=$?; echo; echo \"@@ end {name} $status\"\n"
        );
    }
    script
}

/// Returns the output of each test with its last line; `None` for a test that did not start.
fn parts(output: &str, cases: &[Case]) -> Vec<Option<String>> {
    let part = |case: &Case| {
        let begin = format!("@@ begin {}\n", case.name);
        let end = format!("@@ end {} ", case.name);
        let rest = &output[output.find(&begin)? + begin.len()..];
        let len = rest
            .find(&end)
            .map_or(rest.len(), |at| rest[at..].find('\n').map_or(rest.len(), |line| at + line + 1));
        Some(rest[..len].to_owned())
    };
    cases.iter().map(part).collect()
}

/// Judges a test by its exit status: a sum of 1 (failed), 2 (broken), 4 (warned) and 32 (does not apply), or
/// 128 plus a signal. `end` describes the end of the machine, for a test that did not end.
fn judge(text: &str, end: &str) -> Verdict {
    let last = text.lines().rev().find_map(|line| line.strip_prefix("@@ end "));
    let Some(status) = last.and_then(|last| last.rsplit(' ').next()?.parse::<u32>().ok()) else {
        return Verdict::Failed(format!("the machine stopped: {}", end.lines().next().unwrap_or_default()));
    };
    let marks = ["TFAIL", "TBROK", "TWARN"];
    let first = text.lines().find(|line| marks.iter().any(|mark| line.contains(mark)));
    let said = first.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    match status {
        0 => Verdict::Passed,
        32 => Verdict::Unfit,
        129..=192 => Verdict::Failed(format!("signal {}{said}", status - 128)),
        _ => Verdict::Failed(format!("status {status}{said}")),
    }
}

/// Prints the rate of passed tests. Fails if a test failed or has no result.
fn report(cases: &[Case], results: &BTreeMap<String, Verdict>) -> Result<(), String> {
    let many = |wanted: fn(&Verdict) -> bool| results.values().filter(|result| wanted(result)).count();
    let passed = many(|result| *result == Verdict::Passed);
    let unfit = many(|result| *result == Verdict::Unfit);
    let failed = cases.len() - passed - unfit;
    let fit = cases.len() - unfit;
    let rate = 100.0 * passed as f64 / fit.max(1) as f64;
    println!(
        "== LTP: {passed} of {fit} applicable tests passed ({rate:.1} %), {failed} failed, {unfit} unfit"
    );
    if failed == 0 { Ok(()) } else { Err(format!("{failed} tests of the Linux Test Project failed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str) -> Case {
        Case { name: name.into(), folder: "f".into(), limit: 1, command: format!("f/{name} -x") }
    }

    #[test]
    fn list_line_needs_four_fields() {
        assert_eq!(parse("a\tf\t1\tf/a -x\n"), Ok(vec![case("a")]));
        assert!(parse("a\tf\t1\n").is_err_and(|why| why.contains("four fields")));
        assert!(parse("a\tf\tsoon\tf/a\n").is_err_and(|why| why.contains("expected a time limit")));
    }

    #[test]
    fn output_is_split_into_one_part_per_test() {
        let output =
            "\n@@ begin a\nTPASS\n\n@@ end a 0\n\n@@ begin b\nx TFAIL: no\n\n@@ end b 1\n\n@@ begin c\nhalf";
        let parts = parts(output, &["a", "b", "c", "d"].map(case));
        let results: Vec<_> = parts.iter().flatten().map(|part| judge(part, "panic\nmore")).collect();
        assert_eq!(parts[3], None);
        assert_eq!(results[0], Verdict::Passed);
        assert_eq!(results[1], Verdict::Failed("status 1: x TFAIL: no".into()));
        assert_eq!(results[2], Verdict::Failed("the machine stopped: panic".into()));
    }

    #[test]
    fn exit_status_decides_the_verdict() {
        assert_eq!(judge("@@ end a 32", ""), Verdict::Unfit);
        assert_eq!(judge("@@ end a 137", ""), Verdict::Failed("signal 9".into()));
    }
}
