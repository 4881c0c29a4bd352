//! Compares an address space with the kernel's snapshot of it: all VMAs, and single pages where pages are
//! private.
//!
//! 1. [`compare`] lists the VMAs of the engine and compares them with the VMAs of the snapshot: addresses,
//!    rights, names, flags.
//! 2. If all VMAs are equal, [`compare`] compares the present private pages page by page, the sizes, and the
//!    pages of files through `resident.rs`.
//! 3. A difference that the recording does not determine is counted under its reason. Every other difference
//!    is a [`Finding`].
//! 4. [`report`] adds the counts and the findings to the worker's [`Findings`].
//!
//! `perform.rs` calls both functions at a step that compares, and `lib.rs` calls them between segments, for
//! frozen processes. The comparison changes nothing, except that memory grows as the snapshot shows
//! (`grown.rs`).
//!
//! In names, *ours* is the engine's side, *theirs* is Linux's, and *untold* means not recorded. If too much
//! counts as not recorded, defects of the engine stay hidden. Therefore `tests/small.rs` also replays
//! snapshots with errors, and the comparison must find each error. A new property of a VMA belongs in both
//! `show_area` and `show_line`, which must give equal texts for equal VMAs.

use super::contents;
use super::findings::Findings;
use super::grown;
use super::image::Image;
use super::maps::maps_around;
use super::outcome::Difference;
use super::refused::{self, is_of_unknown_length};
use super::resident::{self, Resident};
use super::runs::Runs;
use super::touched::Of;
use super::untold::{self, without_untold};
use super::world::{UNNAMED, World, ZEROES, is_of_driver, plain_name, special_name};
use freehold::platform::Platform as _;
use freehold::report::maps::MapLine;
use freehold::report::pagemap::{MarkerKind, PageEntry, PageKind};
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use freehold_trace::plan::aside;
use freehold_trace::{Area, Snapshot};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
/// Bit in a page's category: the page belongs to a file.
pub(super) const FILE_PAGE: u32 = 4;
/// The bit of a present page.
const PRESENT: u32 = 8;
/// The bit of a page in swap.
const SWAPPED: u32 = 16;
/// The bit of the zero page.
const ZERO: u32 = 32;
/// Index of the size of anonymous huge pages among a VMA's sizes.
const HUGE_KB: usize = 7;
/// Number of differences shown for one snapshot.
const SHOWN: usize = 4;

/// Numbers of private pages that only one side has, for a known reason.
#[derive(Default)]
struct PrivatePages {
    /// Pages that Linux may drop and has dropped.
    dropped: u64,
    /// Pages that no recorded event has touched.
    untold: u64,
    /// Pages that a process_madvise with unrecorded ranges may have freed.
    taken: u64,
    /// Pages that their file may have lost, or that may have been beyond its end.
    cut: u64,
    /// Pages that a fork may or may not have copied.
    unsure: Beside,
    /// Pages that were freed lazily, and that reclaim has dropped here.
    lazy: u64,
    /// Pages that reclaim may have replaced by the page of zeroes here.
    zeroes: u64,
    /// Pages of huge pages that the kernel may have taken from a forked child for its parent.
    stolen: u64,
}

/// Numbers of pages that were brought in or freed while a fork ran.
#[derive(Default)]
struct Beside {
    /// Present in Freehold.
    ours: u64,
    /// Present on Linux.
    theirs: u64,
    /// Present on one side only.
    differ: u64,
}

/// Numbers of VMAs of files for which the recording lacks something.
#[derive(Default)]
struct Untold {
    /// The recording lacks the name.
    names: u64,
    /// The recording does not show how the file was opened. Counts shared VMAs that are not writable.
    openings: u64,
    /// The recording does not show whether the VMA was written.
    writes: u64,
    /// The recording does not show which flags a driver set.
    drivers: u64,
}

/// One difference between a snapshot and the engine.
pub(super) struct Finding {
    /// Name of the compared thing.
    pub(super) what: &'static str,
    /// Its value in the snapshot.
    pub(super) linux: String,
    /// Its value in the engine.
    pub(super) freehold: String,
    /// The VMAs of the engine around the difference.
    pub(super) maps: Vec<String>,
}

