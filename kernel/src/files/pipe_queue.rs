//! The contents of a pipe: bytes, and pages of programs that vmsplice has added. The pages are pinned and not
//! copied, so a program that stores to such a page changes what the pipe's reader gets, until the page is not
//! the program's any more. A fork, a copy on write or an unmapping does not change the pipe's page.
//!
//! `files/pipe.rs` has the lock that guards the contents, and drops removed pages after it has released the
//! lock. A page takes the room of a whole page, however few of its bytes are in the pipe, which bounds the
//! number of pins. The program `splices.c` of the tests checks the contents.

use crate::platform::Machine;
use crate::sched::charge::{self, Charge};
use alloc::collections::VecDeque;
use core::mem;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::remote::Pins;

/// The contents of a pipe.
pub struct Queue {
    /// The bytes that are not in pages.
    bytes: VecDeque<u8>,
    /// The pages.
    pages: VecDeque<Page>,
    /// Number of bytes that have left `bytes` so far.
    removed: u64,
    /// Number of bytes of the pipe that are in pages.
    paged: usize,
    /// The charge for the capacity of `bytes`.
    charge: Charge,
}

/// A page of a program in a pipe, or a part of it.
pub struct Page {
    /// The pin of the page.
    pins: Pins<Machine>,
    /// The first byte of the page that the pipe's reader has not got.
    from: usize,
    /// The end of the pipe's part of the page.
    end: usize,
    /// The value of [`Queue::removed`] at which the page is next.
    place: u64,
    _charge: Charge,
}

impl Page {
    /// Returns the part of a pinned page from byte `from` to before byte `end`.
    pub fn new(pins: Pins<Machine>, from: usize, end: usize) -> Self {
        Page { pins, from, end, place: 0, _charge: Charge::new(PAGE_SIZE as usize) }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.end - self.from
    }
}

impl Queue {
    pub fn new() -> Self {
        Queue { bytes: VecDeque::new(), pages: VecDeque::new(), removed: 0, paged: 0, charge: Charge::new(0) }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.paged
    }

    /// Returns the room that the contents take.
    pub fn used(&self) -> usize {
        self.bytes.len() + self.pages.len() * PAGE_SIZE as usize
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    ///
    /// ENOMEM. The contents are then unchanged.
    pub fn add(&mut self, part: &[u8]) -> Result<(), Errno> {
        if self.bytes.capacity() - self.bytes.len() < part.len() {
            charge::admit()?;
            self.bytes.try_reserve(part.len()).map_err(|_| Errno::ENOMEM)?;
            self.charge.set(self.bytes.capacity());
        }
        self.bytes.extend(part);
        Ok(())
    }

    /// Adds a page at the end. The caller has made room with [`reserve_page`](Self::reserve_page).
    pub fn add_page(&mut self, page: Page) {
        self.paged += page.len();
        self.pages.push_back(Page { place: self.removed + self.bytes.len() as u64, ..page });
    }

    /// Makes room for a page in the list of pages.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn reserve_page(&mut self) -> Result<(), Errno> {
        charge::admit()?;
        self.pages.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Copies bytes that begin `skip` bytes behind the first one. Copies only bytes that are in one page or
    /// in no page. Returns the number of bytes, which is 0 only if the contents end there or `out` is empty.
    pub fn peek(&self, mut skip: usize, out: &mut [u8]) -> usize {
        let mut at = 0;
        for page in &self.pages {
            let before = (page.place - self.removed) as usize - at;
            if skip < before {
                return self.peek_bytes(at + skip, at + before, out);
            }
            (skip, at) = (skip - before, at + before);
            if skip < page.len() {
                let count = out.len().min(page.len() - skip);
                let read = page.pins.read((page.from + skip) as u64, &mut out[..count]);
                read.expect("the bytes are in the pinned page");
                return count;
            }
            skip -= page.len();
        }
        self.peek_bytes(at + skip, self.bytes.len(), out)
    }

    /// Copies from `bytes`.
    fn peek_bytes(&self, from: usize, end: usize, out: &mut [u8]) -> usize {
        let count = out.len().min(end.saturating_sub(from));
        self.bytes.range(from..from + count).zip(out).for_each(|(from, to)| *to = *from);
        count
    }

    /// Removes the first `count` bytes, which one [`peek`](Self::peek) has copied. Returns the page that they
    /// were in, if the page has no further bytes.
    pub fn remove(&mut self, count: usize) -> Option<Page> {
        match self.pages.front_mut() {
            Some(page) if page.place == self.removed => {
                page.from += count;
                self.paged -= count;
                if page.len() == 0 { self.pages.pop_front() } else { None }
            }
            _ => {
                self.bytes.drain(..count);
                self.removed += count as u64;
                None
            }
        }
    }

    /// Removes all bytes. Returns the pages.
    pub fn remove_all(&mut self) -> VecDeque<Page> {
        self.bytes.clear();
        self.paged = 0;
        mem::take(&mut self.pages)
    }
}
