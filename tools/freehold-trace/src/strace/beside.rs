//! Calls of one address space that overlap in time: finds the calls *beside* each call ([`Beside`]).
//!
//! strace does not show the order in which overlapping calls took effect, but its lines show which calls
//! overlap: each of the two calls begins on a line before the line on which the other call returns. `mod.rs`
//! asks for the calls beside each call that it reports ([`Recent::beside`]), and stores their common
//! addresses in `Call::beside`. `plan/unknown.rs` then treats these addresses as unknown. The *extent* of a
//! call is the addresses that the call concerns, with the kind of change there. For a call that has not
//! returned, the reader looks ahead to its resumed line.
//!
//! A missed overlap leads to false differences in a replay; a superfluous overlap only leads to answers that
//! are not compared. The test is `overlapping_calls_are_reported_with_their_common_range` (`tests.rs`). A new
//! call on mappings or locks needs a case in `Extent::has`. A call that changes mappings also needs a case in
//! `Extent::of`.

use super::call::{self, Made};
use super::feed::Feed;
use super::tasks::Tasks;
use super::text;
use crate::addresses::{MAP_FIXED, MAP_FIXED_NOREPLACE, PAGE, addresses};
use crate::error::ReadError;
use crate::{Beside, CallName};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of reported calls that are kept for later calls that overlap them.
const MAX_CALLS: usize = 256;

/// The *extent* of a call: the addresses that it concerns, and its changes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The ranges. Either range may be empty.
    ranges: [Range<u64>; 2],
    /// True if the call changes or may have changed mappings or access rights there.
    changes: bool,
    /// True if the call changes which memory is locked.
    locks: bool,
    /// The range that the call has unmapped.
    freed: Range<u64>,
}

/// A reported call.
struct Past {
    /// The task.
    pid: u32,
    /// The number of the address space (`Tasks::space`).
    space: u32,
    /// The line in which the call returned.
    ended: u32,
    extent: Extent,
}

/// The calls that later calls may overlap.
#[derive(Default)]
pub(super) struct Recent {
    /// Reported calls that later calls may overlap, oldest first.
    calls: VecDeque<Past>,
    /// Calls that have returned and are not reported yet, because other calls must be reported first. The
    /// last of these calls is reported next. `None` stands for a call without an extent.
    waiting: Vec<Option<Past>>,
}

impl Recent {
    /// Notes a returned call of `pid` that is not reported yet. Calls that are reported before
    /// [`leave`](Self::leave) precede the noted call.
    pub(super) fn enter(&mut self, (pid, made): (u32, &Made<'_>), tasks: &Tasks) {
        let past = Extent::of(made).zip(tasks.space(pid));
        self.waiting.push(past.map(|(extent, space)| Past { pid, space, ended: 0, extent }));
    }

    /// Removes the last waiting call, which is reported next.
    pub(super) fn leave(&mut self) {
        self.waiting.pop();
    }

    /// Returns the addresses that a call of `pid` has in common with calls that overlap it. The call lasted
    /// from line `begun` to line `ended`. Also keeps the call for later calls.
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
        // Only a call that is already in progress can overlap this call and return later.
        if !alone {
            if self.calls.len() == MAX_CALLS {
                self.calls.pop_front();
            }
            self.calls.push_back(Past { pid, space, ended, extent });
        }
        Ok(found)
    }
}

/// Returns true if the begun call of `pid` unmaps or may unmap a part of `range`.
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

/// Returns the extent of the begun call of `pid`. Reads ahead to the resumed line of the call. Returns `None`
/// if that line is not found or the call has no extent.
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

/// Returns true if calls of this name change which memory is locked.
fn locks(name: CallName) -> bool {
    use CallName::*;
    matches!(name, Mlock | Mlock2 | Munlock | Mlockall | Munlockall)
}

impl Extent {
    /// Returns true if calls of this name have an extent.
    fn has(name: CallName) -> bool {
        use CallName::*;
        locks(name)
            || matches!(name, Mmap | Munmap | Mremap | Mprotect | PkeyMprotect | RemapFilePages)
            || matches!(name, Shmat | Shmdt | Madvise | Mbind | Msync | Mincore | Ioctl)
    }

    /// Returns the extent of a call that has returned. Returns `None` if the call concerns the whole address
    /// space, or no addresses.
    fn of(made: &Made<'_>) -> Option<Extent> {
        use CallName::*;
        /// An assumed upper limit of the size of a System V segment, which strace does not show.
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
            // With an old length of zero, the call makes a second mapping of the memory at the address. The
            // first page of this memory stands for all of it.
            at.end = at.start.saturating_add(PAGE);
        }
        let freed = value.map_or(0..0, |_| freed);
        Some(Extent { ranges: [at, to], changes, locks, freed })
    }

    /// Adds to `found` the addresses that both calls concern, if at least one of the calls changes mappings
    /// or locks. `later` is true if the other call is later in the recording.
    fn meet(&self, other: &Extent, later: bool, found: &mut Vec<Beside>) {
        let maps = self.changes || other.changes;
        if !maps && !self.locks && !other.locks {
            return;
        }
        // mlockall and munlockall concern all memory. A concurrent unmapping does not change their effect.
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
