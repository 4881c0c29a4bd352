//! The effect of an mremap on the planner's model of an address space.
//!
//! A successful mremap moves, grows or shrinks the VMAs of the source, with the merges and splits that Linux
//! makes. `calls.rs` calls [`Space::mremap`] for each planned mremap. Unknown memory (`unknown.rs`) has no
//! VMAs in the model: an mremap of unknown memory only unmaps the ranges that the call replaces or removes.
//! The tests (`mremap_tests.rs`) have a drawing of a move of several VMAs.

use super::area::{Area, flag};
use super::space::{AppliedCall, MREMAP_DONTUNMAP, Space};
use crate::addresses::{MREMAP_FIXED, span};
use crate::operation::uffdio;
use std::ops::Range;

impl Space {
    /// Applies an mremap that a signal interrupted. Before the interruption, the call had unmapped the target
    /// and, if the memory shrinks, the tail of the source.
    pub(super) fn interrupted_mremap(&mut self, args: &[u64; 6]) {
        let [at, old, new, flags, target, _] = *args;
        if flags & MREMAP_FIXED != 0 {
            self.areas.unmap(&span(target, new));
            if old > new {
                let tail = span(at, new).end..span(at, old).end;
                self.areas.unmap(&tail);
            }
        }
    }

    /// Applies a successful mremap, from its arguments and the new address.
    pub(super) fn mremap(&mut self, applied: &mut AppliedCall<'_>) {
        let Some(to) = applied.call.returned.value() else { return };
        let [at, old, new, flags, ..] = applied.call.args;
        let (source, target) = (span(at, old), span(to, new));
        let at = source.start;
        if target.is_empty() {
            return;
        }
        let Some((start, area)) = self.areas.find(at) else {
            return self.move_unknown(&source, &target, flags);
        };
        if target.start == at && flags & MREMAP_FIXED == 0 {
            if target.end < source.end {
                return self.areas.unmap(&(target.end..source.end));
            }
            if target.end > source.end {
                let mut added =
                    Area { end: target.end, family: 0, alone: true, last: applied.stamp, ..area.clone() };
                added.offset = added.offset.wrapping_add(source.end - start);
                self.areas.insert(source.end, added);
            }
            return;
        }
        let bytes = target.end - target.start;
        if flags & MREMAP_FIXED == 0 || source.end - at != bytes {
            return self.move_area(source, target, applied);
        }
        // Several VMAs are moved one by one. The gaps between the VMAs also exist in the target, and mappings
        // in the gaps of the target stay.
        let pieces: Vec<Range<u64>> =
            self.areas.within(&source).map(|(start, area)| start.max(at)..area.end.min(source.end)).collect();
        for piece in pieces {
            let place = |addr: u64| target.start + (addr - at);
            let target = place(piece.start)..place(piece.end);
            self.move_area(piece, target, applied);
        }
    }

    /// Moves the part of an area at `source` to `target`. If `target` is longer than `source`, the moved part
    /// grows to the length of `target`.
    fn move_area(&mut self, source: Range<u64>, target: Range<u64>, applied: &AppliedCall<'_>) {
        let flags = applied.call.args[3];
        let (at, to) = (source.start, target.start);
        let Some((start, area)) = self.areas.find(at) else { return };
        let registered = area.userfaultfd;
        let mut moved = Area { last: applied.stamp, ..area.clone() };
        moved.offset = moved.offset.wrapping_add(at - start);
        if flags & MREMAP_FIXED != 0 {
            self.areas.unmap(&target);
        }
        // With UFFD_FEATURE_EVENT_REMAP moved memory stays registered.
        self.doubts_userfaultfd |= registered.is_some_and(|by| !self.features.contains_key(&by));
        if registered.is_none_or(|by| !self.has(by, uffdio::EVENT_REMAP)) {
            moved.unregister();
        }
        // An anonymous VMA that was never written has its address as the offset.
        if (moved.file.is_none() || moved.is_anonymous()) && moved.family == 0 {
            moved.offset = to;
        }
        if flags & MREMAP_DONTUNMAP == 0 {
            self.areas.unmap(&source);
        } else if let Some(left) = self.areas.find_mut(at) {
            // Linux unlocks these pages without subtracting them from the number of locked pages.
            self.doubts_locked |= left.flags & flag::LOCKED != 0;
            left.flags &= !flag::LOCKS;
            left.family = 0;
        }
        moved.end = target.end;
        self.areas.put(to, moved);
        self.areas.merge_at(target.end, applied.stamp);
        self.areas.merge_at(to, applied.stamp);
    }

    /// Unmaps the ranges that an mremap of unknown memory replaces or removes.
    fn move_unknown(&mut self, source: &Range<u64>, target: &Range<u64>, flags: u64) {
        if target.start != source.start {
            self.areas.unmap(target);
        }
        if flags & MREMAP_DONTUNMAP == 0 {
            let stays = if target.start == source.start { target.end } else { source.start };
            self.areas.unmap(&(stays.min(source.end)..source.end));
        }
    }
}

#[cfg(test)]
#[path = "mremap_tests.rs"]
mod tests;
