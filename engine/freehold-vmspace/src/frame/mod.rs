//! The record of each frame: references, map count, owner, flags and lock.
//!
//! | count | counts |
//! | --- | --- |
//! | `refs` | each page-table entry that maps the frame, the page cache that holds it, each run that contains it, each borrower; each pin (`frame/pin.rs`) as 1024 |
//! | `maps` | each page-table entry that maps the frame |
//!
//! Both counts fit into 32 bits. References that may be held without a limit of time are refused from 2^30 on
//! (`MAX_REFS`): entries that map the frame (`Frame::try_map_cached`, `Frame::share`), pins, and runs. `maps`
//! is never more than `refs`. The rest of the range is for references that a task holds for the length of one
//! step, such as those of the reverse map and of a gather.
//!
//! A task raises the count only if it knows another reference that is kept during that time, for example that
//! of an entry whose table is locked. Therefore, if a frame is no longer in a page cache or a table, a task
//! that holds its only reference has exclusive access to the frame. A count of one may then be dropped
//! without a locked instruction.
//!
//! While a page cache holds one of the references, lookups also raise the count, without a lock: see
//! `frame/cached.rs`.
//!
//! `cached.rs` has these lookups, `age.rs` has the age of a page, `lock.rs` has the lock, `pin.rs` has the
//! pins, `failed.rs` has the flag of failed memory, and `page.rs` has the values that describe a page. A new
//! flag is a bit of `word` below, with a comment that says which lock makes it exact. [`Frame::inherit`]
//! copies flags to another frame, and the last `put` clears all flags except `FAILED`. The record must stay
//! at 32 bytes. `loom_tests.rs` tests the orders of the accesses (`cargo xtask loom`).

pub mod age;
mod cached;
mod failed;
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

/// The engine's record of one frame of memory. The record has 32 bytes that are all zero while the frame is
/// free, so a platform may cast zeroed memory to records. A frame whose memory failed is never free again.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    /// The number of references, and the bit [`CACHED`]. The number is at most [`MAX_REFS`], except for
    /// references that tasks take for a single step.
    refs: AtomicU32,
    /// At most `refs`.
    maps: AtomicU32,
    /// The kind and the flags, which are defined below, and the [age](age) of the page.
    word: AtomicU32,
    /// The lock of the frame; see [`lock`].
    lock: WordLock,
    /// Address of the record of the VMAs that may map the frame: the tree of VMAs for anonymous memory, the
    /// file for a page cache. Written while only the task that makes the page can access the frame.
    /// `rmap/walk.rs` of `freehold` says how walks use the word afterwards.
    rmap: AtomicUsize,
    /// Offset of the page, in pages, in the object that `rmap` names. Written together with `rmap`.
    index: AtomicU64,
}

/// Maximum number of references of a frame. At this number, a task that asks for another reference to keep is
/// refused.
const MAX_REFS: u32 = if CHECKED { 8 * pin::PIN } else { 1 << 30 };

/// A bit of `refs`: a page cache holds one of the references, and lookups may raise the count.
const CACHED: u32 = 1 << 31;

/// Anonymous memory. Without this bit the page is in a page cache.
const ANON: u32 = 1 << 0;
/// Only one address space can reach the page, so a store need not copy it. Changed under the lock of the one
/// table that maps the page.
const EXCLUSIVE: u32 = 1 << 1;
/// Shared memory. Without this bit a page of a cache belongs to an ordinary file.
const SHMEM: u32 = 1 << 2;
/// Written since the last write-back.
const DIRTY: u32 = 1 << 3;
/// The memory failed. Set only while no entry maps the page: while an entry maps it, a task may change
/// another bit by a plain store, which could clear this bit. Never cleared.
const FAILED: u32 = 1 << 4;
/// The first frame of a page of a pool of huge pages. Its record is that of the whole page; the records of
/// the other frames stay zero.
const HUGETLB: u32 = 1 << 5;
/// The huge page has 1 GiB. Without this bit, it has 2 MiB. Set only if [`HUGETLB`] is set, like the next two
/// bits.
const GIGANTIC: u32 = 1 << 6;
/// The huge page returns to its pool with the reservation that it was taken for. Set by a holder of a
/// reference, when no entry is left.
const RESTORE: u32 = 1 << 7;
/// The memory of a frame of the huge page failed. The record of that frame has [`FAILED`].
const BROKEN: u32 = 1 << 8;
/// A page of secret memory: no task gets a reference to read the page.
const SECRET: u32 = 1 << 9;