/// Result of the comparison with a snapshot.
#[derive(Default)]
pub(super) struct Compared {
    /// All differences.
    pub(super) findings: Vec<Finding>,
    /// Private pages that differ for a known reason.
    pages: PrivatePages,
    /// VMAs of files that are compared only in part.
    names: Untold,
    /// VMAs with attributes that the recording does not determine.
    untold: untold::Untold,
    /// Number of VMAs that have grown without a recorded access.
    grown: u64,
    /// Number of VMAs whose huge pages differ from Linux's, if the recording lacks the setting of huge pages.
    huge: u64,
    /// Result of the comparison of the pages of files.
    pub(super) resident: Resident,
    /// Number of VMAs whose huge pages differ, where the recording does not determine which pages are huge.
    unsure_sizes: u64,
}

/// Returns all differences between the address space and `snapshot`. No task may run in the address space
/// during the comparison.
pub(super) fn compare(world: &World, image: &Image, snapshot: &Snapshot) -> Compared {
    let process = image.process();
    let mut compared = Compared::default();
    let findings = &mut compared.findings;
    let (areas, untold) = without_untold(world, image, &snapshot.areas);
    let theirs: Vec<&Area> = areas.iter().filter(|area| area.name != "[vsyscall]").collect();
    compared.grown = grown::as_shown(image, &theirs);
    let ours: Vec<MapLine<Machine>> = process.maps(0).collect();
    compared.names = compare_areas(world, process, &ours, &theirs, findings);
    compared.untold = untold;
    if findings.is_empty() {
        let pages = compare_pages(world, image, &theirs, snapshot, findings);
        compare_sizes(process, &pages, snapshot, findings);
        compared.pages = pages;
        (compared.huge, compared.unsure_sizes) = compare_huge(world, image, &theirs, findings);
        compared.resident = resident::compare(world, image, &theirs, snapshot, findings);
    }
    if world.options.backed
        && let Some((at, word)) = contents::strangers(process, &image.lineage)
    {
        findings.push(Finding {
            what: "contents of private pages",
            linux: "only words written by this process, or by its ancestors before they forked".to_owned(),
            freehold: format!("{word:#x} at {at:#x}"),
            maps: maps_around(process, at),
        });
    }
    compared
}

/// Counts a snapshot, its differences, and the parts that were not compared.
pub(super) fn report(found: &mut Findings, task: u32, snapshot: &Snapshot, line: u32, compared: Compared) {
    let Compared { findings, pages, names, untold, grown, huge, resident, unsure_sizes } = compared;
    found.set_aside(aside::ELSEWHERE, untold.unserved);
    found.set_aside(aside::COPIED, untold.copied);
    found.set_aside(aside::EXECUTED, untold.executed);
    found.set_aside(aside::GROWN, grown);
    found.set_aside(aside::HUGE_SETTING, huge);
    found.set_aside(aside::FILE_NAMES, names.names);
    found.set_aside(aside::HOW_OPENED, names.openings);
    found.set_aside(aside::WRITES, names.writes);
    found.set_aside(aside::DRIVERS, names.drivers);
    found.set_aside(aside::DROPPED, pages.dropped + pages.lazy);
    found.set_aside(aside::KERNEL, pages.untold);
    found.set_aside(aside::RANGES, pages.taken);
    found.set_aside(aside::CUT, pages.cut);
    found.set_aside(aside::BESIDE_FORK, pages.unsure.differ);
    found.set_aside(aside::HUGE_STORES, unsure_sizes);
    found.set_aside(aside::STOLEN, pages.stolen);
    resident.count(found);
    found.snapshots.count(findings.is_empty());
    let more = findings.len().saturating_sub(SHOWN);
    for finding in findings.into_iter().take(SHOWN) {
        found.differ(|| Difference {
            line,
            task,
            what: format!("snapshot {} ({}), {}", snapshot.id, snapshot.comm, finding.what),
            linux: finding.linux,
            freehold: finding.freehold,
            maps: finding.maps,
        });
    }
    found.difference_count += more as u64;
}

