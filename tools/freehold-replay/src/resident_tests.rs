//! Tests the comparison of the resident pages of one VMA of a file (`Judge` in `resident.rs`), without an
//! engine.
//!
//! The constants `VMA`, `SHAPE` and `OURS` give the VMA, its file and the pages that the engine has;
//! `reached` gives the pages that a recorded fault explains. A case adds the pages of the file that Linux has
//! (`judge_of`), and checks the verdict: same, fewer or more pages, and the first page whose presence or
//! absence on Linux is impossible. Page numbers are hexadecimal.

#![expect(clippy::single_range_in_vec_init, reason = "a list of runs may have one element")]

use super::*;

/// A VMA of 40 pages that maps a file of 64 pages from page 2. A fault on its first page mapped 16 pages.
const VMA: Range<u64> = 0x7f004..0x7f02c;
const SHAPE: Shape = Shape { index: 2, length: Some(64), shmem: false, tells_blocks: false };
const OURS: Range<u64> = 0x7f004..0x7f014;

/// Returns the pages that the fault explains.
fn reached() -> BTreeMap<u64, MappedBy> {
    let mut pages: BTreeMap<u64, MappedBy> = OURS.map(|page| (page, MappedBy::Along)).collect();
    pages.insert(0x7f004, MappedBy::Faulted);
    pages
}

fn runs(runs: impl IntoIterator<Item = Range<u64>>) -> Runs {
    runs.into_iter().collect()
}

/// Returns the verdict if Linux has these pages of the file and reports the size `kilobytes`.
fn judge_sum(shape: Shape, theirs: &[Range<u64>], kilobytes: u64) -> (Verdict, Option<Difference>) {
    let (files, ours) = (runs(theirs.iter().cloned()), runs([OURS]));
    let judge = Judge {
        vma: VMA,
        mapped: &shape,
        linux: Linux { kilobytes, list: Some(List { files: &files, present: &files }) },
        ours: &ours,
        reached: &reached(),
        touched: &|_| true,
        has_part_of: &|pages| ours.contains_any(&pages),
    };
    judge.judge()
}

fn judge_of(shape: Shape, theirs: &[Range<u64>]) -> (Verdict, Option<Difference>) {
    judge_sum(shape, theirs, runs(theirs.iter().cloned()).count() * PAGE_KB)
}

const SAME: Verdict = Verdict { fewer: false, more: false, untold: 0 };
const FEWER: Verdict = Verdict { fewer: true, more: false, untold: 0 };
const MORE: Verdict = Verdict { fewer: false, more: true, untold: 0 };

#[test]
fn equal_pages_give_no_difference() {
    assert_eq!(judge_of(SHAPE, &[OURS]), (SAME, None));
}

/// ```text
/// page of the file   2 3 4 ...  10 11 | 12 13 ... 17 | 18        hexadecimal
/// the engine         #############################
/// a folio                        ----------------------
/// ```
#[test]
fn additional_pages_must_complete_a_folio() {
    // Pages 10 to 17 are a folio of eight pages in the first case, and pages 10 to 13 are a folio of four
    // pages in the second case.
    assert_eq!(judge_of(SHAPE, &[0x7f004..0x7f01a]), (MORE, None));
    assert_eq!(judge_of(SHAPE, &[0x7f004..0x7f016]), (MORE, None));
    // No folio has five or seven pages or begins at page 18, and a folio is mapped completely.
    for (theirs, page) in [
        (vec![0x7f004..0x7f017], 0x7f016),
        (vec![0x7f004..0x7f019], 0x7f016),
        (vec![0x7f004..0x7f01b], 0x7f01a),
        (vec![0x7f004..0x7f014, 0x7f015..0x7f016], 0x7f015),
        (vec![0x7f004..0x7f014, 0x7f020..0x7f022], 0x7f020),
    ] {
        let (verdict, difference) = judge_of(SHAPE, &theirs);
        let difference = difference.unwrap_or_else(|| panic!("{theirs:x?}"));
        assert!(verdict.more && difference.page == page, "{theirs:x?}: {difference:?}");
        assert!(difference.linux.contains("present") && difference.freehold.contains("absent"));
    }
}

#[test]
fn folio_ends_at_the_end_of_the_file() {
    let shape = Shape { length: Some(0x13), ..SHAPE };
    assert_eq!(judge_of(shape, &[0x7f004..0x7f015]), (MORE, None));
    // If the file had more pages during the run than after it, these pages are near a fault.
    assert_eq!(judge_of(shape, &[0x7f004..0x7f01a]), (MORE, None));
    assert!(judge_of(shape, &[0x7f004..0x7f014, 0x7f028..0x7f029]).1.is_some());
}

#[test]
fn folio_may_extend_beyond_a_vma_that_was_split() {
    let files = runs([0x7f004..0x7f006]);
    let judge = |part: bool| {
        let judge = Judge {
            vma: VMA,
            mapped: &SHAPE,
            linux: Linux { kilobytes: 8, list: Some(List { files: &files, present: &files }) },
            ours: &Runs::default(),
            reached: &BTreeMap::new(),
            touched: &|_| true,
            // Pages 0 and 1 of the file are in front of the VMA.
            has_part_of: &|pages| part && pages == (0x7f002..0x7f006),
        };
        judge.judge()
    };
    assert_eq!(judge(true), (MORE, None));
    assert_eq!(judge(false).1.map(|difference| difference.page), Some(0x7f004));
}

