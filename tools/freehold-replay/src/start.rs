//! The address space that an exec creates, as its snapshot shows it.
//!
//! 1. [`start`] maps every VMA of the snapshot into a new process of the engine, and returns the pages that
//!    were present.
//! 2. `perform.rs` then touches these pages on its CPU.
//! 3. [`merge`] allows merging of equal pages if the image has inherited it.
//!
//! The snapshot is taken at the end of the execve, before the program runs. A start of unknown contents has
//! an empty address space; [`assume`] maps memory when a later call shows that it existed. A property of VMAs
//! that an execve can create belongs in `map`; if [`start`] cannot map a VMA, the replay reports a difference
//! of the exec.

use super::layout;
use super::world::{MEMORY, Mapped, World};
use anyhow::{Context, Result, bail};
use freehold::fault::Access;
use freehold::vma::flags::VmFlags;
use freehold::{
    call::Advice,
    space::{MapFlags, Prot},
};
use freehold_machine::Process;
use freehold_trace::plan::{Access as Opening, Start};
use freehold_trace::{Area, Snapshot};
use std::ops::Range;

const PAGE: u64 = 4096;
/// The bit of a file's page in a page's category (`Pages::categories`).
const FILE_PAGE: u32 = 4;
/// The bit of the zero page in a page's category.
const ZERO_PAGE: u32 = 32;
/// Name of the kernel's own page, which is not a VMA.
const VSYSCALL: &str = "[vsyscall]";

/// Page numbers to touch, with the kind of access.
pub(super) type Present = Vec<(Range<u64>, Access)>;

/// Maps the areas of the start. Returns the pages that were present; the program's CPU must touch them.
pub(super) fn start(world: &World, start: &Start) -> Result<(Process, Present)> {
    let config = world.config();
    let config = match layout::base(start) {
        Some((base, layout)) => config.mmap_base(Some(base)).layout(layout),
        None => config,
    };
    let process = Process::new(&world.engine, &config)?;
    let Start::Shown(snapshot) = start else { return Ok((process, Vec::new())) };
    for area in snapshot.areas.iter().filter(|area| area.name != VSYSCALL) {
        map(world, &process, area)
            .with_context(|| format!("{:x}-{:x} {}", area.start, area.end, area.name))?;
    }
    Ok((process, present(snapshot)?))
}

/// Maps one VMA of the snapshot, with its file if it has one.
fn map(world: &World, process: &Process, area: &Area) -> Result<()> {
    let len = area.end - area.start;
    let prot = Prot::from_bits_retain(u64::from(area.prot));
    let sharing = if area.shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let has = |code: &[u8; 2]| has(area, code);
    let mut flags = sharing | MapFlags::FIXED_NOREPLACE;
    let at = match world.named(&area.name) {
        None => {
            flags |= MapFlags::ANONYMOUS;
            flags.set(MapFlags::GROWSDOWN, has(b"gd") || area.name == "[stack]");
            flags.set(MapFlags::NORESERVE, has(b"nr"));
            process.mmap(area.start, len, prot, flags, None, 0)?
        }
        Some(Mapped::File(file)) => {
            let opening = Opening { read: true, write: !area.shared || has(b"mw"), open: None };
            process.mmap(area.start, len, prot, flags, file.file(Some(opening)).as_ref(), area.offset)?
        }
        Some(Mapped::Segment(_)) => bail!("a segment is attached after an exec"),
        Some(Mapped::Special(special)) => {
            process.install_special(area.start, len, special_flags(area), special)?
        }
    };
    if at != area.start {
        bail!("mapped at {at:#x}");
    }
    Ok(())
}

/// Returns true if smaps showed this flag.
fn has(area: &Area, code: &[u8; 2]) -> bool {
    area.flags.as_ref().is_some_and(|flags| flags.contains(code))
}

/// Returns true if the image has inherited merging of equal pages. No call of the new program has marked
/// memory yet.
pub(super) fn shows_merging(start: &Start) -> bool {
    matches!(start, Start::Shown(snapshot) if snapshot.areas.iter().any(|area| has(area, b"mg")))
}

/// Allows merging of equal pages in the new image of `process`, except in VMAs without the flag `mg` in the
/// snapshot. The stack is such a VMA, because the kernel creates it before the attribute is inherited.
///
/// # Errors
/// Fails if the engine refuses.
pub(super) fn merge(process: &Process, start: &Start) -> Result<()> {
    process.set_memory_merge(true)?;
    let Start::Shown(snapshot) = start else { return Ok(()) };
    for area in snapshot.areas.iter().filter(|area| area.name != VSYSCALL && !has(area, b"mg")) {
        process.madvise(area.start, area.end - area.start, Advice::Unmergeable)?;
    }
    Ok(())
}

/// Returns the flags of a special mapping from its smaps flags.
fn special_flags(area: &Area) -> VmFlags {
    let codes = area.flags.iter().flatten();
    codes.fold(VmFlags::empty(), |sum, code| sum | VmFlags::of_smaps_name(code).unwrap_or(VmFlags::empty()))
}

/// Returns the private pages that were present. The kernel wrote these pages while it created the image.
fn present(snapshot: &Snapshot) -> Result<Present> {
    let mut touches = Present::new();
    let mut count = 0;
    let mut areas = snapshot.areas.iter().peekable();
    for run in snapshot.pages.iter().filter(|run| run.categories & FILE_PAGE == 0) {
        let access = if run.categories & ZERO_PAGE != 0 { Access::READ } else { Access::WRITE };
        let end = run.first.saturating_add(run.count);
        while areas.next_if(|area| area.end / PAGE <= run.first).is_some() {}
        for area in areas.clone().take_while(|area| area.start / PAGE < end) {
            let pages = run.first.max(area.start / PAGE)..end.min(area.end / PAGE);
            count += pages.end - pages.start;
            touches.push((pages, access));
        }
    }
    if count > MEMORY / PAGE {
        bail!("the snapshot has {count} present pages, more than the machine");
    }
    Ok(touches)
}

/// Maps memory that existed before the recording began.
pub(super) fn assume(process: &Process, range: &Range<u64>) {
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED_NOREPLACE;
    // A failure changes only the answer of the call that needs the memory, and that answer is not compared.
    let _ = process.mmap(range.start, range.end - range.start, Prot::READ | Prot::WRITE, flags, None, 0);
}
