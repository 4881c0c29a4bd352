//! The TLB of one CPU: cached leaves, and cached tables that walks went through.
//!
//! A [`Tlb`] holds the entries of several spaces. A [`Leaf`] translates a page, and a [`Walk`] leads to a
//! table. Each entry has a [`Tag`] (space, page, level) and a *stamp*, the value of the free clock
//! (`pool.rs`) from before its walk. `cpu.rs` looks up and inserts entries, `mmu.rs` flushes them, and
//! `oracle.rs` searches them, all under the CPU's lock (`cpu_shared.rs`).
//!
//! Both caches keep an entry until the entry is evicted or flushed, or until an access to its address faults,
//! even if the tables change. An engine that forgets a flush therefore uses a stale translation. The oracles
//! detect this by the stamp: the frame or table was freed after the walk began. A flush must drop only the
//! entries that this table lists, because an entry that is dropped too early hides a missing flush.
//! `tlb_tests.rs` checks that; `tests/tlb.rs` tests TLBs together with CPUs and tables.
//!
//! | cache | contents of an entry | dropped by a flush of a range that it overlaps |
//! | --- | --- | --- |
//! | leaf, 4 KiB | page -> frame, rights, dirty | if the flush removes its level |
//! | leaf, larger | span -> first frame, rights, dirty | if the flush removes its level |
//! | walk | span -> table that translates it, rights so far | only if the flush says that tables were freed, and only from the smallest level of the flush upwards |
//! | invalid | page that did not translate (only formats with `CACHES_INVALID`) | if the flush removes level 0 |
//!
//! Which levels a flush removes depends on the format ([`Removes`]), as on processors: an instruction of Arm
//! may name the level of the leaf, and instructions of other processors remove the translations that contain
//! one of the addresses that the flush visits.

use freehold_pagetable::{Access, Flush, Format, Level, Levels, PAGE_SHIFT, Pfn, Rights, VirtAddr};

/// Number of sets of the cache of 4 KiB leaves.
const SETS: usize = 64;
/// Number of leaves in a set.
const WAYS: usize = 4;
/// Number of larger leaves.
const LARGE: usize = 32;
/// Number of walk entries for the tables of one level.
const WALKS_PER_LEVEL: usize = 16;
/// Number of pages that are cached as invalid.
const INVALID: usize = 16;
/// Number of levels of tables that a walk entry can lead to: with five levels (three with larger pages), all
/// except the root.
const WALK_LEVELS: usize = if PAGE_SHIFT == 12 { 4 } else { 2 };
const WALKS: usize = WALKS_PER_LEVEL * WALK_LEVELS;
const _: () = assert!(SETS <= 64 && WALKS <= 64, "one word records which are filled");

/// Number of bits of a virtual page number in a [`Tag`].
const PAGE_BITS: u32 = 57 - PAGE_SHIFT;
const PAGE_NUMBER: u64 = (1 << PAGE_BITS) - 1;
const SPACE_BITS: u32 = 16;
const LEVEL_SHIFT: u32 = PAGE_BITS + SPACE_BITS;

/// Identifies the space of a translation among the spaces of a machine. Never 0. On x86 this is the PCID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceTag(u16);

impl SpaceTag {
    pub(crate) const COUNT: usize = (1 << SPACE_BITS) - 1;

    /// Returns the tag of the space with this index, which is below `COUNT`.
    pub(crate) fn new(index: usize) -> Self {
        assert!(index < Self::COUNT);
        SpaceTag(index as u16 + 1)
    }
}

/// Page number, space and level in one word. 0 means no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Tag(u64);

impl Tag {
    const NONE: Tag = Tag(0);

    #[inline]
    fn new(space: SpaceTag, address: VirtAddr, level: Level) -> Self {
        let page = (address.span_down(level).get() >> PAGE_SHIFT) & PAGE_NUMBER;
        Tag(page | u64::from(space.0) << PAGE_BITS | (level as u64) << LEVEL_SHIFT)
    }

    fn is(self, space: SpaceTag) -> bool {
        (self.0 >> PAGE_BITS) as u16 == space.0
    }

    fn level(self) -> Level {
        Level::from_number((self.0 >> LEVEL_SHIFT) as usize)
    }

    /// Returns the first address of the span, sign-extended.
    fn start(self) -> u64 {
        ((self.0 << (64 - PAGE_BITS)) as i64 >> (64 - PAGE_BITS - PAGE_SHIFT)) as u64
    }

