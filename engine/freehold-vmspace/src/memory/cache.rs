//! Caches of free frames, one per CPU, above the platform's allocator. A fault or a zap takes no lock to get
//! or free a frame in the cache of its CPU.
//!
//! Each CPU accesses only its own cache, so no lock is needed. A CPU that wants the frames of other caches
//! sets a request in each of them; the CPU of such a cache fulfils the request when it next frees a frame.
//! Frames move between a cache and the platform in batches. Every frame in a cache is free, has a zero record
//! (`frame/mod.rs`), and was requested for a purpose that is movable. `memory/mod.rs` allocates and frees
//! single frames here.
//! `tests/heap_in_use/idle.rs` of `freehold` tests that a trim empties the caches.
#![expect(unsafe_code, reason = "frees frames to the platform")]

use crate::{
    NoMemory, Pfn,
    platform::{FrameRequest, Platform},
};
use arrayvec::ArrayVec;
use freehold_sync::{
    PerCpu,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, CHECKED, Ordering::Relaxed},
};

/// Number of free frames that a CPU keeps. Zero under a checker of schedules, because the platform's oracles
/// see only frames that return to the platform.
const MAGAZINE_SLOTS: usize = if CHECKED { 0 } else { 256 };
/// Number of frames moved at a time between a CPU and the platform.
pub(super) const BATCH: usize = if CHECKED { 1 } else { 64 };
/// The largest batch, for a CPU that allocates without freeing. Each batch moves the platform's lists from
/// CPU to CPU, so larger batches cost less.
const BURST: usize = if CHECKED { 1 } else { MAGAZINE_SLOTS };

/// The free frames of one CPU. Only that CPU accesses them, inside `with`, by plain loads and stores, unless
/// a field says otherwise.
struct Magazine {
    len: AtomicUsize,
    /// Number of frames that the next refill takes: twice as many as the last refill took, if no frame was
    /// freed since then.
    next_batch: AtomicUsize,
    /// Requests that the CPU frees the frames in its cache. Other CPUs write this word.
    shrink: AtomicBool,
    slots: [AtomicU64; MAGAZINE_SLOTS],
}

impl Magazine {
    /// Takes a frame, if there is one.
    #[inline]
    fn pop(&self) -> Option<Pfn> {
        let len = self.len.load(Relaxed).checked_sub(1)?;
        self.len.store(len, Relaxed);
        Some(Pfn::new(self.slots[len].load(Relaxed)))
    }

    /// Returns the number of frames to fetch now.
    fn next_batch(&self) -> usize {
        let batch = self.next_batch.load(Relaxed);
        self.next_batch.store((batch * 2).min(BURST), Relaxed);
        batch
    }

    /// Takes freed frames, like [`fill`](Self::fill), and resets the batch size.
    fn push(&self, frames: &[Pfn]) -> usize {
        self.next_batch.store(BATCH, Relaxed);
        self.fill(frames)
    }

    /// Takes frames from the end of `frames`, as many as fit. Returns the number of frames that did not fit.
    fn fill(&self, frames: &[Pfn]) -> usize {
        let len = self.len.load(Relaxed);
        let left = frames.len().saturating_sub(MAGAZINE_SLOTS - len);
        for (slot, frame) in self.slots[len..].iter().zip(frames[left..].iter().rev()) {
            slot.store(frame.get(), Relaxed);
        }
        self.len.store(len + frames.len() - left, Relaxed);
        left
    }
}

/// The caches of free frames of all CPUs; see the [module](self).
pub(super) struct FrameCache<P: Platform> {
    magazines: PerCpu<Magazine, P>,
}

