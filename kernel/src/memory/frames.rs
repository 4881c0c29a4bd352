//! The allocator of frames, and the records that the engine keeps for all frames.
//!
//! A buddy system (Knowlton 1965) under one lock manages blocks of 1 to 2^18 frames. Single frames pass
//! through per-CPU caches, which exchange many frames at a time with the buddy system. Interrupts are off, so
//! a cache needs no lock. No other lock is taken under the lock of the buddy system.
//!
//! Pages of programs can move, so a huge page may be made of their frames. Frames for page tables, the heap and
//! stacks stay where they are. The buddy system therefore keeps blocks of 2 MiB of both kinds apart ([`Kind`]), as
//! Linux does: a request takes a block of its own kind, and only if there is none, a block of the other kind.
//!
//! The option `nodes=N` divides memory into N nodes of consecutive frames, as Linux's `numa=fake=N` does.
//! Each node has its own lists of free blocks, and no block lies in two nodes. The local node of every CPU is
//! [`LOCAL`], and the caches keep frames of this node, unless it has none. [`Nodes`] says which nodes may
//! serve a request.
//!
//! [`alloc_for_program`] leaves a reserve. It supplies the engine's frames (`platform/mod.rs`) and the kernel
//! stacks (`stacks.rs`), whose number depends on programs. [`alloc`] also uses the reserve, and supplies the
//! heap (`heap.rs`), which has no other way to fail than a panic. [`supply`] tells how much of the reserve is
//! left, so that calls stop before the heap has nothing left: see `sched/charge.rs` and
//! `process/shortage.rs`. No function sleeps. A frame number of 0 means "none" in the lists; frame 0 itself is
//! never free, because `memory::init` adds no memory below 1 MiB.
//!
//! The programs `corners.c` and `shortage.c` of the tests use up all memory, and check that ended processes
//! have freed their memory.

use crate::arch::cpu::{self, MAX_CPUS, PerCpu};
use crate::arch::{entry_work, layout::direct, lock::SpinLock};
use crate::start_info::Region;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use freehold::PAGE_SIZE;
use freehold::platform::{Frame, TableMeta};

/// Order of the largest block: 1 GiB.
pub const MAX_ORDER: u32 = 18;
/// Value of `state` for a frame that is not the first of a free block.
const NOT_FREE: u8 = 0xff;
/// The end of a list. Frame 0 is never free.
const NONE: u64 = 0;
/// Minimum number of free frames that are reserved for the kernel: 4 MiB.
const LEAST_RESERVE: u64 = 1024;
/// The reserve is at least this part of all memory.
const RESERVED_PART: u64 = 64;

/// Maximum number of nodes.
pub const MAX_NODES: usize = 8;
/// The node that every CPU prefers.
pub const LOCAL: usize = 0;
/// The number of frames of a node is a multiple of this number: a huge page.
const NODE_UNIT: u64 = 512;

/// The use of a block of 2 MiB, of which parts may be free.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Pages of programs, which the engine can move.
    Movable,
    /// All other frames.
    Fixed,
}

impl Kind {
    fn other(self) -> Self {
        match self {
            Kind::Movable => Kind::Fixed,
            Kind::Fixed => Kind::Movable,
        }
    }
}

/// Order of the blocks that have a kind.
const KIND_ORDER: u32 = 9;

/// The nodes that may serve a request, as sets with one bit for each node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    /// The nodes that are tried first, in ascending order.
    pub first: u32,
    /// The nodes that are tried next, in ascending order.
    pub then: u32,
}

impl Nodes {
    /// The local node, then all others.
    pub const ANY: Nodes = Nodes { first: 1 << LOCAL, then: u32::MAX };
}

/// How much memory is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Supply {
    /// More than the reserve.
    Plenty,
    /// Only the reserve: programs get no frames, and no call may allocate more than a bounded amount.
    Short,
    /// Less than half of the reserve: no call may begin until memory has been freed.
    Desperate,
}

