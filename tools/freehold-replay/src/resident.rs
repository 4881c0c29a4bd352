//! The resident pages of files, VMA by VMA.
//!
//! Which pages a fault on a file maps beside its own depends on the page cache, which is not recorded. What a
//! VMA must hold on Linux, and what it may, is known all the same:
//!
//! | page | on Linux |
//! | --- | --- |
//! | a recorded fault ended there, and nothing took it since | present; else a difference |
//! | the engine has it, and it lies around a recorded fault, or a call brought it | present; or it was not in the page cache, locked, or marked for readahead |
//! | the engine has it, and nothing that was recorded brings it | present; else a difference |
//! | the engine does not have it | absent; or it came with a [large folio](Judge::came_with_a_folio), or [others](Judge::came_from_elsewhere) wrote it; else a difference |
//!
//! So pages are compared one by one where the snapshot lists them, and the resident size with the least and
//! the most that this allows.

use super::compare::{FILE_PAGE, Finding};
use super::findings::Findings;
use super::image::Image;
use super::maps::maps_around;
use super::outcome::Tally;
use super::reached::{AROUND, How};
use super::runs::Runs;
use super::touched::Of;
use super::world::World;
use freehold::counted::Counted;
use freehold::file::File;
use freehold::report::pagemap::PageKind;
use freehold_machine::{Machine, Process};
use freehold_trace::plan::aside;
use freehold_trace::{Area, Snapshot};
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;
const PAGE_KB: u64 = PAGE / 1024;
/// Pages of a page table, beyond which a fault maps nothing.
const TABLE: u64 = 512;
/// The most pages of a large folio that a page table holds, as a power of two.
const MOST_ORDER: u32 = 9;
/// A page's category: it is there, not swapped out.
const PRESENT: u32 = 8;
/// Which of a VMA's sizes are that of its resident and of its anonymous pages.
const RESIDENT_KB: usize = 0;
const ANONYMOUS_KB: usize = 6;

/// How many VMAs of files a snapshot has, and how they compare.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// Compared, and those with the same pages.
    vmas: Tally,
    /// With fewer pages, or more, that the recording does not determine.
    fewer: u64,
    more: u64,
    /// Not compared, or not fully.
    haste: u64,
    no_list: u64,
    untold: u64,
}

impl Resident {
    /// Adds it to what was found.
    pub(super) fn count(&self, found: &mut Findings) {
        found.file_vmas.all += self.vmas.all;
        found.file_vmas.as_linux += self.vmas.as_linux;
        found.set_aside(aside::KERNEL, self.untold);
        let counts = [
            (aside::FEWER, self.fewer),
            (aside::MORE, self.more),
            (aside::HASTE, self.haste),
            (aside::NO_LIST, self.no_list),
        ];
        counts.into_iter().for_each(|(why, count)| found.set_aside(why, count));
    }
}

/// Compares the pages of files in `areas`, which are the VMAs of both sides, with those that the engine has.
pub(super) fn compare(
    world: &World,
    image: &Image,
    areas: &[&Area],
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) -> Resident {
    let there = snapshot.pages.iter().filter(|run| run.categories & PRESENT != 0);
    let present: Runs = there.clone().map(|run| run.first..run.first + run.count).collect();
    let files = there.filter(|run| run.categories & FILE_PAGE != 0);
    let files: Runs = files.map(|run| run.first..run.first + run.count).collect();
    let listed = !snapshot.pages.is_empty();
    let mut resident = Resident::default();
    // A fork may have copied entries of private mappings, or not.
    let unsure = image.touched.unsure();
    for area in areas {
        let Some(mapped) = Mapped::at(world, image.process(), area) else { continue };
        let Some(sizes) = area.sizes else {
            resident.haste += 1;
            continue;
        };
        let of_file = sizes[RESIDENT_KB].saturating_sub(sizes[ANONYMOUS_KB]);
        let judge = Judge {
            linux: Linux {
                kilobytes: of_file.into(),
                list: listed.then_some(List { files: &files, present: &present }),
            },
            ours: &mapped.pages(image.process()),
            reached: &{
                let mut reached = image.reached.within(mapped.vma.clone());
                reached.extend(unsure.within(mapped.vma.clone()).flatten().map(|page| (page, How::Along)));
                reached
            },
            touched: &|page| image.touched.contains(page, Of::File) && !unsure.contains(page),
            has_part_of: &|pages| mapped.has_part_of(image.process(), pages),
            mapped: &mapped.shape,
            vma: mapped.vma.clone(),
        };
        let (verdict, difference) = judge.judge();
        resident.vmas.count(verdict == Verdict::default() && difference.is_none());
        resident.fewer += u64::from(verdict.fewer);
        resident.more += u64::from(verdict.more);
        resident.untold += verdict.untold;
        resident.no_list += u64::from(!listed);
        findings.extend(difference.map(|difference| Finding {
            what: "pages of a file",
            linux: difference.linux,
            freehold: difference.freehold,
            maps: maps_around(image.process(), difference.page * PAGE),
        }));
    }
    resident
}

