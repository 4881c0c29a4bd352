//! Compares the resident pages of files, VMA by VMA. `compare.rs` calls [`compare`] after the VMAs themselves
//! are equal.
//!
//! A fault on a file also maps pages around its own, depending on the page cache, which is not recorded. The
//! pages that a VMA must have on Linux, and the pages that it may have, are still known:
//!
//! | page | on Linux |
//! | --- | --- |
//! | a recorded fault ended at the page, and no later event freed it | present; otherwise a difference |
//! | the engine has the page near a recorded fault, or a call brought it in | present; or absent because it was locked, marked for readahead, or not in the page cache |
//! | the engine has the page, and no recorded event brings it in | present; otherwise a difference |
//! | the engine does not have the page | absent; or it came with a [large folio](Judge::came_with_a_folio), or [another writer](Judge::came_from_elsewhere) wrote it; otherwise a difference |
//!
//! Single pages are compared if the snapshot lists pages. The resident size is compared with the smallest and
//! the largest size that the table allows. Bounds that are too wide hide defects. `resident_tests.rs`
//! therefore tests [`Judge`], which decides about one VMA, with pages inside and outside the bounds.

use super::compare::{FILE_PAGE, Finding};
use super::findings::Findings;
use super::image::Image;
use super::maps::maps_around;
use super::outcome::Tally;
use super::reached::{AROUND, MappedBy};
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
/// Number of pages that one page table maps. A fault maps nothing beyond its page table.
const TABLE: u64 = 512;
/// Largest number of pages of a folio that one page table holds, as a power of two.
const MAX_ORDER: u32 = 9;
/// Bit in a page's category: the page is present, not swapped out.
const PRESENT: u32 = 8;
/// Indices of the sizes of resident and of anonymous pages among a VMA's sizes.
const RESIDENT_KB: usize = 0;
const ANONYMOUS_KB: usize = 6;

/// Numbers of VMAs of files in a snapshot, by the result of their comparison.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// VMAs that were compared; `as_linux` counts those with the same pages.
    vmas: Tally,
    /// VMAs with fewer or more pages on Linux than in the engine, if the recording does not determine these
    /// pages.
    fewer: u64,
    more: u64,
    /// VMAs that were not compared, or not completely.
    haste: u64,
    no_list: u64,
    untold: u64,
    /// Pages that reclaim may have taken away here.
    taken: u64,
}

impl Resident {
    /// Adds these numbers to the findings.
    pub(super) fn count(&self, found: &mut Findings) {
        found.file_vmas.all += self.vmas.all;
        found.file_vmas.as_linux += self.vmas.as_linux;
        found.set_aside(aside::KERNEL, self.untold);
        found.set_aside(aside::RECLAIMED, self.taken);
        let counts = [
            (aside::FEWER, self.fewer),
            (aside::MORE, self.more),
            (aside::HASTE, self.haste),
            (aside::NO_LIST, self.no_list),
        ];
        counts.into_iter().for_each(|(why, count)| found.set_aside(why, count));
    }
}

/// Compares Linux's pages of files with those of the engine, in the VMAs `areas`, which both sides have.
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
    // A fork may or may not have copied PTEs of private mappings.
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
                reached
                    .extend(unsure.within(mapped.vma.clone()).flatten().map(|page| (page, MappedBy::Along)));
                reached
            },
            // In limited memory, reclaim may have taken a page of a file away.
            touched: &|page| {
                world.short.is_none() && image.touched.contains(page, Of::File) && !unsure.contains(page)
            },
            has_part_of: &|pages| mapped.has_part_of(image.process(), pages),
            mapped: &mapped.shape,
            vma: mapped.vma.clone(),
        };
        let (verdict, difference) = judge.judge();
        resident.vmas.count(verdict == Verdict::default() && difference.is_none());
        resident.fewer += u64::from(verdict.fewer);
        resident.more += u64::from(verdict.more);
        match world.short {
            Some(_) => resident.taken += verdict.untold,
            None => resident.untold += verdict.untold,
        }
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
    /// The page numbers of the VMA.
    vma: Range<u64>,
    shape: Shape,
}

/// The part of a file that a VMA maps.
#[derive(Clone, Copy)]
struct Shape {
    /// Page of the file at the start of the VMA.
    index: u64,
    /// Length of the file in pages, if known.
    length: Option<u64>,
    shmem: bool,
    /// The replay determines which pages of a block are brought in together.
    tells_blocks: bool,
}

impl Mapped {
    /// Returns the file mapping of `area`, if it maps a file.
    fn at(world: &World, process: &Process, area: &Area) -> Option<Mapped> {
        let vma = process.find_vma(area.start)?;
        // Huge pages of a pool do not count as resident.
        let file = vma.object().file().filter(|file| file.mapping().huge_page_size().is_none())?.clone();
        let shape = Shape {
            index: vma.pgoff_of(area.start).get(),
            length: world.length(&file),
            shmem: file.mapping().is_shmem(),
            tells_blocks: file.mapping().is_shmem() && world.tells_blocks(file.mapping()),
        };
        Some(Mapped { file, vma: area.start / PAGE..area.end / PAGE, shape })
    }

