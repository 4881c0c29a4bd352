//! Per-frame metadata: references, map counts, owner; and per-CPU caches over the platform's allocator.
//!
//! | count | one is held by |
//! | --- | --- |
//! | `refs` | each page-table entry that maps the frame, the page cache that holds it, each run it is in, each borrower; a pin (`frame/pin.rs`) as many as 1024 |
//! | `maps` | each page-table entry that maps the frame |
//!
//! Both fit 32 bits. References without a limit of time are refused from 2^30 on (`MAX_REFS`): an entry that
//! maps the frame (`Frame::try_map_cached`, `Frame::share`), a pin, a run. `maps` is never more than `refs`.
//! The rest is for references that a task has for the length of one step, as the reverse map's and a
//! gather's.
//!
//! A reference is raised only by a task that knows of another one that stays meanwhile, say of the entry
//! under its table's lock. So a task that holds the only reference, to a frame that is in no page cache or
//! table any more, holds it alone: a count of one may then be dropped without a locked instruction.
//!
//! While a page cache holds one of the references, lookups raise the count as well, under no lock:
//! `frame/cached.rs`.

mod cached;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod page;
pub(crate) mod pin;

pub use cached::NotMapped;

use crate::{PageIndex, RssKind};
use freehold_pagetable::Level;
use freehold_sync::{
    WordLock,
    atomic::{
        AtomicU32, AtomicU64, AtomicUsize, CHECKED,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        announce, const_unless_loom,
    },
};
use page::{AnonPage, CachePage};

/// What the engine knows about one frame of memory: 32 bytes, all zero while the frame is free, so that a
/// platform may cast zeroed memory to records. A frame whose memory failed is never free again.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    /// At most [`MAX_REFS`], and what single steps of tasks add; and [`CACHED`].
    refs: AtomicU32,
    /// At most `refs`.
    maps: AtomicU32,
    /// Kind and flags, below.
    word: AtomicU32,
    /// See [`lock`].
    lock: WordLock,
    /// Address of the record of the VMAs that may map it: for anonymous memory the tree of VMAs, for a page
    /// cache its file. Written while the frame belongs to its maker alone; [`rmap`](crate::rmap) says what it
    /// means later.
    rmap: AtomicUsize,
    /// The page offset by which it is known there. Written as `rmap`.
    index: AtomicU64,
}

/// Nothing that may last refers to a frame that has so many references.
const MAX_REFS: u32 = if CHECKED { 8 * pin::PIN } else { 1 << 30 };

/// In `refs`: a page cache holds one of them, and lookups may raise the count.
const CACHED: u32 = 1 << 31;

/// Anonymous memory (else: in a page cache).
const ANON: u32 = 1 << 0;
/// Only one address space can reach it: a write need not copy. Changed under the lock of the one table that
/// maps it.
const EXCLUSIVE: u32 = 1 << 1;
/// Shared memory (else: a page of an ordinary file).
const SHMEM: u32 = 1 << 2;
/// Written since it was last written back.
const DIRTY: u32 = 1 << 3;
/// The memory failed. Set when no entry maps it any more, so that nobody changes the other bits by a plain
/// store; for ever.
const FAILED: u32 = 1 << 4;
/// The first frame of a page of a huge-page pool: its record speaks for all frames of the page, whose own
/// stay clean.
const HUGETLB: u32 = 1 << 5;
/// Of such a page: one of 1 GiB (else: of 2 MiB).
const GIGANTIC: u32 = 1 << 6;
/// Of such a page: it goes back with the reservation that it came in place of. Set by a holder of a
/// reference, when no entry is left.
const RESTORE: u32 = 1 << 7;
/// Of such a page: the memory of one of its frames failed, and that frame's own record says so.
const BROKEN: u32 = 1 << 8;
/// A page of secret memory: nobody gets a reference to read it by.
const SECRET: u32 = 1 << 9;

/// The page is anonymous and was freed lazily: its contents are needed only if it is dirty. Set under the
/// lock of a table that maps the frame; stays until the frame is free.
const LAZY: u32 = 1 << 10;

impl Frame {
    /// Tells the simulation's report where records are; nothing in any other build. For a platform that makes
    /// many at once.
    pub fn announce(first: *const Frame, count: usize) {
        announce!(
            "Frame",
            first,
            count,
            Frame { refs: refs, maps: maps, word: word, lock: lock, rmap: rmap, index: index }
        );
    }

    const_unless_loom! {
        /// The record of a free frame.
        pub fn new() -> Self {
            Frame {
                refs: AtomicU32::new(0),
                maps: AtomicU32::new(0),
                word: AtomicU32::new(0),
                lock: WordLock::new(),
                rmap: AtomicUsize::new(0),
                index: AtomicU64::new(0),
            }
        }
    }