/// Records of all frames, indexed by frame number. `init` writes these statics once, before they are read.
static FRAMES: AtomicPtr<Frame> = AtomicPtr::new(core::ptr::null_mut());
/// Records of frames that are page tables, indexed by frame number.
static TABLES: AtomicPtr<TableMeta> = AtomicPtr::new(core::ptr::null_mut());
/// For each frame that the heap has cut into objects: the place of its first free object. Only `heap.rs` uses
/// the elements.
static PLACES: AtomicPtr<u16> = AtomicPtr::new(core::ptr::null_mut());
/// For each 2 MiB of memory, the [`Kind`]: see `Buddy::kinds`.
static KINDS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The frame number after the last frame.
static END: AtomicU64 = AtomicU64::new(0);
/// Number of free frames that are reserved for the kernel. Programs get frames only while more frames than
/// these are free. Changes only under the lock of the buddy system.
static RESERVE: AtomicU64 = AtomicU64::new(LEAST_RESERVE);
/// The [`Supply`] after the last change of the buddy system or of the reserve. Written only when it changes,
/// because many CPUs read it.
static SUPPLY: AtomicU8 = AtomicU8::new(Supply::Plenty as u8);
/// Number of nodes. Written once, like `NODE_FRAMES`.
static NODES: AtomicUsize = AtomicUsize::new(1);
/// Number of frames of each node except the last, which has the rest.
static NODE_FRAMES: AtomicU64 = AtomicU64::new(u64::MAX);
/// The buddy system of all memory.
static BUDDY: SpinLock<Buddy> = SpinLock::new(Buddy::new());

/// The contents of a free block: its neighbours in the list of its order.
#[repr(C)]
struct Links {
    next: u64,
    previous: u64,
}

/// The buddy system.
///
/// # Invariants
///
/// `state` has a byte for each frame: the order of the free block that begins there, or `NOT_FREE`. A free
/// block is in the list of its order, of the kind of its first frame, and of its node, to which all its frames
/// belong.
struct Buddy {
    /// The first block of each order of each kind of each node, or `NONE`.
    heads: [[[u64; MAX_ORDER as usize + 1]; 2]; MAX_NODES],
    /// The states of all frames: see the invariants.
    state: *mut u8,
    /// For each 2 MiB of memory, the kind. Does not change while a free block that begins there is in a list.
    kinds: *mut u8,
    /// Number of frames in all free blocks.
    free: u64,
    /// Number of frames in the free blocks of each node.
    free_of: [u64; MAX_NODES],
}

// SAFETY: only the buddy system uses the memory behind the pointer, under its lock.
unsafe impl Send for Buddy {}

impl Buddy {
    const fn new() -> Self {
        let heads = [[[NONE; MAX_ORDER as usize + 1]; 2]; MAX_NODES];
        let none = core::ptr::null_mut();
        Buddy { heads, state: none, kinds: none, free: 0, free_of: [0; MAX_NODES] }
    }

    /// Returns the state of a frame.
    fn state(&mut self, frame: u64) -> &mut u8 {
        // SAFETY: `state` has a byte for each frame below END, and callers have checked the number.
        unsafe { &mut *self.state.add(frame as usize) }
    }

    /// Returns the byte with the kind of the 2 MiB that contain a frame.
    fn kind_byte(&mut self, frame: u64) -> &mut u8 {
        // SAFETY: `kinds` has a byte for each 2 MiB below END, and callers have checked the number.
        unsafe { &mut *self.kinds.add((frame >> KIND_ORDER) as usize) }
    }

    /// Returns the kind of the 2 MiB that contain a frame.
    fn kind_of(&mut self, frame: u64) -> Kind {
        if *self.kind_byte(frame) == Kind::Movable as u8 { Kind::Movable } else { Kind::Fixed }
    }

    /// Returns the head of the list for a block.
    fn head(&mut self, frame: u64, order: u32) -> &mut u64 {
        let kind = self.kind_of(frame);
        &mut self.heads[node_of(frame)][kind as usize][order as usize]
    }

    /// Returns the links that a free block contains.
    fn links(frame: u64) -> *mut Links {
        direct(frame * PAGE_SIZE)
    }

