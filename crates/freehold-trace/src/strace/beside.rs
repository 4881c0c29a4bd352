//! Calls that were under way at the same time in one address space. In which order they took effect, a text
//! does not tell; but it tells which these are: those of which one has begun, in a line of its own, before
//! the other returned, and the other too.

use super::call::{self, Made};
use super::feed::Feed;
use super::tasks::Tasks;
use super::text;
use crate::error::ReadError;
use crate::operation::uffdio;
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
        const MAP_FIXED: u64 = 0x10;
        const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
        const MREMAP_FIXED: u64 = 2;
        /// Longer than a segment is; its length is not in the text.
        const SEGMENT: u64 = 64 << 20;
        if !Self::has(made.name) {
            return None;
        }
        let span =
            |start: u64, len: u64| start & !0xfff..start.saturating_add(len).saturating_add(0xfff) & !0xfff;
        let [first, second, third, fourth, fifth, _] = made.args;
        let value = made.value();
        let none = 0..0;
        let (ranges, changes) = match made.name {
            CallName::Mlockall | CallName::Munlockall => ([0..u64::MAX, none], false),
            CallName::Mmap => match value {
                Some(at) => ([span(at, second), none], true),
                None if fourth & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 => {
                    ([span(first, second), none], fourth & MAP_FIXED != 0)
                }
                None => return None,
            },
            CallName::Mremap if value == Some(first) => ([span(first, second.max(third)), none], true),
            CallName::Mremap => {
                let to = value.or((fourth & MREMAP_FIXED != 0).then_some(fifth));
                ([span(first, second.max(1)), to.map_or(none, |to| span(to, third))], true)
            }
            CallName::Ioctl if uffdio::registers(second) => ([span(third, fourth), none], true),
            CallName::Ioctl => return None,
            CallName::Shmat => ([span(value?, SEGMENT), none], true),
            CallName::Shmdt => ([span(first, SEGMENT), none], true),
            name => {
                let changes = matches!(
                    name,
                    CallName::Munmap | CallName::Mprotect | CallName::PkeyMprotect | CallName::RemapFilePages
                );
                ([span(first, second), none], changes)
            }
        };
        let freed = match made.name {
            _ if value.is_none() => 0..0,
            CallName::Munmap | CallName::Shmdt => ranges[0].clone(),
            CallName::Mremap if value == Some(first) => span(first, third).end..ranges[0].end,
            CallName::Mremap => ranges[0].clone(),
            _ => 0..0,
        };
        Some(Extent { ranges, changes, locks: locks(made.name), freed })
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
