//! Runs of consecutive frames: the memory of address spaces without an MMU.
//!
//! A run owns one reference to each of its frames, except foreign frames, and drops these references when it
//! is dropped. The drop can free frames to the platform, so owners drop a run after they have released their
//! locks. No lock guards a run: only its owner changes it. `nommu/region.rs` of `freehold` shares a run
//! between mappings. A call that names more pages than the run has is refused before it changes the run,
//! because otherwise it would free frames of another owner; `tests/vmspace/run.rs` tests this.
#![expect(unsafe_code, reason = "frees frames to the platform")]

use crate::{
    CachePage, Memory, NoMemory, PageCount, PageIndex, Pfn,
    frame::Frame,
    platform::{FileId, FramePurpose, FrameRequest, NodeChoice, PageOwner, Platform},
};
use arrayvec::ArrayVec;
use core::ops::Range;
use freehold_sync::counted::Counted;

/// Number of frames freed to the platform at a time.
const BATCH: usize = 64;

/// Consecutive frames. The run holds one reference to each frame, unless the frames are foreign.
pub struct Run<P: Platform> {
    memory: Counted<Memory<P>>,
    first: Pfn,
    pages: u64,
    /// True if the run holds references.
    counted: bool,
}

impl<P: Platform> Run<P> {
    /// Creates a run without frames. Allocates nothing.
    pub fn empty(memory: &Counted<Memory<P>>) -> Self {
        Run { memory: memory.clone(), first: Pfn::new(0), pages: 0, counted: true }
    }

    /// Allocates frames with undefined contents. For zero pages, returns the [`empty`](Self::empty) run.
    pub fn alloc(memory: &Counted<Memory<P>>, pages: PageCount) -> Result<Self, NoMemory> {
        let request = FrameRequest::pages(FramePurpose::NoMmu);
        Self::alloc_as(memory, pages, request, PageOwner::Caller, |_, frame| frame.init_run())
    }

    /// Allocates frames for the pages of a file from `index` on, with undefined contents. `policy` is the
    /// NUMA policy of the mapping, or 0.
    ///
    /// # Panics
    ///
    /// Panics if the index of the last page does not fit in 64 bits. Nothing is allocated then.
    #[doc(hidden)]
    pub fn alloc_cache(
        memory: &Counted<Memory<P>>,
        kind: CachePage,
        index: PageIndex,
        pages: PageCount,
        policy: u64,
    ) -> Result<Self, NoMemory> {
        assert!(index.checked_add(pages.get()).is_some(), "{pages:?} pages of a file from {index:?} on");
        let owner = PageOwner::File(FileId::new(kind.rmap));
        // A run may be smaller than any block of the page tables, so its place counts in small pages.
        let nodes = NodeChoice::of_policy(memory.platform(), policy, index.get());
        let request = FrameRequest::pages(FramePurpose::File).on(nodes);
        Self::alloc_as(memory, pages, request, owner, |n, frame| frame.init_cache(kind, index + n))
    }

    /// Allocates a run, charges it, and calls `init` with the record and the position of each frame.
    fn alloc_as(
        memory: &Counted<Memory<P>>,
        pages: PageCount,
        request: FrameRequest<'_, P::Mmu>,
        owner: PageOwner<'_, P::Mmu>,
        init: impl Fn(u64, &Frame),
    ) -> Result<Self, NoMemory> {
        // The frames come from the platform, not from the caches of free frames, which hold single frames. If
        // the platform has no run, this CPU's cache is emptied and the platform is asked again, because the
        // cached frames may complete a run.
        let (platform, pages) = (memory.platform(), pages.get());
        if pages == 0 {
            return Ok(Self::empty(memory));
        }
        let request = request.of(owner);
        let again = || memory.flush_cache().then(|| platform.alloc_run(&request, pages)).flatten();
        let first = platform.alloc_run(&request, pages).or_else(again).ok_or(NoMemory)?;
        if !platform.charge(owner, first, pages) {
            (0..pages).for_each(|n| memory.free_frame(first.add(n)));
            return Err(NoMemory);
        }
        let run = Run { memory: memory.clone(), first, pages, counted: true };
        run.frames().zip(0..).for_each(|(pfn, n)| init(n, memory.platform().frame(pfn)));
        Ok(run)
    }

    /// Takes a reference to each of the frames, which were just found in a cache. Returns `None` if a frame
    /// has too many references or has left the cache. After success the caller checks the cache again.
    ///
    /// # Panics
    ///
    /// Panics if the run would end beyond the last frame number. No reference is taken then.
    #[doc(hidden)]
    pub fn share(memory: &Counted<Memory<P>>, first: Pfn, pages: PageCount) -> Option<Self> {
        assert_in_range(first, pages);
        let mut run = Run { memory: memory.clone(), first, pages: 0, counted: true };
        while run.pages < pages.get() {
            if !memory.platform().frame(first.add(run.pages)).try_get_cached() {
                // Dropping `run` drops the references that were taken.
                return None;
            }
            run.pages += 1;
        }
        Some(run)
    }

    /// Creates a run of frames that do not belong to the engine.
    ///
    /// # Panics
    ///
    /// Panics if the run would end beyond the last frame number.
    #[doc(hidden)]
    pub fn foreign(memory: &Counted<Memory<P>>, first: Pfn, pages: PageCount) -> Self {
        assert_in_range(first, pages);
        Run { memory: memory.clone(), first, pages: pages.get(), counted: false }
    }

    /// Returns the number of frames.
    pub fn pages(&self) -> PageCount {
        PageCount::new(self.pages)
    }

    /// Returns the numbers of the frames.
    pub fn numbers(&self) -> Range<u64> {
        self.first.get()..self.first.get() + self.pages
    }

    /// Returns the frames, ascending.
    pub fn frames(&self) -> impl Iterator<Item = Pfn> + use<P> {
        self.numbers().map(Pfn::new)
    }

    /// Fills all frames with zeroes.
    pub fn zero(&self) {
        self.frames().for_each(|pfn| self.memory.platform().zero_frame(pfn));
    }

    /// Keeps the first `pages` frames, and returns the others as a run.
    ///
    /// # Panics
    ///
    /// Panics if the run has fewer than `pages` frames. The run is unchanged then.
    pub fn split_off(&mut self, pages: PageCount) -> Self {
        let rest = self.pages().checked_sub(pages);
        let Some(rest) = rest else { panic!("a run of {} pages has no first {pages:?}", self.pages) };
        let first = self.first.add(pages.get());
        self.pages = pages.get();
        Run { memory: self.memory.clone(), first, pages: rest.get(), counted: self.counted }
    }

    /// Passes the references to the caller.
    #[doc(hidden)]
    pub fn into_frames(mut self) -> impl Iterator<Item = Pfn> {
        let frames = self.frames();
        self.pages = 0;
        frames
    }
}

/// Panics if the numbers of `pages` frames from `first` on do not fit in 64 bits.
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
                platform.uncharge(free);
                // SAFETY: the last reference of each frame was dropped, and no translation leads to a frame
                // without a reference.
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