    /// Makes a block free, without joining it with its buddy.
    fn push(&mut self, frame: u64, order: u32) {
        let head = core::mem::replace(self.head(frame, order), frame);
        // SAFETY: the buddy system owns free blocks.
        unsafe {
            Self::links(frame).write(Links { next: head, previous: NONE });
            if head != NONE {
                (*Self::links(head)).previous = frame;
            }
        }
        *self.state(frame) = order as u8;
    }

    /// Removes a free block from the list of its order.
    fn remove(&mut self, frame: u64, order: u32) {
        // SAFETY: as in `push`.
        unsafe {
            let Links { next, previous } = Self::links(frame).read();
            match previous {
                NONE => *self.head(frame, order) = next,
                _ => (*Self::links(previous)).next = next,
            }
            if next != NONE {
                (*Self::links(next)).previous = previous;
            }
        }
        *self.state(frame) = NOT_FREE;
    }

    /// Allocates a block of the first of these nodes that has one.
    fn alloc(&mut self, order: u32, nodes: Nodes, kind: Kind) -> Option<u64> {
        let count = self::nodes();
        [nodes.first, nodes.then & !nodes.first]
            .into_iter()
            .flat_map(|set| (0..count).filter(move |node| set >> node & 1 != 0))
            .find_map(|node| self.alloc_of(order, node, kind))
    }

    /// Returns the order of the block of this node that serves a request best: the smallest block of this kind, or
    /// else the largest block of the other kind. Also returns the kind.
    fn best(&self, order: u32, node: usize, kind: Kind) -> Option<(u32, Kind)> {
        let has = |kind: Kind| move |order: &u32| self.heads[node][kind as usize][*order as usize] != NONE;
        let own = (order..=MAX_ORDER).find(has(kind)).map(|found| (found, kind));
        let other = kind.other();
        own.or_else(|| (order..=MAX_ORDER).rev().find(has(other)).map(|found| (found, other)))
    }

    /// Allocates a block of this node, and splits a larger block if necessary.
    fn alloc_of(&mut self, order: u32, node: usize, kind: Kind) -> Option<u64> {
        let (mut found, of_kind) = self.best(order, node, kind)?;
        let frame = self.heads[node][of_kind as usize][found as usize];
        self.remove(frame, found);
        while found > order.max(KIND_ORDER) {
            found -= 1;
            self.push(frame + (1 << found), found);
        }
        // Whole 2 MiB get the kind of the request. Smaller blocks of the other kind are borrowed.
        for block in 0..1 << found.saturating_sub(KIND_ORDER) {
            if found >= KIND_ORDER {
                *self.kind_byte(frame + (block << KIND_ORDER)) = kind as u8;
            }
        }
        while found > order {
            found -= 1;
            self.push(frame + (1 << found), found);
        }
        self.free -= 1 << order;
        self.free_of[node] -= 1 << order;
        self.note_supply();
        Some(frame)
    }

    /// Frees a block, and joins it with free buddies.
    fn free(&mut self, mut frame: u64, mut order: u32) {
        let node = node_of(frame);
        self.free += 1 << order;
        self.free_of[node] += 1 << order;
        let end = END.load(Relaxed);
        while order < MAX_ORDER {
            let buddy = frame ^ 1 << order;
            if buddy >= end || u32::from(*self.state(buddy)) != order || node_of(buddy) != node {
                break;
            }
            self.remove(buddy, order);
            frame &= buddy;
            order += 1;
        }
        self.push(frame, order);
        self.note_supply();
    }

    /// Updates [`SUPPLY`] after a change.
    fn note_supply(&self) {
        let reserve = RESERVE.load(Relaxed);
        let supply = match self.free {
            free if free > reserve => Supply::Plenty,
            free if free > reserve / 2 => Supply::Short,
            _ => Supply::Desperate,
        } as u8;
        let before = SUPPLY.load(Relaxed);
        if before == supply {
            return;
        }
        SUPPLY.store(supply, Relaxed);
        if supply == Supply::Desperate as u8 {
            entry_work::set(entry_work::NO_MEMORY);
        } else if before == Supply::Desperate as u8 {
            entry_work::clear(entry_work::NO_MEMORY);
        }
    }
}