/// Compares the VMAs. Returns the number of VMAs whose names, openings, writes or flags are not recorded.
fn compare_areas(
    world: &World,
    process: &Process,
    ours: &[MapLine<Machine>],
    theirs: &[&Area],
    findings: &mut Vec<Finding>,
) -> Untold {
    let drivers = theirs.iter().filter(|area| is_of_driver(&area.name)).count() as u64;
    let mut untold = Untold { drivers, ..Untold::default() };
    compare_drivers(process, ours, theirs, findings);
    let ours = ours.iter().filter(|line| !is_of_driver(line.name.as_str()));
    let theirs = theirs.iter().filter(|area| !is_of_driver(&area.name));
    let (mut our, mut their) = (ours.peekable(), theirs.peekable());
    loop {
        let at = match (our.peek(), their.peek()) {
            (None, None) => return untold,
            (our, their) => {
                let start = our.map_or(u64::MAX, |line| line.start);
                start.min(their.map_or(u64::MAX, |area| area.start))
            }
        };
        let line = our.next_if(|line| line.start == at);
        let area = their.next_if(|area| area.start == at);
        untold.names += u64::from(area.is_some() && line.is_some_and(is_unnamed));
        let told = tells_opening(world, process, at);
        let open = area.filter(|area| !told && area.shared && area.prot & 2 == 0 && area.flags.is_some());
        untold.openings += u64::from(open.is_some());
        let linux = area.map(|area| show_area(area, told));
        let freehold = line.map(|line| show_line(line, area.copied(), told));
        if linux == freehold {
            continue;
        }
        let written = world.unseen_writes && area.is_some_and(|area| !area.shared && area.prot & 2 == 0);
        if written && linux.as_ref().map(|linux| linux.replacen("[ac ", "[", 1)) == freehold {
            untold.writes += 1;
            continue;
        }
        let none = || "no VMA starts here".to_owned();
        findings.push(Finding {
            what: "VMA",
            linux: linux.unwrap_or_else(none),
            freehold: freehold.unwrap_or_else(none),
            maps: maps_around(process, at),
        });
    }
}

/// Compares only the addresses of drivers' mappings: a driver decides everything else about its mappings.
fn compare_drivers(
    process: &Process,
    ours: &[MapLine<Machine>],
    theirs: &[&Area],
    findings: &mut Vec<Finding>,
) {
    let ours = ours.iter().filter(|line| is_of_driver(line.name.as_str()));
    let theirs = theirs.iter().filter(|area| is_of_driver(&area.name));
    let freehold = joined(ours.map(|line| line.start..line.end));
    let linux = joined(theirs.map(|area| area.start..area.end));
    let parted = linux.iter().zip(&freehold).find(|(linux, freehold)| linux != freehold);
    let at = match parted {
        Some((linux, freehold)) => linux.start.min(freehold.start),
        None if linux.len() == freehold.len() => return,
        None => {
            let longer = if linux.len() > freehold.len() { &linux } else { &freehold };
            longer[linux.len().min(freehold.len())].start
        }
    };
    let show = |ranges: &[Range<u64>]| {
        let first = ranges.iter().find(|range| range.end > at);
        first.map_or("no further range".to_owned(), |range| format!("{:x}-{:x}", range.start, range.end))
    };
    findings.push(Finding {
        what: "addresses of drivers' mappings",
        linux: show(&linux),
        freehold: show(&freehold),
        maps: maps_around(process, at),
    });
}

/// Returns the ranges in order, with adjacent ranges joined.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => all.push(range),
        }
    }
    all
}

/// Returns true if the recording does not name the file of this VMA.
fn is_unnamed(line: &MapLine<Machine>) -> bool {
    line.name.as_str().starts_with(UNNAMED)
}

/// Returns true if the recording shows how the file that is mapped at `at` was opened. Returns false for a
/// private mapping, where the way of opening does not matter.
fn tells_opening(world: &World, process: &Process, at: u64) -> bool {
    let vma = process.find_vma(at).filter(|vma| vma.flags().contains(VmFlags::MAYSHARE));
    let file = vma.as_ref().and_then(|vma| vma.object().open_file());
    file.is_some_and(|file| world.tells_opening(file))
}

fn show_prot(prot: u8, shared: bool) -> String {
    let letter = |bit: u8, letter: char| if prot & bit != 0 { letter } else { '-' };
    [letter(1, 'r'), letter(2, 'w'), letter(4, 'x'), if shared { 's' } else { 'p' }].iter().collect()
}

/// Returns true if the flag depends only on the way in which the mapped file was opened. The recording may
/// not show this way. These are the flags `mw` and `sh` of a shared mapping that is not writable.
fn tells_only_of_opening(code: &[u8; 2], shared: bool, prot: u8) -> bool {
    shared && prot & 2 == 0 && matches!(code, b"mw" | b"sh")
}

