//! The frames of a platform: free frames per CPU, pools of huge pages, and references to frames in use.
//!
//! | file | contents |
//! | --- | --- |
//! | `cache.rs` | free frames per CPU |
//! | `pool.rs`, `huge.rs` | pools of huge pages; references to huge pages |
//! | `run.rs` | runs of frames, for address spaces without an MMU |
//! | `unpin.rs` | the release of pinned frames |
//! | `late_stores.rs` | pages of files that become dirty after their write-back |
//!
//! A [`Memory`] has no lock of its own: each pool has one, caches belong to CPUs, and the other fields are
//! atomic or never change. The records of frames are described in `frame/mod.rs`. A frame that is free here
//! has a zero record. The function that hands out the frame, or the caller of that function, makes the record
//! that of a page (`Frame::init_anon`, `Frame::init_cache`, `Frame::init_run`). A further way to allocate
//! frames gets a file here.

pub(crate) mod cache;
mod huge;
mod late_stores;
mod pool;
mod run;
mod unpin;

pub use huge::HugePageSize;
pub use pool::{HugePool, HugePoolCounts, NoHugePages, TakeError};
pub use run::Run;

use crate::{
    AnonPage, CachePage, NoMemory, PageIndex, Pfn,
    platform::{AllocEffort, FileId, FramePurpose, FrameRequest, NodeChoice, PageOwner, Platform},
    swap_entry::{NoSlots, SwapSlots},
};
use allocator_api2::{boxed::Box, unsize_box};
use arrayvec::ArrayVec;
use cache::{BATCH, FrameCache};
use freehold_pagetable::{Level, UnmappedFrame};
use freehold_sync::{
    atomic::{AtomicU64, Ordering::Relaxed},
    counted::Shared,
    publish::PublishedNumber,
};
use late_stores::LateStores;

/// The memory of address spaces: the frames of a platform, and the caches and pools of free frames.
// The value has cache lines of its own, because each fault reads it, and the reference count in front of it
// in memory changes with every space.
#[repr(align(64))]
pub struct Memory<P: Platform> {
    /// The free frames of each CPU, which are refilled from the platform.
    frames: FrameCache<P>,
    /// The frame of zeroes, which read faults map in anonymous memory. Not counted, never written.
    zero: Pfn,
    /// The huge frame of zeroes: its frame number plus one, or 0 if it was not allocated yet. Not counted,
    /// never written.
    huge_zero: PublishedNumber,
    /// Pools of huge pages that programs request explicitly, indexed by [`HugePageSize`].
    pools: [HugePool<P>; 2],
    /// Number of frames whose memory failed; never decremented.
    failed: AtomicU64,
    /// The files of which a page has become dirty late.
    late_stores: LateStores,
    /// The slots that swap entries name. Atomic, without a lock.
    slots: Box<dyn SwapSlots>,
    /// The last field, because dropping the fields above frees memory to the platform.
    platform: P,
}

impl<P: Platform> Memory<P> {
    /// Creates the memory of an engine on this platform, with all its frames.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for records, or for the frame of zeroes.
    pub fn new(platform: P) -> Result<Self, NoMemory> {
        // A value without a size needs no allocation.
        Self::with_slots(platform, unsize_box!(Box::try_new(NoSlots)?))
    }

    /// Creates the memory of an engine whose pages can be swapped out to these slots.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    #[doc(hidden)]
    pub fn with_slots(platform: P, slots: Box<dyn SwapSlots>) -> Result<Self, NoMemory> {
        let frames = FrameCache::try_new()?;
        let pools = [HugePool::try_new(&platform, Level::Pmd)?, HugePool::try_new(&platform, Level::Pud)?];
        // Not from the caches, whose frames are all movable.
        let zero = FrameCache::alloc_on(&platform, &FrameRequest::pages(FramePurpose::Engine))?;
        platform.zero_frame(zero);
        let (huge_zero, failed) = (PublishedNumber::new(0), AtomicU64::new(0));
        let late_stores = LateStores::new();
        Ok(Memory { frames, zero, huge_zero, pools, failed, late_stores, slots, platform })
    }

    /// Returns the platform.
    #[inline]
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Returns the number of frames that are out of use because their memory failed, or was about to fail.
    pub fn failed_frames(&self) -> u64 {
        // Relaxed, here and below: no decision depends on this count.
        self.failed.load(Relaxed)
    }

    /// Empties the calling CPU's cache of free frames, and makes each other CPU empty its own cache the next
    /// time it frees a frame. Returns true if the calling CPU's cache had frames.
    pub fn trim(&self) -> bool {
        self.frames.trim(&self.platform)
    }

    /// Returns the pool of this size.
    pub fn huge_pool(&self, size: HugePageSize) -> &HugePool<P> {
        &self.pools[size as usize]
    }

