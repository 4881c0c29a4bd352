//! Calls of mmap with a fixed address that Linux refused after it had removed the old mappings there.
//!
//! This file has two rules. First ([`has_emptied`], for `syscall.rs`): the replay unmaps mappings in the
//! engine if the call's arguments prove that Linux removed them. The engine itself keeps the mappings,
//! because the engine refuses the call before it removes anything. Second ([`may_have_emptied`], for
//! `unknown.rs`): in an address space with unknown addresses, the plan forgets all mappings that Linux may
//! have removed. The range of the second rule may be larger than the range of the first.
//! `refused_mapping_of_huge_pages_unmaps_its_range` (`freehold-replay/tests/strace.rs`) checks the first
//! rule.

use super::space::{HUGE, MAP_ANONYMOUS, MAP_GROWSDOWN, MAP_HUGETLB, replaces};
use crate::addresses::span;
use crate::{Call, Returned};
use std::ops::Range;

const EPERM: u16 = 1;
const EAGAIN: u16 = 11;
const ENOMEM: u16 = 12;
const EINVAL: u16 = 22;
const EOPNOTSUPP: u16 = 95;

/// Returns the range that an mmap of huge pages certainly unmapped. `page` is the size of the huge pages in
/// bytes. Linux checks only after the unmapping whether the pool has enough pages, and whether the file's
/// offset is aligned.
pub(super) fn has_emptied(call: &Call, page: u64) -> Option<Range<u64>> {
    const MAP_TYPE: u64 = 0xf;
    let [at, len, _, flags, _, offset] = call.args;
    let sound = at.is_multiple_of(page) && matches!(flags & MAP_TYPE, 1..=3) && flags & MAP_GROWSDOWN == 0;
    let late = match call.returned {
        Returned::Error(ENOMEM) => true,
        Returned::Error(EINVAL) => !offset.is_multiple_of(page),
        _ => false,
    };
    (replaces(call) && sound && late).then(|| span(at, len))
}

/// Returns the range that an mmap possibly unmapped. Linux unmaps the range before it calls the file's own
/// mmap operation. Linux checks some limits before the unmapping, and other limits after the unmapping. If
/// the file has huge pages, the range is larger than requested.
pub(super) fn may_have_emptied(call: &Call) -> Option<Range<u64>> {
    let [at, len, _, flags, ..] = call.args;
    let of_a_file = flags & MAP_ANONYMOUS == 0 || flags & MAP_HUGETLB != 0;
    let late = match call.returned {
        Returned::Error(EPERM | EAGAIN | EINVAL | EOPNOTSUPP) => of_a_file,
        Returned::Error(ENOMEM) => true,
        _ => false,
    };
    (replaces(call) && late)
        .then(|| span(at, len.checked_next_multiple_of(HUGE).filter(|_| of_a_file).unwrap_or(len)))
}
