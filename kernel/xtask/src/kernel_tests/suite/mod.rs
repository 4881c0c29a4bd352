//! Runs programs of another project's test suite, each in a machine of its own, and compares the outcome of
//! each case with a list: `cargo xtask kernel-tests --suite DIR`.
//!
//! The folder DIR has static programs, which are not part of this repository. The list is
//! `kernel/tests/suites/NAME.toml`, where NAME is the folder's name. A case that fails although the list says
//! that it passes is an error, as is the reverse, and a case that is missing on either side. `--save` writes
//! the outcomes to the list. [`list`] is the list, and [`output`] finds the cases in a program's output.

pub mod list;
pub mod output;

use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use self::{
    list::{List, Program},
    output::{Cases, Outcome},
};
use super::{Options, failures, on_linux};
use crate::boot::{
    pack,
    qemu::{Console, Machine},
    report::End,
    scratch::Scratch,
    tree::{Content, Node},
    write_archive,
};

/// The folder of the program in the machine.
const FOLDER: &str = "/suite";

/// The result of a run: the output, and the status if the program ended by itself.
struct Ran {
    output: String,
    status: Option<u8>,
    note: String,
}

/// Runs the programs of a suite's list, or those that are named.
///
/// # Errors
///
/// Fails with the number of programs that differ from the list.
pub fn run(folder: &Path, options: &Options) -> Result<(), String> {
    let name = folder.file_name().and_then(|name| name.to_str()).ok_or("the folder has no name")?;
    let mut list = List::read(name)?;
    if options.save {
        for name in &options.names {
            list.programs.entry(name.clone()).or_default();
        }
    }
    if let Some(word) = options.names.iter().find(|word| !list.programs.contains_key(*word)) {
        return Err(format!("the list of {name} has no program {word}"));
    }
    let programs: Vec<_> = list.programs.clone().into_iter().collect();
    let meant = |name: &String| options.names.is_empty() || options.names.contains(name);
    let programs: Vec<_> = programs.into_iter().filter(|(name, _)| meant(name)).collect();
    let image = options.image()?;
    let list = Mutex::new(list);
    let failed = failures(&programs, options.verbose, |(name, program)| {
        let started = Instant::now();
        let cases = match one(name, program, folder, options, image.as_deref()) {
            Ok(cases) => cases,
            Err(why) => {
                println!("FAILED   {name}: {why}");
                return false;
            }
        };
        let differences = program.differences(&cases);
        let word = if differences.is_empty() { "as expected" } else { "DIFFERENT" };
        println!("{word} {name} ({:.1} s): {}", started.elapsed().as_secs_f64(), counts(&cases));
        differences.iter().for_each(|line| println!("  {line}"));
        if options.save {
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.programs.entry(name.clone()).or_default().set(&cases);
        }
        options.save || differences.is_empty()
    });
    if options.save {
        let list = list.into_inner().unwrap_or_else(PoisonError::into_inner);
        let path = list::path(name);
        fs::write(&path, list.text()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} programs differ from the list of {name}", programs.len())),
    }
}

/// Returns the numbers of cases by outcome.
fn counts(cases: &Cases) -> String {
    let many = |wanted| cases.values().filter(|outcome| **outcome == wanted).count();
    let [passed, failed, skipped] = [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(many);
    format!("{} cases, {passed} passed, {failed} failed, {skipped} skipped", cases.len())
}

/// Runs a program and returns its cases.
fn one(
    name: &str,
    program: &Program,
    folder: &Path,
    options: &Options,
    image: Option<&Path>,
) -> Result<Cases, String> {
    let packed = packed(name, program, folder)?;
    let limit = Duration::from_secs(program.limit.unwrap_or(120));
    let ran = match image {
        None => {
            let seen = on_linux::run(&packed, limit)?;
            Ran { output: seen.output, status: Some(seen.status), note: String::new() }
        }
        Some(image) => on_kernel(&packed, program, limit, options, image)?,
    };
    options.show(&ran.output);
    if !ran.note.is_empty() {
        println!("{name}: {}", ran.note);
    }
    Ok(output::cases(&ran.output, ran.status))
}

/// Runs a program on the kernel.
fn on_kernel(
    packed: &pack::Program,
    program: &Program,
    limit: Duration,
    options: &Options,
    image: &Path,
) -> Result<Ran, String> {
    let scratch = Scratch::new("suite")?;
    let archive = scratch.path().join("archive");
    write_archive(packed, &archive)?;
    let machine = Machine {
        cpus: options.cpus.or(program.cpus).unwrap_or(2),
        memory: program.memory.clone().unwrap_or("1G".into()),
        log: 1,
        limit: Some(limit),
        options: [&program.options[..], &options.option].concat(),
        ..Machine::new(image.into(), archive)
    };
    let ran = machine.run(Console::Kept)?;
    options.show_log(&ran);
    let (status, note) = match &ran.end {
        End::Status(status) => (Some(*status), String::new()),
        End::Interrupted => return Err("interrupted".into()),
        end => (None, end.message().unwrap_or_default()),
    };
    Ok(Ran { output: String::from_utf8_lossy(&ran.output).into_owned(), status, note })
}

/// Packs a program with the tools of busybox. A shell runs it, so that the program is not the first process.
fn packed(name: &str, program: &Program, folder: &Path) -> Result<pack::Program, String> {
    let mut packed = pack::Program::empty();
    packed.add_busybox()?;
    for file in [name].into_iter().chain(program.files.iter().map(String::as_str)) {
        let from = folder.join(file);
        if !from.is_file() {
            return Err(format!("{} is missing", from.display()));
        }
        packed.tree.put(&Path::new(FOLDER).join(file), Node::File(0o755, 0, Content::Host(from)))?;
    }
    let before = program.before.as_deref().unwrap_or("true");
    let script = format!("cd {FOLDER}; {before}; \"$@\"; exit $?");
    packed.args = ["/bin/sh", "-c", &script, "sh", &format!("./{name}")].map(str::to_owned).into();
    packed.args.extend(program.arguments.iter().cloned());
    packed.finish()?;
    Ok(packed)
}
