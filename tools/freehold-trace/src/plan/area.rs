//! The VMAs of an address space in the planner's model, with the properties that decide whether neighbours
//! merge.
//!
//! [`Areas`] is a part of [`Space`](super::space::Space). The model determines which VMAs a call or a first
//! write changes, including neighbours that Linux merges or examines. Tasks that change the same VMAs must
//! keep the recording's order, so a wrong merge here loses or adds a wait between tasks. `calls.rs` and
//! `mremap.rs` apply calls in the order of the recording. Most changes use [`Areas::insert`] and
//! [`Areas::change`], which merge as Linux does. [`Areas::put`] and [`Areas::iter_mut`] never merge.
//!
//! A new property that keeps VMAs apart needs a flag or field of [`Area`] and, for a field, a line in
//! `Area::alike`. The test `vmas_of_the_model_equal_those_of_snapshots` (`tests.rs`) compares the VMAs with
//! the recorded snapshots.

use super::descriptors::Access;
use super::order::Stamp;
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) use crate::addresses::{PAGE, page_of, whole_pages};

/// Bits of [`Area::flags`]. Neighbours with different bits do not merge. Most bits are the `VmFlags` codes of
/// smaps that calls can change.
pub(crate) mod flag {
    macro_rules! flags {
        ($($name:ident $code:literal $bit:literal,)*) => {
            $(pub(crate) const $name: u32 = 1 << $bit;)*
            /// Returns the flag with this smaps code.
            pub(crate) fn of_code(code: [u8; 2]) -> u32 {
                match &code {
                    $($code => $name,)*
                    _ => 0,
                }
            }
        };
    }
    flags! {
        ACCOUNT b"ac" 0,
        DONTCOPY b"dc" 1,
        MERGEABLE b"mg" 2,
        HUGEPAGE b"hg" 3,
        NOHUGEPAGE b"nh" 4,
        DONTDUMP b"dd" 5,
        WIPEONFORK b"wf" 6,
        RANDOM b"rr" 7,
        SEQUENTIAL b"sr" 8,
        LOCKED b"lo" 9,
        LOCKONFAULT b"lf" 10,
        GROWSDOWN b"gd" 11,
        NORESERVE b"nr" 12,
        PFNMAP b"pf" 13,
        IO b"io" 14,
        DONTEXPAND b"de" 15,
        SYNC b"sf" 16,
        MISSING b"um" 17,
        PROTECTED b"uw" 18,
        MINOR b"ui" 19,
        HUGETLB b"ht" 20,
    }
    /// The flags of memory that mlock has locked.
    pub(crate) const LOCKS: u32 = LOCKED | LOCKONFAULT;
    /// A segment of System V shared memory. smaps has no code for it.
    pub(crate) const SEGMENT: u32 = 1 << 31;
    /// Private memory of /dev/zero: anonymous, although a file is mapped.
    pub(crate) const ZEROES: u32 = 1 << 30;
    /// Memory that is registered with a userfaultfd.
    pub(crate) const REGISTERED: u32 = MISSING | PROTECTED | MINOR;
    /// Memory that never merges.
    pub(crate) const SPECIAL: u32 = PFNMAP | IO | DONTEXPAND;
}

/// The purpose of a VMA, as far as the recording shows it: by the call that created the VMA, or by the VMA's
/// name in the kernel's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// No known purpose.
    #[default]
    Any,
    /// The heap of brk.
    Heap,
    /// A stack: memory that grows downwards, or was mapped as a stack.
    Stack,
    /// A mapping that the kernel made for itself, such as `[vdso]`.
    Special,
}

