//! The meaning of table entries, independent of the encoding of a machine.
//!
//! [`Format`] is the trait that an encoding implements (`x86.rs`), [`Pte`] is an entry as a value, and
//! [`Kind`] is its decoded form. Everything here is pure: no function reads or writes a table. `table.rs` and
//! `page_table.rs` load and store entries.
//!
//! To add an architecture, add a file next to `x86.rs` that implements [`Format`]. Three rules must hold: the
//! word zero is the empty slot, every word has exactly one kind, and an encoded entry is decoded to the same
//! value, without the flags that the format does not have ([`Format::FLAGS`]). `tests/format.rs` tests these
//! rules for every format. `table_bits.rs` has the number of entries of a table. A new kind of marker needs a
//! code in each format. It also needs a decision at each match on [`Kind::Marker`] in `freehold-vmspace`
//! (`zap.rs`, `copy.rs` and others) and in `freehold` (`fault/mod.rs` and others).

mod aarch64;
mod riscv64;
pub mod table_bits;
mod x86;

pub use aarch64::{Aarch64, Aarch64NoHafdbs};
pub use riscv64::{Riscv64, Sv39, Sv48, Sv57};
pub use x86::{X86, X86_4, X86_5};

use crate::addr::{Level, Pfn, VirtAddr};
use crate::hardware_walk::{Access, Rights, WalkFault};
use bitflags::bitflags;
use core::fmt;
use core::marker::PhantomData;

bitflags! {
    /// The rights and the state of a leaf. A leaf permits reading, except with
    /// [`NO_ACCESS`](PteFlags::NO_ACCESS).
    ///
    /// If x86-64 has a bit for a flag, the flag has the number of that bit. The conversion of an entry is
    /// then cheap. The cost matters because every touched page needs conversions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PteFlags: u32 {
        /// The entry keeps its frame, but every access faults. Used for `PROT_NONE`, and for entries that
        /// must fault for statistics. The hardware does not translate through the entry and does not cache
        /// it.
        const NO_ACCESS = 1 << 0;
        /// Writes are permitted.
        const WRITE = 1 << 1;
        /// The unprivileged mode may use the page.
        const USER = 1 << 2;
        /// The page is cached write-through.
        const WRITE_THROUGH = 1 << 3;
        /// The page is not cached.
        const NO_CACHE = 1 << 4;
        /// The hardware, or software on its behalf, has seen an access. Stays set until cleared.
        const ACCESSED = 1 << 5;
        /// The hardware, or software on its behalf, has seen a write. Stays set until cleared.
        const DIRTY = 1 << 6;
        /// Set in the flags that are read from a leaf above 4 KiB. Ignored when a leaf is written: the level
        /// decides.
        const HUGE = 1 << 7;
        /// The translation stays in the TLB when the processor switches to another address space.
        const GLOBAL = 1 << 8;
        /// Software: the frame has no metadata or is not reference-counted (zero page, PFN maps).
        const SPECIAL = 1 << 9;
        /// Software: write-protected on behalf of userfaultfd.
        const UFFD_WP = 1 << 10;
        /// Software: written since the soft-dirty bit was last cleared.
        const SOFT_DIRTY = 1 << 11;
        /// Instruction fetches are permitted.
        const EXEC = 1 << 12;
        /// The protection key, a number; see [`pkey`](PteFlags::pkey).
        const PKEY = 0xf << PKEY_SHIFT;
    }
}

const PKEY_SHIFT: u32 = 13;

impl PteFlags {
    /// The flags that can be removed from a leaf without any other change of the leaf.
    pub const REVOCABLE: Self =
        Self::WRITE.union(Self::ACCESSED).union(Self::DIRTY).union(Self::SOFT_DIRTY).union(Self::UFFD_WP);

    /// Returns these flags with this protection key, 0 to 15.
    ///
    /// # Panics
    /// Panics if there is no such key.
    #[inline]
    pub const fn with_pkey(self, pkey: u8) -> Self {
        assert!(pkey < 16, "sixteen protection keys");
        let key = ((pkey as u32) << PKEY_SHIFT) & Self::PKEY.bits();
        PteFlags::from_bits_retain(self.bits() & !Self::PKEY.bits() | key)
    }

    /// Returns the protection key.
    #[inline]
    pub const fn pkey(self) -> u8 {
        ((self.bits() & Self::PKEY.bits()) >> PKEY_SHIFT) as u8
    }
}

