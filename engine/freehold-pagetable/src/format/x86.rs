//! Entries of x86-64, as in the Intel manual, volume 3, section 5.5 ("4-level paging and 5-level paging"),
//! and the checks of the processor at each level of a walk ([`Format::hardware_step`]).
//!
//! An entry with P clear is free for software, except that the word zero is the empty slot. So P is clear in
//! markers and in leaves without access. `tests/format.rs` checks the encoding bit by bit, and
//! `tests/tables.rs` checks the faults of a walk. A new flag gets a bit here and in [`PteFlags`], and a row
//! in the table below. If both bits have the same number, the flag joins `PLAIN`; otherwise `flags` and
//! `bits` convert it.
//!
//! | bits | in a leaf or table entry | in a marker |
//! | --- | --- | --- |
//! | 0 | P, present | 0 |
//! | 1 | R/W | 0 |
//! | 2 | U/S | kind, bits 2 to 6 |
//! | 3, 4 | PWT, PCD | |
//! | 5 | A, accessed | |
//! | 6 | D, dirty (leaves) | |
//! | 7 | PS above the lowest level; PAT at the lowest level, unused | 0 |
//! | 8 | G, global; with P clear: a leaf without access | 0 |
//! | 9, 10, 11 | software: special, uffd-wp, soft dirty | payload, from bit 9 |
//! | 12 to 51 | frame | |
//! | 52 to 58 | software, unused | up to bit 58 |
//! | 59 to 62 | protection key (leaves) | 0 |
//! | 63 | NX, no execute | 0 |

use super::{Format, Kind, MarkerKind, PAYLOAD_BITS, PteFlags, marker_kind};
use crate::addr::{Level, PAGE_SHIFT, Pfn};
use crate::hardware_walk::{Access, FaultCode, Rights, WalkFault};

const P: u64 = 1 << 0;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const SPECIAL: u64 = 1 << 9;
const UFFD_WP: u64 = 1 << 10;
const SOFT_DIRTY: u64 = 1 << 11;
const FRAME: u64 = ((1 << 52) - 1) & !((1 << 12) - 1);
const PKEY_SHIFT: u32 = 59;
const PKEY: u64 = 0xf << PKEY_SHIFT;
const NX: u64 = 1 << 63;

const KIND_SHIFT: u32 = 2;
const KIND: u64 = 0x1f << KIND_SHIFT;
const PAYLOAD_SHIFT: u32 = 9;

/// Bits that have the same number as their flag in [`PteFlags`], and are set if the flag is set.
const PLAIN: u64 = RW | US | PWT | PCD | A | D | SPECIAL | UFFD_WP | SOFT_DIRTY;

const _: () = {
    let flags = PteFlags::WRITE
        .union(PteFlags::USER)
        .union(PteFlags::WRITE_THROUGH)
        .union(PteFlags::NO_CACHE)
        .union(PteFlags::ACCESSED)
        .union(PteFlags::DIRTY)
        .union(PteFlags::SPECIAL)
        .union(PteFlags::UFFD_WP)
        .union(PteFlags::SOFT_DIRTY);
    assert!(flags.bits() as u64 == PLAIN && PteFlags::HUGE.bits() as u64 == PS);
    assert!(PteFlags::NO_ACCESS.bits() as u64 == P && PteFlags::GLOBAL.bits() as u64 == G);
};

/// x86-64 with `LEVELS` levels of tables: 4 (48-bit addresses) or 5 (57-bit addresses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86<const LEVELS: usize>;

/// x86-64 with four levels.
pub type X86_4 = X86<4>;
/// x86-64 with five levels.
pub type X86_5 = X86<5>;

impl<const N: usize> X86<N> {
    const ADDRESS_BITS: u32 = Level::from_number(N - 1).shift() + super::table_bits::TABLE_BITS;
}

impl<const N: usize> Format for X86<N> {
    const LEVELS: usize = N;
    const MAX_LEAF: Level = Level::Pud;
    const PFN_BITS: u32 = 52 - PAGE_SHIFT;
    const USER_END: u64 = 1 << (Self::ADDRESS_BITS - 1);

    #[inline]
    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64 {
        let size = if level == Level::Pte { 0 } else { PS };
        ((pfn.get() << PAGE_SHIFT) & FRAME) | size | bits(flags)
    }

    /// Returns a table entry that permits everything, so that the leaf decides. Its accessed bit is set from
    /// the start, so the hardware never writes to upper tables.
    #[inline]
    fn table(pfn: Pfn) -> u64 {
        ((pfn.get() << PAGE_SHIFT) & FRAME) | P | RW | US | A
    }

