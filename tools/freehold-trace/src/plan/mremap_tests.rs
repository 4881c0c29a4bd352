//! Tests the effect of mremap on the model of an address space (`mremap.rs`).
//!
//! A test applies calls to a `Space` and compares the remaining VMAs with the VMAs that Linux leaves. VMAs at
//! even and odd pages have different rights, so that neighbours do not merge.

use super::*;
use crate::{Call, CallName, Returned};

/// Applies a call that returned `value`.
fn apply(space: &mut Space, name: CallName, args: [u64; 6], value: u64) {
    let returned = Returned::Value(value);
    let call = Call { name, args, returned, file: None, transfer: None, beside: Vec::new() };
    space.apply(&mut AppliedCall::first(&call, &mut 0));
}

/// Returns an address space with a VMA of private anonymous memory at each of these pages.
fn space(pages: &[u64]) -> Space {
    let mut space = Space::default();
    for page in pages {
        let at = page << 12;
        apply(&mut space, CallName::Mmap, [at, 0x1000, 1 + page % 2, 0x32, u64::MAX, 0], at);
    }
    space
}

/// Returns the VMAs, each as its first page and the page after its last page.
fn pages(space: &Space) -> Vec<(u64, u64)> {
    space.areas.iter().map(|(start, area)| (start >> 12, area.end >> 12)).collect()
}

/// ```text
/// pages    1  2  3  4  5    9  a  b  c      #: a VMA     o: a VMA in the range of the target
/// before   #     #     #       o     o
/// after                #    #  o  #  o
/// ```
#[test]
fn several_vmas_are_moved_one_by_one() {
    let mut moved = space(&[1, 3, 5, 0xa, 0xc]);
    apply(&mut moved, CallName::Mremap, [0x1000, 0x4000, 0x4000, 3, 0x9000, 0], 0x9000);
    // VMAs in the gaps of the target stay, and so does a VMA outside the source.
    assert_eq!(pages(&moved), [(5, 6), (9, 0xa), (0xa, 0xb), (0xb, 0xc), (0xc, 0xd)]);
    let mut copied = space(&[1, 3]);
    apply(&mut copied, CallName::Mremap, [0x1000, 0x3000, 0x3000, 7, 0x9000, 0], 0x9000);
    assert_eq!(pages(&copied), [(1, 2), (3, 4), (9, 0xa), (0xb, 0xc)]);
}

#[test]
fn mremap_moves_shrinks_and_grows_a_vma() {
    let mut moved = space(&[1, 9]);
    apply(&mut moved, CallName::Mremap, [0x1000, 0x1000, 0x3000, 3, 0x9000, 0], 0x9000);
    assert_eq!(pages(&moved), [(9, 0xc)]);
    apply(&mut moved, CallName::Mremap, [0x9000, 0x3000, 0x1000, 3, 0x1000, 0], 0x1000);
    assert_eq!(pages(&moved), [(1, 2)]);
    apply(&mut moved, CallName::Mremap, [0x1000, 0x1000, 0x2000, 0, 0, 0], 0x1000);
    assert_eq!(pages(&moved), [(1, 3)]);
    apply(&mut moved, CallName::Mremap, [0x1000, 0x2000, 0x1000, 0, 0, 0], 0x1000);
    assert_eq!(pages(&moved), [(1, 2)]);
}