/// The meaning of a non-empty slot without a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MarkerKind {
    /// A guard page (`MADV_GUARD_INSTALL`). An access is a segmentation fault.
    Guard = 1,
    /// The frame in the payload is being moved. A fault that needs the page waits.
    Migration = 2,
    /// The contents of the page are at the place that the payload names.
    Swap = 3,
    /// The page is absent and write-protected by userfaultfd.
    UffdWp = 4,
    /// The memory failed. An access is a bus error. An unknown code is also decoded to this kind.
    Poison = 5,
}

/// The contents of a slot. Every user of an entry matches on all four kinds (hazard C-42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The slot is empty.
    None,
    /// A page of the slot's level.
    Leaf {
        /// The first 4 KiB frame of the page.
        pfn: Pfn,
        /// The rights and the state of the leaf.
        flags: PteFlags,
    },
    /// A table of the next lower level. Never at [`Level::Pte`].
    Table {
        /// The frame of that table.
        pfn: Pfn,
    },
    /// The slot has no translation; the marker says why.
    Marker {
        /// The kind of the marker.
        kind: MarkerKind,
        /// The payload of [`PAYLOAD_BITS`] bits. The kind defines its meaning.
        payload: u64,
    },
}

/// Number of payload bits of a marker.
pub const PAYLOAD_BITS: u32 = 50;