impl<P: Platform> FrameCache<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        let empty = |_| Magazine {
            len: AtomicUsize::new(0),
            next_batch: AtomicUsize::new(BATCH),
            shrink: AtomicBool::new(false),
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        Ok(FrameCache { magazines: PerCpu::try_new(empty)? })
    }

    /// Returns a free frame of any node, with undefined contents and a zero record. The platform gets
    /// `request` if no frame is kept here. The purpose of the request is movable.
    #[inline]
    pub fn alloc(&self, platform: &P, request: FrameRequest<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        debug_assert!(request.purpose.is_movable(), "{:?} memory from the caches", request.purpose);
        match self.magazines.with(Magazine::pop) {
            Some(frame) => Ok(frame),
            None => self.refill(platform, &request),
        }
    }

    /// Like [`alloc`](Self::alloc), but obeys the nodes and the purpose of the request. Frames in the cache
    /// may belong to any node, and are all movable, so the frame comes from the platform.
    #[cold]
    pub fn alloc_on(platform: &P, request: &FrameRequest<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        let mut frame = [Pfn::new(0)];
        let got = platform.alloc_frames(request, &mut frame);
        if got == 1 { Ok(frame[0]) } else { Err(NoMemory) }
    }

    /// Allocates a batch from the platform. Returns one frame, and puts the others into the CPU's cache.
    #[cold]
    fn refill(&self, platform: &P, request: &FrameRequest<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        let mut batch = [Pfn::new(0); BURST];
        let wanted = self.magazines.with(Magazine::next_batch);
        let got = platform.alloc_frames(request, &mut batch[..wanted]);
        let Some((first, rest)) = batch[..got].split_first() else {
            #[cfg(feature = "log")]
            log::warn!("the platform has no frame for memory of the kind {:?}", request.purpose);
            return Err(NoMemory);
        };
        let left = self.magazines.with(|magazine| magazine.fill(rest));
        // The thread may have moved to a CPU whose magazine is full.
        self.free_to_platform(platform, &rest[..left]);
        Ok(*first)
    }

    /// Ends the charges of frames whose last reference was dropped, and frees them.
    pub fn free<const N: usize>(&self, platform: &P, frames: &mut ArrayVec<Pfn, N>) {
        if !frames.is_empty() {
            platform.uncharge(frames);
            if platform.nodes() > 1 {
                self.free_distant(platform, frames);
            }
            let (left, shrink) = self.magazines.with(|magazine| {
                // Relaxed: the flag is only a request.
                (magazine.push(frames), magazine.shrink.load(Relaxed))
            });
            self.free_to_platform(platform, &frames[..left]);
            if shrink {
                self.flush(platform);
            }
        }
        frames.clear();
    }

    /// Frees the frames that do not belong to the node of this CPU, so that later requests without a policy
    /// get local frames.
    #[cold]
    fn free_distant<const N: usize>(&self, platform: &P, frames: &mut ArrayVec<Pfn, N>) {
        let (local, mut distant) = (platform.local_node(), ArrayVec::<Pfn, N>::new());
        frames.retain(|frame| {
            let is_local = platform.node_of(*frame) == local;
            if !is_local {
                distant.push(*frame);
            }
            is_local
        });
        self.free_to_platform(platform, &distant);
    }

    /// Like [`free`](Self::free), but bypasses the caches.
    pub fn free_now<const N: usize>(&self, platform: &P, frames: &mut ArrayVec<Pfn, N>) {
        if !frames.is_empty() {
            platform.uncharge(frames);
        }
        self.free_to_platform(platform, frames);
        frames.clear();
    }

    /// Frees frames to the platform. No reference and no translation is left.
    pub fn free_to_platform(&self, platform: &P, frames: &[Pfn]) {
        if !frames.is_empty() {
            // SAFETY: the last reference of each frame was dropped, and references of tables are dropped only
            // after the flush.
            unsafe { platform.free_frames(frames) };
        }
    }

    /// Empties the calling CPU's cache, and makes each other CPU empty its own cache the next time it frees a
    /// frame. Returns true if the calling CPU's cache had frames.
    pub fn trim(&self, platform: &P) -> bool {
        // Relaxed: the flag is only a request, and is lost if the CPU is just fulfilling the previous
        // request.
        self.magazines
            .iter()
            .for_each(|magazine| magazine.shrink.store(magazine.len.load(Relaxed) != 0, Relaxed));
        self.flush(platform)
    }

    /// Empties the calling CPU's cache, so that its frames may become part of runs. Returns true if the cache
    /// had frames.
    pub fn flush(&self, platform: &P) -> bool {
        self.magazines.with(|magazine| magazine.shrink.store(false, Relaxed));
        let mut any = false;
        while let Some(frame) = self.magazines.with(Magazine::pop) {
            self.free_to_platform(platform, &[frame]);
            any = true;
        }
        any
    }

    /// Empties every CPU's cache. The engine is being dropped, so no CPU uses the caches.
    pub fn drain(&self, platform: &P) {
        for magazine in self.magazines.iter() {
            while let Some(frame) = magazine.pop() {
                self.free_to_platform(platform, &[frame]);
            }
        }
    }
}
