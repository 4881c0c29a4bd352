//! Decodes the pages of the kernel's trace buffer.
//!
//! A page begins with the time of its first event and the number of bytes in use. Each event begins with a
//! word. The low five bits of the word are the kind or the length of the event. The other bits are the time
//! since the previous event. The files `events/header_page` and `events/header_event` of tracefs describe the
//! format.
//!
//! `tracefs.rs` copies the pages while the command runs, and `collect.rs` reads them afterwards through
//! [`Events`], one per processor. `format.rs` decodes the bytes of an event. Times are in nanoseconds of
//! `CLOCK_MONOTONIC`. A page may be damaged or end early: nothing here may read beyond the page or panic. The
//! tests are in `ring_tests.rs`.

use super::format::Layouts;
use super::raw::Raw;
use std::io::{self, ErrorKind, Read};

/// Size of the header: the time, and the number of bytes in use.
const HEADER: usize = 16;
/// Mask of the number of bytes in use, in its word.
const BYTES_USED: u64 = 0xf_ffff;
/// Kinds of entries that are no events. In an entry of kind `PADDING` or of kind 0, a length in bytes follows
/// the first word; the length includes its own 4 bytes.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Number of bits of an absolute time (`TIME_STAMP`). The higher bits are equal to those of the previous
/// time.
const STAMP_BITS: u32 = 59;

/// Reads events from the pages of one processor.
pub struct Events<'a, R> {
    /// The pages, one after the other.
    pages: R,
    /// The layouts of the recorded events.
    layouts: &'a Layouts,
    /// The processor.
    cpu: u16,
    /// The current page.
    page: Vec<u8>,
    /// The offset of the next entry in the page, and the end of the last entry.
    next: usize,
    end: usize,
    /// The time of the last entry.
    time: u64,
}

impl<'a, R: Read> Events<'a, R> {
    /// Creates a reader for processor `cpu`. `pages` contains the pages of the processor's buffer, each of
    /// `page_size` bytes.
    pub fn new(pages: R, page_size: usize, cpu: u16, layouts: &'a Layouts) -> Self {
        Events { pages, layouts, cpu, page: vec![0; page_size.max(HEADER)], next: 0, end: 0, time: 0 }
    }

    /// Returns the next event that belongs in recordings, or `None` at the end of the pages.
    ///
    /// # Errors
    ///
    /// Fails if reading fails.
    pub fn next(&mut self) -> io::Result<Option<Raw>> {
        loop {
            if self.next >= self.end && !self.turn()? {
                return Ok(None);
            }
            if let Some(raw) = self.event() {
                return Ok(Some(raw));
            }
        }
    }

    /// Reads the next page. Returns false if there is none.
    fn turn(&mut self) -> io::Result<bool> {
        match self.pages.read_exact(&mut self.page) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        let word = |at: usize| u64::from_le_bytes(self.page[at..at + 8].try_into().unwrap_or_default());
        let (time, used) = (word(0), word(8));
        self.time = time;
        self.next = HEADER;
        self.end = (HEADER + (used & BYTES_USED) as usize).min(self.page.len());
        Ok(true)
    }

    /// Reads one entry. Returns `None` if the entry is no event, or an event that recordings do not contain.
    fn event(&mut self) -> Option<Raw> {
        let word = self.word()?;
        let (kind, later) = (word & 31, u64::from(word >> 5));
        match kind {
            PADDING if later == 0 => self.next = self.end,
            PADDING => {
                let length = self.word()? as usize;
                self.skip(length.saturating_sub(4));
                self.time += later;
            }
            TIME_EXTEND => self.time += later + (u64::from(self.word()?) << 27),
            TIME_STAMP => {
                let stamp = later + (u64::from(self.word()?) << 27);
                self.time = stamp | (self.time >> STAMP_BITS << STAMP_BITS);
            }
            _ => {
                self.time += later;
                let length =
                    if kind == 0 { (self.word()? as usize).saturating_sub(4) } else { kind as usize * 4 };
                return self.data(length);
            }
        }
        None
    }

    /// Decodes an event with `length` bytes of data.
    fn data(&mut self, length: usize) -> Option<Raw> {
        let start = self.next;
        self.skip(length);
        let data = &self.page[start..self.next];
        let id = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
        let thread = i32::from_le_bytes(data.get(4..8)?.try_into().ok()?);
        let what = self.layouts.get(&id)?.decode(data)?;
        Some(Raw { time: self.time, cpu: Some(self.cpu), thread, what })
    }

    /// Reads the next 4 bytes of the page.
    fn word(&mut self) -> Option<u32> {
        let start = self.next;
        self.skip(4);
        Some(u32::from_le_bytes(self.page[start..self.next].try_into().ok()?))
    }

    /// Skips bytes, at most to the end of the last entry.
    fn skip(&mut self, length: usize) {
        self.next = self.next.saturating_add(length).min(self.end);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
