//! Entries of Arm, as in the Arm Architecture Reference Manual for A-profile (DDI 0487), section D8.3
//! ("Translation table descriptor formats"): VMSAv8-64, stage 1, and the checks of the processor at each
//! level of a walk ([`Format::hardware_step`]). Output addresses have 48 bits.
//!
//! | granule | levels | addresses | leaves |
//! | --- | --- | --- | --- |
//! | 4 KiB | 4 | 48 bits | 4 KiB, 2 MiB, 1 GiB |
//! | 16 KiB | 3 | 47 bits | 16 KiB, 32 MiB |
//! | 64 KiB | 3 | 48 bits, the root has 64 entries | 64 KiB, 512 MiB |
//!
//! The tables are those of TTBR0, so all addresses belong to user space. An entry with bit 0 clear
//! is free for software, except that the word zero is the empty slot. So bit 0 is clear in markers and in
//! leaves without access. `tests/aarch64.rs` checks the encoding bit by bit, and the faults of each step.
//!
//! | bits | in a leaf | in a table entry | in a marker |
//! | --- | --- | --- | --- |
//! | 0 | valid | 1 | 0 |
//! | 1 | 1 at the lowest level, 0 above | 1 | 0 |
//! | 2, 3, 4 | AttrIndx: bit 2 write-through, bit 3 not cached, bit 4 is 0 | 0 | kind, bits 2 to 6 |
//! | 5 | NS, 0 | 0 | |
//! | 6, 7 | AP: bit 6 unprivileged access, bit 7 read-only | 0 | |
//! | 8, 9 | SH: 3, inner shareable | 0 | 0 |
//! | 10 | AF, accessed | 0 | 0 |
//! | 11 | nG, not global; with bit 0 clear: a leaf without access | 0 | 0 |
//! | 12 to 47 | frame; bits below the size of a page are 0 | frame | payload, from bit 12 |
//! | 48 to 50 | 0 | 0 | |
//! | 51 | DBM, write permission of the leaf | 0 | |
//! | 52 | Contiguous, 0 | 0 | |
//! | 53, 54 | PXN, UXN | 0 | |
//! | 55 to 58 | software: dirty, special, uffd-wp, soft dirty | 0 | |
//! | 59 to 63 | 0 | 59 PXNTable, 60 UXNTable, 61 and 62 APTable, 63 NSTable; all 0 | up to bit 61 |
//!
//! # Writable leaves
//!
//! [`PteFlags::WRITE`] is the bit DBM. A leaf with DBM and with the read-only bit is *writable and clean*: a
//! store through it faults or, if the hardware manages the dirty state, clears the read-only bit. The leaf is
//! dirty if software's dirty bit is set or if a writable leaf is not read-only. Code that takes the write
//! permission away sets software's dirty bit, so that the dirty state is not lost.
//!
//! Bits 2 and 3 number the entries of MAIR_EL1, which the kernel fills: index 0 write-back, index 1
//! write-through, index 2 not cached (or a device).

use super::{Format, Kind, MarkerKind, PAYLOAD_BITS, PteFlags, marker_kind};
use crate::addr::{Level, PAGE_SHIFT, Pfn};
use crate::hardware_walk::{Access, Rights, WalkFault};

const VALID: u64 = 1 << 0;
/// Set in a table entry, and in a leaf of the lowest level.
const TYPE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 2;
const NO_CACHE: u64 = 1 << 3;
const EL0: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const AF: u64 = 1 << 10;
const NG: u64 = 1 << 11;
const FRAME: u64 = ((1 << 48) - 1) & !((1 << PAGE_SHIFT) - 1);
/// Bits 48 and 49 are reserved with 48-bit output addresses, and so are the bits below the frame; bit 50 is
/// GP, which is 0 here.
const RESERVED: u64 = 3 << 48 | ((1 << PAGE_SHIFT) - (1 << 12));
const DBM: u64 = 1 << 51;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const DIRTY: u64 = 1 << 55;
const SPECIAL: u64 = 1 << 56;
const UFFD_WP: u64 = 1 << 57;
const SOFT_DIRTY: u64 = 1 << 58;
const PXN_TABLE: u64 = 1 << 59;
const UXN_TABLE: u64 = 1 << 60;
const NO_EL0_TABLE: u64 = 1 << 61;
const READ_ONLY_TABLE: u64 = 1 << 62;