    fn overlaps(self, start: u64, end: u64) -> bool {
        let (first, last) = (self.start(), self.start() + (self.level().span() - 1));
        first < end && start <= last
    }
}

/// A leaf entry: a copy of the translation that the tables had when they were walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    tag: Tag,
    /// Number of the first frame of the span, shifted left by 8. The low 8 bits are the flags of `Bits`.
    word: u64,
    /// The value of the free clock when the walk began; see `pool`.
    pub(crate) stamp: u64,
}

/// The result of [`Leaf::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The access uses the frame.
    Serve,
    /// The processor walks the tables again. The walk sets the dirty bit in memory before the store.
    WalkAgain,
    /// The entry does not permit the access.
    Fault,
}

/// The low bits of a leaf's word: rights, dirty bit and protection key.
struct Bits;

impl Bits {
    const WRITE: u64 = 1;
    const USER: u64 = 2;
    const EXEC: u64 = 4;
    const DIRTY: u64 = 8;
    const KEY_SHIFT: u32 = 4;
    const KEY: u64 = 0xf << Self::KEY_SHIFT;
    const PFN_SHIFT: u32 = 8;
}

impl Leaf {
    const NONE: Leaf = Leaf { tag: Tag::NONE, word: 0, stamp: 0 };

    /// Returns the frame of `address`. This entry translates `address`.
    #[inline]
    pub(crate) fn frame_of(&self, address: VirtAddr) -> Pfn {
        Pfn::new((self.word >> Bits::PFN_SHIFT) + address.frame_in_leaf(self.tag.level()))
    }

    /// Returns the range of frame numbers that the entry maps.
    pub(crate) fn frames(&self) -> std::ops::Range<u64> {
        let first = self.word >> Bits::PFN_SHIFT;
        first..first + self.tag.level().frames()
    }

    /// Returns the first address that the entry translates.
    pub(crate) fn start(&self) -> u64 {
        self.tag.start()
    }

    /// Decides `access` by this entry only, as hardware that holds the entry does. Raises a fault even if the
    /// tables permit the access by now.
    #[inline]
    pub(crate) fn judge(&self, access: Access) -> Verdict {
        let need = if access.write { Bits::WRITE } else { 0 }
            | if access.user { Bits::USER } else { 0 }
            | if access.exec { Bits::EXEC } else { 0 };
        // A fast check: nearly all pages have key 0, and nearly all threads have all rights to key 0.
        let asks_key = self.word & Bits::KEY != 0 || access.pkru & 3 != 0;
        if self.word & need != need || (asks_key && !self.key_permits(access)) {
            Verdict::Fault
        } else if access.write && self.word & Bits::DIRTY == 0 {
            Verdict::WalkAgain
        } else {
            Verdict::Serve
        }
    }

    #[cold]
    fn key_permits(&self, access: Access) -> bool {
        let key = (self.word >> Bits::KEY_SHIFT & 0xf) as u32;
        let rights = access.pkru >> (2 * key) & 3;
        let user_data = self.word & Bits::USER != 0 && !access.exec;
        !user_data || rights & 1 == 0 && (rights & 2 == 0 || !access.write)
    }
}

/// A walk entry: a table that a walk went through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    tag: Tag,
    pub(crate) table: Pfn,
    /// The rights that the levels above the table permit.
    pub(crate) rights: Rights,
    pub(crate) stamp: u64,
}

impl Walk {
    const NONE: Walk = Walk {
        tag: Tag::NONE,
        table: Pfn::new(0),
        rights: Rights { write: false, user: false, exec: false },
        stamp: 0,
    };

    /// Returns the level of the table.
    pub(crate) fn level(&self) -> Level {
        self.tag.level().below()
    }

    /// Returns the first address below the table.
    pub(crate) fn start(&self) -> u64 {
        self.tag.start()
    }
}

/// The levels of the entries that a flush of a range removes.
#[derive(Clone, Copy)]
struct Removes {
    leaves: Levels,
    walks: Levels,
}

impl Removes {
    fn by<F: Format>(what: &Flush) -> Self {
        // The flush visits an address of each entry of these levels.
        let visited = what.levels.and_above();
        Removes { leaves: if F::BREAK_BEFORE_MAKE { what.levels } else { visited }, walks: visited }
    }
}