/// A VMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// The end of the addresses. The key in [`Areas`] is the start.
    pub(crate) end: u64,
    /// `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    pub(crate) prot: u8,
    /// True for a shared mapping.
    pub(crate) shared: bool,
    /// The purpose of the VMA, for pictures. The purpose does not affect merging or any other decision of the
    /// plan.
    pub(crate) purpose: Purpose,
    /// The number of the mapped file or System V segment in the plan.
    pub(crate) file: Option<u32>,
    /// The access mode with which the mapped file was opened, and the number of that open, if known.
    pub(crate) access: Option<Access>,
    /// The offset of the first byte in the file. For anonymous memory, the address that the first byte had at
    /// the first write.
    pub(crate) offset: u64,
    /// Bits of [`flag`].
    pub(crate) flags: u32,
    /// Memory policy and protection key as one number; 0 is the default of both.
    pub(crate) tag: u64,
    /// The number of the userfaultfd that the VMA is registered with.
    pub(crate) userfaultfd: Option<u32>,
    /// The family of the VMA's anonymous pages. 0 if the VMA was never written.
    pub(crate) family: u32,
    /// True if the VMA did not get the family from a fork. Linux then lets the VMA merge with a VMA that has
    /// no family.
    pub(crate) alone: bool,
    /// The step that gave the VMA its family.
    pub(crate) family_by: Stamp,
    /// The last step that changed this VMA, or that examined it to decide a merge.
    pub(crate) last: Stamp,
}

impl Area {
    /// Returns private anonymous memory that was never written.
    pub(crate) fn anonymous(range: Range<u64>, prot: u8, flags: u32, last: Stamp) -> Area {
        Area {
            end: range.end,
            prot,
            shared: false,
            purpose: Purpose::Any,
            file: None,
            access: None,
            offset: range.start,
            flags,
            tag: 0,
            userfaultfd: None,
            family: 0,
            alone: true,
            family_by: Stamp::START,
            last,
        }
    }

    /// Returns the VMA that the kernel's list shows. `file` is the mapped file.
    pub(crate) fn shown(shown: &crate::Area, file: Option<u32>) -> Area {
        let purpose = match shown.name.as_str() {
            "[heap]" => Purpose::Heap,
            "[stack]" => Purpose::Stack,
            name if name.starts_with('[') && !name.starts_with("[anon") => Purpose::Special,
            _ => Purpose::Any,
        };
        let flags = shown.flags.iter().flatten().fold(0, |sum, code| sum | flag::of_code(*code));
        // The name shows these properties. They have no smaps code, or smaps was not read.
        let told = match shown.name.starts_with("/SYSV") {
            true => flag::SEGMENT,
            false if purpose == Purpose::Stack => flag::GROWSDOWN,
            false => 0,
        };
        let anonymous = Area::anonymous(shown.start..shown.end, shown.prot, flags | told, Stamp::START);
        let offset = if file.is_some() { shown.offset } else { shown.start };
        Area { shared: shown.shared, purpose, file, offset, ..anonymous }
    }

    /// Returns the part of this area that begins at `at`. The whole area starts at `start`.
    fn from(&self, start: u64, at: u64) -> Area {
        Area { offset: self.offset.wrapping_add(at - start), ..self.clone() }
    }

    /// Returns true if the VMA is private anonymous memory.
    pub(crate) fn is_anonymous(&self) -> bool {
        !self.shared && (self.file.is_none() || self.flags & flag::ZEROES != 0)
    }

    /// Removes the registration with a userfaultfd.
    pub(crate) fn unregister(&mut self) {
        self.flags &= !flag::REGISTERED;
        self.userfaultfd = None;
    }

    /// Returns true if the properties allow a merge of neighbours. The caller also compares the offsets and
    /// the families.
    fn alike(&self, right: &Area) -> bool {
        self.prot == right.prot
            && self.shared == right.shared
            && self.flags == right.flags
            && self.file == right.file
            && self.access == right.access
            && self.tag == right.tag
            && self.userfaultfd == right.userfaultfd
            && self.flags & flag::SPECIAL == 0
    }
}

/// Returns true if the families of two areas allow a merge: the families are equal, or one family is absent
/// and the other did not come from a fork. Each argument is a family with its [`Area::alone`].
fn families_agree(a: (u32, bool), b: (u32, bool)) -> bool {
    match (a.0, b.0) {
        (0, 0) => true,
        (0, _) => b.1,
        (_, 0) => a.1,
        (a, b) => a == b,
    }
}

/// The VMAs of an address space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Areas {
    /// The areas by start. They do not overlap.
    by_start: BTreeMap<u64, Area>,
}

