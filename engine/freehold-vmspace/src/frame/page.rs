//! The description of a page: plain values that a caller passes to the record of the page's frame. The values
//! hold no reference to the page, and no lock guards them. [`Frame`](super::Frame) stores them and says
//! which tasks may change them; `freehold` decides which object an rmap word leads to.

use crate::PageIndex;

/// The place of an anonymous page.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct AnonPage {
    /// The word that leads to the tree of VMAs of the page; see [`Frame`](super::Frame).
    pub rmap: usize,
    /// The page offset in that tree.
    pub index: PageIndex,
    /// The NUMA policy of the VMA, by which the frame is allocated. The record does not store it.
    pub policy: u64,
}

impl AnonPage {
    /// Returns the place that is `pages` pages later.
    #[inline]
    pub fn plus(self, pages: u64) -> Self {
        AnonPage { index: self.index.wrapping_add(pages), ..self }
    }
}

/// The kind and the place of a page of a page cache.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct CachePage {
    /// The word that leads to the file of the page; see [`Frame`](super::Frame).
    pub rmap: usize,
    /// True for a page of shared memory, false for one of an ordinary file.
    pub shmem: bool,
    /// True for a page of secret memory: no task gets a reference to read the page.
    pub secret: bool,
}