/// The caches of one CPU. Guarded by the CPU's lock. An access holds the lock from its look-up to its last
/// use of the translation, so the holder of the lock knows that no access is in progress.
#[derive(Debug)]
pub(crate) struct Tlb {
    leaves: [[Leaf; WAYS]; SETS],
    /// One bit per set of `leaves`. The set is empty if its bit is clear.
    sets_filled: u64,
    /// The way of each set that is evicted next.
    next_way: [u8; SETS],
    large: [Leaf; LARGE],
    /// Number of entries that were inserted in `large` so far. If it is 0, a miss skips `large`.
    large_filled: usize,
    /// Walk entries, indexed by `walk_slot`.
    walks: [Walk; WALKS],
    /// One bit per slot of `walks`. The slot is empty if its bit is clear.
    walks_filled: u64,
    /// Pages at which an access faulted, as the tags of 4 KiB leaves. An access to such a page faults.
    invalid: [Tag; INVALID],
    /// The slot of `invalid` that is overwritten next.
    next_invalid: usize,
    /// The space that this CPU runs.
    pub(crate) active: Option<SpaceTag>,
    /// The register with the protection-key rights of the running thread: see [`Access::pkru`].
    pub(crate) pkru: u32,
    pub(crate) counts: TlbCounts,
}

/// Event counts of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlbCounts {
    pub(crate) walks: u64,
    pub(crate) walk_cache_hits: u64,
    pub(crate) faults: u64,
    pub(crate) visits_local: u64,
    pub(crate) visits_remote: u64,
    pub(crate) entries_flushed: u64,
}

impl TlbCounts {
    const ZERO: TlbCounts = TlbCounts {
        walks: 0,
        walk_cache_hits: 0,
        faults: 0,
        visits_local: 0,
        visits_remote: 0,
        entries_flushed: 0,
    };
}

impl Tlb {
    pub(crate) const fn new(pkru: u32) -> Self {
        Tlb {
            pkru,
            leaves: [[Leaf::NONE; WAYS]; SETS],
            sets_filled: 0,
            next_way: [0; SETS],
            large: [Leaf::NONE; LARGE],
            large_filled: 0,
            walks: [Walk::NONE; WALKS],
            walks_filled: 0,
            invalid: [Tag::NONE; INVALID],
            next_invalid: 0,
            active: None,
            counts: TlbCounts::ZERO,
        }
    }

    /// Returns the entry for this address.
    #[inline]
    pub(crate) fn find(&self, space: SpaceTag, address: VirtAddr) -> Option<&Leaf> {
        let tag = Tag::new(space, address, Level::Pte);
        let set = &self.leaves[tag.0 as usize % SETS];
        match set.iter().find(|leaf| leaf.tag == tag) {
            None if self.large_filled > 0 => self.find_large(space, address),
            found => found,
        }
    }

    /// Returns true if the page of this address is cached as invalid.
    pub(crate) fn is_invalid(&self, space: SpaceTag, address: VirtAddr) -> bool {
        self.invalid.contains(&Tag::new(space, address, Level::Pte))
    }

    /// Caches the page of this address as invalid.
    pub(crate) fn insert_invalid(&mut self, space: SpaceTag, address: VirtAddr) {
        if !self.is_invalid(space, address) {
            self.invalid[self.next_invalid] = Tag::new(space, address, Level::Pte);
            self.next_invalid = (self.next_invalid + 1) % INVALID;
        }
    }

    fn find_large(&self, space: SpaceTag, address: VirtAddr) -> Option<&Leaf> {
        let tags = [Tag::new(space, address, Level::Pmd), Tag::new(space, address, Level::Pud)];
        self.large.iter().find(|leaf| tags.contains(&leaf.tag))
    }

    /// Caches a leaf. `raw` is the entry in a table of level `at.level`.
    pub(crate) fn insert<F: Format>(&mut self, at: Place, raw: u64, rights: Rights) {
        let tag = Tag::new(at.space, at.address, at.level);
        let dirty = F::flags(raw).contains(freehold_pagetable::PteFlags::DIRTY);
        let word = F::pfn(raw).get() << Bits::PFN_SHIFT
            | u64::from(F::pkey(raw)) << Bits::KEY_SHIFT
            | if rights.write { Bits::WRITE } else { 0 }
            | if rights.user { Bits::USER } else { 0 }
            | if rights.exec { Bits::EXEC } else { 0 }
            | if dirty { Bits::DIRTY } else { 0 };
        *self.slot_for(tag) = Leaf { tag, word, stamp: at.stamp };
    }