/// The encoding of entries on a machine. All functions are pure and meant to be inlined.
///
/// The word zero is the empty slot in every format, so a zeroed table is an empty table. Entries have 64
/// bits, and a table is as large as a page: 512 entries with pages of 4 KiB.
///
/// The constants are the contract between a format and the crates above: they say everything that differs
/// between formats except the encoding. The defaults are those of x86-64, so on x86-64 no constant costs an
/// instruction. `tests/format.rs` checks the constants against the functions.
///
/// | constant | x86-64 | RISC-V | Arm |
/// | --- | --- | --- | --- |
/// | [`LEVELS`](Self::LEVELS) | 4, 5 | 3, 4, 5 | 4 |
/// | [`PFN_BITS`](Self::PFN_BITS) | 40 | 44 | 36 |
/// | [`FLAGS`](Self::FLAGS) | all | no protection key, no cache control, perhaps no soft-dirty bit | no protection key |
/// | [`HARDWARE_FLAGS`](Self::HARDWARE_FLAGS) | accessed, dirty | both with Svadu, none with Svade | none, accessed, or both |
/// | [`BREAK_BEFORE_MAKE`](Self::BREAK_BEFORE_MAKE) | no | no | yes |
/// | [`CACHES_INVALID`](Self::CACHES_INVALID) | no | yes | no |
/// | [`COHERENT_FETCH`](Self::COHERENT_FETCH) | yes | no | no |
pub trait Format: Copy + Eq + Send + Sync + fmt::Debug + 'static {
    /// The page sizes that the format has, as base-2 logarithms. A build has [one of
    /// them](crate::PAGE_SHIFT), and refuses to compile page tables of a format without it.
    const PAGE_SHIFTS: &'static [u32] = &[12];
    /// Number of levels of tables: 3, 4 or 5.
    const LEVELS: usize;
    /// The highest level whose entries may be leaves. Entries of all lower levels may be leaves, too. At most
    /// [`Level::Pud`].
    const MAX_LEAF: Level;
    /// Number of bits of the frame number in an entry. A platform hands out only frames and tables with
    /// smaller numbers.
    const PFN_BITS: u32;
    /// The flags that a leaf stores. Contains at least [`NO_ACCESS`](PteFlags::NO_ACCESS),
    /// [`WRITE`](PteFlags::WRITE), [`USER`](PteFlags::USER), [`EXEC`](PteFlags::EXEC),
    /// [`ACCESSED`](PteFlags::ACCESSED), [`DIRTY`](PteFlags::DIRTY) and [`SPECIAL`](PteFlags::SPECIAL).
    ///
    /// A flag that is not in this set is ignored when a leaf is written. It is clear when a leaf is read,
    /// except [`SOFT_DIRTY`](PteFlags::SOFT_DIRTY), which is set: without the bit, every page counts as
    /// written. Without [`PKEY`](PteFlags::PKEY), every leaf has the key 0.
    const FLAGS: PteFlags = PteFlags::all();
    /// The flags of [`ACCESSED`](PteFlags::ACCESSED) and [`DIRTY`](PteFlags::DIRTY) that the hardware may set
    /// in a leaf. For the other flag of the two, the hardware faults at a leaf without the flag, and the
    /// fault handler of the engine sets it.
    ///
    /// The hardware need not set the flags of this set: some kernels learn only at boot whether it does.
    const HARDWARE_FLAGS: PteFlags = PteFlags::ACCESSED.union(PteFlags::DIRTY);
    /// True if a live entry may be replaced by an entry with another frame, of another size or with other
    /// cache flags only in three steps: empty the entry, flush it from all TLBs, write the new entry. Arm
    /// calls this sequence break-before-make. Rights, software bits and accessed and dirty bits may change in
    /// place in every format.
    const BREAK_BEFORE_MAKE: bool = false;
    /// True if a TLB may cache an entry that does not translate, so that an access may fault at an entry that
    /// was filled since. The kernel drops the translation of an address on its CPU after it has handled a
    /// fault there.
    const CACHES_INVALID: bool = false;
    /// True if instruction fetches of all CPUs see earlier stores without further steps. Otherwise
    /// [`TableMemory::publish_code`](crate::TableMemory::publish_code) is called before an entry permits
    /// fetches from a frame.
    const COHERENT_FETCH: bool = true;
    /// The level of the root table.
    const ROOT: Level = Level::from_number(Self::LEVELS - 1);
    /// The end of the addresses that a process may use. This crate creates no table for an address at or
    /// above this end.
    const USER_END: u64;
    /// The end of the addresses at which mmap places mappings without a hint above this end
    /// (DEFAULT_MAP_WINDOW on Linux). At most [`USER_END`](Self::USER_END).
    const MAP_WINDOW_END: u64 = if Self::USER_END < 1 << 47 { Self::USER_END } else { 1 << 47 };
    /// Number of entries of the root table that translate addresses below [`USER_END`](Self::USER_END). The
    /// entries from this index on belong to the embedding kernel. In this crate, only
    /// [`hw_walk`](crate::hw_walk) reads the kernel's entries, and only
    /// [`PageTable::destroy`](crate::PageTable::destroy) writes them, to empty them.
    const USER_ENTRIES: usize = VirtAddr::new(Self::USER_END - 1).index(Self::ROOT) + 1;

    /// Returns a leaf of `level` that starts at `pfn`.
    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64;
    /// Returns a pointer to a table of the next lower level.
    fn table(pfn: Pfn) -> u64;
    /// Returns a marker. `payload` is below `1 << PAYLOAD_BITS`.
    fn marker(kind: MarkerKind, payload: u64) -> u64;
    /// Decodes an entry of a table of `level`.
    fn kind(raw: u64, level: Level) -> Kind;
    /// Returns the flags of a leaf.
    fn flags(raw: u64) -> PteFlags;
    /// Returns the leaf with other flags and the same frame.
    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64;
    /// Returns the leaf without these flags. `flags` contains only flags of [`PteFlags::REVOCABLE`].
    fn without(raw: u64, flags: PteFlags) -> u64;
    /// Returns the frame of a leaf, or the table that a table entry points to.
    fn pfn(raw: u64) -> Pfn;
    /// Returns true if hardware may translate through the entry, so that a TLB or a walk cache may hold it.
    fn is_cached(raw: u64) -> bool;
    /// Returns true if the entry is a leaf. A leaf with [`PteFlags::NO_ACCESS`] is included, although it is
    /// not translated.
    fn is_leaf(raw: u64, level: Level) -> bool;
    /// Returns the protection key of a leaf.
    fn pkey(raw: u64) -> u8;
    /// Returns the leaf with another protection key, 0 to 15. Without [`PteFlags::PKEY`] in
    /// [`FLAGS`](Self::FLAGS), returns the leaf.
    fn with_pkey(raw: u64, pkey: u8) -> u64;

    /// Executes a processor's step at the entry `raw` of a table of `level`, and updates `rights`. Returns
    /// the word that the processor stores in the entry, with the accessed and dirty bits set.
    ///
    /// # Errors
    /// Returns the fault that the processor would raise. If the hardware leaves the accessed or dirty bit to
    /// software, a leaf without that bit also causes a fault.
    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault>;
    /// Checks that `address` exists in this format.
    ///
    /// # Errors
    /// Returns the fault that the processor would raise for an address that does not exist in the format.
    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault>;
}

/// Returns the kind of a marker with this code. An unknown code is a failed page, so that an access ends in a
/// signal.
#[inline]
fn marker_kind(code: u64) -> MarkerKind {
    match code {
        1 => MarkerKind::Guard,
        2 => MarkerKind::Migration,
        3 => MarkerKind::Swap,
        4 => MarkerKind::UffdWp,
        _ => MarkerKind::Poison,
    }
}