/// Returns the part of a name that is compared: the name of a file, of a special mapping or of the heap. The
/// name `[stack]` is not compared: if a stack was split, Linux names only the part that contains the initial
/// stack address, which is not recorded.
fn shown_name(name: &str) -> &str {
    match plain_name(name) {
        "-" | "[stack]" => "",
        name if name.starts_with("[anon:") => "",
        name => name,
    }
}

/// Formats the compared properties of a VMA of the snapshot. `told` says that the recording shows how the
/// mapped file was opened.
fn show_area(area: &Area, told: bool) -> String {
    let name = shown_name(&area.name);
    let offset = if name.is_empty() || special_name(name).is_some() { 0 } else { area.offset };
    let codes = area.flags.iter().flatten();
    let mut codes: Vec<_> =
        codes.filter(|code| told || !tells_only_of_opening(code, area.shared, area.prot)).collect();
    codes.sort_unstable();
    show(area.start..area.end, &show_prot(area.prot, area.shared), offset, name, codes.into_iter())
}

/// Formats the compared properties of a VMA of the engine, in the form of [`show_area`]. `beside` is the VMA
/// of the snapshot at this address, if there is one.
fn show_line(line: &MapLine<Machine>, beside: Option<&Area>, told: bool) -> String {
    let has = |flag| line.flags.contains(flag);
    let prot =
        u8::from(has(VmFlags::READ)) | u8::from(has(VmFlags::WRITE)) << 1 | u8::from(has(VmFlags::EXEC)) << 2;
    let name = match beside.filter(|_| is_unnamed(line)) {
        Some(area) => shown_name(&area.name),
        None => shown_name(line.name.as_str()),
    };
    // The recorded kernel has no soft-dirty flag, and a snapshot taken in haste has no flags at all.
    let with_flags = beside.is_none_or(|area| area.flags.is_some());
    let flags = if with_flags { line.flags - VmFlags::SOFTDIRTY } else { VmFlags::empty() };
    let mut codes: Vec<[u8; 2]> =
        flags.smaps_names().filter_map(|name| name.as_bytes().try_into().ok()).collect();
    let shared = has(VmFlags::MAYSHARE);
    codes.retain(|code| told || !tells_only_of_opening(code, shared, prot));
    codes.sort_unstable();
    let offset = if special_name(name).is_some() { 0 } else { line.offset };
    show(line.start..line.end, &show_prot(prot, shared), offset, name, codes.iter())
}

fn show<'c>(
    range: Range<u64>,
    prot: &str,
    offset: u64,
    name: &str,
    codes: impl Iterator<Item = &'c [u8; 2]>,
) -> String {
    let codes: Vec<String> = codes.map(|code| String::from_utf8_lossy(code).into_owned()).collect();
    format!("{:x}-{:x} {prot} {offset:x} {name} [{}]", range.start, range.end, codes.join(" "))
}

/// Returns true if the page at `at` was freed lazily. Linux may drop such a page until the page is written,
/// and a store to the page causes no recorded fault.
fn is_lazily_freed(process: &Process, at: u64) -> bool {
    let frame = process.frame_at(at);
    frame.is_some_and(|pfn| process.engine().platform().frame(pfn).is_lazily_freed())
}

/// Returns true if a page of the area counts as private. `file_page` says that the page belongs to a file.
fn is_private_page(area: &Area, file_page: bool) -> bool {
    !area.shared && (matches!(shown_name(&area.name), "" | "[heap]" | ZEROES) || !file_page)
}

