//! Mappings at a fixed place that were refused when what was there had gone.
//!
//! There are two answers, for two questions. What surely went is taken away in the engine too, where it stays
//! because the engine refuses earlier; for that the call's arguments have to prove it. Where an address space
//! is known in part, what perhaps went is forgotten instead; there a doubt suffices, which would be far too
//! much to take away.

use super::space::{HUGE, MAP_ANONYMOUS, MAP_GROWSDOWN, MAP_HUGETLB, replaces};
use crate::addresses::span;
use crate::{Call, Returned};
use std::ops::Range;

const EPERM: u16 = 1;
const EAGAIN: u16 = 11;
const ENOMEM: u16 = 12;
const EINVAL: u16 = 22;
const EOPNOTSUPP: u16 = 95;

/// What an mmap of huge pages of `page` bytes, in whole pages of theirs, surely emptied: Linux finds a want
/// of pages that late, and that the file's offset is none of its pages'.
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

/// What any mmap perhaps emptied: Linux takes it away before it asks the file, and finds some limits before,
/// others behind. Of huge pages, which the file may have, that is more than was asked for.
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
