//! Free frames kept per CPU, over the platform's allocator: a fault or a zap meets no lock here.
#![expect(unsafe_code, reason = "gives frames back to the platform")]

use crate::{
    NoMemory, Pfn,
    platform::{FrameRequest, Platform},
};
use arrayvec::ArrayVec;
use freehold_sync::{
    PerCpu,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, CHECKED, Ordering::Relaxed},
};

/// Frames a CPU keeps. None under a checker of schedules: the platform's oracles see only what comes back to
/// it.
const MAGAZINE_SLOTS: usize = if CHECKED { 0 } else { 256 };
/// Frames moved at a time between a CPU and the platform.
pub(super) const BATCH: usize = if CHECKED { 1 } else { 64 };
/// The same for a CPU that takes and takes and gives none back: the platform's lists pass from CPU to CPU
/// with each batch.
const BURST: usize = if CHECKED { 1 } else { MAGAZINE_SLOTS };

/// One CPU's free frames; only that CPU touches them, inside `with`, with plain loads and stores, unless a
/// field says otherwise.
struct Magazine {
    len: AtomicUsize,
    /// How many the next refill takes: twice as many as the last one, if none came back since.
    next_batch: AtomicUsize,
    /// Somebody wishes that the CPU gives back what it keeps: a word that others write.
    shrink: AtomicBool,
    slots: [AtomicU64; MAGAZINE_SLOTS],
}

impl Magazine {
    fn pop(&self) -> Option<Pfn> {
        let len = self.len.load(Relaxed).checked_sub(1)?;
        self.len.store(len, Relaxed);
        Some(Pfn::new(self.slots[len].load(Relaxed)))
    }

    /// How many frames to fetch for it now.
    fn next_batch(&self) -> usize {
        let batch = self.next_batch.load(Relaxed);
        self.next_batch.store((batch * 2).min(BURST), Relaxed);
        batch
    }

    /// Takes frames that came back, as [`fill`](Self::fill).
    fn push(&self, frames: &[Pfn]) -> usize {
        self.next_batch.store(BATCH, Relaxed);
        self.fill(frames)
    }

    /// Takes frames from the back of `frames`, as many as there is room for; returns how many are left.
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

    /// A free frame, its contents undefined, its record clean. `request` is what the platform hears if none
    /// is kept here.
    #[inline]
    pub fn alloc(&self, platform: &P, request: FrameRequest<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        match self.magazines.with(Magazine::pop) {
            Some(frame) => Ok(frame),
            None => self.refill(platform, &request),
        }
    }

    #[cold]
    fn refill(&self, platform: &P, request: &FrameRequest<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        let mut batch = [Pfn::new(0); BURST];
        let wanted = self.magazines.with(Magazine::next_batch);
        let got = platform.alloc_frames(request, &mut batch[..wanted]);
        let (first, rest) = batch[..got].split_first().ok_or(NoMemory)?;
        let left = self.magazines.with(|magazine| magazine.fill(rest));
        // The thread may have moved to a CPU with a full magazine.
        self.free_to_platform(platform, &rest[..left]);
        Ok(*first)
    }

    /// Frames whose last reference is gone.
    pub fn free<const N: usize>(&self, platform: &P, frames: &mut ArrayVec<Pfn, N>) {
        if !frames.is_empty() {
            let (left, shrink) = self.magazines.with(|magazine| {
                // Relaxed: a wish.
                (magazine.push(frames), magazine.shrink.load(Relaxed))
            });
            self.free_to_platform(platform, &frames[..left]);
            if shrink {
                self.flush(platform);
            }
        }
        frames.clear();
    }

    /// Frames whose last reference is gone, past the caches.
    pub fn free_now<const N: usize>(&self, platform: &P, frames: &mut ArrayVec<Pfn, N>) {
        self.free_to_platform(platform, frames);
        frames.clear();
    }

    pub fn free_to_platform(&self, platform: &P, frames: &[Pfn]) {
        if !frames.is_empty() {
            // SAFETY: the last reference of each is gone, and references by tables go only after the flush.
            unsafe { platform.free_frames(frames) };
        }
    }

    /// Empties the calling CPU's cache, and has the others empty theirs when next they make a frame free.
    pub fn trim(&self, platform: &P) {
        // Relaxed: a wish, which may be lost beside a CPU that is just granting the last one.
        self.magazines
            .iter()
            .for_each(|magazine| magazine.shrink.store(magazine.len.load(Relaxed) != 0, Relaxed));
        self.flush(platform);
    }

    /// Empties the calling CPU's cache, so that its frames may become part of runs; whether there were any.
    pub fn flush(&self, platform: &P) -> bool {
        self.magazines.with(|magazine| magazine.shrink.store(false, Relaxed));
        let mut any = false;
        while let Some(frame) = self.magazines.with(Magazine::pop) {
            self.free_to_platform(platform, &[frame]);
            any = true;
        }
        any
    }

    /// Empties every CPU's cache; the engine is going away, so nobody uses them.
    pub fn drain(&self, platform: &P) {
        for magazine in self.magazines.iter() {
            while let Some(frame) = magazine.pop() {
                self.free_to_platform(platform, &[frame]);
            }
        }
    }
}