/// One entry of a table, as a value: a copy of the entry.
///
/// The meaning of an entry depends on the level of its table. The caller knows that level.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Pte<F> {
    raw: u64,
    format: PhantomData<F>,
}

impl<F: Format> Pte<F> {
    /// The empty slot.
    pub const NONE: Self = Pte { raw: 0, format: PhantomData };

    /// Returns the entry with these bits.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Pte { raw, format: PhantomData }
    }

    /// Returns the bits.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// Returns a 4 KiB leaf.
    #[inline]
    pub fn page(pfn: Pfn, flags: PteFlags) -> Self {
        Self::from_raw(F::leaf(Level::Pte, pfn, flags))
    }

    /// Returns a leaf of `level`.
    ///
    /// # Panics
    /// Panics in test builds if the format has no leaf of this level or `pfn` is not aligned to the level.
    #[inline]
    pub fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> Self {
        debug_assert!(level <= F::MAX_LEAF && pfn.is_aligned(level), "no leaf of {level:?} at {pfn:?}");
        Self::from_raw(F::leaf(level, pfn, flags))
    }

    /// Returns a pointer to a lower table.
    #[inline]
    pub fn table(pfn: Pfn) -> Self {
        Self::from_raw(F::table(pfn))
    }

    /// Returns a marker.
    ///
    /// # Panics
    /// Panics in test builds if `payload` has more than [`PAYLOAD_BITS`] bits.
    #[inline]
    pub fn marker(kind: MarkerKind, payload: u64) -> Self {
        debug_assert!(payload >> PAYLOAD_BITS == 0, "a marker's payload is too wide");
        Self::from_raw(F::marker(kind, payload))
    }

    /// Decodes the entry as an entry of a table of `level`.
    #[inline]
    pub fn kind(self, level: Level) -> Kind {
        F::kind(self.raw, level)
    }

    /// Returns true if the slot is empty.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.raw == 0
    }

    /// Returns true if hardware may hold a translation through the entry: a table, or a leaf without
    /// `NO_ACCESS`.
    #[inline]
    pub fn is_cached(self) -> bool {
        F::is_cached(self.raw)
    }

    /// Returns true if the entry is a leaf of a table of `level`.
    #[inline]
    pub fn is_leaf(self, level: Level) -> bool {
        F::is_leaf(self.raw, level)
    }

    /// Returns the frame of a leaf. The result is meaningless for a marker or an empty slot.
    #[inline]
    pub fn pfn(self) -> Pfn {
        F::pfn(self.raw)
    }

    /// Returns the flags of a leaf. The result is meaningless for other entries.
    #[inline]
    pub fn flags(self) -> PteFlags {
        F::flags(self.raw)
    }

    /// Returns the leaf of a table of `level` with other flags.
    #[inline]
    pub fn with_flags(self, level: Level, flags: PteFlags) -> Self {
        Self::from_raw(F::with_flags(self.raw, level, flags))
    }

    /// Returns true if a program can fetch instructions through the entry of a table of `level`.
    #[inline]
    pub fn permits_fetch(self, level: Level) -> bool {
        self.is_cached() && self.is_leaf(level) && self.flags().contains(PteFlags::EXEC | PteFlags::USER)
    }

    /// Returns the leaf of a table of `level` without any access. No TLB caches the result, and no task takes
    /// it for an empty slot.
    #[inline]
    pub fn closed(self, level: Level) -> Self {
        self.with_flags(level, (self.flags() - PteFlags::GLOBAL) | PteFlags::NO_ACCESS)
    }

    /// Returns the leaf without these flags, at any level. `flags` contains only flags of
    /// [`PteFlags::REVOCABLE`].
    ///
    /// # Panics
    /// Panics in test builds if `flags` contains a flag that is not in [`PteFlags::REVOCABLE`].
    #[inline]
    pub fn without(self, flags: PteFlags) -> Self {
        debug_assert!(PteFlags::REVOCABLE.contains(flags), "{flags:?} are not all revocable");
        Self::from_raw(F::without(self.raw, flags))
    }

    /// Returns the protection key of a leaf.
    #[inline]
    pub fn pkey(self) -> u8 {
        F::pkey(self.raw)
    }

    /// Returns the leaf with another protection key, 0 to 15.
    ///
    /// # Panics
    /// Panics if there is no such key.
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