    /// Sets the number of pages of the pool of this size, on `node` or spread over all nodes (nr_hugepages).
    /// Returns the number that the pool then has. The result is smaller than requested if there is not enough
    /// contiguous memory. Pages that are in use or reserved stay as surplus until they are free and not
    /// reserved.
    ///
    /// # Locks
    ///
    /// Takes the pool's lock, but does not hold it while the platform allocates or frees.
    pub fn resize_huge_pool(&self, size: HugePageSize, huge_pages: u64, node: Option<usize>) -> u64 {
        self.huge_pool(size).resize(&self.platform, huge_pages, node)
    }
}

/// Functions for the crate `freehold`, which keeps the counts of references and entries correct.
#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Counts one more failed frame.
    pub fn count_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// Returns the slots that swap entries name.
    pub fn swap_slots(&self) -> &dyn SwapSlots {
        &*self.slots
    }

    /// Returns true if `pfn` is a frame of zeroes that is not counted.
    pub fn is_zero(&self, pfn: Pfn) -> bool {
        // The caller found the frame in an entry, which was made after the number was stored.
        let huge = self.huge_zero.peek();
        pfn == self.zero || (huge != 0 && (huge - 1..huge - 1 + Level::Pmd.frames()).contains(&pfn.get()))
    }

    /// Returns the frame of zeroes.
    #[inline]
    pub fn zero(&self) -> Pfn {
        self.zero
    }

    /// Returns the huge page of zeroes, which is allocated at its first use and kept.
    pub fn huge_zero(&self) -> Option<Pfn> {
        if let Some(number) = self.huge_zero.get().checked_sub(1) {
            return Some(Pfn::new(number));
        }
        let frames = Level::Pmd.frames();
        let first = self.alloc_block(FrameRequest::blocks(FramePurpose::Engine, Level::Pmd))?;
        (0..frames).for_each(|n| self.platform.zero_frame(first.add(n)));
        // A task that finds the number sees zeroed frames.
        match self.huge_zero.publish_first(first.get() + 1) {
            Ok(()) => Some(first),
            Err(other) => {
                (0..frames).for_each(|n| self.free_frame(first.add(n)));
                Some(Pfn::new(other - 1))
            }
        }
    }

    /// Allocates one block if the platform can provide one without effort. The caller can continue with
    /// smaller pages.
    pub(crate) fn alloc_block(&self, request: FrameRequest<'_, P::Mmu>) -> Option<Pfn> {
        let mut first = [Pfn::new(0)];
        let got = self.platform.alloc_frames(&request.with(AllocEffort::Opportunistic), &mut first);
        (got == 1).then_some(first[0])
    }

    /// Allocates a frame for an anonymous page of `space`. The frame has one reference, counts as mapped
    /// once, and is exclusive; its contents are zeroed if `zero` is set.
    #[inline(always)]
    pub(crate) fn alloc_anon(&self, space: &P::Mmu, zero: bool, page: AnonPage) -> Result<Pfn, NoMemory> {
        let owner = PageOwner::Space(space);
        let request = FrameRequest::pages(FramePurpose::Anonymous).of(owner);
        let frame = self.alloc_by(request, NodeChoice::of(&self.platform, page, Level::Pte))?;
        let frame = self.charged(frame, owner)?;
        self.platform.frame(frame).init_anon(page);
        if zero {
            self.platform.zero_frame(frame);
        }
        Ok(frame)
    }

    /// Allocates a frame of these nodes.
    #[inline(always)]
    fn alloc_by(&self, request: FrameRequest<'_, P::Mmu>, node: NodeChoice) -> Result<Pfn, NoMemory> {
        match node {
            NodeChoice::Any => self.frames.alloc(&self.platform, request),
            node => FrameCache::alloc_on(&self.platform, &request.on(node)),
        }
    }

    /// Allocates a frame for the page `index` of a page cache, which gets the only reference. The contents
    /// are undefined. `policy` is the NUMA policy of the mapping, or 0.
    pub fn alloc_cache(&self, kind: CachePage, index: PageIndex, policy: u64) -> Result<Pfn, NoMemory> {
        let owner = PageOwner::File(FileId::new(kind.rmap));
        let request = FrameRequest::pages(FramePurpose::File).of(owner);
        let nodes = NodeChoice::of_policy(&self.platform, policy, index.get());
        let frame = self.alloc_by(request, nodes)?;
        let frame = self.charged(frame, owner)?;
        self.platform.frame(frame).init_cache(kind, index);
        Ok(frame)
    }

    /// Allocates a frame for an anonymous page that no entry maps yet, such as a page that is about to be
    /// read from a swap device. The caller gets the only reference. The contents are undefined.
    pub fn alloc_swap(&self, owner: PageOwner<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        let request = FrameRequest::pages(FramePurpose::Anonymous).of(owner);
        let frame = self.alloc_by(request, NodeChoice::of_task(&self.platform))?;
        let frame = self.charged(frame, owner)?;
        self.platform.frame(frame).init_run();
        Ok(frame)
    }

    /// Charges a frame that was just allocated. Frees the frame if the charge is refused.
    #[inline(always)]
    fn charged(&self, frame: Pfn, owner: PageOwner<'_, P::Mmu>) -> Result<Pfn, NoMemory> {
        match self.platform.charge(owner, frame, 1) {
            true => Ok(frame),
            false => {
                self.free_frame(frame);
                Err(NoMemory)
            }
        }
    }

    /// Ends the charge of a frame that was never counted, or is no longer counted, and frees it like
    /// [`free_frame`](Self::free_frame).
    pub fn free_charged(&self, frame: Pfn) {
        self.platform.uncharge(&[frame]);
        self.free_frame(frame);
    }

    /// Frees a frame that is not charged. Bypasses the caches, so that the frames of a block become one free
    /// block again.
    pub fn free_frame(&self, frame: Pfn) {
        self.frames.free_to_platform(&self.platform, &[frame]);
    }

    /// Allocates what an entry of `level` maps: a frame, or a huge page of its pool. The contents are
    /// undefined, and the frame was never counted. The result is charged to `owner`. With a node, fails
    /// if the node has no memory.
    pub fn alloc_like(
        &self,
        level: Level,
        purpose: FramePurpose,
        owner: PageOwner<'_, P::Mmu>,
        node: Option<usize>,
    ) -> Result<Pfn, NoMemory> {
        match level {
            Level::Pte => {
                let request = FrameRequest::pages(purpose).of(owner);
                let frame = match node {
                    None => self.frames.alloc(&self.platform, request)?,
                    Some(node) => FrameCache::alloc_on(&self.platform, &request.on(NodeChoice::Only(node)))?,
                };
                self.charged(frame, owner)
            }
            _ => {
                let size = HugePageSize::of_level(level);
                let nodes = node.map_or(NodeChoice::Any, NodeChoice::Only);
                self.take_huge_page(size, false, owner, nodes).map_err(|_| NoMemory)
            }
        }
    }

    /// Frees the result of [`alloc_like`](Self::alloc_like) if it was never used.
    pub fn free_unused(&self, frame: Pfn, level: Level) {
        match level {
            Level::Pte => self.free_charged(frame),
            _ => self.return_huge_page(HugePageSize::of_level(level), frame, false),
        }
    }

    /// Drops a reference.
    pub fn put_frame(&self, frame: Pfn) {
        let record = self.platform.frame(frame);
        if record.hugetlb().is_some() {
            return self.put_huge_page(frame);
        }
        if record.put() {
            self.frames.free(&self.platform, &mut ArrayVec::from([frame]));
        }
    }

    /// Frees frames whose last reference was dropped, and empties `frames`.
    pub fn free_frames<const N: usize>(&self, frames: &mut ArrayVec<Pfn, N>) {
        self.frames.free(&self.platform, frames);
    }

    /// Frees a frame from [`alloc_anon`](crate::VmSpace::alloc_anon) that was never mapped.
    pub fn discard_anon(&self, frame: Pfn) {
        self.platform.frame(frame).sub_map();
        self.put_frame(frame);
    }

    /// Drops the references that cleared entries held, after their flush.
    pub fn release(&self, unmapped: &[UnmappedFrame]) {
        let mut free = ArrayVec::<Pfn, BATCH>::new();
        for leaf in unmapped {
            if leaf.level() != Level::Pte {
                self.frames.free(&self.platform, &mut free);
                self.release_large(*leaf);
                continue;
            }
            let frame = self.platform.frame(leaf.pfn());
            if leaf.is_dirty() {
                self.set_dirty_late(frame);
            }
            if frame.put() {
                free.push(leaf.pfn());
                if free.is_full() {
                    self.frames.free(&self.platform, &mut free);
                }
            }
        }
        self.frames.free(&self.platform, &mut free);
    }

    /// Drops the references of one mapping of a huge page, like [`release`](Self::release). The frames bypass
    /// the caches, so that they stay together for the next huge page.
    #[inline(never)]
    fn release_large(&self, leaf: UnmappedFrame) {
        if self.release_huge_page(leaf) {
            return;
        }
        let mut free = ArrayVec::<Pfn, BATCH>::new();
        for pfn in (0..leaf.level().frames()).map(|n| leaf.pfn().add(n)) {
            let frame = self.platform.frame(pfn);
            if leaf.is_dirty() {
                self.set_dirty_late(frame);
            }
            if frame.put() {
                free.push(pfn);
            }
            if free.is_full() {
                self.frames.free_now(&self.platform, &mut free);
            }
        }
        self.frames.free_now(&self.platform, &mut free);
    }

    /// Empties the calling CPU's cache, so that its frames may become part of runs. Returns true if the cache
    /// had frames.
    pub fn flush_cache(&self) -> bool {
        self.frames.flush(&self.platform)
    }
}

impl<P: Platform> Shared for Memory<P> {}

impl<P: Platform> Drop for Memory<P> {
    fn drop(&mut self) {
        if cfg!(feature = "hugetlb") {
            for size in HugePageSize::ALL {
                self.resize_huge_pool(size, 0, None);
            }
        }
        self.free_frame(self.zero);
        if let Some(huge) = self.huge_zero.peek().checked_sub(1) {
            for n in 0..Level::Pmd.frames() {
                self.free_frame(Pfn::new(huge + n));
            }
        }
        self.frames.drain(&self.platform);
    }
}
