//! The pages of the kernel's trace buffer: what stands in them.
//!
//! A page begins with the time of its first event and with how many bytes of it are used. Each event begins
//! with a word of which the low five bits say its kind or length and the others how much later it was than
//! the one before (`events/header_page` and `events/header_event` describe it).

use super::format::Layouts;
use super::raw::Raw;
use std::io::{self, ErrorKind, Read};

/// The time and the number of bytes that are used.
const HEADER: usize = 16;
/// Of the word that says how many bytes are used.
const BYTES_USED: u64 = 0xf_ffff;
/// Kinds of event that are not data.
/// (The length that follows such a word, or one of kind 0, counts itself.)
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// An absolute time holds so many bits; the others are those of the page's.
const STAMP_BITS: u32 = 59;

/// Reads events from the pages that one processor has filled.
pub struct Events<'a, R> {
    pages: R,
    layouts: &'a Layouts,
    cpu: u16,
    page: Vec<u8>,
    /// Where the next event lies in the page, and where the last one ends.
    next: usize,
    end: usize,
    time: u64,
}

impl<'a, R: Read> Events<'a, R> {
    /// Of processor `cpu`, whose pages of `page_size` bytes `pages` holds.
    pub fn new(pages: R, page_size: usize, cpu: u16, layouts: &'a Layouts) -> Self {
        Events { pages, layouts, cpu, page: vec![0; page_size.max(HEADER)], next: 0, end: 0, time: 0 }
    }

    /// The next event that is recorded.
    ///
    /// # Errors
    ///
    /// Those of reading.
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

    /// Turns to the next page. No: there is none.
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

    /// Takes one entry; an event if it is one that is recorded.
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

    fn data(&mut self, length: usize) -> Option<Raw> {
        let start = self.next;
        self.skip(length);
        let data = &self.page[start..self.next];
        let id = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
        let thread = i32::from_le_bytes(data.get(4..8)?.try_into().ok()?);
        let what = self.layouts.get(&id)?.decode(data)?;
        Some(Raw { time: self.time, cpu: Some(self.cpu), thread, what })
    }

    fn word(&mut self) -> Option<u32> {
        let start = self.next;
        self.skip(4);
        Some(u32::from_le_bytes(self.page[start..self.next].try_into().ok()?))
    }

    fn skip(&mut self, length: usize) {
        self.next = self.next.saturating_add(length).min(self.end);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
