//! Tests the decoder of the pages of the kernel's ring buffer (`ring.rs`).
//!
//! A test builds a page of words ([`Page`]), as the kernel writes them, and compares the time and the value
//! of every event. All events are ends of the call brk, with its result as the value.

use super::*;
use crate::format::Layout;
use crate::raw::RawKind;

const PAGE: usize = 4096;

/// Returns the layout of the only recorded event, which has number 9.
fn layouts() -> Layouts {
    let text = "ID: 9\n\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n";
    Layouts::from([Layout::parse("sys_exit_brk", text).unwrap()])
}

/// A page under construction.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Page {
        Page(Vec::new())
    }

    fn words(mut self, words: &[u32]) -> Page {
        words.iter().for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    /// Appends the end of a call of thread 5 that returned `value`, `later` nanoseconds after the previous
    /// event.
    fn event(self, later: u32, value: u32) -> Page {
        self.words(&[6 | later << 5, 9, 5, 0, 0, value, 0])
    }

    /// Returns the bytes of the page, whose first event has this time.
    fn done(self, time: u64) -> Vec<u8> {
        let used = self.0.len() as u64;
        let mut page: Vec<u8> =
            time.to_le_bytes().into_iter().chain(used.to_le_bytes()).chain(self.0).collect();
        page.resize(PAGE, 0xee);
        page
    }
}

/// Returns time and value of every event.
fn read(pages: &[u8]) -> Vec<(u64, i64)> {
    let layouts = layouts();
    let mut events = Events::new(pages, PAGE, 3, &layouts);
    let mut found = Vec::new();
    while let Some(Raw { time, cpu, thread, what }) = events.next().unwrap() {
        let RawKind::Leave(_, value) = what else { panic!("{what:?}") };
        assert_eq!((cpu, thread), (Some(3), 5));
        found.push((time, value));
    }
    found
}

#[test]
fn times_add_up_and_restart_on_each_page() {
    let mut pages = Page::new().event(0, 1).event(10, 2).done(1_000);
    pages.extend(Page::new().event(7, 3).done(5_000));
    assert_eq!(read(&pages), [(1_000, 1), (1_010, 2), (5_007, 3)]);
}

#[test]
fn long_pauses_and_absolute_times_are_decoded() {
    let extend = [30 | 3 << 5, 2];
    let stamp = [31 | 9 << 5, 1];
    let page = Page::new().event(0, 1).words(&extend).event(1, 2).words(&stamp).event(0, 3);
    let start = 0x2000_0000_0000_0000;
    let pages = page.done(start);
    let extended = start + 3 + (2 << 27) + 1;
    // The highest bits of an absolute time are those of the page's time.
    let stamped = 9 + (1 << 27) + (0x2000_0000_0000_0000_u64 >> STAMP_BITS << STAMP_BITS);
    assert_eq!(read(&pages), [(start, 1), (extended, 2), (stamped, 3)]);
}

#[test]
fn padding_is_skipped_and_separate_lengths_are_read() {
    let padding = [29 | 4 << 5, 12, 0xffff_ffff, 0xffff_ffff];
    let own_length = [2 << 5, 28, 9, 5, 0, 0, 8, 0];
    let page = Page::new().words(&padding).words(&own_length).event(1, 2).words(&[29, 1, 2, 3]);
    assert_eq!(read(&page.done(100)), [(106, 8), (107, 2)]);
}

#[test]
fn other_events_and_damaged_pages_are_skipped() {
    let other = [6, 0x77, 5, 0, 0, 1, 0];
    let page = Page::new().words(&other).event(2, 4).words(&[6 | 1 << 5, 9, 5]);
    assert_eq!(read(&page.done(100)), [(102, 4)], "a truncated event is skipped");
    let mut huge = Page::new().event(0, 1).done(1);
    huge[8..12].copy_from_slice(&0xf_ffff_u32.to_le_bytes());
    assert_eq!(read(&huge)[0], (1, 1), "a page with a length greater than its size");
    assert_eq!(read(&huge[..100]), [], "half a page");
}