/// A VMA that maps a file.
struct Mapped {
    file: Counted<File<Machine>>,
    /// Its pages, by their numbers.
    vma: Range<u64>,
    shape: Shape,
}

/// What of a file a VMA maps.
#[derive(Clone, Copy)]
struct Shape {
    /// The file's page at the VMA's first.
    index: u64,
    /// Pages of the file, where known.
    length: Option<u64>,
    shmem: bool,
    /// Which blocks of it come together is replayed.
    tells_blocks: bool,
}

impl Mapped {
    /// What `area` maps, if it is a file.
    fn at(world: &World, process: &Process, area: &Area) -> Option<Mapped> {
        let vma = process.find_vma(area.start)?;
        // Huge pages of a pool are not counted among what is resident.
        let file = vma.object().file().filter(|file| file.mapping().huge_page_size().is_none())?.clone();
        let shape = Shape {
            index: vma.pgoff_of(area.start).get(),
            length: world.length(&file),
            shmem: file.mapping().is_shmem(),
            tells_blocks: file.mapping().is_shmem() && world.tells_blocks(file.mapping()),
        };
        Some(Mapped { file, vma: area.start / PAGE..area.end / PAGE, shape })
    }

    /// Pages of the file that the engine has there.
    fn pages(&self, process: &Process) -> Runs {
        let mut pages = Runs::default();
        process.pagemap(self.vma.start * PAGE..self.vma.end * PAGE, |present| {
            if present.kind == PageKind::File {
                pages.push(present.range.start() / PAGE..present.range.end() / PAGE);
            }
        });
        pages
    }

    /// Whether the engine has one of `pages`, or a copy of it, in this VMA or in one that was cut off it.
    fn has_part_of(&self, process: &Process, pages: Range<u64>) -> bool {
        let mut runs = Vec::new();
        process.pagemap(pages.start * PAGE..pages.end * PAGE, |present| runs.push(present.range.start()));
        runs.into_iter().any(|at| {
            process.find_vma(at).is_some_and(|vma| {
                let same = vma
                    .object()
                    .file()
                    .is_some_and(|file| Counted::ptr_eq(file.mapping(), self.file.mapping()));
                let index = (at / PAGE).wrapping_sub(self.vma.start).wrapping_add(self.shape.index);
                same && vma.pgoff_of(at).get() == index
            })
        })
    }
}

/// The pages that a snapshot lists, by their numbers.
#[derive(Clone, Copy)]
struct List<'s> {
    files: &'s Runs,
    /// These and all others.
    present: &'s Runs,
}

/// What Linux said of a VMA.
struct Linux<'s> {
    /// Resident pages of the file.
    kilobytes: u64,
    list: Option<List<'s>>,
}

/// Judges one VMA.
struct Judge<'j> {
    vma: Range<u64>,
    mapped: &'j Shape,
    linux: Linux<'j>,
    /// The file's pages that the engine has, with everything in the page cache.
    ours: &'j Runs,
    /// Those that recorded faults and calls explain.
    reached: &'j BTreeMap<u64, How>,
    /// Whether something recorded has touched this page.
    touched: &'j dyn Fn(u64) -> bool,
    /// Whether the engine has one of these pages, or a copy, in the same mapping.
    has_part_of: &'j dyn Fn(Range<u64>) -> bool,
}

/// In what Linux's pages are others than the engine's, as far as the recording does not determine them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdict {
    fewer: bool,
    more: bool,
    /// Pages that nothing recorded has touched.
    untold: u64,
}

/// What Linux cannot have had, going by the recording.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    page: u64,
    linux: String,
    freehold: String,
}