/// Compares private pages. Returns the numbers of pages that only one side has for a known reason.
fn compare_pages(
    world: &World,
    image: &Image,
    areas: &[&Area],
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) -> PrivatePages {
    let process = image.process();
    // A snapshot taken in haste lists no pages.
    if snapshot.pages.is_empty() {
        return PrivatePages::default();
    }
    let (mut ours, mut theirs) = (Runs::default(), Runs::default());
    // Anonymous pages of droppable memory. On Linux, pages that were dropped may be present again as pages of
    // zeroes.
    let (mut may_go, mut kept) = (Runs::default(), Runs::default());
    // The pages that reclaim has taken away, which are still pages of the program.
    let (mut away, mut zeroes) = (Runs::default(), 0);
    let mut runs = snapshot.pages.iter().peekable();
    for area in areas.iter().filter(|area| !area.shared && special_name(&area.name).is_none()) {
        let pages = area.start / PAGE..area.end / PAGE;
        let has = |code| area.flags.as_ref().is_some_and(|flags| flags.contains(code));
        // A swapped-out page has contents too. The kernel also reports guard pages as swapped out.
        let counts = PRESENT | if has(b"gu") { 0 } else { SWAPPED };
        while let Some(run) = runs.peek().filter(|run| run.first < pages.end) {
            let end = run.first.saturating_add(run.count);
            let part = run.first.max(pages.start)..end.min(pages.end);
            let private =
                run.categories & counts != 0 && is_private_page(area, run.categories & FILE_PAGE != 0);
            if part.start < part.end && private {
                if has(b"dp") && run.categories & ZERO == 0 {
                    kept.push(part.clone());
                }
                theirs.push(part);
            }
            if end > pages.end {
                break;
            }
            runs.next();
        }
        if world.short.is_some() {
            for run in swapped(process, area.start..area.end) {
                away.push(run);
            }
        }
        process.pagemap(area.start..area.end, |present| {
            let file_page = !matches!(present.kind, PageKind::Anon);
            if world.short.is_some() && present.kind == PageKind::Zero {
                zeroes += (present.range.end() - present.range.start()) / PAGE;
            }
            if present.kind != PageKind::Special && is_private_page(area, file_page) {
                let pages = present.range.start() / PAGE..present.range.end() / PAGE;
                if has(b"dp") && present.kind == PageKind::Anon {
                    may_go.push(pages.clone());
                }
                ours.push(pages);
            }
        });
    }
    let may_lack = image.touched.may_lack_pages();
    // A call that populates a mapping of a file brings in pages only up to the end of the file, which may be
    // unknown. Only a store proves that a page is present.
    let cut = |page: &u64| {
        image.touched.may_be_cut(*page)
            || is_of_unknown_length(process, page * PAGE) && !image.touched.was_written(*page)
    };
    let doubts_pools = world.doubts_pools.load(Relaxed);
    let stolen = |page: &u64| {
        let huge = refused::huge_page(process, page * PAGE).filter(|_| doubts_pools);
        huge.is_some_and(|pages| !image.touched.was_written_here(&pages))
    };
    let unsure = image.touched.unsure();
    let known = |page: &u64| unsure.contains(*page);
    let lost = |page: &u64| may_lack || may_go.contains(*page) || known(page) || cut(page) || stolen(page);
    // Lazily freed pages, except those that are lost for another reason: each page is counted once.
    let lazy = |page: &u64| !lost(page) && is_lazily_freed(process, page * PAGE);
    let touched = |page: &u64| {
        let file = process.find_vma(page * PAGE).is_some_and(|vma| !vma.is_anonymous());
        image.touched.contains(*page, if file { Of::Copy } else { Of::Anonymous })
    };
    let dropped = |page: &u64| world.short.is_some() && image.heat.may_be_lazy(*page);
    for (at, linux, freehold) in [
        theirs
            .not_in(&ours)
            .find(|page| touched(page) && !unsure.contains(*page) && !away.contains(*page) && !dropped(page))
            .map(|page| (page, "present", "absent")),
        ours.not_in(&theirs).find(|page| !lost(page) && !lazy(page)).map(|page| (page, "absent", "present")),
    ]
    .into_iter()
    .flatten()
    {
        findings.push(Finding {
            what: "private pages",
            linux: format!("{} pages, {:x} {linux}", theirs.count(), at * PAGE),
            freehold: format!("{} pages, {:x} {freehold}", ours.count(), at * PAGE),
            maps: maps_around(process, at * PAGE),
        });
    }
    PrivatePages {
        dropped: (may_go.not_in(&kept).count() + ours.not_in(&theirs).filter(lazy).count()) as u64,
        untold: theirs
            .not_in(&ours)
            .filter(|page| !touched(page) && !unsure.contains(*page) && !away.contains(*page))
            .count() as u64,
        zeroes,
        lazy: theirs.not_in(&ours).filter(|page| touched(page) && dropped(page)).count() as u64,
        taken: ours.not_in(&theirs).filter(|page| may_lack && !may_go.contains(*page)).count() as u64,
        cut: match may_lack {
            true => 0,
            false => ours.not_in(&theirs).filter(|page| cut(page) && !stolen(page)).count() as u64,
        },
        stolen: match may_lack {
            true => 0,
            false => ours.not_in(&theirs).filter(stolen).count() as u64,
        },
        unsure: beside_fork(&ours, &theirs, &unsure),
    }
}

