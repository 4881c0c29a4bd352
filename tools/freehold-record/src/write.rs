//! Writes the files of a recording: assembles the reports into events (`assemble.rs`), converts times and
//! paths, and replaces an older recording completely or not at all (`output.rs`).
//!
//! `lib.rs` checks the names and the files ([`Names`]) before the command runs, and calls [`write`] after the
//! command has ended. Input: the collected reports, the snapshots, the settings of the machine. Output: the
//! compressed file of events and the compressed file of snapshots, and [`Written`] for the messages to the
//! user. A file must be defined before the first event that maps it, and events must ascend in time: the
//! format requires both (`freehold-trace/src/write.rs`). `freehold-cli/tests/record.rs` and
//! `freehold-cli/tests/names.rs` test the files.

use super::assemble::{Assembled, Assembler, File as Mapped};
use super::collect::Collected;
use super::follow::{Followed, Taken};
use super::machine::Settings;
use super::mounts::Mounts;
use super::op::Op;
use super::raw::{Raw, RawKind};
use crate::output::Output;
use anyhow::{Context, bail};
use freehold_trace::{FileInfo, Kind, SnapWriter, Snapshot, TraceWriter, without_suffix};
use rustix::fs::statfs;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Compression level of the files.
const LEVEL: i32 = 12;

/// The names of a recording's files.
#[derive(Debug)]
pub struct Names {
    /// The name of the recording.
    pub name: String,
    /// The folder of its files.
    pub folder: PathBuf,
    /// The file of events.
    trace: PathBuf,
    /// The file of snapshots.
    snap: PathBuf,
    /// The file with the output of strace, if strace makes the recording.
    pub text: PathBuf,
}

