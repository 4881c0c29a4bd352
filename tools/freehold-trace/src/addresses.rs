//! The addresses that a call concerns.
//!
//! For each call, only [`addresses`] determines which arguments are an address and a length, and how the
//! kernel rounds them. The planner (`plan/`) and the reader of strace output (`strace/beside.rs`,
//! `strace/call.rs`) use it. The function uses only the call; the planner's model contains the VMAs at these
//! addresses. The test at the end checks the rounding of each kind of call; a wrong range here loses or adds
//! waits between tasks. A new call on memory needs an arm in [`addresses`] and a line in the test.

use crate::CallName;
use crate::operation::uffdio;
use std::ops::Range;

/// Size of a page in bytes.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const MAP_FIXED: u64 = 0x10;
pub(crate) const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
pub(crate) const MREMAP_FIXED: u64 = 2;

/// Returns the start of the page that contains `address`.
pub(crate) fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Rounds `bytes` up to whole pages. Returns `None` if the result overflows.
pub(crate) fn whole_pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

/// Returns the range that begins with the page of `start` and has the length `len`, rounded up to whole
/// pages. The range is empty if the length or the end overflows: Linux then treats the length as zero, or
/// refuses the call and changes nothing.
pub(crate) fn span(start: u64, len: u64) -> Range<u64> {
    let start = page_of(start);
    start..whole_pages(len).and_then(|len| start.checked_add(len)).unwrap_or(start)
}

/// Returns the pages that mlock, mlock2 or munlock covers, for `len` bytes from `start` on.
pub(crate) fn lock_range(start: u64, len: u64) -> Range<u64> {
    // A sum that overflows wraps to a small length, as on Linux.
    span(start, len.wrapping_add(start & (PAGE - 1)))
}

/// Returns the range that a call concerns, and the range to which the call moves memory. Either range may be
/// empty. Returns `None` if the call names no addresses.
///
/// `value` is the result of a call that succeeded. `segment` is the size in bytes of the segment that shmat
/// attaches or shmdt detaches.
pub(crate) fn addresses(
    name: CallName,
    args: &[u64; 6],
    value: Option<u64>,
    segment: u64,
) -> Option<[Range<u64>; 2]> {
    use CallName::*;
    let [first, second, third, flags, fifth, _] = *args;
    let at = match name {
        Mmap => match value {
            Some(at) => span(at, second),
            None if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 => span(first, second),
            None => span(first, 0),
        },
        Mremap => {
            let to = value.or((flags & MREMAP_FIXED != 0).then_some(fifth));
            return Some([span(first, second), to.map_or(0..0, |to| span(to, third))]);
        }
        Munmap | Mprotect | PkeyMprotect | Mbind | Madvise | Msync | Mincore => span(first, second),
        Mlock | Mlock2 | Munlock => lock_range(first, second),
        RemapFilePages => page_of(first)..page_of(first).saturating_add(page_of(second)),
        Ioctl if uffdio::registers(second) => span(third, flags),
        Shmat => match value.unwrap_or(second) {
            0 => 0..0,
            at => span(at, segment),
        },
        Shmdt => span(first, segment),
        _ => return None,
    };
    Some([at, 0..0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_concern_whole_pages() {
        use CallName::*;
        let of = |name, args: [u64; 6], value| addresses(name, &args, value, PAGE);
        let at = |range| Some([range, 0..0]);
        assert_eq!(of(Mmap, [0, 1, 0, 0, 0, 0], Some(0x5000)), at(0x5000..0x6000));
        assert_eq!(of(Mmap, [0x5000, 1, 0, 0, 0, 0], None), at(0x5000..0x5000));
        assert_eq!(of(Mmap, [0x5000, 1, 0, MAP_FIXED_NOREPLACE, 0, 0], None), at(0x5000..0x6000));
        assert_eq!(of(Mlock, [0x5fff, 2, 0, 0, 0, 0], Some(0)), at(0x5000..0x7000));
        // Linux locks one page here. No page ends above the last address.
        assert_eq!(of(Mlock, [0x5002, u64::MAX, 0, 0, 0, 0], Some(0)), at(0x5000..0x6000));
        assert_eq!(of(Mlock, [0x5001, u64::MAX, 0, 0, 0, 0], Some(0)), at(0x5000..0x5000));
        assert_eq!(of(Mbind, [0x5000, u64::MAX, 0, 0, 0, 0], Some(0)), at(0x5000..0x5000));
        assert_eq!(of(Mprotect, [0x5000, !0x1fff, 0, 0, 0, 0], None), at(0x5000..0x5000));
        assert_eq!(of(RemapFilePages, [0x5fff, 0x1fff, 0, 0, 0, 0], Some(0)), at(0x5000..0x6000));
        let refused = of(Mremap, [0x5000, 0x1000, 0x2000, MREMAP_FIXED, 0x9000, 0], None);
        assert_eq!(refused, Some([0x5000..0x6000, 0x9000..0xb000]));
        assert_eq!(of(Brk, [0x5000; 6], Some(0x5000)), None);
    }
}