/// The page is anonymous and was freed lazily: its contents are needed only if it is dirty. Set under the
/// lock of a table that maps the frame; kept until the frame is free.
const LAZY: u32 = 1 << 10;
/// A call has accessed the page through the cache of its file. Set by a holder of a reference, like the next
/// bit.
const ONCE: u32 = 1 << 11;
/// A call has accessed the page again since the last look of reclaim.
const AGAIN: u32 = 1 << 12;
/// A page of the cache of an ordinary file. With this bit, the word of a page is never 0.
const FILE: u32 = 1 << 13;

/// The read of the page from its swap device has failed: the contents are undefined. Set by the end of the
/// read, before the frame leaves the swap cache; kept until the frame is free.
const UNREAD: u32 = 1 << 14;

impl Frame {
    /// Announces records to the simulation's report. Does nothing in other builds. For a platform that
    /// creates many records at once.
    pub fn announce(first: *const Frame, count: usize) {
        announce!(
            "Frame",
            first,
            count,
            Frame { refs: refs, maps: maps, word: word, lock: lock, rmap: rmap, index: index }
        );
    }

    const_unless_loom! {
        /// Creates the record of a free frame.
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

    /// Returns true if the frame is free as far as the engine knows.
    #[inline]
    pub fn is_free(&self) -> bool {
        // Relaxed: exact only for a task that has exclusive access to the frame.
        self.refs.load(Relaxed) == 0 && self.maps.load(Relaxed) == 0 && self.word.load(Relaxed) == 0
    }
}

/// Counts and kinds, for the crate `freehold`, which counts every entry and every cache that names a frame.
#[doc(hidden)]
impl Frame {
    // The next functions are for a frame that was just taken off the free list. No other task looks at the
    // frame, so plain stores suffice. A task that finds the frame later finds it through a table entry or a
    // slot of a page cache, which are both published with release.

    /// Makes the frame an exclusive anonymous page with one mapping, that of the entry that is about to be
    /// installed.
    #[inline]
    pub fn init_anon(&self, AnonPage { rmap, index, .. }: AnonPage) {
        self.refs.store(1, Relaxed);
        // Release: as in `add_map`.
        self.maps.store(1, Release);
        self.word.store(ANON | EXCLUSIVE, Relaxed);
        self.index.store(index.get(), Relaxed);
        // Release pairs with the acquire in `rmap`: a task that reads the address sees the object at that
        // address.
        self.rmap.store(rmap, Release);
    }

    /// Returns true if the frame is secret memory.
    #[inline]
    pub fn is_secret(&self) -> bool {
        self.word.load(Relaxed) & SECRET != 0
    }

    /// Makes the frame a page that is about to [enter](Self::enter_cache) a cache. The caller has the only
    /// reference.
    #[inline]
    pub fn init_cache(&self, kind: CachePage, index: PageIndex) {
        self.refs.store(1, Relaxed);
        let shmem = if kind.shmem { SHMEM } else { FILE };
        self.word.store(if kind.secret { shmem | SECRET } else { shmem }, Relaxed);
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(kind.rmap, Release);
    }

    /// Makes the frame anonymous memory that no entry maps, with one reference: memory of an address space
    /// without an MMU, whose [`Run`](crate::Run) holds the reference, or a page that comes from a swap
    /// device.
    #[inline]
    pub fn init_run(&self) {
        self.refs.store(1, Relaxed);
        self.word.store(ANON, Relaxed);
    }

    /// Copies from the frame `old` the part of its record that moves with the page: kind, flags, rmap word.
    /// The caller has exclusive access to the new frame, which afterwards has one reference and no mapping.
    #[inline]
    pub fn inherit(&self, old: &Frame) {
        self.refs.store(1, Relaxed);
        // The reservation is restored once, with the frame that becomes free first.
        self.word.store(old.word.load(Relaxed) & !RESTORE, Relaxed);
        let (rmap, index) = old.rmap();
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(rmap, Release);
    }