    /// Returns the pages of the file that the engine has in this VMA.
    fn pages(&self, process: &Process) -> Runs {
        let mut pages = Runs::default();
        process.pagemap(self.vma.start * PAGE..self.vma.end * PAGE, |present| {
            if present.kind == PageKind::File {
                pages.push(present.range.start() / PAGE..present.range.end() / PAGE);
            }
        });
        pages
    }

    /// Returns true if the engine has one of `pages`, or a copy, in this VMA or in a VMA that was split from
    /// it.
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

/// The page numbers that a snapshot lists.
#[derive(Clone, Copy)]
struct List<'s> {
    files: &'s Runs,
    /// The pages of files and all other pages.
    present: &'s Runs,
}

/// Linux's values for a VMA.
struct Linux<'s> {
    /// Size of the file's resident pages.
    kilobytes: u64,
    list: Option<List<'s>>,
}

/// Compares one VMA.
struct Judge<'j> {
    vma: Range<u64>,
    mapped: &'j Shape,
    linux: Linux<'j>,
    /// Pages of the file that the engine has with the page cache that `files.rs` assumes.
    ours: &'j Runs,
    /// Pages that recorded faults and calls explain.
    reached: &'j BTreeMap<u64, MappedBy>,
    /// Returns true if a recorded event has touched this page.
    touched: &'j dyn Fn(u64) -> bool,
    /// Returns true if the engine has one of these pages, or a copy, in the same mapping.
    has_part_of: &'j dyn Fn(Range<u64>) -> bool,
}

/// Differences in the pages of a VMA that the recording leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdict {
    fewer: bool,
    more: bool,
    /// Number of pages that no recorded event has touched.
    untold: u64,
}

/// A state that Linux cannot have had, according to the recording.
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

    /// Compares the resident size that the kernel reports.
    fn by_size(&self) -> Verdict {
        let ours = self.ours.count() * PAGE_KB;
        Verdict { fewer: self.linux.kilobytes < ours, more: self.linux.kilobytes > ours, untold: 0 }
    }

    /// Returns the pages that must be present. A page that a later write has copied is no longer a page of
    /// the file.
    fn proven(&self) -> impl Iterator<Item = u64> {
        let faulted =
            self.reached.iter().filter(|(_, how)| **how == MappedBy::Faulted).map(|(page, _)| *page);
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

    /// Returns a difference if the size that the kernel reports is not within `pages`.
    fn size_outside(&self, pages: std::ops::RangeInclusive<u64>) -> Option<Difference> {
        let (least, most) = (pages.start() * PAGE_KB, pages.end() * PAGE_KB);
        let within = (least..=most).contains(&self.linux.kilobytes);
        (!within).then(|| Difference {
            page: self.vma.start,
            linux: format!("{} kB of the file at {:x}", self.linux.kilobytes, self.vma.start * PAGE),
            freehold: format!("at least {least} kB, at most {most} kB"),
        })
    }

    /// Returns true if Linux may have had `page`, which the engine does not have.
    fn is_explained(&self, page: u64, list: &List<'_>) -> bool {
        self.came_with_a_folio(page, list) || self.came_from_elsewhere(page)
    }

    /// Returns true if `page` may have come with a large folio. Since Linux 6.18 a fault maps the whole
    /// folio, as far as the VMA and the page table reach. Older kernels map only the part of the folio that
    /// is in the window of the fault. The number of pages of a folio is a power of two, and the folio is
    /// aligned to its size in the file. The result is therefore true if a fault mapped a part of such a block
    /// around `page`, and if all pages of the block within the VMA and the file are present.
    fn came_with_a_folio(&self, page: u64, list: &List<'_>) -> bool {
        let index = page - self.vma.start + self.mapped.index;
        // The engine has no pages beyond the end of a file. On Linux the rest of a block lies there.
        if self.mapped.tells_blocks && self.mapped.length.is_none_or(|length| index < length) {
            return false;
        }
        let table = page & !(TABLE - 1)..(page & !(TABLE - 1)) + TABLE;
        (1..=MAX_ORDER).map(|order| 1 << order).any(|pages: u64| {
            let first = index & !(pages - 1);
            let end = (first + pages).min(self.mapped.length.unwrap_or(u64::MAX)).max(index + 1);
            let block =
                page.saturating_sub(index - first).max(table.start)..(page + (end - index)).min(table.end);
            let own = block.start.max(self.vma.start)..block.end.min(self.vma.end);
            list.present.contains_all(&own) && (self.has_part_of)(block)
        })
    }

    /// Returns true if an event that is not recorded may have brought in `page` near a fault. In shared
    /// memory, such events are write calls, faults of the kernel, and faults in other address spaces. The
    /// order of faults in different address spaces is not known. A file may also have been longer during the
    /// run than after it.
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