    #[inline]
    fn marker(kind: MarkerKind, payload: u64) -> u64 {
        ((kind as u64) << KIND_SHIFT) | (payload << PAYLOAD_SHIFT)
    }

    #[inline]
    fn kind(raw: u64, level: Level) -> Kind {
        // Check for a table first: a walk calls this function at every level, and nearly all entries that it
        // finds are tables.
        if level != Level::Pte && raw & (P | PS) == P {
            Kind::Table { pfn: Self::pfn(raw) }
        } else if Self::is_leaf(raw, level) {
            Kind::Leaf { pfn: Self::pfn(raw), flags: Self::flags(raw) }
        } else if raw == 0 {
            Kind::None
        } else {
            let payload = (raw >> PAYLOAD_SHIFT) & ((1 << PAYLOAD_BITS) - 1);
            Kind::Marker { kind: marker_kind((raw & KIND) >> KIND_SHIFT), payload }
        }
    }

    #[inline]
    fn flags(raw: u64) -> PteFlags {
        // If P is set, G is the global bit. If P is clear, G only marks the word as a leaf without access.
        let global = raw & (raw & P) << G.trailing_zeros();
        let same = raw & (PLAIN | PS) | global | !raw & P;
        let mut flags = PteFlags::from_bits_retain(same as u32);
        flags.set(PteFlags::EXEC, raw & NX == 0);
        flags.with_pkey(Self::pkey(raw))
    }

    #[inline]
    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64 {
        Self::leaf(level, Self::pfn(raw), flags)
    }

    #[inline]
    fn without(raw: u64, flags: PteFlags) -> u64 {
        raw & !(u64::from(flags.bits()) & PLAIN)
    }

    #[inline]
    fn pfn(raw: u64) -> Pfn {
        Pfn::new((raw & FRAME) >> PAGE_SHIFT)
    }

    #[inline]
    fn is_cached(raw: u64) -> bool {
        raw & P != 0
    }

    #[inline]
    fn is_leaf(raw: u64, level: Level) -> bool {
        match raw & (P | G) {
            0 => false,
            G => true,
            _ => level == Level::Pte || raw & PS != 0,
        }
    }

    #[inline]
    fn pkey(raw: u64) -> u8 {
        ((raw & PKEY) >> PKEY_SHIFT) as u8
    }

    #[inline]
    fn with_pkey(raw: u64, pkey: u8) -> u64 {
        assert!(pkey < 16, "sixteen protection keys");
        (raw & !PKEY) | (u64::from(pkey) << PKEY_SHIFT & PKEY)
    }

    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault> {
        let code = access.code();
        if raw & P == 0 {
            return Err(WalkFault::Page(code));
        }
        let leaf = Self::is_leaf(raw, level);
        if leaf && (level > Self::MAX_LEAF || !Self::pfn(raw).is_aligned(level)) {
            return Err(WalkFault::Page(code | FaultCode::PRESENT | FaultCode::RESERVED));
        }
        rights.write &= raw & RW != 0;
        rights.user &= raw & US != 0;
        rights.exec &= raw & NX == 0;
        if !leaf {
            return Ok(raw | A);
        }
        if access.user && !rights.user || access.write && !rights.write || access.exec && !rights.exec {
            return Err(WalkFault::Page(code | FaultCode::PRESENT));
        }
        if rights.user && !access.exec && access.key_denies(Self::pkey(raw)) {
            return Err(WalkFault::Page(code | FaultCode::PRESENT | FaultCode::KEY));
        }
        Ok(raw | A | if access.write { D } else { 0 })
    }

    fn hardware_address(address: u64, _access: Access) -> Result<(), WalkFault> {
        let unused = 64 - Self::ADDRESS_BITS;
        let extended = ((address << unused) as i64 >> unused) as u64;
        if extended == address { Ok(()) } else { Err(WalkFault::NonCanonical) }
    }
}

/// Returns the bits of a leaf with these flags, without the frame and without PS.
#[inline]
fn bits(flags: PteFlags) -> u64 {
    let same = u64::from(flags.bits());
    // A leaf without access is encoded as G without P.
    let closed = (same & P) << G.trailing_zeros();
    let exec = if flags.contains(PteFlags::EXEC) { 0 } else { NX };
    same & (PLAIN | G) | closed | !same & P | exec | u64::from(flags.pkey()) << PKEY_SHIFT
}