/// Returns the bytes that records of `frames` frames need.
pub fn records_bytes(frames: u64) -> u64 {
    let bytes = size_of::<TableMeta>() + size_of::<Frame>() + size_of::<u16>() + 1;
    (frames * bytes as u64 + frames.div_ceil(1 << KIND_ORDER)).next_multiple_of(PAGE_SIZE)
}

/// Returns the number of nodes.
#[inline(always)]
pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// Returns the set of all nodes, with one bit for each.
pub fn all_nodes() -> u32 {
    u32::MAX >> (32 - nodes() as u32)
}

/// Returns the node of a frame.
#[inline(always)]
pub fn node_of(frame: u64) -> usize {
    match nodes() {
        1 => 0,
        nodes => (frame / NODE_FRAMES.load(Relaxed)).min(nodes as u64 - 1) as usize,
    }
}

/// Returns the numbers of the frames of a node.
pub fn frames_of(node: usize) -> Range<u64> {
    let (each, end) = (NODE_FRAMES.load(Relaxed), END.load(Relaxed));
    let start = each.saturating_mul(node as u64).min(end);
    start..if node + 1 == nodes() { end } else { start + each }
}

/// Makes the records of the frames 0 to `frames` - 1, and the state of the buddy system, with this number of
/// nodes. No frame is free yet.
///
/// # Safety
///
/// The memory has `records_bytes(frames)` bytes and is unused. No other function of this module has been
/// called before.
pub unsafe fn init(memory: Region, frames: u64, nodes: usize) {
    let nodes = nodes.clamp(1, MAX_NODES).min((frames / NODE_UNIT) as usize);
    NODE_FRAMES.store((frames / nodes as u64) & !(NODE_UNIT - 1), Relaxed);
    NODES.store(nodes, Relaxed);
    let at: *mut u8 = direct(memory.start);
    let count = frames as usize;
    // SAFETY: by the caller's promise. A record filled with zeros is valid: it is the record of a free frame
    // or of an empty table.
    unsafe {
        at.write_bytes(0, (memory.end - memory.start) as usize);
        let frames = at.add(count * size_of::<TableMeta>());
        let places = frames.add(count * size_of::<Frame>());
        let state = places.add(count * size_of::<u16>());
        places.write_bytes(0xff, count * size_of::<u16>());
        PLACES.store(places.cast(), Relaxed);
        state.write_bytes(NOT_FREE, count);
        TABLES.store(at.cast(), Relaxed);
        FRAMES.store(frames.cast(), Relaxed);
        let mut buddy = BUDDY.lock();
        // All kinds are 0: movable.
        (buddy.state, buddy.kinds) = (state, state.add(count));
        KINDS.store(state.add(count), Relaxed);
    }
    END.store(frames, Relaxed);
    change_reserve(|least| least.max(frames / RESERVED_PART));
}

/// Adds whole pages of memory to the free frames.
///
/// # Safety
///
/// The memory is unused, and the direct map contains it.
pub unsafe fn add(memory: Region) {
    let (mut at, end) = (memory.start / PAGE_SIZE, memory.end / PAGE_SIZE);
    let mut buddy = BUDDY.lock();
    while at < end {
        // The rest of the region in this node.
        let left = end.min(frames_of(node_of(at)).end) - at;
        let order = at.trailing_zeros().min(left.ilog2()).min(MAX_ORDER);
        buddy.free(at, order);
        at += 1 << order;
    }
}

/// Returns how much memory is free.
#[inline(always)]
pub fn supply() -> Supply {
    match SUPPLY.load(Relaxed) {
        supply if supply == Supply::Plenty as u8 => Supply::Plenty,
        supply if supply == Supply::Short as u8 => Supply::Short,
        _ => Supply::Desperate,
    }
}

/// Reserves one more frame for the kernel, for the call that a new thread may make.
pub fn reserve_for_thread() {
    change_reserve(|reserve| reserve + 1);
}