    /// Whether the frame is free as far as the engine knows.
    #[inline]
    pub fn is_free(&self) -> bool {
        // Relaxed: exact only for a task that has the frame to itself.
        self.refs.load(Relaxed) == 0 && self.maps.load(Relaxed) == 0 && self.word.load(Relaxed) == 0
    }
}

/// Counts and kinds, for the crate `freehold`: an entry or a cache that names the frame is counted in it.
#[doc(hidden)]
impl Frame {
    // The frame was just taken off the free list: nobody else looks at it, so plain stores do. A task that
    // finds it later does so through a table entry or a page cache slot, both published with release.

    /// An anonymous page, mapped once, by the entry that is about to be made; exclusive.
    #[inline]
    pub fn init_anon(&self, AnonPage { rmap, index }: AnonPage) {
        self.refs.store(1, Relaxed);
        // Release: as in `add_map`.
        self.maps.store(1, Release);
        self.word.store(ANON | EXCLUSIVE, Relaxed);
        self.index.store(index.get(), Relaxed);
        // Release pairs with the acquire in `rmap`: a task that finds the address finds what is there.
        self.rmap.store(rmap, Release);
    }

    /// Whether it is of secret memory.
    #[inline]
    pub fn is_secret(&self) -> bool {
        self.word.load(Relaxed) & SECRET != 0
    }

    /// A page that is about to [enter](Self::enter_cache) a cache; the maker has the one reference.
    #[inline]
    pub fn init_cache(&self, kind: CachePage, index: PageIndex) {
        self.refs.store(1, Relaxed);
        let shmem = if kind.shmem { SHMEM } else { 0 };
        self.word.store(if kind.secret { shmem | SECRET } else { shmem }, Relaxed);
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(kind.rmap, Release);
    }

    /// Memory of an address space without an MMU, whose [`Run`](crate::Run) holds its one reference; no entry
    /// maps it.
    #[inline]
    pub fn init_run(&self) {
        self.refs.store(1, Relaxed);
        self.word.store(ANON, Relaxed);
    }

    /// What moves with the page into another frame: kind, flags, rmap word. `self` is the maker's alone; one
    /// reference, no map.
    #[inline]
    pub fn inherit(&self, old: &Frame) {
        self.refs.store(1, Relaxed);
        // A reservation goes back once, with the frame that is free first.
        self.word.store(old.word.load(Relaxed) & !RESTORE, Relaxed);
        let (rmap, index) = old.rmap();
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(rmap, Release);
    }

    /// The page has moved within its address space: it is known by another rmap word from now on. With the
    /// frame locked, and the locks of both tables concerned.
    #[inline]
    pub fn set_rmap(&self, AnonPage { rmap, index }: AnonPage) {
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(rmap, Release);
    }

    /// It has no rmap word any more: what its page was has gone elsewhere, or was cut off.
    #[inline]
    pub fn clear_rmap(&self) {
        self.rmap.store(0, Relaxed);
    }

    /// Where it is known, and by which page offset.
    #[inline]
    pub fn rmap(&self) -> (usize, PageIndex) {
        (self.rmap.load(Acquire), PageIndex::new(self.index.load(Relaxed)))
    }

    /// One reference more, for one step of a task. What may last, and be had without end, is refused at some
    /// point: see [`try_map_cached`](Self::try_map_cached).
    #[inline]
    pub fn get(&self) {
        // Relaxed: the caller knows of a reference that stays, so the frame cannot be freed beside this.
        self.refs.fetch_add(1, Relaxed);
    }

    /// Lets `refs` references be counted for real from then on: for tests of what happens when there are too
    /// many.
    #[doc(hidden)]
    pub fn pretend_references(&self, more: i32) {
        self.refs.fetch_add(more as u32, Relaxed);
    }

    /// One reference less; true when it was the last and the frame is free: its record is then clean. One
    /// that failed never is.
    #[inline]
    pub fn put(&self) -> bool {
        self.put_many(1)
    }

    /// So many references less, all the caller's; as [`put`](Self::put).
    #[inline]
    fn put_many(&self, count: u32) -> bool {
        self.put_word(count).is_some_and(|word| word & FAILED == 0)
    }

    /// As [`put_many`](Self::put_many), of the first frame of a huge page: how that goes back, if these were
    /// the last references.
    #[inline]
    pub fn put_hugetlb(&self, count: u32) -> Option<FreeHugePage> {
        self.put_word(count).map(|word| FreeHugePage {
            level: level_of(word),
            restore: word & RESTORE != 0,
            broken: word & BROKEN != 0,
        })
    }