const KIND_SHIFT: u32 = 2;
const KIND: u64 = 0x1f << KIND_SHIFT;
const PAYLOAD_SHIFT: u32 = 12;

/// Arm, with the granule of this build.
///
/// `HAFDBS` is the field of that name in ID_AA64MMFR1_EL1, limited to the features that the kernel turns on
/// (TCR_EL1.HA and HD): 0 if software sets accessed and dirty bits, 1 if the hardware sets accessed bits, 2
/// if it sets both. The encoding does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64<const HAFDBS: u8 = 2>;

/// Arm without hardware management of accessed and dirty bits. Correct on every processor.
pub type Aarch64NoHafdbs = Aarch64<0>;

/// Returns the bits of a leaf with these flags, without the frame and without the type.
#[inline]
fn bits(flags: PteFlags) -> u64 {
    let bit = |flag: PteFlags, bit: u64| if flags.contains(flag) { bit } else { 0 };
    let unless = |flag: PteFlags, bit: u64| if flags.contains(flag) { 0 } else { bit };
    // A leaf without access is encoded as nG without the valid bit.
    let open = if flags.contains(PteFlags::NO_ACCESS) { NG } else { VALID | unless(PteFlags::GLOBAL, NG) };
    let never = if flags.contains(PteFlags::USER) {
        EL0 | PXN | unless(PteFlags::EXEC, UXN)
    } else {
        UXN | unless(PteFlags::EXEC, PXN)
    };
    open | INNER_SHAREABLE
        | never
        | bit(PteFlags::WRITE_THROUGH, WRITE_THROUGH)
        | bit(PteFlags::NO_CACHE, NO_CACHE)
        | bit(PteFlags::WRITE, DBM)
        | unless(PteFlags::WRITE.union(PteFlags::DIRTY), READ_ONLY)
        | bit(PteFlags::ACCESSED, AF)
        | bit(PteFlags::DIRTY, DIRTY)
        | bit(PteFlags::SPECIAL, SPECIAL)
        | bit(PteFlags::UFFD_WP, UFFD_WP)
        | bit(PteFlags::SOFT_DIRTY, SOFT_DIRTY)
}

impl<const HAFDBS: u8> Format for Aarch64<HAFDBS> {
    const PAGE_SHIFTS: &'static [u32] = &[12, 14, 16];
    const LEVELS: usize = if PAGE_SHIFT == 12 { 4 } else { 3 };
    const MAX_LEAF: Level = if PAGE_SHIFT == 12 { Level::Pud } else { Level::Pmd };
    const PFN_BITS: u32 = 48 - PAGE_SHIFT;
    const FLAGS: PteFlags = PteFlags::all().difference(PteFlags::PKEY);
    const HARDWARE_FLAGS: PteFlags = match HAFDBS {
        0 => PteFlags::empty(),
        1 => PteFlags::ACCESSED,
        _ => PteFlags::ACCESSED.union(PteFlags::DIRTY),
    };
    const BREAK_BEFORE_MAKE: bool = true;
    const COHERENT_FETCH: bool = false;
    const USER_END: u64 = {
        let bits = Self::ROOT.shift() + super::table_bits::TABLE_BITS;
        1 << if bits < 48 { bits } else { 48 }
    };
    const MAP_WINDOW_END: u64 = Self::USER_END;

    #[inline]
    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64 {
        let page = if level == Level::Pte { TYPE } else { 0 };
        ((pfn.get() << PAGE_SHIFT) & FRAME) | page | bits(flags)
    }

    #[inline]
    fn table(pfn: Pfn) -> u64 {
        ((pfn.get() << PAGE_SHIFT) & FRAME) | TYPE | VALID
    }

    #[inline]
    fn marker(kind: MarkerKind, payload: u64) -> u64 {
        ((kind as u64) << KIND_SHIFT) | (payload << PAYLOAD_SHIFT)
    }

    #[inline]
    fn kind(raw: u64, level: Level) -> Kind {
        if level != Level::Pte && raw & (VALID | TYPE) == VALID | TYPE {
            Kind::Table { pfn: Self::pfn(raw) }
        } else if Self::is_leaf(raw, level) {
            let mut flags = Self::flags(raw);
            flags.set(PteFlags::HUGE, level != Level::Pte);
            Kind::Leaf { pfn: Self::pfn(raw), flags }
        } else if raw == 0 {
            Kind::None
        } else {
            let payload = (raw >> PAYLOAD_SHIFT) & ((1 << PAYLOAD_BITS) - 1);
            Kind::Marker { kind: marker_kind((raw & KIND) >> KIND_SHIFT), payload }
        }
    }