/// Ends the reservation of [`reserve_for_thread`].
pub fn thread_ended() {
    change_reserve(|reserve| reserve - 1);
}

/// Changes the reserve, and the supply with it. If the supply stayed [`Supply::Plenty`] while programs get no
/// more frames, a thread that needs one would repeat its call for ever, and no process would end.
fn change_reserve(change: impl FnOnce(u64) -> u64) {
    let buddy = BUDDY.lock();
    RESERVE.store(change(RESERVE.load(Relaxed)), Relaxed);
    buddy.note_supply();
}

/// Returns the number of free frames, without those in CPUs' caches.
pub fn free_count() -> u64 {
    BUDDY.lock().free
}

/// Returns the number of free frames of a node, without those in CPUs' caches.
pub fn free_count_of(node: usize) -> u64 {
    BUDDY.lock().free_of[node]
}

/// Returns true if none of these nodes has a free frame, although other nodes have more than the reserve.
pub fn are_used_up(nodes: Nodes) -> bool {
    let set = nodes.first | nodes.then;
    supply() == Supply::Plenty
        && (0..self::nodes()).all(|node| set >> node & 1 == 0 || free_count_of(node) == 0)
}

/// Returns true if a frame has this number.
#[inline(always)]
pub fn exists(frame: u64) -> bool {
    frame < END.load(Relaxed)
}

/// Returns the numbers of all frames.
pub fn numbers() -> core::ops::Range<u64> {
    0..END.load(Relaxed)
}

/// Returns the engine's record of a frame. Panics if no frame has this number.
#[inline(always)]
pub fn record(frame: u64) -> &'static Frame {
    assert!(exists(frame));
    // SAFETY: `init` filled the record of each frame with zeros, and such a record is valid.
    unsafe { &*FRAMES.load(Relaxed).add(frame as usize) }
}

/// Returns the engine's record of a frame that is a page table. Panics if no frame has this number.
#[inline(always)]
pub fn table_record(frame: u64) -> &'static TableMeta {
    assert!(exists(frame));
    // SAFETY: as in `record`.
    unsafe { &*TABLES.load(Relaxed).add(frame as usize) }
}

/// Returns the place for the heap's note about a frame: see `heap.rs`. The initial value is `u16::MAX`.
/// Panics if no frame has this number.
#[inline(always)]
pub fn heap_place(frame: u64) -> *mut u16 {
    assert!(exists(frame));
    // SAFETY: `init` made an element for each frame.
    unsafe { PLACES.load(Relaxed).add(frame as usize) }
}

/// Free frames that a CPU caches.
pub struct FrameCache {
    /// Number of cached frames, which are the first elements of `frames`.
    count: usize,
    frames: [u32; Self::ROOM],
}

impl FrameCache {
    /// Number of frames that the cache can hold.
    const ROOM: usize = 128;
    /// Order of the blocks that the cache takes from the buddy system.
    const BATCH_ORDER: u32 = 5;
    /// Number of frames that are exchanged with the buddy system at a time.
    const BATCH: usize = 1 << Self::BATCH_ORDER;

    pub const fn new() -> Self {
        FrameCache { count: 0, frames: [0; Self::ROOM] }
    }

    /// Takes a frame. Returns `None` if the cache is empty and the buddy system has at most `reserve` frames.
    #[inline]
    fn pop(&mut self, reserve: u64, kind: Kind) -> Option<u64> {
        if self.count == 0 && !self.refill(reserve, kind) {
            return None;
        }
        self.count -= 1;
        Some(self.frames[self.count].into())
    }

    /// Adds a free frame. If the cache is full, first moves a batch to the buddy system.
    #[inline]
    fn push(&mut self, frame: u64) {
        if self.count == Self::ROOM {
            self.drain();
        }
        self.frames[self.count] = frame as u32;
        self.count += 1;
    }

