//! The addresses that calls speak of.

use crate::CallName;
use crate::operation::uffdio;
use std::ops::Range;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const MAP_FIXED: u64 = 0x10;
pub(crate) const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
pub(crate) const MREMAP_FIXED: u64 = 2;

/// The first address of the page.
pub(crate) fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// `bytes` in whole pages; none when that does not fit.
pub(crate) fn whole_pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

/// The pages of `len` bytes from the page of `start` on; none if the length or the end overflows. Linux takes
/// such a length for zero, or refuses the call and changes nothing.
pub(crate) fn span(start: u64, len: u64) -> Range<u64> {
    let start = page_of(start);
    start..whole_pages(len).and_then(|len| start.checked_add(len)).unwrap_or(start)
}

/// The pages that a lock of `len` bytes from `start` on touches.
pub(crate) fn lock_range(start: u64, len: u64) -> Range<u64> {
    // As on Linux: a sum that overflows becomes a small length.
    span(start, len.wrapping_add(start & (PAGE - 1)))
}

/// Where lies what a call is about, and where that is put; either may be empty. `value` is what it returned
/// if it succeeded, `segment` the bytes that shmat attaches or shmdt lets go of. None: the call names no
/// addresses.
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
    fn calls_name_whole_pages() {
        use CallName::*;
        let of = |name, args: [u64; 6], value| addresses(name, &args, value, PAGE);
        let at = |range| Some([range, 0..0]);
        assert_eq!(of(Mmap, [0, 1, 0, 0, 0, 0], Some(0x5000)), at(0x5000..0x6000));
        assert_eq!(of(Mmap, [0x5000, 1, 0, 0, 0, 0], None), at(0x5000..0x5000));
        assert_eq!(of(Mmap, [0x5000, 1, 0, MAP_FIXED_NOREPLACE, 0, 0], None), at(0x5000..0x6000));
        assert_eq!(of(Mlock, [0x5fff, 2, 0, 0, 0, 0], Some(0)), at(0x5000..0x7000));
        // Linux locks one page, and has no page that ends beyond the last address.
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
