//! Frames that follow each other, held together: what address spaces without an MMU are made of.
#![expect(unsafe_code, reason = "gives frames back to the platform")]

use crate::{CachePage, Memory, NoMemory, PageCount, PageIndex, Pfn, frame::Frame, platform::Platform};
use arrayvec::ArrayVec;
use core::ops::Range;
use freehold_sync::counted::Counted;

/// Frames given back to the platform at a time.
const BATCH: usize = 64;

/// So many frames from `first` on, and one reference to each unless they are somebody else's.
pub struct Run<P: Platform> {
    memory: Counted<Memory<P>>,
    first: Pfn,
    pages: u64,
    /// Whether it holds references.
    counted: bool,
}

impl<P: Platform> Run<P> {
    /// No frame at all; allocates nothing.
    pub fn empty(memory: &Counted<Memory<P>>) -> Self {
        Run { memory: memory.clone(), first: Pfn::new(0), pages: 0, counted: true }
    }

    /// Fresh memory, contents undefined; of no page, [`empty`](Self::empty).
    pub fn alloc(memory: &Counted<Memory<P>>, pages: PageCount) -> Result<Self, NoMemory> {
        Self::alloc_as(memory, pages, |_, frame| frame.init_run())
    }

    /// Fresh frames for the pages of a file from `index` on, contents undefined.
    ///
    /// # Panics
    ///
    /// If the last page would have an index that 64 bits do not hold. Nothing is allocated.
    #[doc(hidden)]
    pub fn alloc_cache(
        memory: &Counted<Memory<P>>,
        kind: CachePage,
        index: PageIndex,
        pages: PageCount,
    ) -> Result<Self, NoMemory> {
        assert!(index.checked_add(pages.get()).is_some(), "{pages:?} pages of a file from {index:?} on");
        Self::alloc_as(memory, pages, |n, frame| frame.init_cache(kind, index + n))
    }

    fn alloc_as(
        memory: &Counted<Memory<P>>,
        pages: PageCount,
        init: impl Fn(u64, &Frame),
    ) -> Result<Self, NoMemory> {
        // Past the caches of free frames, whose single ones are of no use here but may be what is missing.
        let (platform, pages) = (memory.platform(), pages.get());
        if pages == 0 {
            return Ok(Self::empty(memory));
        }
        let again = || memory.flush_cache().then(|| platform.alloc_run(pages)).flatten();
        let first = platform.alloc_run(pages).or_else(again).ok_or(NoMemory)?;
        let run = Run { memory: memory.clone(), first, pages, counted: true };
        run.frames().zip(0..).for_each(|(pfn, n)| init(n, memory.platform().frame(pfn)));
        Ok(run)
    }

    /// Frames that were just found in a cache, with a reference of its own to each; none if one of them has
    /// too many, or has left the cache. The caller looks again.
    ///
    /// # Panics
    ///
    /// If the run would end beyond the last number of a frame. No reference is taken.
    #[doc(hidden)]
    pub fn share(memory: &Counted<Memory<P>>, first: Pfn, pages: PageCount) -> Option<Self> {
        assert_in_range(first, pages);
        let mut run = Run { memory: memory.clone(), first, pages: 0, counted: true };
        while run.pages < pages.get() {
            if !memory.platform().frame(first.add(run.pages)).try_get_cached() {
                // What is dropped gives back those that were counted.
                return None;
            }
            run.pages += 1;
        }
        Some(run)
    }

    /// Frames that are not the engine's.
    ///
    /// # Panics
    ///
    /// If the run would end beyond the last number of a frame.
    #[doc(hidden)]
    pub fn foreign(memory: &Counted<Memory<P>>, first: Pfn, pages: PageCount) -> Self {
        assert_in_range(first, pages);
        Run { memory: memory.clone(), first, pages: pages.get(), counted: false }
    }

    /// How many frames.
    pub fn pages(&self) -> PageCount {
        PageCount::new(self.pages)
    }

    /// Their numbers.
    pub fn numbers(&self) -> Range<u64> {
        self.first.get()..self.first.get() + self.pages
    }

    /// The frames, ascending.
    pub fn frames(&self) -> impl Iterator<Item = Pfn> + use<P> {
        self.numbers().map(Pfn::new)
    }

    /// Fills all with zeroes.
    pub fn zero(&self) {
        self.frames().for_each(|pfn| self.memory.platform().zero_frame(pfn));
    }

    /// Keeps the first `pages` and returns the rest.
    ///
    /// # Panics
    ///
    /// If the run has fewer than `pages`. The run is unchanged.
    pub fn split_off(&mut self, pages: PageCount) -> Self {
        let rest = self.pages().checked_sub(pages);
        let Some(rest) = rest else { panic!("a run of {} pages has no first {pages:?}", self.pages) };
        let first = self.first.add(pages.get());
        self.pages = pages.get();
        Run { memory: self.memory.clone(), first, pages: rest.get(), counted: self.counted }
    }

    /// Passes the references on to the caller.
    #[doc(hidden)]
    pub fn into_frames(mut self) -> impl Iterator<Item = Pfn> {
        let frames = self.frames();
        self.pages = 0;
        frames
    }
}

/// Panics if `pages` frames from `first` on do not all have numbers.
fn assert_in_range(first: Pfn, pages: PageCount) {
    assert!(first.get().checked_add(pages.get()).is_some(), "{pages:?} frames from {first:?} on");
}

impl<P: Platform> Drop for Run<P> {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let platform = self.memory.platform();
        let mut free = ArrayVec::<Pfn, BATCH>::new();
        let free_to_platform = |free: &mut ArrayVec<Pfn, BATCH>| {
            if !free.is_empty() {
                // SAFETY: the last reference of each is gone, and no translation leads to a frame without
                // one.
                unsafe { platform.free_frames(free) };
            }
            free.clear();
        };
        for pfn in self.frames() {
            if platform.frame(pfn).put() {
                free.push(pfn);
            }
            if free.is_full() {
                free_to_platform(&mut free);
            }
        }
        free_to_platform(&mut free);
    }
}
