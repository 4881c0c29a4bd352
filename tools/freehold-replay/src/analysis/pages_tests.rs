//! Tests of [`Pages`]: counts after additions, removals, moves and forks.

use super::*;

fn count(pages: &Pages, kind: Kind) -> u64 {
    pages.counts()[kind as usize]
}

#[test]
fn pages_are_counted_once_and_by_kind() {
    let mut pages = Pages::default();
    pages.add(500..600, Kind::Heap, true);
    pages.add(510..520, Kind::Heap, true);
    pages.add(5_000..5_001, Kind::FilePrivate, false);
    assert_eq!((count(&pages, Kind::Heap), count(&pages, Kind::FilePrivate)), (100, 1));
    assert_eq!(count(&pages, Kind::PageTables), 3);
    assert_eq!(pages.count(&(0..550)), 50);
    pages.remove(&(0..550));
    assert_eq!((count(&pages, Kind::Heap), count(&pages, Kind::PageTables)), (50, 2));
    assert!(pages.contains(550) && !pages.contains(549));
}

#[test]
fn huge_page_is_split_by_a_removal_in_part() {
    let mut pages = Pages::default();
    assert!(pages.add_huge(1_030, Kind::Anonymous));
    assert!(!pages.add_huge(1_025, Kind::Anonymous));
    assert_eq!(count(&pages, Kind::Anonymous), 512);
    pages.remove(&(1_024..1_025));
    assert_eq!((pages.splits, count(&pages, Kind::Anonymous)), (1, 511));
    pages.remove(&(0..4_096));
    assert_eq!((pages.splits, count(&pages, Kind::PageTables)), (1, 0));
}

#[test]
fn child_has_private_pages_only() {
    let mut pages = Pages::default();
    pages.add(0..10, Kind::FilePrivate, false);
    pages.add(3..4, Kind::FilePrivate, true);
    pages.add(20..30, Kind::Heap, true);
    let child = pages.forked();
    assert_eq!((count(&child, Kind::FilePrivate), count(&child, Kind::Heap)), (1, 10));
}

#[test]
fn memory_is_bounded_however_many_pages_are_present() {
    let mut pages = Pages::default();
    pages.add(0..1 << 35, Kind::SharedMemory, false);
    assert_eq!(count(&pages, Kind::PageTables), MAX_CHUNKS as u64);
}

#[test]
fn moved_pages_keep_kind_and_order() {
    let mut pages = Pages::default();
    pages.add(0..3, Kind::Heap, true);
    pages.transfer(&(0..8), 1_000);
    assert!(pages.contains(1_002) && !pages.contains(0) && !pages.contains(1_003));
    assert_eq!(pages.forked().counts(), pages.counts());
}