    #[inline]
    fn flags(raw: u64) -> PteFlags {
        let flag = |bit: u64, flag: PteFlags| if raw & bit != 0 { flag } else { PteFlags::empty() };
        let written = raw & DIRTY != 0 || raw & (DBM | READ_ONLY) == DBM;
        let never = if raw & EL0 != 0 { UXN } else { PXN };
        let open = match raw & (VALID | NG) {
            VALID => PteFlags::GLOBAL,
            NG => PteFlags::NO_ACCESS,
            _ => PteFlags::empty(),
        };
        open | flag(WRITE_THROUGH, PteFlags::WRITE_THROUGH)
            | flag(NO_CACHE, PteFlags::NO_CACHE)
            | flag(EL0, PteFlags::USER)
            | flag(DBM, PteFlags::WRITE)
            | flag(AF, PteFlags::ACCESSED)
            | if raw & never == 0 { PteFlags::EXEC } else { PteFlags::empty() }
            | flag(SPECIAL, PteFlags::SPECIAL)
            | flag(UFFD_WP, PteFlags::UFFD_WP)
            | flag(SOFT_DIRTY, PteFlags::SOFT_DIRTY)
            | if written { PteFlags::DIRTY } else { PteFlags::empty() }
    }

    #[inline]
    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64 {
        Self::leaf(level, Self::pfn(raw), flags)
    }

    #[inline]
    fn without(raw: u64, flags: PteFlags) -> u64 {
        raw & (FRAME | TYPE) | bits(Self::flags(raw) - flags)
    }

    #[inline]
    fn pfn(raw: u64) -> Pfn {
        Pfn::new((raw & FRAME) >> PAGE_SHIFT)
    }

    #[inline]
    fn is_cached(raw: u64) -> bool {
        raw & VALID != 0
    }

    #[inline]
    fn is_leaf(raw: u64, level: Level) -> bool {
        match raw & (VALID | NG) {
            0 => false,
            NG => true,
            _ => level == Level::Pte || raw & TYPE == 0,
        }
    }

    #[inline]
    fn pkey(_raw: u64) -> u8 {
        0
    }

    #[inline]
    fn with_pkey(raw: u64, pkey: u8) -> u64 {
        assert!(pkey < 16, "sixteen protection keys");
        raw
    }

    /// Executes a step with hierarchical permissions, with PAN off. `rights.exec` is the right of the mode
    /// that the leaf belongs to: the unprivileged mode if the leaf permits it to read.
    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault> {
        let fault = Err(WalkFault::Page(access.code()));
        let leaf = Self::is_leaf(raw, level);
        if raw & VALID == 0 || level == Level::Pte && raw & TYPE == 0 {
            return fault;
        }
        if !leaf {
            rights.user &= raw & NO_EL0_TABLE == 0;
            rights.write &= raw & READ_ONLY_TABLE == 0;
            rights.exec &= raw & if access.user { UXN_TABLE } else { PXN_TABLE } == 0;
            return Ok(raw);
        }
        // No block is larger than a leaf of `MAX_LEAF`, and the frame of a block is aligned.
        if level > Self::MAX_LEAF || !Self::pfn(raw).is_aligned(level) || raw & RESERVED != 0 {
            return fault;
        }
        // A processor without FEAT_HAFDBS ignores DBM.
        let clears_read_only = HAFDBS >= 2 && raw & DBM != 0;
        rights.write &= raw & READ_ONLY == 0 || clears_read_only;
        rights.user &= raw & EL0 != 0;
        rights.exec &= raw & if access.user { UXN } else { PXN } == 0;
        // An access-flag fault has priority over a permission fault.
        if HAFDBS == 0 && raw & AF == 0 {
            return fault;
        }
        if access.user && !rights.user || access.write && !rights.write || access.exec && !rights.exec {
            return fault;
        }
        let written = if access.write && clears_read_only { READ_ONLY } else { 0 };
        Ok((raw | AF) & !written)
    }

    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault> {
        // Addresses above belong to TTBR1, or to no table. The top byte is not ignored.
        if address < Self::USER_END { Ok(()) } else { Err(WalkFault::Page(access.code())) }
    }
}