#[test]
fn only_pages_without_a_fault_may_be_missing() {
    assert_eq!(judge_of(SHAPE, &[0x7f004..0x7f005]), (FEWER, None));
    assert_eq!(judge_of(SHAPE, &[0x7f004..0x7f008, 0x7f00a..0x7f014]), (FEWER, None));
    for theirs in [vec![], vec![0x7f005..0x7f014]] {
        let (verdict, difference) = judge_of(SHAPE, &theirs);
        let difference = difference.unwrap_or_else(|| panic!("{theirs:x?}"));
        assert!(verdict.fewer && difference.page == 0x7f004, "{difference:?}");
        assert!(difference.linux.contains("absent") && difference.freehold.contains("present"));
    }
}

/// The engine has a page that no fault can have mapped. This is correct only if Linux has the page too.
#[test]
fn page_far_from_any_fault_must_be_present_on_linux() {
    let (ours, far) = (runs([OURS, 0x7f020..0x7f021]), 0x7f020);
    for (theirs, page) in [(runs([OURS]), Some(far)), (runs([OURS, far..far + 1]), None)] {
        let judge = Judge {
            vma: VMA,
            mapped: &SHAPE,
            linux: Linux { kilobytes: 64, list: Some(List { files: &theirs, present: &theirs }) },
            ours: &ours,
            reached: &reached(),
            touched: &|_| true,
            has_part_of: &|pages| ours.contains_any(&pages),
        };
        assert_eq!(judge.judge().1.map(|difference| difference.page), page);
    }
}

#[test]
fn shared_memory_may_have_more_pages_near_a_fault() {
    let shape = Shape { shmem: true, ..SHAPE };
    assert_eq!(judge_of(shape, &[0x7f004..0x7f014, 0x7f022..0x7f023]), (MORE, None));
    // No fault is near enough.
    assert!(judge_of(shape, &[0x7f004..0x7f014, 0x7f023..0x7f024]).1.is_some());
}

#[test]
fn size_that_the_kernel_reports_is_compared() {
    for (kilobytes, wrong) in [(0, true), (4, false), (60, false), (64, false), (68, true)] {
        let (verdict, difference) = judge_sum(SHAPE, &[OURS], kilobytes);
        assert_eq!(difference.is_some(), wrong, "{kilobytes}: {difference:?}");
        assert_eq!(verdict, Verdict { fewer: kilobytes < 64, more: kilobytes > 64, untold: 0 });
    }
}

#[test]
fn size_has_bounds_without_a_list_of_pages() {
    let ours = runs([OURS]);
    for (kilobytes, verdict, wrong) in [
        (0, FEWER, true),
        (4, FEWER, false),
        (60, FEWER, false),
        (64, SAME, false),
        (68, MORE, false),
        (160, MORE, false),
        (164, MORE, true),
    ] {
        let linux = Linux { kilobytes, list: None };
        let has_part_of = &|_| unreachable!("no pages are listed");
        let judge = Judge {
            vma: VMA,
            mapped: &SHAPE,
            linux,
            ours: &ours,
            reached: &reached(),
            touched: &|_| true,
            has_part_of,
        };
        let (found, difference) = judge.judge();
        assert_eq!((found, difference.is_some()), (verdict, wrong), "{kilobytes}");
    }
}

#[test]
fn page_that_no_recorded_event_touched_is_no_difference() {
    let (files, ours) = (runs([OURS, 0x7f020..0x7f021]), runs([OURS]));
    let linux = || Linux { kilobytes: 17 * PAGE_KB, list: Some(List { files: &files, present: &files }) };
    for touched in [false, true] {
        let judge = Judge {
            vma: VMA,
            mapped: &SHAPE,
            linux: linux(),
            ours: &ours,
            reached: &reached(),
            touched: &|_| touched,
            has_part_of: &|pages| ours.contains_any(&pages),
        };
        let (verdict, difference) = judge.judge();
        assert_eq!((verdict.untold, difference.is_some()), (u64::from(!touched), touched));
    }
}

#[test]
fn replayed_blocks_explain_no_additional_pages() {
    let shape = Shape { shmem: true, tells_blocks: true, ..SHAPE };
    // 64 pages of the file from page 2: a whole block of 32 pages, some of which are far from any fault.
    let theirs = [0x7f004..0x7f022 + 10];
    assert_eq!(judge_of(Shape { tells_blocks: false, ..shape }, &[0x7f004..0x7f022]).1, None);
    assert!(judge_of(shape, &theirs).1.is_some());
    // Pages behind the end of the file may be the rest of a block.
    let ended = Shape { length: Some(0x12), ..shape };
    assert_eq!(judge_of(ended, &[0x7f004..0x7f022]), (MORE, None));
}