impl Areas {
    /// Returns the area that contains `at`, with its start.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.by_start.range(..=at).next_back()?;
        (at < area.end).then_some((*start, area))
    }

    /// Returns true if every address of `range` is mapped.
    pub(crate) fn cover(&self, range: &Range<u64>) -> bool {
        let end = self
            .within(range)
            .fold(range.start, |end, (start, area)| if start <= end { area.end } else { end });
        end >= range.end
    }

    /// Returns the areas that overlap `range` with their starts, in ascending order.
    pub(crate) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Area)> {
        let from = self.find(range.start).map_or(range.start, |(start, _)| start);
        self.by_start.range(from..range.end.max(from)).map(|(start, area)| (*start, area))
    }

    /// Returns the remaining mappings of the System V segment that was attached at `at`, in ascending order.
    pub(crate) fn attached(&self, at: u64) -> Vec<Range<u64>> {
        let mut file = None;
        let of_it = |(start, area): &(&u64, &Area)| {
            area.flags & flag::SEGMENT != 0
                && **start - at == area.offset
                && *file.get_or_insert(area.file) == area.file
        };
        self.by_start.range(at..).filter(of_it).map(|(start, area)| *start..area.end).collect()
    }

    /// Returns the first area that starts above `at`, with its start.
    pub(crate) fn next(&self, at: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.by_start.range(at.checked_add(1)?..).next()?;
        Some((*start, area))
    }

    /// Returns the last area that starts below `at`, with its start.
    pub(crate) fn prev(&self, at: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.by_start.range(..at).next_back()?;
        Some((*start, area))
    }

    /// Returns the area that contains `at` for modification. The area stays separate from its neighbours.
    pub(crate) fn find_mut(&mut self, at: u64) -> Option<&mut Area> {
        let (_, area) = self.by_start.range_mut(..=at).next_back()?;
        (at < area.end).then_some(area)
    }

    /// Returns the areas that overlap `range` or are adjacent to it, with their starts.
    pub(crate) fn touching(&mut self, range: &Range<u64>) -> impl Iterator<Item = (u64, &mut Area)> {
        let first = self.prev(range.start).filter(|(_, area)| area.end >= range.start);
        let from = first.map_or(range.start, |(start, _)| start);
        self.by_start.range_mut(from..=range.end.max(from)).map(|(start, area)| (*start, area))
    }

    /// Returns all areas with their starts, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Area)> {
        self.by_start.iter().map(|(start, area)| (*start, area))
    }

    /// Returns all areas for modification. Neighbours stay separate even if the changes make them equal.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Area> {
        self.by_start.values_mut()
    }

    /// Inserts an area into a free range without merging.
    pub(crate) fn put(&mut self, start: u64, area: Area) {
        self.by_start.insert(start, area);
    }

    /// Removes the area that starts at `start`.
    pub(crate) fn take(&mut self, start: u64) -> Option<(u64, Area)> {
        self.by_start.remove_entry(&start)
    }

    /// Splits the area that contains `at`, so that an area begins at `at`.
    fn split(&mut self, at: u64) {
        let Some((start, area)) = self.find(at).filter(|(start, _)| *start < at) else { return };
        let right = area.from(start, at);
        if let Some(left) = self.by_start.get_mut(&start) {
            left.end = at;
        }
        self.by_start.insert(at, right);
    }

    /// Unmaps `range`.
    pub(crate) fn unmap(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, _)) = self.by_start.range(range.clone()).next() {
            self.by_start.remove(&start);
        }
    }

    /// Returns true if the two areas are adjacent, equal in all properties, and contiguous in their file.
    /// Families are not compared.
    fn joins(&self, left: (u64, &Area), right: (u64, &Area)) -> bool {
        left.1.end == right.0
            && left.1.alike(right.1)
            && left.1.offset.wrapping_add(left.1.end - left.0) == right.1.offset
    }

    /// Inserts a new mapping into a free range, and merges it with its neighbours if Linux does.
    pub(crate) fn insert(&mut self, start: u64, area: Area) {
        let stamp = area.last;
        let left = self
            .prev(start)
            .filter(|&left| self.joins(left, (start, &area)) && (left.1.family == 0 || left.1.alone))
            .map(|(at, left)| (at, left.family, left.alone));
        let right = self
            .by_start
            .get(&area.end)
            .filter(|right| {
                self.joins((start, &area), (area.end, right)) && (right.family == 0 || right.alone)
            })
            .map(|right| (right.family, right.alone))
            .filter(|right| left.is_none_or(|left| left.1 == 0 || right.0 == 0 || left.1 == right.0));
        let end = area.end;
        match (left, right) {
            (Some((at, ..)), Some(_)) => self.join(at, end, stamp),
            (Some((at, ..)), None) => {
                if let Some(left) = self.by_start.get_mut(&at) {
                    left.end = end;
                }
            }
            (None, Some(_)) => {
                if let Some(mut right) = self.by_start.remove(&end) {
                    right.offset = area.offset;
                    self.by_start.insert(start, right);
                }
            }
            (None, None) => {
                self.by_start.insert(start, area);
            }
        }
    }

    /// Merges the area that starts at `left` with the area that starts at `right`. The result covers the gap
    /// between the two.
    fn join(&mut self, left: u64, right: u64, stamp: Stamp) {
        let Some(gone) = self.by_start.remove(&right) else { return };
        let Some(kept) = self.by_start.get_mut(&left) else { return };
        if kept.family == 0 {
            (kept.family, kept.alone) = (gone.family, gone.alone);
        }
        if kept.family != 0 {
            kept.family_by = stamp;
        }
        kept.end = gone.end;
    }

    /// Merges the two adjacent areas that meet at `at`, if Linux would merge them after a change of flags.
    pub(crate) fn merge_at(&mut self, at: u64, stamp: Stamp) {
        let Some(right) = self.by_start.get(&at) else { return };
        let Some(left) = self.prev(at) else { return };
        let agree = families_agree((left.1.family, left.1.alone), (right.family, right.alone));
        if self.joins(left, (at, right)) && agree {
            let left = left.0;
            self.join(left, at, stamp);
        }
    }

    /// Applies `change` to each area in `range`, and merges the results with their neighbours. As in Linux,
    /// an area that the range cuts is split only if `change` changes the area.
    ///
    /// Stops at the first hole, unless `skips` is true. Returns true if there was no hole.
    pub(crate) fn change(
        &mut self,
        range: &Range<u64>,
        skips: bool,
        stamp: Stamp,
        mut change: impl FnMut(&mut Area),
    ) -> bool {
        let (mut at, mut whole) = (range.start, true);
        while at < range.end {
            let Some((_, area)) = self.find(at) else {
                whole = false;
                match self.next(at) {
                    Some((next, _)) if skips => at = next,
                    _ => break,
                }
                continue;
            };
            let end = area.end.min(range.end);
            let mut changed = area.clone();
            change(&mut changed);
            if changed != *area {
                self.split(at);
                self.split(end);
                if let Some(area) = self.by_start.get_mut(&at) {
                    change(area);
                }
                self.merge_at(at, stamp);
                self.merge_at(end, stamp);
            }
            at = end;
        }
        whole
    }

    /// Returns the family that a first write at `at` gives its area: the family of a neighbour if area and
    /// neighbour could merge, otherwise `fresh`.
    pub(crate) fn family_for(&self, at: u64, fresh: u32) -> u32 {
        let Some((start, area)) = self.find(at) else { return fresh };
        let next = self.by_start.get(&area.end).map(|next| ((start, area), (area.end, next), next));
        let prev = self.prev(start).map(|prev| (prev, (start, area), prev.1));
        // The access rights may differ, because an mprotect may make them equal later.
        let suits = |left: (u64, &Area), right: (u64, &Area)| {
            left.1.end == right.0
                && left.1.file == right.1.file
                && left.1.shared == right.1.shared
                && left.1.flags == right.1.flags
                && left.1.offset.wrapping_add(left.1.end - left.0) == right.1.offset
        };
        [next, prev]
            .into_iter()
            .flatten()
            .find(|(left, right, other)| other.family != 0 && other.alone && suits(*left, *right))
            .map_or(fresh, |(.., other)| other.family)
    }
}