    /// Gives the page another rmap word after it has moved within its address space. The caller holds the
    /// frame's lock and the locks of both tables concerned.
    #[inline]
    pub fn set_rmap(&self, AnonPage { rmap, index, .. }: AnonPage) {
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(rmap, Release);
    }

    /// Clears the rmap word: the page of the frame has moved to another frame, or was truncated.
    #[inline]
    pub fn clear_rmap(&self) {
        self.rmap.store(0, Relaxed);
    }

    /// Returns the rmap word and the page offset.
    #[inline]
    pub fn rmap(&self) -> (usize, PageIndex) {
        (self.rmap.load(Acquire), PageIndex::new(self.index.load(Relaxed)))
    }

    /// Takes a reference for one step of a task. A reference that may be kept must be refused if there are
    /// too many: see [`try_map_cached`](Self::try_map_cached).
    #[inline]
    pub fn get(&self) {
        // Relaxed: the caller knows another reference that is kept, so no task frees the frame concurrently.
        self.refs.fetch_add(1, Relaxed);
    }

    /// Adds `more` to the count of references, for tests of the case that there are too many.
    #[doc(hidden)]
    pub fn pretend_references(&self, more: i32) {
        self.refs.fetch_add(more as u32, Relaxed);
    }

    /// Drops a reference. Returns true if it was the last and the frame is free; its record is then zero.
    /// Returns false for a frame that failed.
    #[inline]
    pub fn put(&self) -> bool {
        self.put_many(1)
    }

    /// Drops `count` references of the caller, like [`put`](Self::put).
    #[inline]
    fn put_many(&self, count: u32) -> bool {
        self.put_word(count).is_some_and(|word| word & FAILED == 0)
    }

    /// Drops `count` references to the first frame of a huge page, like [`put_many`](Self::put_many). If
    /// these were the last, returns how the page is freed.
    #[inline]
    pub fn put_hugetlb(&self, count: u32) -> Option<FreeHugePage> {
        self.put_word(count).map(|word| FreeHugePage {
            level: level_of(word),
            restore: word & RESTORE != 0,
            broken: word & BROKEN != 0,
        })
    }

    /// Drops `count` references. If these were the last, returns the previous value of `word`.
    #[inline]
    fn put_word(&self, count: u32) -> Option<u32> {
        // Acquire pairs with the release half of the `fetch_sub` of other holders: their use of the frame has
        // ended. If the caller has the only reference, no locked instruction is needed (see the module).
        let last = self.refs.load(Acquire) == count || self.refs.fetch_sub(count, AcqRel) == count;
        if last {
            debug_assert_eq!(self.maps.load(Relaxed), 0, "a mapped frame lost its last reference");
            // Each task that set a bit had a reference at that time, and the load above has seen that the
            // reference ended.
            let word = self.word.load(Relaxed);
            self.refs.store(0, Relaxed);
            self.word.store(word & FAILED, Relaxed);
            self.rmap.store(0, Relaxed);
            self.index.store(0, Relaxed);
            return Some(word);
        }
        None
    }

    /// Returns the number of references.
    #[inline]
    pub fn refs(&self) -> u32 {
        // Acquire: a task that sees only its own reference may use the frame as if it had never been shared.
        self.refs.load(Acquire) & !CACHED
    }

    /// Adds one to the number of entries that map the frame.
    #[inline]
    pub fn add_map(&self) {
        // Release pairs with the acquire in `maps`. The rmap word of an earlier use was cleared at the end of
        // that use, so a task that sees this mapping does not read that word.
        self.maps.fetch_add(1, Release);
    }

    /// Subtracts one from the number of entries that map the frame.
    #[inline]
    pub fn sub_map(&self) {
        // Acquire pairs with the release half of the `fetch_sub` of other holders in `put`: they no longer
        // change the counts.
        if self.refs.load(Acquire) == 1 {
            // The entry that is being removed holds the only reference, so no other task changes the counts.
            debug_assert_eq!(self.maps.load(Relaxed), 1);
            self.maps.store(0, Relaxed);
        } else {
            let before = self.maps.fetch_sub(1, Relaxed);
            debug_assert_ne!(before, 0, "removed an entry that was never counted");
        }
    }