    /// What the word was, if these were the last references.
    #[inline]
    fn put_word(&self, count: u32) -> Option<u32> {
        // Acquire pairs with the release half of other holders' `fetch_sub`: their use of the frame is over.
        // If this is the only reference, no locked instruction is needed (module docs).
        let last = self.refs.load(Acquire) == count || self.refs.fetch_sub(count, AcqRel) == count;
        if last {
            debug_assert_eq!(self.maps.load(Relaxed), 0, "a mapped frame lost its last reference");
            // The task that set the bit had a reference then; its end was seen above.
            let word = self.word.load(Relaxed);
            self.refs.store(0, Relaxed);
            self.word.store(word & FAILED, Relaxed);
            self.rmap.store(0, Relaxed);
            self.index.store(0, Relaxed);
            return Some(word);
        }
        None
    }

    /// References.
    #[inline]
    pub fn refs(&self) -> u32 {
        // Acquire: a task that finds itself alone may use the frame as if nobody had ever shared it.
        self.refs.load(Acquire) & !CACHED
    }

    /// One more entry maps it.
    #[inline]
    pub fn add_map(&self) {
        // Release pairs with the acquire in `maps`: a task that finds it mapped does not find the rmap word
        // of an earlier life, which that life's end has struck out.
        self.maps.fetch_add(1, Release);
    }

    /// One entry less maps it.
    #[inline]
    pub fn sub_map(&self) {
        // Acquire pairs with the release half of the other holders' `fetch_sub` in `put`: their counting is
        // over.
        if self.refs.load(Acquire) == 1 {
            // The entry that is going away holds the only reference: nobody else counts here.
            debug_assert_eq!(self.maps.load(Relaxed), 1);
            self.maps.store(0, Relaxed);
        } else {
            let before = self.maps.fetch_sub(1, Relaxed);
            debug_assert_ne!(before, 0, "an entry went away that was never counted");
        }
    }

    /// One more entry maps it, in another address space: what fork does, under the lock of the table whose
    /// entry is copied. The frame is not exclusive any more. Returns what kind of page it is; `None`, and
    /// nothing happened: it is [kept](Self::must_copy_on_fork) if it is exclusive, else it has too many
    /// references.
    #[inline]
    pub fn share(&self) -> Option<RssKind> {
        // Acquire: as in `sub_map`.
        let (refs, word) = (self.refs.load(Acquire), self.word.load(Relaxed));
        if refs == 1 {
            // The entry that is being copied holds the only reference: a task that wants another has to wait
            // for its table.
            self.refs.store(2, Relaxed);
            // Release: as in `add_map`.
            self.maps.store(2, Release);
        } else if refs & !CACHED >= pin::PIN && share_error(refs & !CACHED, word).is_some() {
            return None;
        } else {
            self.get();
            self.add_map();
        }
        if word & EXCLUSIVE != 0 {
            self.clear_exclusive();
        }
        Some(kind_of(word))
    }

    /// Why fork cannot let a child have it too.
    #[inline]
    pub fn share_error(&self) -> Option<ShareError> {
        share_error(self.refs(), self.word.load(Relaxed))
    }

    /// Entries that map it.
    #[inline]
    pub fn maps(&self) -> u32 {
        // Acquire: as `add_map` says.
        self.maps.load(Acquire)
    }

    // The kind of a page is read relaxed: a holder of an entry, a slot of a cache or a reference found the
    // frame by an acquire of what was stored after the kind, or under a lock. A flag that changes meanwhile
    // says under which lock it is certain; nothing is followed that a flag stands for, but for `DIRTY`.

    /// Whether it is anonymous memory.
    #[inline]
    pub fn is_anon(&self) -> bool {
        self.word.load(Relaxed) & ANON != 0
    }

    /// Whether it is shared memory of a page cache.
    #[inline]
    pub fn is_shmem(&self) -> bool {
        self.word.load(Relaxed) & SHMEM != 0
    }

    /// What a mapping of it counts as.
    #[inline]
    pub fn kind(&self) -> RssKind {
        kind_of(self.word.load(Relaxed))
    }

