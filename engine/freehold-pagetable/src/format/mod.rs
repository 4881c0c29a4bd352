//! What an entry of a table says, independent of how a machine writes it down.

pub mod table_bits;
mod x86;

pub use x86::{X86, X86_4, X86_5};

use crate::addr::{Level, Pfn, VirtAddr};
use crate::hardware_walk::{Access, Rights, WalkFault};
use bitflags::bitflags;
use core::fmt;
use core::marker::PhantomData;

bitflags! {
    /// What a leaf permits and remembers. Reading is implied by the leaf's being there, except under
    /// [`NO_ACCESS`](PteFlags::NO_ACCESS).
    ///
    /// The numbers are those of x86-64's bits, where it has them: entries are read and written for every page
    /// that is touched.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PteFlags: u32 {
        /// The frame stays attached, every access faults: `PROT_NONE`, and entries left to be faulted
        /// on for statistics. The hardware does not translate through it and caches nothing of it.
        const NO_ACCESS = 1 << 0;
        /// Writing is allowed.
        const WRITE = 1 << 1;
        /// The unprivileged mode may use it.
        const USER = 1 << 2;
        /// Write-through caching.
        const WRITE_THROUGH = 1 << 3;
        /// No caching.
        const NO_CACHE = 1 << 4;
        /// The hardware, or software on its behalf, saw an access. Sticky until cleared.
        const ACCESSED = 1 << 5;
        /// The same for a write.
        const DIRTY = 1 << 6;
        /// Set in what is read from a leaf above 4 KiB; writing follows the level and ignores it.
        const HUGE = 1 << 7;
        /// Survives a change of address space in the TLB.
        const GLOBAL = 1 << 8;
        /// Software: the frame has no metadata or is not reference-counted (zero page, PFN maps).
        const SPECIAL = 1 << 9;
        /// Software: write-protected on behalf of userfaultfd.
        const UFFD_WP = 1 << 10;
        /// Software: written since soft-dirty was last cleared.
        const SOFT_DIRTY = 1 << 11;
        /// Instruction fetch is allowed.
        const EXEC = 1 << 12;
        /// The protection key, a number; see [`pkey`](PteFlags::pkey).
        const PKEY = 0xf << PKEY_SHIFT;
    }
}

const PKEY_SHIFT: u32 = 13;

impl PteFlags {
    /// Flags that a leaf loses without changing otherwise.
    pub const REVOCABLE: Self =
        Self::WRITE.union(Self::ACCESSED).union(Self::DIRTY).union(Self::SOFT_DIRTY).union(Self::UFFD_WP);

    /// These, with this protection key, 0 to 15.
    ///
    /// # Panics
    /// When there is no such key.
    #[inline]
    pub const fn with_pkey(self, pkey: u8) -> Self {
        assert!(pkey < 16, "sixteen protection keys");
        let key = ((pkey as u32) << PKEY_SHIFT) & Self::PKEY.bits();
        PteFlags::from_bits_retain(self.bits() & !Self::PKEY.bits() | key)
    }

    /// The protection key.
    #[inline]
    pub const fn pkey(self) -> u8 {
        ((self.bits() & Self::PKEY.bits()) >> PKEY_SHIFT) as u8
    }
}

/// Why a slot without a translation is not simply empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MarkerKind {
    /// A guard page (`MADV_GUARD_INSTALL`): access is a segmentation fault.
    Guard = 1,
    /// The frame in the payload is being moved; a fault that needs the page waits.
    Migration = 2,
    /// The contents are at the place in the payload.
    Swap = 3,
    /// userfaultfd write protection of a page that is not there.
    UffdWp = 4,
    /// The memory failed: access is a bus error. Also what an unknown code decodes to.
    Poison = 5,
}

/// What a slot of a table holds. Every user of an entry matches on all four kinds (hazard C-42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    None,
    /// A page of the slot's level.
    Leaf {
        /// Its first 4 KiB frame.
        pfn: Pfn,
        /// What it permits and remembers.
        flags: PteFlags,
    },
    /// A table of the next lower level. Never at [`Level::Pte`].
    Table {
        /// Where that table is.
        pfn: Pfn,
    },
    /// No translation, but a reason.
    Marker {
        /// Which.
        kind: MarkerKind,
        /// [`PAYLOAD_BITS`] bits that belong to the kind.
        payload: u64,
    },
}

/// Bits of payload that a marker carries.
pub const PAYLOAD_BITS: u32 = 50;