    /// Adds one to the number of entries that map the page, for an entry in another address space. For fork,
    /// which holds the lock of the table whose entry it copies. Afterwards the frame is not exclusive.
    /// Returns the kind of page. Returns `None` and changes nothing if the page [must be
    /// copied](Self::must_copy_on_fork) or has too many references. A page that must be copied is exclusive;
    /// a page with too many references is not exclusive.
    #[inline]
    pub fn share(&self) -> Option<RssKind> {
        // Acquire: as in `sub_map`.
        let (refs, word) = (self.refs.load(Acquire), self.word.load(Relaxed));
        if refs == 1 {
            // The entry that is being copied holds the only reference. A task that wants another reference
            // has to wait for the lock of the table.
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

    /// Returns the reason why fork cannot share the page with a child.
    #[inline]
    pub fn share_error(&self) -> Option<ShareError> {
        share_error(self.refs(), self.word.load(Relaxed))
    }

    /// Returns the number of entries that map the frame.
    #[inline]
    pub fn maps(&self) -> u32 {
        // Acquire: pairs with the release in `add_map`.
        self.maps.load(Acquire)
    }

    // Kinds and flags are read relaxed. The holder of an entry, a cache slot or a reference has found the
    // frame under a lock, or by an acquire of a value that was stored after the kind. The documentation of a
    // flag that changes later says which lock makes it exact. No flag publishes data, except `DIRTY`, which
    // publishes the contents of the page.

    /// Returns true if the frame is anonymous memory.
    #[inline]
    pub fn is_anon(&self) -> bool {
        self.word.load(Relaxed) & ANON != 0
    }

    /// Returns true if the frame is shared memory of a page cache.
    #[inline]
    pub fn is_shmem(&self) -> bool {
        self.word.load(Relaxed) & SHMEM != 0
    }

    /// Returns the kind that a mapping of the frame is counted as.
    #[inline]
    pub fn kind(&self) -> RssKind {
        kind_of(self.word.load(Relaxed))
    }

    /// Returns true if only one address space can reach the frame. The caller holds the lock of the table
    /// that maps it.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.word.load(Relaxed) & EXCLUSIVE != 0
    }

    /// Marks the frame as one that only one address space can reach. The caller holds the table's lock.
    #[inline]
    pub fn set_exclusive(&self) {
        self.word.fetch_or(EXCLUSIVE, Relaxed);
    }

    /// Marks the frame as about to be shared, as fork does. The caller holds the lock of the only table that
    /// maps it.
    #[inline]
    pub fn clear_exclusive(&self) {
        self.word.store(self.word.load(Relaxed) & !EXCLUSIVE, Relaxed);
    }

    /// Marks the contents as different from the contents on storage. Called when the new contents are
    /// certainly in the frame.
    #[inline]
    pub fn set_dirty(&self) {
        // Release pairs with the acquire of `take_dirty`: a task that finds the page dirty sees the new
        // contents. The bit is written even if the page is already dirty: a load of the bit could come before
        // the new contents are visible to the task that is cleaning the page.
        self.word.fetch_or(DIRTY, Release);
    }

    /// Like [`set_dirty`](Self::set_dirty). Returns true if the page was clean.
    #[inline]
    pub fn make_dirty(&self) -> bool {
        // Release: as in `set_dirty`.
        self.word.fetch_or(DIRTY, Release) & DIRTY == 0
    }

    /// Clears the dirty bit. Returns true if it was set.
    #[inline]
    pub fn take_dirty(&self) -> bool {
        // Acquire: pairs with the release in `set_dirty`.
        self.word.fetch_and(!DIRTY, Acquire) & DIRTY != 0
    }

    /// Records that the read of the page from its swap device has failed. No entry maps the frame. The caller
    /// has a reference, and then changes the word by which other tasks found the frame.
    #[inline]
    pub fn set_unread(&self) {
        // Relaxed: the word of the slot publishes the bit; see `swap/slot.rs` of `freehold`.
        self.word.fetch_or(UNREAD, Relaxed);
    }

    /// Returns true if the read of the page from its swap device has failed. The caller has a reference, and
    /// has seen that the read has ended.
    #[inline]
    pub fn is_unread(&self) -> bool {
        self.word.load(Relaxed) & UNREAD != 0
    }

    /// Returns true if a task has locked the frame. The result is a hint.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Returns true if the frame is dirty.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.word.load(Relaxed) & DIRTY != 0
    }

