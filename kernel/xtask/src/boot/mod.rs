//! `cargo xtask boot`: builds the kernel, packs the files of a program, and runs the program under QEMU.
//!
//! - [`options`]: the arguments.
//! - [`kernel`]: builds the kernel; [`redzone`]: checks that its image does not use the red zone.
//! - [`pack`]: the first program and its files; [`tree`]: a file tree in memory; [`links`]: the files that a
//!   program links to; [`archive`]: writes the tree as a cpio archive.
//! - [`recording`]: writes the files of `--record`.
//! - [`qemu`]: runs the machine; [`report`]: reads the kernel's report, with names from [`symbols`].
//!   `kernel/PROTOCOL.md` describes the report and the archive.
//! - [`scratch`]: temporary folders.
//!
//! `kernel_tests` and `kernel_bench` use the same modules to run their machines. Functions fail with a
//! message for the user, which [`command`] prints. A run writes only to a temporary folder, to `target/`, and
//! to the files that the arguments name.
//!
//! A new argument is a field of [`Options`], and also needs a field of [`Machine`] or a change of
//! [`Program`]. A new agreement with the kernel belongs in `kernel/PROTOCOL.md` first.
//! `cargo test --package kernel-xtask` runs the tests of all these files; they build no kernel.

pub mod archive;
pub mod kernel;
pub mod links;
pub mod options;
pub mod pack;
pub mod qemu;
pub mod recording;
pub mod redzone;
pub mod report;
pub mod scratch;
pub mod symbols;
pub mod tree;

use std::{
    ffi::OsString,
    fs::File,
    io::{BufWriter, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use clap::Parser;

use self::{
    options::Options,
    pack::Program,
    qemu::{Console, Machine},
    report::{End, call_name},
    scratch::Scratch,
};
use crate::kernel_bench;

/// Runs the command. Returns its exit status.
pub fn command(words: &[&str]) -> u8 {
    let words = ["cargo xtask boot"].iter().chain(words).map(OsString::from);
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output. A closed standard output is not an error.
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    match boot(&options) {
        Ok(end) => {
            if let Some(message) = end.message() {
                eprintln!("xtask: {message}");
            }
            end.status()
        }
        Err(Failure { why, status }) => {
            eprintln!("xtask: {why}");
            status
        }
    }
}

/// The reason why the program did not run.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// A message for the user.
    pub why: String,
    /// The exit status of the command: 127 if the program does not exist, as in a shell; otherwise 125.
    pub status: u8,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, status: 125 }
    }
}

/// Performs the command: measures, or runs the program to its end.
fn boot(options: &Options) -> Result<End, Failure> {
    if options.bench {
        kernel_bench::run(options)?;
        return Ok(End::Status(0));
    }
    let program = Program::of(options)?;
    let image = match &options.kernel {
        Some(image) => image.clone(),
        None => kernel::build()?,
    };
    let folder = Scratch::new("boot")?;
    let archive = folder.path().join("archive");
    write_archive(&program, &archive)?;
    let gdb = if options.gdb { Some(announce_debugger(&image)?) } else { None };
    let machine = Machine {
        cpus: options.cpus,
        memory: options.memory.clone(),
        gdb,
        log: options.log,
        limit: options.limit,
        options: options.option.clone(),
        more: options.qemu.clone(),
        ..Machine::new(image, archive)
    };
    let raw = folder.path().join("recording");
    let mut machine = Machine { cpu: options.cpu.clone().unwrap_or(machine.cpu), ..machine };
    if options.record.is_some() {
        machine.record_to(&raw);
    }
    let ran = machine.run(Console::Here)?;
    if let Some(name) = &options.record {
        recording::write(&raw, name)?;
    }
    if let Some(refused) = &ran.report.refused {
        eprintln!("xtask: cannot run {refused}");
    }
    if options.log > 0 {
        ran.report.log.iter().for_each(|line| eprintln!("kernel: {line}"));
        for number in &ran.report.missing {
            eprintln!("kernel: missing system call {number}, {}", call_name(*number));
        }
    }
    Ok(ran.end)
}

/// Writes a program's archive to a file.
///
/// # Errors
///
/// Fails with the name of a file that cannot be read or written.
pub fn write_archive(program: &Program, to: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| format!("cannot write {}: {error}", to.display());
    let mut file = BufWriter::new(File::create(to).map_err(said)?);
    archive::write(&program.tree, &mut file)?;
    file.flush().map_err(said)
}

/// Finds a free port, and prints how to connect a debugger.
fn announce_debugger(image: &Path) -> Result<u16, String> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let port = free.map_err(|error| format!("cannot find a port for the debugger: {error}"))?.port();
    let image: PathBuf = image.into();
    eprintln!("xtask: waiting for a debugger at 127.0.0.1:{port}:");
    eprintln!("  gdb {} -ex 'target remote 127.0.0.1:{port}'", image.display());
    Ok(port)
}