/// How a machine writes entries down. All functions are pure; all are meant to be inlined.
///
/// The word zero is the empty slot in every format, so that a zeroed table is an empty one.
///
/// A format does not say whether the hardware sets [`PteFlags::ACCESSED`] and [`PteFlags::DIRTY`] in leaves.
/// Hardware may fault at a leaf without them instead: the engine's fault sets them.
pub trait Format: Copy + Eq + Send + Sync + fmt::Debug + 'static {
    /// Levels of tables: 4 or 5.
    const LEVELS: usize;
    /// The highest level whose entries may be leaves.
    const MAX_LEAF: Level;
    /// The level of the root table.
    const ROOT: Level = Level::from_number(Self::LEVELS - 1);
    /// The end of the addresses a process may use. An address at or above it has no table here.
    const USER_END: u64;
    /// Entries of the root table by which addresses below [`USER_END`](Self::USER_END) are translated. The
    /// rest, from this index on, are the embedding kernel's own: nothing walks or writes them but
    /// [`PageTable::destroy`](crate::PageTable::destroy), which empties them.
    const USER_ENTRIES: usize = VirtAddr::new(Self::USER_END - 1).index(Self::ROOT) + 1;

    /// A leaf of `level` that starts at `pfn`.
    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64;
    /// A pointer to a table of the next lower level.
    fn table(pfn: Pfn) -> u64;
    /// A marker; `payload` is below `1 << PAYLOAD_BITS`.
    fn marker(kind: MarkerKind, payload: u64) -> u64;
    /// What an entry of a table of `level` says.
    fn kind(raw: u64, level: Level) -> Kind;
    /// The flags of a leaf.
    fn flags(raw: u64) -> PteFlags;
    /// The leaf with other flags: the frame stays.
    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64;
    /// The leaf without these flags, all of them among [`PteFlags::REVOCABLE`].
    fn without(raw: u64, flags: PteFlags) -> u64;
    /// The frame of a leaf or the table of a table pointer.
    fn pfn(raw: u64) -> Pfn;
    /// Whether hardware may translate through the entry, so that a TLB or a walk cache may hold it.
    fn is_cached(raw: u64) -> bool;
    /// Whether it is a leaf: translated or, with [`PteFlags::NO_ACCESS`], not.
    fn is_leaf(raw: u64, level: Level) -> bool;
    /// The protection key of a leaf.
    fn pkey(raw: u64) -> u8;
    /// The leaf with another protection key, 0 to 15.
    fn with_pkey(raw: u64, pkey: u8) -> u64;

    /// What a processor does with `raw`, met in a table of `level` on its way to `address`, and the
    /// word it then wants to find there (the accessed and dirty bits set).
    ///
    /// # Errors
    /// The fault it would raise, also for a leaf that lacks a bit which the hardware does not set.
    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault>;
    /// The fault for an address that this format does not have, if `address` is one.
    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault>;
}

/// One entry of a table, as a value: a copy, never the entry itself.
///
/// Its meaning depends on the level of the table it came from, which the caller knows.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Pte<F> {
    raw: u64,
    format: PhantomData<F>,
}

impl<F: Format> Pte<F> {
    /// The empty slot.
    pub const NONE: Self = Pte { raw: 0, format: PhantomData };

    /// The entry that these bits are.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Pte { raw, format: PhantomData }
    }

    /// The bits.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// A 4 KiB leaf.
    #[inline]
    pub fn page(pfn: Pfn, flags: PteFlags) -> Self {
        Self::from_raw(F::leaf(Level::Pte, pfn, flags))
    }

    /// A leaf of `level`.
    ///
    /// # Panics
    /// In test builds, when the format has no leaf of this level or `pfn` is not aligned to it.
    #[inline]
    pub fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> Self {
        debug_assert!(level <= F::MAX_LEAF && pfn.is_aligned(level), "no leaf of {level:?} at {pfn:?}");
        Self::from_raw(F::leaf(level, pfn, flags))
    }

    /// A pointer to a lower table.
    #[inline]
    pub fn table(pfn: Pfn) -> Self {
        Self::from_raw(F::table(pfn))
    }

    /// A marker.
    ///
    /// # Panics
    /// In test builds, when `payload` has more than [`PAYLOAD_BITS`] bits.
    #[inline]
    pub fn marker(kind: MarkerKind, payload: u64) -> Self {
        debug_assert!(payload >> PAYLOAD_BITS == 0, "a marker's payload is too wide");
        Self::from_raw(F::marker(kind, payload))
    }

    /// What it says, in a table of `level`.
    #[inline]
    pub fn kind(self, level: Level) -> Kind {
        F::kind(self.raw, level)
    }

    /// Whether the slot is empty.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.raw == 0
    }

    /// Whether hardware may hold a translation through it: a leaf that is not `NO_ACCESS`, or a table.
    #[inline]
    pub fn is_cached(self) -> bool {
        F::is_cached(self.raw)
    }

    /// Whether it is a leaf of a table of `level`.
    #[inline]
    pub fn is_leaf(self, level: Level) -> bool {
        F::is_leaf(self.raw, level)
    }

    /// The frame of a leaf; meaningless for a marker or an empty slot.
    #[inline]
    pub fn pfn(self) -> Pfn {
        F::pfn(self.raw)
    }

    /// The flags of a leaf; meaningless for anything else.
    #[inline]
    pub fn flags(self) -> PteFlags {
        F::flags(self.raw)
    }

    /// The leaf of a table of `level` with other flags.
    #[inline]
    pub fn with_flags(self, level: Level, flags: PteFlags) -> Self {
        Self::from_raw(F::with_flags(self.raw, level, flags))
    }

    /// The leaf without these flags, all of them among [`PteFlags::REVOCABLE`]; at any level.
    ///
    /// # Panics
    /// In test builds, when there is another one among them.
    #[inline]
    pub fn without(self, flags: PteFlags) -> Self {
        debug_assert!(PteFlags::REVOCABLE.contains(flags), "{flags:?} are not all revocable");
        Self::from_raw(F::without(self.raw, flags))
    }

    /// The protection key of a leaf.
    #[inline]
    pub fn pkey(self) -> u8 {
        F::pkey(self.raw)
    }

    /// The leaf with another protection key, 0 to 15.
    ///
    /// # Panics
    /// When there is no such key.
    #[inline]
    pub fn with_pkey(self, pkey: u8) -> Self {
        Self::from_raw(F::with_pkey(self.raw, pkey))
    }
}

impl<F: Format> fmt::Debug for Pte<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pte({:#x})", self.raw)
    }
}