    /// Moves frames from the buddy system to the empty cache. Returns false if the buddy system has at most
    /// `reserve` frames.
    #[inline(never)]
    fn refill(&mut self, reserve: u64, kind: Kind) -> bool {
        let mut buddy = BUDDY.lock();
        if buddy.free <= reserve {
            return false;
        }
        if let Some(first) = buddy.alloc(Self::BATCH_ORDER, Nodes::ANY, kind) {
            // The lowest frame is last in the array, so it is taken first.
            (0..Self::BATCH).for_each(|n| self.frames[n] = (first as usize + Self::BATCH - 1 - n) as u32);
            self.count = Self::BATCH;
        } else if let Some(frame) = buddy.alloc(0, Nodes::ANY, kind) {
            self.frames[0] = frame as u32;
            self.count = 1;
        }
        self.count > 0
    }

    /// Returns to the buddy system the frames that the cache has held longest.
    #[inline(never)]
    fn drain(&mut self) {
        let mut buddy = BUDDY.lock();
        self.frames[..Self::BATCH].iter().for_each(|frame| buddy.free((*frame).into(), 0));
        self.frames.copy_within(Self::BATCH.., 0);
        self.count -= Self::BATCH;
    }
}

/// The cached frames of each CPU, by kind.
static CACHES: [PerCpu<[FrameCache; 2]>; MAX_CPUS] =
    [const { PerCpu::new([const { FrameCache::new() }; 2]) }; MAX_CPUS];

/// Calls `f` with the cache of the calling CPU for frames of this kind.
#[inline]
fn with_cache<R>(kind: Kind, f: impl FnOnce(&mut FrameCache) -> R) -> R {
    // SAFETY: only this CPU uses the caches, and nothing here sleeps or is called recursively.
    f(&mut (unsafe { &mut *CACHES[cpu::number()].get() })[kind as usize])
}

/// Returns the kind of the 2 MiB that contain a frame. Another CPU may change the kind at the same time, if the
/// frame was borrowed; the result then only chooses a cache.
fn kind_of(frame: u64) -> Kind {
    // SAFETY: `init` made a byte for each 2 MiB, and the byte is only read.
    let kind = unsafe { KINDS.load(Relaxed).add((frame >> KIND_ORDER) as usize).read_volatile() };
    if kind == Kind::Movable as u8 { Kind::Movable } else { Kind::Fixed }
}

/// Allocates a block of 2^`order` frames, aligned to its size. Returns its first frame, or `None` if memory
/// runs out.
#[inline]
pub fn alloc(order: u32) -> Option<u64> {
    alloc_above(order, 0, Nodes::ANY, Kind::Fixed)
}

/// Allocates a block for a program. Leaves a reserve for the kernel.
#[inline]
pub fn alloc_for_program(order: u32) -> Option<u64> {
    alloc_above(order, RESERVE.load(Relaxed), Nodes::ANY, Kind::Fixed)
}

/// Allocates a block of these nodes and this kind for a program. Leaves a reserve for the kernel, on any nodes.
#[inline]
pub fn alloc_on(order: u32, nodes: Nodes, kind: Kind) -> Option<u64> {
    alloc_above(order, RESERVE.load(Relaxed), nodes, kind)
}

/// Allocates a block of these nodes if at least `reserve` frames stay free. Cached frames do not count.
#[inline]
fn alloc_above(order: u32, reserve: u64, nodes: Nodes, kind: Kind) -> Option<u64> {
    if order == 0 && nodes == Nodes::ANY {
        return with_cache(kind, |cache| cache.pop(reserve, kind));
    }
    let mut buddy = BUDDY.lock();
    let is_left = order <= MAX_ORDER && buddy.free >= reserve + (1 << order);
    is_left.then(|| buddy.alloc(order, nodes, kind)).flatten()
}

/// Frees a block.
///
/// # Safety
///
/// The block is one that `alloc` returned, or a part of such a block, and is unused.
#[inline]
pub unsafe fn free(frame: u64, order: u32) {
    match order {
        0 if node_of(frame) == LOCAL => with_cache(kind_of(frame), |cache| cache.push(frame)),
        _ => BUDDY.lock().free(frame, order),
    }
}
