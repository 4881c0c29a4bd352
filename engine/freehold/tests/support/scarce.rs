//! A world whose engine has empty caches, for a sequence of scenes ([`Scene`](super::oom::Scene) in
//! `oom.rs`).
//!
//! The engine allocates frames and VMAs in batches and keeps the rest in caches. While a cache is not empty,
//! an allocation from it cannot fail. A separate process, the *hog*, therefore takes all cached frames and
//! VMAs before a call is made, so that every allocation of the call reaches the allocator. `use_up` can leave
//! a chosen number in the caches.
//!
//! One world serves many scenes, because creating a world is slow. `check_that_all_is_back` detects what a
//! scene has leaked. `is_worn` says when the hog has so many VMAs that a new world is faster.

use super::{failure::Failure, heap::last_refused, *};
use freehold::{
    call::Advice,
    platform::{FramePurpose, FrameRequest},
    space::Write,
};
use freehold_sync::Host;

/// Smallest size of a block of VMAs. Nodes of the VMA tree are smaller.
const CHUNK: usize = 2048;
/// Largest number of VMAs of the hog. With more, the world should be replaced, because the hog's VMAs make
/// each scene slower.
const MAX_HOG_VMAS: u64 = 500;
/// Address of the pages that the hog frees to put frames into the cache.
const SPARES: u64 = BASE + (5 << 30);
/// Address of the hog's VMAs, each of one page.
const VMAS: u64 = BASE + (6 << 30);

/// A world, the process that empties the caches of its engine, and the memory in use between scenes.
pub struct ScarceWorld {
    pub world: World,
    /// Process that takes all free frames and VMAs from the caches of the engine.
    pub hog: Process,
    /// CPU that runs the hog.
    pub cpu: Vcpu,
    /// Address of the hog's next VMA.
    next: u64,
    /// A frame that the engine does not use.
    frame: Pfn,
    /// Frames, tables and spaces in use between scenes.
    in_use: (usize, usize, usize),
}

impl ScarceWorld {
    pub fn new(world: World) -> Self {
        // A range writer tries to allocate other memory, and works without that memory.
        let hog = world.process(Locking::default().write(Write::Whole));
        let cpu = world.machine.cpu(1);
        let mut frame = [Pfn::new(0)];
        assert_eq!(world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        let [frame] = frame;
        let mut scarce = ScarceWorld { world, hog, cpu, next: VMAS, frame, in_use: (0, 0, 0) };
        anon(&scarce.hog, SPARES, 8);
        scarce.use_up(1);
        scarce.note_use();
        scarce
    }

    /// Records the memory in use between scenes, for
    /// [`check_that_all_is_back`](Self::check_that_all_is_back).
    pub fn note_use(&mut self) {
        self.give_frames_back();
        self.in_use = self.count();
    }

    /// Returns true if the next scene should have a new world.
    pub fn is_worn(&self) -> bool {
        self.hog.counts().map_count > MAX_HOG_VMAS || self.world.engine().failed_frames() > 0
    }

    /// Leaves `spare` VMAs and `spare` frames in the caches. The frames are in the cache of this thread's
    /// CPU.
    pub fn use_up(&mut self, spare: u64) {
        loop {
            // All allocations fail, because the call is tried again if the engine has freed frames.
            Failure::HeapFromThere.arm(1);
            let taken = self.take();
            if Failure::HeapFromThere.stop() > 0 {
                assert!(!taken);
                if last_refused() >= CHUNK {
                    break;
                }
                // The failed allocation was for a node of the hog's own tree.
                assert!(self.take());
            }
        }
        for page in 0..spare {
            self.hog.store(&mut self.cpu, SPARES + page * PAGE, 1u64).unwrap();
        }
        self.give_frames_back();
        if spare > 0 {
            self.hog.madvise(SPARES, spare * PAGE, Advice::DontNeed).unwrap();
            self.next -= spare * PAGE;
            self.hog.munmap(self.next, spare * PAGE).unwrap();
            <Machine>::rcu_barrier();
        }
    }

    /// Takes a VMA. Returns false if there is no memory.
    fn take(&mut self) -> bool {
        let prot = if (self.next / PAGE).is_multiple_of(2) { R } else { RW };
        let taken = self.hog.mmap(self.next, PAGE, prot, ANON | MapFlags::FIXED, None, 0).is_ok();
        self.next += if taken { PAGE } else { 0 };
        taken
    }

    /// Empties the frame cache of this CPU. soft_offline does that before it searches the caches for the
    /// frame.
    fn give_frames_back(&self) {
        let in_use = self.world.engine().soft_offline(self.frame);
        assert!(in_use.is_err(), "the engine took a frame that it does not own");
    }

    fn count(&self) -> (usize, usize, usize) {
        let in_use = self.world.machine.accounting();
        (in_use.frames, in_use.tables, in_use.spaces)
    }

    /// Fails if a scene has left memory in use. If `frames_may_stay`, other threads may keep frames that they
    /// freed; these frames are checked when the world ends.
    #[track_caller]
    pub fn check_that_all_is_back(&self, frames_may_stay: bool, what: impl Fn() -> String) {
        self.give_frames_back();
        let (frames, tables, spaces) = self.count();
        let kept = frames as i64 - self.in_use.0 as i64;
        assert!(kept == 0 || frames_may_stay, "{}: {kept} frames were leaked", what());
        assert_eq!((tables, spaces), (self.in_use.1, self.in_use.2), "{}: tables and spaces in use", what());
    }

    /// Ends the world. Only memory that has failed may be left.
    pub fn end(self) {
        let ScarceWorld { world: World { machine, engine }, hog, cpu, frame, .. } = self;
        let failed = engine.as_ref().unwrap().failed_frames();
        drop((hog, cpu, engine));
        // SAFETY: the frame was allocated from the machine, and nothing has used it.
        unsafe { machine.free_frames(&[frame]) };
        let left = machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{left}");
    }
}
