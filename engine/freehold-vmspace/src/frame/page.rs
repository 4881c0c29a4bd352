//! The description of its page that a frame keeps.

use crate::PageIndex;

/// Where an anonymous page is known.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct AnonPage {
    /// The word by which its reverse tree is found; see [`Frame`](super::Frame).
    pub rmap: usize,
    /// Its place there.
    pub index: PageIndex,
}

impl AnonPage {
    /// The page so many pages after it.
    #[inline]
    pub fn plus(self, pages: u64) -> Self {
        AnonPage { index: self.index.wrapping_add(pages), ..self }
    }
}

/// What a page of a cache is, and where it is known.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct CachePage {
    /// The word by which its file is found; see [`Frame`](super::Frame).
    pub rmap: usize,
    /// A page of shared memory (else: of an ordinary file).
    pub shmem: bool,
    /// A page of secret memory: nobody gets a reference to read it by.
    pub secret: bool,
}