    /// Marks an anonymous page as freed lazily and clean: its contents are needed only after a later store.
    /// The caller holds the lock of a table that maps the page.
    #[inline]
    pub fn free_lazily(&self) {
        // Relaxed: no task reads data that depends on these flags. A plain store of another flag is made
        // under the lock of the only table that maps the frame, and this caller holds that lock.
        self.word.fetch_or(LAZY, Relaxed);
        self.word.fetch_and(!DIRTY, Relaxed);
    }

    /// Returns true if the page was freed lazily.
    #[inline]
    pub fn is_lazily_freed(&self) -> bool {
        self.word.load(Relaxed) & LAZY != 0
    }

    /// Marks the frame as the first of a page of a pool of huge pages. Called before other tasks can find the
    /// frame.
    #[inline]
    pub fn set_hugetlb(&self, level: Level) {
        let gigantic = if level == Level::Pud { GIGANTIC } else { 0 };
        self.word.store(self.word.load(Relaxed) | HUGETLB | gigantic, Relaxed);
    }

    /// Returns the level of the entries that map the page if the frame is the first of a huge page of a pool.
    #[inline]
    pub fn hugetlb(&self) -> Option<Level> {
        if !cfg!(feature = "hugetlb") {
            return None;
        }
        let word = self.word.load(Relaxed);
        (word & HUGETLB != 0).then(|| level_of(word))
    }

    /// Records that the huge page returns to its pool with a reservation, as
    /// [announced](crate::HugePool::will_return) to the pool. The caller has a reference, which need not be
    /// the last.
    #[inline]
    pub fn restore_reservation(&self) {
        self.word.fetch_or(RESTORE, Relaxed);
    }

    /// Records that the memory of a frame of the huge page failed. The caller has a reference.
    #[inline]
    pub fn set_broken(&self) {
        self.word.fetch_or(BROKEN, Relaxed);
    }

    // A list of free huge pages is linked through the records of their first frames. The holder of the list
    // has exclusive access to these records.

    /// Returns the next huge page in the list: its frame number plus one, or 0.
    #[inline]
    pub fn next(&self) -> u64 {
        self.index.load(Relaxed)
    }

    /// Sets the next huge page in the list; see [`next`](Self::next).
    #[inline]
    pub fn set_next(&self, next: u64) {
        self.index.store(next, Relaxed);
    }
}

freehold_sync::error_enum! {
    /// The reason why fork does not share a page with a child.
    pub enum ShareError {
        /// The page is pinned or borrowed, and must be copied.
        ///
        /// See [`Frame::must_copy_on_fork`].
        Pinned,
        /// The page has too many references.
        TooManyReferences,
    }
}

/// Returns the reason why a page with this count and these flags cannot be shared, if there is one.
fn share_error(refs: u32, word: u32) -> Option<ShareError> {
    match refs {
        _ if pin::is_pinned(refs, word) => Some(ShareError::Pinned),
        MAX_REFS.. => Some(ShareError::TooManyReferences),
        _ => None,
    }
}

/// The kind of resident page that the marker of a moving page counts as.
#[doc(hidden)]
pub const MIGRATION_RSS: RssKind = RssKind::Anon;

/// A huge page whose last reference was dropped.
pub struct FreeHugePage {
    /// The level of the entries that mapped it.
    pub level: Level,
    /// The page returns with the reservation that it was taken for.
    pub restore: bool,
    /// A frame of the page has failed.
    pub broken: bool,
}

/// Returns the kind of page that these flags describe.
fn kind_of(word: u32) -> RssKind {
    match word & (ANON | SHMEM) {
        0 => RssKind::File,
        SHMEM => RssKind::Shmem,
        _ => RssKind::Anon,
    }
}

/// Returns the level of the entries that map a page of a pool with these flags.
fn level_of(word: u32) -> Level {
    if word & GIGANTIC != 0 { Level::Pud } else { Level::Pmd }
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}