/// Returns the pages in `range` that reclaim has taken away, by number.
fn swapped(process: &Process, range: Range<u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    process.page_entries(range, |run| {
        if run.entry == PageEntry::Marker(MarkerKind::Swap) {
            runs.push(run.range.start() / PAGE..run.range.end() / PAGE);
        }
        ControlFlow::Continue(())
    });
    runs
}

/// Counts, on both sides, the pages that were brought in or freed while a fork ran.
fn beside_fork(ours: &Runs, theirs: &Runs, unsure: &Runs) -> Beside {
    let known = |page: &u64| unsure.contains(*page);
    let count =
        |runs: &Runs| unsure.runs().flat_map(|run| runs.within(run)).map(|run| run.end - run.start).sum();
    let differ = ours.not_in(theirs).filter(known).count() + theirs.not_in(ours).filter(known).count();
    Beside { ours: count(ours), theirs: count(theirs), differ: differ as u64 }
}

/// Compares the resident set size (RssAnon), as far as the recording determines it. The comparison allows for
/// private pages that only one side has for a known reason. A page that no recorded event has touched may be
/// the page of zeroes, which RssAnon does not count.
fn compare_sizes(process: &Process, pages: &PrivatePages, snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let kilobytes = |pages: u64| pages * (PAGE / 1024);
    // RssAnon of Linux has the pages that reclaim has taken away here.
    let rss = process.rss();
    let anon = (rss.anon + rss.swap) as u64;
    let least = anon.saturating_sub(pages.dropped + pages.taken + pages.cut + pages.unsure.ours);
    let most = anon.saturating_sub(pages.dropped + pages.taken + pages.cut)
        + pages.untold
        + pages.unsure.theirs
        + pages.lazy
        + pages.zeroes;
    let ours = kilobytes(least)..=kilobytes(most);
    let theirs = snapshot.status.iter().find(|(name, _)| name == "RssAnon").map(|(_, kb)| *kb);
    if let Some(theirs) = theirs.filter(|theirs| !ours.contains(theirs) && !snapshot.pages.is_empty()) {
        findings.push(Finding {
            what: "RssAnon",
            linux: format!("{theirs} kB"),
            freehold: format!("{} kB", kilobytes(anon)),
            maps: Vec::new(),
        });
    }
}

/// Compares the huge pages of anonymous memory, VMA by VMA. Adds a finding for each difference that the
/// recording determines. Returns two numbers of VMAs that differ without a finding. The first counts VMAs for
/// which the setting of huge pages is not recorded. The second counts VMAs with pages that the recording does
/// not show to be huge or small, if these pages are enough to explain the difference.
fn compare_huge(world: &World, image: &Image, areas: &[&Area], findings: &mut Vec<Finding>) -> (u64, u64) {
    let (process, mut untold, mut not_known) = (image.process(), 0, 0);
    let unsure = image.touched.unsure_size();
    for area in areas {
        let Some(theirs) = area.sizes.map(|sizes| u64::from(sizes[HUGE_KB])) else { continue };
        // Walking the page tables is expensive, and few VMAs have huge pages.
        if theirs == 0 && !area.flags.as_ref().is_some_and(|flags| flags.contains(b"hg")) {
            continue;
        }
        let usage = process.smaps(area.start).next().map(|smap| smap.usage);
        let ours = usage.as_ref().map_or(0, |usage| usage.anonymous_huge / 1024);
        let lazy = usage.map_or(0, |usage| usage.lazy_free / 1024);
        let open: u64 =
            unsure.within(area.start / PAGE..area.end / PAGE).map(|run| run.end - run.start).sum();
        // Linux may have fewer huge pages, because it may have dropped pages that were freed lazily.
        let open = open * (PAGE / 1024) + if ours > theirs { lazy } else { 0 };
        if ours != theirs && !world.tells_huge {
            untold += 1;
        } else if ours != theirs && ours.abs_diff(theirs) <= open {
            not_known += 1;
        } else if ours != theirs {
            findings.push(Finding {
                what: "AnonHugePages",
                linux: format!("{theirs} kB at {:x}", area.start),
                freehold: format!("{ours} kB"),
                maps: maps_around(process, area.start),
            });
        }
    }
    (untold, not_known)
}
