//! The bytes of frames, through the kernel's direct map.
//!
//! Programs and devices may access the same bytes at the same time, so all accesses are atomic. They have the
//! size of a word, because accesses of several sizes to one word are not allowed to race. A word that is
//! written in part is changed by a compare-and-swap, which does not write back neighbouring bytes.
//! `tests/calls/contents.rs` tests this file at every offset.

use freehold::platform::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::platform::{ENTRIES, Table};

/// Number of bytes of a word.
const WORD: usize = size_of::<u64>();

/// Fills a frame with zeroes.
pub fn zero(frame: &Table) {
    // Relaxed, here and below: the engine publishes contents by an entry or a lock.
    (0..ENTRIES).for_each(|at| frame.entry(at).store(0, Relaxed));
}

/// Copies a frame.
pub fn copy(to: &Table, from: &Table) {
    (0..ENTRIES).for_each(|at| to.entry(at).store(from.entry(at).load(Relaxed), Relaxed));
}

/// Reads the bytes at `offset`, which stay inside the frame.
pub fn read(frame: &Table, offset: usize, mut out: &mut [u8]) {
    let mut at = offset;
    while !out.is_empty() {
        let (word, start, len) = part(frame, at, out.len());
        let (now, rest) = out.split_at_mut(len);
        now.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[start..start + len]);
        (out, at) = (rest, at + len);
    }
}

/// Writes the bytes at `offset`, which stay inside the frame.
pub fn write(frame: &Table, offset: usize, mut data: &[u8]) {
    let mut at = offset;
    while !data.is_empty() {
        let (word, start, len) = part(frame, at, data.len());
        let (now, rest) = data.split_at(len);
        let merged = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            bytes[start..start + len].copy_from_slice(now);
            u64::from_ne_bytes(bytes)
        };
        if len == WORD {
            word.store(merged(0), Relaxed);
        } else {
            let _ = word.fetch_update(Relaxed, Relaxed, |old| Some(merged(old)));
        }
        (data, at) = (rest, at + len);
    }
}

/// Returns the word that contains the byte at `offset`, the position of the byte in the word, and how many of
/// `left` bytes lie in the word.
fn part(frame: &Table, offset: usize, left: usize) -> (&AtomicU64, usize, usize) {
    let start = offset % WORD;
    (frame.entry(offset / WORD), start, left.min(WORD - start))
}