impl Names {
    /// Returns the names of the files for `output`, which is the recording's name with its folder. Without
    /// `output`, the recording has the name of the command and is in the current folder.
    ///
    /// # Errors
    ///
    /// Fails if the name is invalid, or if one of the files exists and may not be replaced (`force`).
    pub fn new(output: Option<&Path>, command: &[OsString], force: bool) -> anyhow::Result<Names> {
        let command = command.first().context("there is no command to record")?;
        let path = match output {
            Some(output) => named(output)?,
            None => PathBuf::from(Path::new(command).file_name().unwrap_or(command)),
        };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.filter(|name| !matches!(name.as_str(), ".trace" | ".snap" | ".strace"));
        let name = name.with_context(|| format!("{} cannot be the name of a recording", path.display()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let with = |ending: &str| folder.join(format!("{name}.{ending}"));
        let (trace, snap, text) = (with("trace.zst"), with("snap.zst"), with("strace.zst"));
        for file in [&trace, &snap, &text] {
            if file.exists() && !force {
                bail!("{} exists already: choose another name with -o, or use --force", file.display());
            }
        }
        Ok(Names { folder: folder.to_owned(), name, trace, snap, text })
    }

    /// Checks that the files of the kernel's tracing can be written.
    ///
    /// # Errors
    ///
    /// Fails with the system's error if a file cannot be written.
    pub fn check(&self) -> anyhow::Result<()> {
        output(&self.trace)?;
        output(&self.snap).map(drop)
    }
}

/// Returns the path of the recording `output` without suffixes, because a user may also name the recording by
/// one of its files.
fn named(output: &Path) -> anyhow::Result<PathBuf> {
    if output.as_os_str().as_bytes().ends_with(b"/") || output.is_dir() {
        bail!(
            "cannot write a recording to {}: it is a folder; add a name, as in {}",
            output.display(),
            output.join("NAME").display()
        );
    }
    Ok(without_suffix(output))
}

/// The contents of the files, and the cost of the recording.
#[derive(Debug)]
pub struct Written {
    /// The file with the events. The name of the file with the snapshots follows from it.
    pub file: PathBuf,
    /// Number of events: lines of the file of events that are not comments.
    pub events: u64,
    /// Number of system calls among the events.
    pub calls: u64,
    /// Number of page faults among the events.
    pub faults: u64,
    /// Number of threads that existed.
    pub tasks: u32,
    /// Number of snapshots of address spaces.
    pub snapshots: usize,
    /// Run time of the command, in nanoseconds.
    pub wall: u64,
    /// Part of the run time in which a process was stopped for snapshots, in nanoseconds.
    pub stopped: u64,
    /// Number of snapshots that could not be taken, and the reason of the first failure.
    pub failed: Option<(u64, String)>,
    /// The reason why structures to which arguments point were not recorded. `None` if they were recorded.
    pub unseen: Option<anyhow::Error>,
    /// Size of the compressed files, in bytes.
    pub bytes: u64,
}

/// Assembles all reports and writes the files. `rename` contains prefixes of paths with their replacements.
///
/// # Errors
///
/// Fails if the reports cannot be read, or if a file cannot be written.
pub fn write(
    names: &Names,
    process: i32,
    mut collected: Collected,
    (followed, wall): (Followed, u64),
    settings: &Settings,
    rename: &[(String, String)],
) -> anyhow::Result<Written> {
    let Followed { snapshots: taken, frozen, failed, mounts, .. } = followed;
    let unseen = collected.unseen.take();
    let (mut snapshots, mut reports) = (Vec::new(), Vec::new());
    for Taken { thread, snapshot, limits } in taken {
        let report = |what| Raw { time: snapshot.taken.0, cpu: None, thread, what };
        reports.push(report(RawKind::Snapshot(snapshots.len())));
        // If changes of limits are not recorded, the initial limits must not be recorded either.
        let limits = limits.filter(|_| unseen.is_none());
        reports.extend(limits.map(|limits| report(RawKind::Limits(Box::new(limits)))));
        snapshots.push(snapshot);
    }
    let mut assembler = Assembler::new(process, &mut snapshots);
    collected.merge(reports, |raw| assembler.report(raw))?;
    let Assembled { mut ops, files, tasks } = assembler.finish();
    ops.extend(frozen.iter().map(|(from, ns)| Op::new(*from, None, 0, Some(Kind::Frozen { ns: *ns }))));
    ops.retain(|op| op.kind.is_some());
    ops.sort_by_key(|op| op.time);
    let Some(start) = ops.first().map(|op| op.time) else {
        bail!(
            "the kernel traced no event of process {process}: it may have another number outside this container"
        )
    };
    let mut written = Written {
        file: names.trace.clone(),
        events: 0,
        calls: 0,
        faults: 0,
        tasks,
        snapshots: snapshots.len(),
        wall,
        stopped: 0,
        failed,
        unseen,
        bytes: 0,
    };
    written.stopped = stopped(&snapshots, &frozen);
    let trace = written.trace(names, start, ops, (&files, &mounts), settings, rename)?;
    let snap = snapshots_file(names, start, snapshots, rename)?;
    // An older recording is replaced completely or not at all.
    let (snap_file, trace_file) = (output(&names.snap)?, output(&names.trace)?);
    let saved = Output::write_together(&[(&snap_file, &snap), (&trace_file, &trace)]);
    saved.with_context(|| cannot_write(&names.trace))?;
    written.bytes = (trace.len() + snap.len()) as u64;
    Ok(written)
}

/// Returns the time in nanoseconds in which a process was stopped for snapshots.
fn stopped(snapshots: &[Snapshot], frozen: &[(u64, u64)]) -> u64 {
    let own = snapshots.iter().filter(|snapshot| snapshot.why != freehold_trace::Why::Freeze);
    own.map(|snapshot| snapshot.taken.1 - snapshot.taken.0).sum::<u64>()
        + frozen.iter().map(|(_, ns)| ns).sum::<u64>()
}

impl Written {
    /// Returns the contents of the file of events, and counts its events. `start` is the time of the first
    /// event.
    fn trace(
        &mut self,
        names: &Names,
        start: u64,
        ops: Vec<Op>,
        (files, mounts): (&[Mapped], &Mounts),
        settings: &Settings,
        rename: &[(String, String)],
    ) -> anyhow::Result<Vec<u8>> {
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_by_key(|index| files[*index].first);
        let mut order = order.into_iter().peekable();
        let mut out = TraceWriter::new(zstd::Encoder::new(Vec::new(), LEVEL)?, &names.name)?;
        settings.iter().try_for_each(|(name, value)| out.machine(name, value))?;
        for op in ops {
            while let Some(index) = order.next_if(|index| files[*index].first <= op.time) {
                let Mapped { path, device, .. } = &files[index];
                let size = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
                let (huge, tmpfs) = (huge_pages(path), mounts.of_file(*device, path));
                let path = renamed(path, rename);
                out.file(&FileInfo { id: index as u32 + 1, size, huge, tmpfs, path })?;
            }
            let Some(event) = op.event(start) else { continue };
            self.events += 1;
            self.calls += u64::from(matches!(event.kind, Kind::Call(_)));
            self.faults += u64::from(matches!(event.kind, Kind::Fault { .. }));
            out.event(&event)?;
        }
        Ok(out.finish()?.finish()?)
    }
}

/// Returns the contents of the file of snapshots, with times relative to `start`.
fn snapshots_file(
    names: &Names,
    start: u64,
    snapshots: Vec<Snapshot>,
    rename: &[(String, String)],
) -> anyhow::Result<Vec<u8>> {
    let mut out = SnapWriter::new(zstd::Encoder::new(Vec::new(), LEVEL)?, &names.name)?;
    for mut snapshot in snapshots.into_iter().filter(|snapshot| snapshot.process != 0) {
        snapshot.taken = (snapshot.taken.0.saturating_sub(start), snapshot.taken.1.saturating_sub(start));
        snapshot.exe = renamed(&snapshot.exe, rename);
        for area in &mut snapshot.areas {
            area.name = renamed(&area.name, rename);
        }
        out.snapshot(&snapshot)?;
    }
    Ok(out.finish()?.finish()?)
}

/// Returns the page size of the file at `path`, if the file is in a file system of huge pages. For a deleted
/// file, checks its folder.
fn huge_pages(path: &str) -> Option<u64> {
    const HUGETLBFS: i64 = 0x958458f6;
    let path = Path::new(path);
    let found = statfs(path).or_else(|_| statfs(path.parent().unwrap_or(path))).ok()?;
    (found.f_type == HUGETLBFS).then_some(found.f_bsize as u64)
}

/// Checks that a file of the recording can be written.
pub fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

/// Returns the error message for a file that cannot be written.
fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Replaces the prefix of a path, using the first entry of `rename` whose prefix matches.
fn renamed(path: &str, rename: &[(String, String)]) -> String {
    let begins =
        rename.iter().find_map(|(from, to)| Some(format!("{to}{}", path.strip_prefix(from.as_str())?)));
    begins.unwrap_or_else(|| path.to_owned())
}