    /// Whether only one address space can reach it. Ask under the lock of the table that maps it.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.word.load(Relaxed) & EXCLUSIVE != 0
    }

    /// Only one address space can reach it from now on. Under the table's lock.
    #[inline]
    pub fn set_exclusive(&self) {
        self.word.fetch_or(EXCLUSIVE, Relaxed);
    }

    /// It is about to be shared, as fork does. Under the lock of the table that mapped it alone.
    #[inline]
    pub fn clear_exclusive(&self) {
        self.word.store(self.word.load(Relaxed) & !EXCLUSIVE, Relaxed);
    }

    /// Its contents differ from what is on disk. Called when the new contents are there for certain.
    #[inline]
    pub fn set_dirty(&self) {
        // Release pairs with the acquire of `take_dirty`: a task that finds the page dirty finds what was
        // written. Never left out because the page is dirty already: that could be read before the contents
        // are seen by the task that is cleaning it.
        self.word.fetch_or(DIRTY, Release);
    }

    /// Whether it was dirty; it is clean afterwards.
    #[inline]
    pub fn take_dirty(&self) -> bool {
        // Acquire: as in `set_dirty`.
        self.word.fetch_and(!DIRTY, Acquire) & DIRTY != 0
    }

    /// The memory failed. No entry maps it, and the caller has a reference, or it was just taken off the free
    /// list.
    #[inline]
    pub fn set_failed(&self) {
        // Relaxed, here and below: the task that drops the last reference sees it by the order of references;
        // others have the frame's lock or need only a hint.
        self.word.fetch_or(FAILED, Relaxed);
    }

    /// Whether the memory failed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.word.load(Relaxed) & FAILED != 0
    }

    /// Whether somebody works on what page it holds. A hint.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Whether it is dirty.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.word.load(Relaxed) & DIRTY != 0
    }

    /// Marks an anonymous page as freed lazily, and clean: only a later store makes its contents needed.
    /// Under the lock of a table that maps it.
    #[inline]
    pub fn free_lazily(&self) {
        // Relaxed: no task follows what these flags stand for. A plain store of another flag is made by a
        // task that holds the lock of the only table that maps the frame, which this caller holds.
        self.word.fetch_or(LAZY, Relaxed);
        self.word.fetch_and(!DIRTY, Relaxed);
    }

    /// Returns true if the page was freed lazily.
    #[inline]
    pub fn is_lazily_freed(&self) -> bool {
        self.word.load(Relaxed) & LAZY != 0
    }

    /// It is the first frame of a page of a huge-page pool. Right after it became its maker's.
    #[inline]
    pub fn set_hugetlb(&self, level: Level) {
        let gigantic = if level == Level::Pud { GIGANTIC } else { 0 };
        self.word.store(self.word.load(Relaxed) | HUGETLB | gigantic, Relaxed);
    }

    /// The level of the entries that map the page, if it is the first frame of a huge page.
    #[inline]
    pub fn hugetlb(&self) -> Option<Level> {
        let word = self.word.load(Relaxed);
        (word & HUGETLB != 0).then(|| level_of(word))
    }

    /// The huge page goes back with a reservation, as the pool [was told](crate::HugePool::will_return).
    /// Called by a holder of a reference; the last to let go may be another one.
    #[inline]
    pub fn restore_reservation(&self) {
        self.word.fetch_or(RESTORE, Relaxed);
    }

    /// The memory of a frame of the huge page failed. By a holder of a reference.
    #[inline]
    pub fn set_broken(&self) {
        self.word.fetch_or(BROKEN, Relaxed);
    }

    // A list of free huge pages goes through the records of their first frames; the holder of the list has
    // these.

    /// Another huge page, by its number plus one, or 0.
    #[inline]
    pub fn next(&self) -> u64 {
        self.index.load(Relaxed)
    }

    /// See [`next`](Self::next).
    #[inline]
    pub fn set_next(&self, next: u64) {
        self.index.store(next, Relaxed);
    }
}

freehold_sync::error_enum! {
    /// Why a page is not shared with a child.
    pub enum ShareError {
        /// The page is pinned or borrowed, and must be copied.
        ///
        /// See [`Frame::must_copy_on_fork`].
        Pinned,
        /// The page has too many references.
        TooManyReferences,
    }
}

fn share_error(refs: u32, word: u32) -> Option<ShareError> {
    match refs {
        _ if pin::is_pinned(refs, word) => Some(ShareError::Pinned),
        MAX_REFS.. => Some(ShareError::TooManyReferences),
        _ => None,
    }
}

/// What a page counts as while it moves, in the spaces whose entries wait for it.
#[doc(hidden)]
pub const MIGRATION_RSS: RssKind = RssKind::Anon;

/// A huge page whose last reference went.
pub struct FreeHugePage {
    /// The level of the entries that mapped it.
    pub level: Level,
    /// With the reservation that it came in place of.
    pub restore: bool,
    /// A frame of it has failed.
    pub broken: bool,
}

fn kind_of(word: u32) -> RssKind {
    match word & (ANON | SHMEM) {
        0 => RssKind::File,
        SHMEM => RssKind::Shmem,
        _ => RssKind::Anon,
    }
}

fn level_of(word: u32) -> Level {
    if word & GIGANTIC != 0 { Level::Pud } else { Level::Pmd }
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}