    /// Returns the entry to overwrite: the entry with the same tag, so that tags stay unique, or else the
    /// next entry in round-robin order.
    fn slot_for(&mut self, tag: Tag) -> &mut Leaf {
        if tag.level() != Level::Pte {
            let same = self.large.iter().position(|leaf| leaf.tag == tag);
            let slot = same.unwrap_or(self.large_filled % LARGE);
            self.large_filled += usize::from(same.is_none());
            return &mut self.large[slot];
        }
        let set = tag.0 as usize % SETS;
        self.sets_filled |= 1 << set;
        let same = self.leaves[set].iter().position(|leaf| leaf.tag == tag);
        let way = same.unwrap_or_else(|| {
            let way = self.next_way[set];
            self.next_way[set] = (way + 1) % WAYS as u8;
            usize::from(way)
        });
        &mut self.leaves[set][way]
    }

    /// Returns the lowest cached table for this address.
    pub(crate) fn find_walk(&self, space: SpaceTag, address: VirtAddr) -> Option<Walk> {
        walk_tags(space, address)
            .map(|tag| (tag, self.walks[walk_slot(tag)]))
            .find_map(|(tag, walk)| (walk.tag == tag).then_some(walk))
    }

    /// Caches the table that an entry of `at.level` leads to.
    pub(crate) fn insert_walk(&mut self, at: Place, table: Pfn, rights: Rights) {
        let tag = Tag::new(at.space, at.address, at.level);
        let slot = walk_slot(tag);
        self.walks[slot] = Walk { tag, table, rights, stamp: at.stamp };
        self.walks_filled |= 1 << slot;
    }

    /// Returns the first address of a cached entry that excludes an entry which a walk has just read: the
    /// caches hold a leaf of another size for an address of the entry, or a table where the entry is a leaf.
    /// The entry is a leaf or a table, at `at`. On a processor that needs break-before-make, an access may
    /// then use any mixture of both.
    pub(crate) fn conflict(&self, at: &Place, is_leaf: bool) -> Option<u64> {
        let own = Tag::new(at.space, at.address, at.level);
        let end = own.start() + (at.level.span() - 1);
        let excludes = |tag: Tag| {
            let other = tag.is(at.space) && tag.overlaps(own.start(), end);
            // A leaf of the same size is replaced. Leaves below a table are its parts.
            other && if is_leaf { tag.level() != at.level } else { tag.level() >= at.level }
        };
        let small = at.level == Level::Pte;
        let leaf = match small {
            true => self.large.iter().find(|leaf| excludes(leaf.tag)),
            false => self.leaves().find(|leaf| excludes(leaf.tag)),
        };
        let table = || (is_leaf && !small && self.walks[walk_slot(own)].tag == own).then(|| own.start());
        leaf.map(Leaf::start).or_else(table)
    }

    /// Returns the cached leaves and walk entries of `space` that overlap the range: the first address, the
    /// level of the table entry, and true for a leaf.
    pub(crate) fn cached(
        &self,
        space: SpaceTag,
        range: std::ops::Range<u64>,
    ) -> impl Iterator<Item = (u64, Level, bool)> {
        let leaves = self.leaves().map(|leaf| (leaf.tag, true));
        leaves
            .chain(self.walks().map(|walk| (walk.tag, false)))
            .filter(move |(tag, _)| tag.is(space) && tag.overlaps(range.start, range.end))
            .map(|(tag, is_leaf)| (tag.start(), tag.level(), is_leaf))
    }