impl Judge<'_> {
    fn judge(&self) -> (Verdict, Option<Difference>) {
        let (least, ours) = (self.proven().count() as u64, self.ours.count());
        let Some(list) = self.linux.list else {
            return (self.by_size(), self.size_outside(least..=self.vma.end - self.vma.start));
        };
        let theirs: Runs = list.files.within(self.vma.clone()).collect();
        let absent = self.proven().find(|page| !theirs.contains(*page));
        let absent = absent.map(|page| self.difference(page, "absent", "present: it was faulted in"));
        let beyond = self.ours.not_in(&theirs).find(|page| !self.reached.contains_key(page));
        let beyond = beyond.map(|page| self.difference(page, "absent", "present: no fault maps it"));
        let more: Vec<u64> = theirs.not_in(self.ours).collect();
        let unexplained: Vec<u64> =
            more.iter().copied().filter(|page| !self.is_explained(*page, &list)).collect();
        let untold = unexplained.iter().filter(|page| !(self.touched)(**page)).count() as u64;
        let unexplained = unexplained.iter().find(|page| (self.touched)(**page));
        let unexplained =
            unexplained.map(|page| self.difference(*page, "present", "absent: no fault maps it"));
        let Verdict { fewer, more: larger, .. } = self.by_size();
        let verdict = Verdict {
            fewer: fewer || self.ours.not_in(&theirs).next().is_some(),
            more: larger || !more.is_empty(),
            untold,
        };
        let size = self.size_outside(least..=ours + more.len() as u64);
        (verdict, absent.or(beyond).or(unexplained).or(size))
    }

    /// What the kernel's own sum says.
    fn by_size(&self) -> Verdict {
        let ours = self.ours.count() * PAGE_KB;
        Verdict { fewer: self.linux.kilobytes < ours, more: self.linux.kilobytes > ours, untold: 0 }
    }

    /// Pages that must be there. What a write has copied since is no page of the file any more.
    fn proven(&self) -> impl Iterator<Item = u64> {
        let faulted = self.reached.iter().filter(|(_, how)| **how == How::Faulted).map(|(page, _)| *page);
        faulted.filter(|page| self.ours.contains(*page))
    }

    fn difference(&self, page: u64, linux: &str, freehold: &str) -> Difference {
        let Range { start, end } = self.vma;
        let place = format!("{:x}-{:x}", start * PAGE, end * PAGE);
        Difference {
            page,
            linux: format!("{} kB in {place}, {:x} {linux}", self.linux.kilobytes, page * PAGE),
            freehold: format!("{} kB, {:x} {freehold}", self.ours.count() * PAGE_KB, page * PAGE),
        }
    }

    /// The kernel's own sum is not within `pages`.
    fn size_outside(&self, pages: std::ops::RangeInclusive<u64>) -> Option<Difference> {
        let (least, most) = (pages.start() * PAGE_KB, pages.end() * PAGE_KB);
        let within = (least..=most).contains(&self.linux.kilobytes);
        (!within).then(|| Difference {
            page: self.vma.start,
            linux: format!("{} kB of the file at {:x}", self.linux.kilobytes, self.vma.start * PAGE),
            freehold: format!("at least {least} kB, at most {most} kB"),
        })
    }

    /// Whether Linux may have had `page`, which the engine does not have.
    fn is_explained(&self, page: u64, list: &List<'_>) -> bool {
        self.came_with_a_folio(page, list) || self.came_from_elsewhere(page)
    }

    /// Since 6.18 a fault maps the whole of a large folio, as far as VMA and page table go; before, what of
    /// it lies in the window. A folio has a power of two of pages and lies at a multiple of that in its
    /// file. So `page` is in such a block of which a fault mapped a part, and then all of it that lies in
    /// the VMA and the file is there.
    fn came_with_a_folio(&self, page: u64, list: &List<'_>) -> bool {
        let index = page - self.vma.start + self.mapped.index;
        // Behind the end of a file the engine has nothing, and Linux the rest of a block.
        if self.mapped.tells_blocks && self.mapped.length.is_none_or(|length| index < length) {
            return false;
        }
        let table = page & !(TABLE - 1)..(page & !(TABLE - 1)) + TABLE;
        (1..=MOST_ORDER).map(|order| 1 << order).any(|pages: u64| {
            let first = index & !(pages - 1);
            let end = (first + pages).min(self.mapped.length.unwrap_or(u64::MAX)).max(index + 1);
            let block =
                page.saturating_sub(index - first).max(table.start)..(page + (end - index)).min(table.end);
            let own = block.start.max(self.vma.start)..block.end.min(self.vma.end);
            list.present.contains_all(&own) && (self.has_part_of)(block)
        })
    }

    /// Shared memory has pages that write calls, unrecorded faults of the kernel or other address spaces
    /// brought in, among which no order is kept; a file may have been longer than it was after the run.
    /// Such a page comes with a fault near it.
    fn came_from_elsewhere(&self, page: u64) -> bool {
        let index = page - self.vma.start + self.mapped.index;
        let around = AROUND / PAGE - 1;
        let near = page.saturating_sub(around).max(self.vma.start)..(page + around + 1).min(self.vma.end);
        let elsewhere = self.mapped.shmem || self.mapped.length.is_some_and(|length| index >= length);
        elsewhere && self.ours.contains_any(&near)
    }
}

#[cfg(test)]
#[path = "resident_tests.rs"]
mod tests;
