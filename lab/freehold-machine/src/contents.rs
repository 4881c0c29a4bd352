//! The contents of the frames of backed memory.
//!
//! A [`Page`] is the contents of one frame; `inner.rs` has an array of pages, which `cpu.rs` and `machine.rs`
//! access. Virtual CPUs read and write frames concurrently, so every access is atomic and has one size, 8
//! bytes. A smaller store is a compare-and-swap. Loads acquire and stores release, as on x86, so that
//! programs under test may rely on the memory order of x86. The atomics are the processor's own under every
//! checker, because a program's data is not part of the engine's protocols.
//!
//! A frame that is being allocated, zeroed or freed has one user, so it is filled and compared as a block.
//! Filling and comparing word by word took a tenth of the time of the engine's tests. A new integer type for
//! accesses ([`Word`]) needs an entry in the list of `word!` below; `tests/memory.rs` tests accesses of every
//! size and alignment.
#![expect(unsafe_code, reason = "fills and compares pages as blocks")]

use freehold_pagetable::PAGE_SIZE;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = 8;
const WORDS: usize = PAGE_SIZE as usize / WORD;
/// The byte that freed frames are filled with.
const POISON: u8 = 0xdb;
/// A word of a freed frame.
const POISON_WORD: u64 = u64::from_ne_bytes([POISON; WORD]);

/// The contents of one frame.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Page([AtomicU64; WORDS]);

impl Page {
    pub(crate) fn new() -> Self {
        Page(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Reads the bytes from `offset` on. The bytes must not extend beyond the page.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let (index, skip) = (at / WORD, at % WORD);
            let len = rest.len().min(WORD - skip);
            let (part, after) = rest.split_at_mut(len);
            part.copy_from_slice(&self.0[index].load(Ordering::Acquire).to_le_bytes()[skip..skip + len]);
            rest = after;
            at += len;
        }
    }

    /// Writes `data` at `offset`. The data must not extend beyond the page.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (index, skip) = (at / WORD, at % WORD);
            let len = rest.len().min(WORD - skip);
            let (part, after) = rest.split_at(len);
            let mut bytes = [0; WORD];
            bytes[skip..skip + len].copy_from_slice(part);
            self.put(index, mask(skip, len), u64::from_le_bytes(bytes));
            rest = after;
            at += len;
        }
    }

    /// Returns the aligned 8 bytes that contain `offset`, shifted so that the byte at `offset` is the lowest.
    #[inline]
    pub(crate) fn word_at(&self, offset: usize) -> u64 {
        self.0[offset / WORD].load(Ordering::Acquire) >> (8 * (offset % WORD))
    }

    /// Adds atomically to the aligned 8 bytes at `offset`. Returns the previous value.
    pub(crate) fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        assert!(offset.is_multiple_of(WORD), "an atomic operation needs an aligned address");
        self.0[offset / WORD].fetch_add(value, Ordering::SeqCst)
    }

    /// Replaces the bits of `mask` in word `index` atomically.
    #[inline]
    fn put(&self, index: usize, mask: u64, value: u64) {
        if mask == !0 {
            return self.0[index].store(value, Ordering::Release);
        }
        let merge = |old| Some(old & !mask | value);
        let done = self.0[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, merge);
        debug_assert!(done.is_ok(), "the closure never declines");
    }

    /// Fills the page with zeroes. The caller must be the only user of the frame.
    #[inline(never)]
    pub(crate) fn zero(&self) {
        self.fill(0);
    }

    /// Fills the page with the poison of a free frame. No task may use the frame any more.
    pub(crate) fn poison(&self) {
        self.fill(POISON);
    }

    /// Returns the offset in bytes and the value of the first word that changed since
    /// [`poison`](Self::poison).
    pub(crate) fn unpoisoned(&self) -> Option<(usize, u64)> {
        // SAFETY: an atomic has the layout of its integer. The frame is being allocated, so no task uses it.
        let words = unsafe { &*ptr::from_ref(&self.0).cast::<[u64; WORDS]>() };
        find_other::<POISON_WORD, WORDS>(words).map(|(index, word)| (index * WORD, word))
    }

    /// Copies the contents of `from` word by word, each word atomically.
    pub(crate) fn copy_from(&self, from: &Page) {
        for (to, from) in self.0.iter().zip(&from.0) {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// Sets all bytes of a frame that has one user.
    fn fill(&self, value: u8) {
        // SAFETY: an atomic has the layout of its integer, and a shared reference permits writing to it. The
        // frame is being zeroed for its only user, or freed, so no other task uses it.
        unsafe { ptr::from_ref(&self.0).cast_mut().write_bytes(value, 1) }
    }
}

/// Returns the first word that is not `EXPECTED`. Compares all words as a block first, because such a word is
/// rare.
pub(crate) fn find_other<const EXPECTED: u64, const N: usize>(words: &[u64; N]) -> Option<(usize, u64)> {
    if *words == const { [EXPECTED; N] } {
        return None;
    }
    words.iter().copied().enumerate().find(|(_, word)| *word != EXPECTED)
}

/// Returns a mask of `len` bytes of a word, from byte `skip` on. Byte 0 is the lowest.
fn mask(skip: usize, len: usize) -> u64 {
    let bits = if len == WORD { !0 } else { (1 << (8 * len)) - 1 };
    bits << (8 * skip)
}

/// An integer that a virtual CPU loads and stores atomically when it is aligned.
pub trait Word: Copy + sealed::Sealed {
    /// The bytes of the integer, little-endian as on x86.
    #[doc(hidden)]
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default;
    #[doc(hidden)]
    fn bytes(self) -> Self::Bytes;
    #[doc(hidden)]
    fn of_bytes(bytes: Self::Bytes) -> Self;
    /// Returns the lowest bytes of a word.
    #[doc(hidden)]
    fn of_word(word: u64) -> Self;
}

mod sealed {
    /// Prevents other crates from implementing `Word`.
    pub trait Sealed {}
}

macro_rules! word {
    ($($int:ty),*) => {$(
        impl sealed::Sealed for $int {}
        impl Word for $int {
            type Bytes = [u8; size_of::<$int>()];
            #[inline]
            fn bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
            #[inline]
            fn of_bytes(bytes: Self::Bytes) -> Self {
                <$int>::from_le_bytes(bytes)
            }
            #[inline]
            fn of_word(word: u64) -> Self {
                word as $int
            }
        }
    )*};
}
word!(u8, u16, u32, u64);