    /// Drops the leaves of `space` that overlap the range of `what` and whose level the flush removes, and
    /// also the walk entries if tables were freed. Returns the number of entries that it drops.
    // Not inlined, because the loop over all CPUs costs more with this code in it.
    #[inline(never)]
    pub(crate) fn flush_range<F: Format>(&mut self, space: SpaceTag, what: &Flush) -> usize {
        let (start, end) = (what.start.get(), what.end.get());
        if start >= end {
            return 0;
        }
        let (first, last) = (start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        let covered = |tag: Tag| tag.is(space) && tag.overlaps(start, end);
        let sets = if last - first < SETS as u64 {
            (first..=last).fold(0, |sets, page| sets | 1 << (page as usize % SETS))
        } else {
            !0
        };
        let removes = Removes::by::<F>(what);
        let leaf = |tag: Tag| covered(tag) && removes.leaves.contains(tag.level());
        let walk = |tag: Tag| covered(tag) && removes.walks.contains(tag.level());
        self.drop_leaves(sets, leaf) + if what.tables_freed { self.drop_walks(!0, walk) } else { 0 }
    }

    /// Drops all leaves of `space`, and also its walk entries if `walks` is true.
    pub(crate) fn flush_space(&mut self, space: SpaceTag, walks: bool) -> usize {
        let covered = |tag: Tag| tag.is(space);
        self.drop_leaves(!0, covered) + if walks { self.drop_walks(!0, covered) } else { 0 }
    }

    /// Drops all entries for one address, as a fault does.
    pub(crate) fn drop_address(&mut self, space: SpaceTag, address: VirtAddr) {
        let page = address.page_down().get();
        let covered = |tag: Tag| tag.is(space) && tag.overlaps(page, page.saturating_add(1));
        let slots = walk_tags(space, address).fold(0, |slots, tag| slots | 1 << walk_slot(tag));
        self.drop_leaves(1 << ((page >> PAGE_SHIFT) as usize % SETS), covered);
        self.drop_walks(slots, covered);
    }

    /// Drops the leaves that `goes` accepts, from the sets in `sets` and from the larger leaves. Returns how
    /// many it drops.
    fn drop_leaves(&mut self, sets: u64, goes: impl Fn(Tag) -> bool) -> usize {
        // Pages that are cached as invalid are not counted.
        self.invalid
            .iter_mut()
            .filter(|tag| **tag != Tag::NONE && goes(**tag))
            .for_each(|tag| *tag = Tag::NONE);
        let mut dropped = 0;
        for set in bits(sets & self.sets_filled) {
            dropped += drop_from(&mut self.leaves[set], &goes);
            if self.leaves[set].iter().all(|leaf| leaf.tag == Tag::NONE) {
                self.sets_filled &= !(1 << set);
            }
        }
        let large = self.large_filled.min(LARGE);
        dropped + drop_from(&mut self.large[..large], &goes)
    }

    /// Drops the walk entries that `goes` accepts, from the slots in `slots`. Returns how many it drops.
    fn drop_walks(&mut self, slots: u64, goes: impl Fn(Tag) -> bool) -> usize {
        let mut dropped = 0;
        for slot in bits(slots & self.walks_filled) {
            if goes(self.walks[slot].tag) {
                self.walks[slot] = Walk::NONE;
                self.walks_filled &= !(1 << slot);
                dropped += 1;
            }
        }
        dropped
    }

    /// All cached leaves, of every space.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        let small = bits(self.sets_filled).flat_map(|set| &self.leaves[set]);
        small.chain(&self.large[..self.large_filled.min(LARGE)]).filter(|leaf| leaf.tag != Tag::NONE)
    }

    /// All cached walk entries, of every space.
    pub(crate) fn walks(&self) -> impl Iterator<Item = &Walk> {
        bits(self.walks_filled).map(|slot| &self.walks[slot])
    }
}

/// The key of a new entry: space, address and level, and the value of the free clock when the walk began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: SpaceTag,
    pub(crate) address: VirtAddr,
    /// The level of the table entry that is cached.
    pub(crate) level: Level,
    pub(crate) stamp: u64,
}

/// The tags of the walk entries that can translate an address, the lowest table first.
fn walk_tags(space: SpaceTag, address: VirtAddr) -> impl Iterator<Item = Tag> {
    (1..=WALK_LEVELS).map(move |level| Tag::new(space, address, Level::from_number(level)))
}

/// Returns the slot of a walk entry.
fn walk_slot(tag: Tag) -> usize {
    let level = tag.level();
    let span = (tag.0 & PAGE_NUMBER) >> (level.shift() - PAGE_SHIFT);
    (level as usize - 1) * WALKS_PER_LEVEL + span as usize % WALKS_PER_LEVEL
}

/// Drops the leaves that `goes` accepts. Returns how many it drops.
fn drop_from(leaves: &mut [Leaf], goes: impl Fn(Tag) -> bool) -> usize {
    let mut dropped = 0;
    for leaf in leaves {
        if leaf.tag != Tag::NONE && goes(leaf.tag) {
            *leaf = Leaf::NONE;
            dropped += 1;
        }
    }
    dropped
}

/// The numbers of the bits that are set, ascending.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
}

#[cfg(test)]
#[path = "tlb_tests.rs"]
mod tests;
