//! Writes a recording's files.

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

/// How much effort goes into making the files small.
const LEVEL: i32 = 12;

/// Where a recording comes to lie.
#[derive(Debug)]
pub struct Names {
    /// What the recording is called.
    pub name: String,
    /// The folder of its files.
    pub folder: PathBuf,
    trace: PathBuf,
    snap: PathBuf,
    /// The text, where strace makes it.
    pub text: PathBuf,
}

impl Names {
    /// `output` is the name with its folder; without one, the command's name here.
    ///
    /// # Errors
    ///
    /// A name that is none; a file of it that exists, unless it may be replaced (`force`).
    pub fn new(output: Option<&Path>, command: &[OsString], force: bool) -> anyhow::Result<Names> {
        let command = command.first().context("there is no command to record")?;
        let path = match output {
            Some(output) => named(output)?,
            None => PathBuf::from(Path::new(command).file_name().unwrap_or(command)),
        };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.filter(|name| !matches!(name.as_str(), ".trace" | ".snap" | ".strace"));
        let name = name.with_context(|| format!("{} is no name of a recording", path.display()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let with = |ending: &str| folder.join(format!("{name}.{ending}"));
        let (trace, snap, text) = (with("trace.zst"), with("snap.zst"), with("strace.zst"));
        for file in [&trace, &snap, &text] {
            if file.exists() && !force {
                bail!("{} exists already: name another recording with -o, or --force", file.display());
            }
        }
        Ok(Names { folder: folder.to_owned(), name, trace, snap, text })
    }

    /// Makes sure that the files of the kernel's tracing can be written.
    ///
    /// # Errors
    ///
    /// What the system says to a try.
    pub fn check(&self) -> anyhow::Result<()> {
        output(&self.trace)?;
        output(&self.snap).map(drop)
    }
}

/// The folder and name of the recording that a user calls `output`, perhaps by the name of one of its files.
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

/// What stands in the files, and what it cost.
#[derive(Debug)]
pub struct Written {
    /// The one with the events, which names the other.
    pub file: PathBuf,
    /// All lines that are no remarks.
    pub events: u64,
    /// System calls among them.
    pub calls: u64,
    /// Page faults among them.
    pub faults: u64,
    /// Threads that there have been.
    pub tasks: u32,
    /// Snapshots of address spaces.
    pub snapshots: usize,
    /// How long the command ran, in nanoseconds.
    pub wall: u64,
    /// Of these, nanoseconds for which something stood still for snapshots.
    pub stopped: u64,
    /// Snapshots that could not be taken, and why the first could not.
    pub failed: Option<(u64, String)>,
    /// Why it was not seen what arguments point to, if so.
    pub unseen: Option<anyhow::Error>,
    /// Of the files, packed.
    pub bytes: u64,
}

/// Puts everything together and writes it. `rename` holds beginnings of paths, and what stands in their
/// place.
///
/// # Errors
///
/// Those of reading what was collected and of writing.
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
        // Changes of limits are not seen without: then it is better to know nothing of them.
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
            "the kernel traced nothing of process {process}: it may know it by another number, outside of this container"
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
    // An older recording is replaced whole or not at all.
    let (snap_file, trace_file) = (output(&names.snap)?, output(&names.trace)?);
    let saved = Output::write_together(&[(&snap_file, &snap), (&trace_file, &trace)]);
    saved.with_context(|| cannot_write(&names.trace))?;
    written.bytes = (trace.len() + snap.len()) as u64;
    Ok(written)
}

/// Nanoseconds for which something stood still for snapshots.
fn stopped(snapshots: &[Snapshot], frozen: &[(u64, u64)]) -> u64 {
    let own = snapshots.iter().filter(|snapshot| snapshot.why != freehold_trace::Why::Freeze);
    own.map(|snapshot| snapshot.taken.1 - snapshot.taken.0).sum::<u64>()
        + frozen.iter().map(|(_, ns)| ns).sum::<u64>()
}

impl Written {
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

/// Bytes of the pages of the file at `path`, if it lies in a file system of huge ones. Of one that is gone,
/// its folder tells.
fn huge_pages(path: &str) -> Option<u64> {
    const HUGETLBFS: i64 = 0x958458f6;
    let path = Path::new(path);
    let found = statfs(path).or_else(|_| statfs(path.parent().unwrap_or(path))).ok()?;
    (found.f_type == HUGETLBFS).then_some(found.f_bsize as u64)
}

/// A file of the recording that can be written.
pub fn output(path: &Path) -> anyhow::Result<Output> {
    Output::new(path).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// A path with the first beginning that is to be renamed.
fn renamed(path: &str, rename: &[(String, String)]) -> String {
    let begins =
        rename.iter().find_map(|(from, to)| Some(format!("{to}{}", path.strip_prefix(from.as_str())?)));
    begins.unwrap_or_else(|| path.to_owned())
}
