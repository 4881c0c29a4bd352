//! Calls that were under way at the same time in one address space. In which order they took effect, a text
//! does not tell; but it tells which these are: those of which one has begun, in a line of its own, before
//! the other returned, and the other too.

use super::call::{self, Made};
use super::feed::Feed;
use super::tasks::Tasks;
use super::text;
use crate::addresses::{MAP_FIXED, MAP_FIXED_NOREPLACE, PAGE, addresses};
use crate::error::ReadError;
use crate::{Beside, CallName};
use std::collections::VecDeque;
use std::ops::Range;

/// How many calls are remembered that a later one may have been beside.
const MOST: usize = 256;

/// What a call concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Addresses; either may be empty.
    ranges: [Range<u64>; 2],
    /// It changes, or may have changed, what is mapped there or with which rights.
    changes: bool,
    /// It changes which memory is locked.
    locks: bool,
    /// What it has made free.
    freed: Range<u64>,
}

/// A call that has been reported.
struct Past {
    pid: u32,
    space: u32,
    /// Line in which it returned.
    ended: u32,
    extent: Extent,
}

/// The last calls that have been reported while others were under way.
#[derive(Default)]
pub(super) struct Recent {
    calls: VecDeque<Past>,
    /// Calls that have returned, and wait for the report of what must have come before.
    waiting: Vec<Option<Past>>,
}

impl Recent {
    /// A call of `pid` has returned, and is reported after those that come until it [leaves](Self::leave).
    pub(super) fn enter(&mut self, (pid, made): (u32, &Made<'_>), tasks: &Tasks) {
        let past = Extent::of(made).zip(tasks.space(pid));
        self.waiting.push(past.map(|(extent, space)| Past { pid, space, ended: 0, extent }));
    }

    /// The last call that waits is reported next.
    pub(super) fn leave(&mut self) {
        self.waiting.pop();
    }

    /// What a call of `pid`, from line `begun` to line `ended`, concerns together with others that were under
    /// way.
    pub(super) fn beside(
        &mut self,
        (pid, made): (u32, &Made<'_>),
        (begun, ended): (u32, u32),
        tasks: &mut Tasks,
        feed: &mut Feed,
    ) -> Result<Vec<Beside>, ReadError> {
        let (Some(extent), Some(space)) = (Extent::of(made), tasks.space(pid)) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let earlier =
            self.calls.iter().filter(|past| past.space == space && past.pid != pid && past.ended > begun);
        earlier.for_each(|past| extent.meet(&past.extent, false, &mut found));
        let waiting = self.waiting.iter().flatten().filter(|past| past.space == space && past.pid != pid);
        let mut alone = true;
        for past in waiting {
            alone = false;
            extent.meet(&past.extent, true, &mut found);
        }
        let others: Vec<u32> = tasks.within(space).filter(|other| *other != pid).collect();
        for other in others {
            alone = false;
            if let Some(other) = until_its_end(other, tasks, feed)? {
                extent.meet(&other, true, &mut found);
            }
        }
        // Only a call that is under way now can begin before this one's end, and end later.
        if !alone {
            if self.calls.len() == MOST {
                self.calls.pop_front();
            }
            self.calls.push_back(Past { pid, space, ended, extent });
        }
        Ok(found)
    }
}

/// Whether the call of `pid` that is under way will have made some of `range` free, or may have.
pub(super) fn made_free(
    pid: u32,
    range: Range<u64>,
    tasks: &mut Tasks,
    feed: &mut Feed,
) -> Result<bool, ReadError> {
    let extent = until_its_end(pid, tasks, feed)?;
    let meets = |freed: &Range<u64>| freed.start.max(range.start) < freed.end.min(range.end);
    Ok(extent.is_none_or(|extent| meets(&extent.freed)))
}

/// What the call of `pid` that is under way will have been.
fn until_its_end(pid: u32, tasks: &mut Tasks, feed: &mut Feed) -> Result<Option<Extent>, ReadError> {
    let Some(begun) = tasks.get_mut(pid).and_then(|task| task.begun.as_mut()) else { return Ok(None) };
    if begun.extent.is_none() {
        let rest = if Extent::has(begun.name) { feed.see_return(pid)? } else { None };
        let whole = rest.map(|rest| text::without_mark([&begun.text[..], &rest].concat()));
        let made = whole.as_deref().and_then(|text| call::read(text, begun.name).ok());
        begun.extent = Some(made.and_then(|made| Extent::of(&made)));
    }
    Ok(begun.extent.clone().flatten())
}

/// Whether calls of this name change which memory is locked.
fn locks(name: CallName) -> bool {
    use CallName::*;
    matches!(name, Mlock | Mlock2 | Munlock | Mlockall | Munlockall)
}

impl Extent {
    /// Whether calls of this name concern addresses that they name.
    fn has(name: CallName) -> bool {
        use CallName::*;
        locks(name)
            || matches!(name, Mmap | Munmap | Mremap | Mprotect | PkeyMprotect | RemapFilePages)
            || matches!(name, Shmat | Shmdt | Madvise | Mbind | Msync | Mincore | Ioctl)
    }

    /// What a call that has returned concerns; none if it is about the address space as a whole, or about
    /// none.
    fn of(made: &Made<'_>) -> Option<Extent> {
        use CallName::*;
        /// Longer than a segment is; its length is not in the text.
        const SEGMENT: u64 = 64 << 20;
        let (name, value, locks) = (made.name, made.value(), locks(made.name));
        if matches!(name, Mlockall | Munlockall) {
            return Some(Extent { ranges: [0..u64::MAX, 0..0], changes: false, locks, freed: 0..0 });
        }
        let [mut at, mut to] = addresses(name, &made.args, value, SEGMENT)?;
        let changes = match (name, value) {
            (Mmap, None) => match made.args[3] {
                flags if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == 0 => return None,
                flags => flags & MAP_FIXED != 0,
            },
            (Shmat, None) => return None,
            _ => {
                matches!(name, Mmap | Munmap | Mremap | Mprotect | PkeyMprotect | RemapFilePages)
                    || matches!(name, Shmat | Shmdt | Ioctl)
            }
        };
        let mut freed = if matches!(name, Munmap | Mremap | Shmdt) { at.clone() } else { 0..0 };
        if name == Mremap && value == Some(made.args[0]) {
            at.end = at.end.max(to.end);
            freed = to.end..at.end;
            to = 0..0;
        } else if name == Mremap && at.is_empty() {
            // It makes a second mapping of what is at the first page.
            at.end = at.start.saturating_add(PAGE);
        }
        let freed = value.map_or(0..0, |_| freed);
        Some(Extent { ranges: [at, to], changes, locks, freed })
    }

    /// Adds to `found` what both concern, if one changes something.
    fn meet(&self, other: &Extent, later: bool, found: &mut Vec<Beside>) {
        let maps = self.changes || other.changes;
        if !maps && !self.locks && !other.locks {
            return;
        }
        // All memory is locked, or none: where what is unmapped meanwhile was, that changes nothing.
        let whole = self.ranges[0].end == u64::MAX || other.ranges[0].end == u64::MAX;
        for (own, theirs) in
            self.ranges.iter().flat_map(|own| other.ranges.iter().map(move |theirs| (own, theirs)))
        {
            let range = own.start.max(theirs.start)..own.end.min(theirs.end);
            if range.start < range.end {
                found.push(Beside { range, later, locks: !maps || whole });
            }
        }
    }
}
