//! Entries of RISC-V, as in the privileged architecture, version 1.12 and later, chapter "Supervisor-Level
//! ISA", sections Sv39, Sv48 and Sv57, and the checks of the processor at each level of a walk
//! ([`Format::hardware_step`]).
//!
//! An entry with V clear is free for software, except that the word zero is the empty slot. So V is clear in
//! markers and in leaves without access. A leaf always has R, because a leaf with W and without R is
//! reserved. The extensions Svnapot and Svpbmt are not used: their bits stay clear. `tests/riscv64.rs` checks
//! the encoding bit by bit, and the faults of each step.
//!
//! | bits | in a leaf | in a table entry | in a marker |
//! | --- | --- | --- | --- |
//! | 0 | V, valid | 1 | 0 |
//! | 1, 2, 3 | R, W, X | 0 | 0 |
//! | 4 | U, user | 0 | 0 |
//! | 5 | G, global; with V clear: a leaf without access | 0 | 0 |
//! | 6, 7 | A, accessed; D, dirty | 0 | kind, bits 6 to 10 |
//! | 8, 9 | RSW, software: special, uffd-wp | 0 | |
//! | 10 to 53 | frame | frame | payload, from bit 11 |
//! | 54 to 58 | 0, reserved | 0 | up to bit 60 |
//! | 59 | RSW of Svrsw60t59b, software: soft dirty | 0 | |
//! | 60 | RSW of Svrsw60t59b, unused | 0 | |
//! | 61, 62 | 0, PBMT | 0 | 0 |
//! | 63 | 0, N | 0 | 0 |

use super::{Format, Kind, MarkerKind, PAYLOAD_BITS, PteFlags, marker_kind};
use crate::addr::{Level, Pfn};
use crate::hardware_walk::{Access, Rights, WalkFault};

const V: u64 = 1 << 0;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
const G: u64 = 1 << 5;
const A: u64 = 1 << 6;
const D: u64 = 1 << 7;
const SPECIAL: u64 = 1 << 8;
const UFFD_WP: u64 = 1 << 9;
const SOFT_DIRTY: u64 = 1 << 59;
const FRAME_SHIFT: u32 = 10;
const FRAME: u64 = ((1 << 44) - 1) << FRAME_SHIFT;
/// Bits 54 to 63, without the bits of Svrsw60t59b.
const RESERVED: u64 = 0x3ff << 54 & !RSW60T59B;
const RSW60T59B: u64 = 3 << 59;

const KIND_SHIFT: u32 = 6;
const KIND: u64 = 0x1f << KIND_SHIFT;
const PAYLOAD_SHIFT: u32 = 11;

/// RISC-V with `LEVELS` levels of tables: 3 (Sv39), 4 (Sv48) or 5 (Sv57).
///
/// With `SVADU` the hardware sets accessed and dirty bits. Without it, the hardware faults at a leaf that
/// lacks a bit, as with the extension Svade, and the engine sets the bit. A kernel that does not know
/// which of the two its processors have uses the format without `SVADU`, which is correct on both.
///
/// With `RSW60T59B` the processor has the extension Svrsw60t59b, which gives bits 59 and 60 of an entry to
/// software. Without it, there is no soft-dirty bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Riscv64<const LEVELS: usize, const SVADU: bool = false, const RSW60T59B: bool = false>;

/// RISC-V with three levels: 39-bit addresses.
pub type Sv39<const SVADU: bool = false, const RSW60T59B: bool = false> = Riscv64<3, SVADU, RSW60T59B>;
/// RISC-V with four levels: 48-bit addresses.
pub type Sv48<const SVADU: bool = false, const RSW60T59B: bool = false> = Riscv64<4, SVADU, RSW60T59B>;
/// RISC-V with five levels: 57-bit addresses.
pub type Sv57<const SVADU: bool = false, const RSW60T59B: bool = false> = Riscv64<5, SVADU, RSW60T59B>;

impl<const N: usize, const SVADU: bool, const RSW: bool> Riscv64<N, SVADU, RSW> {
    const ADDRESS_BITS: u32 = Level::from_number(N - 1).shift() + super::table_bits::TABLE_BITS;

    /// Returns the bits of a leaf with these flags, without the frame.
    #[inline]
    fn bits(flags: PteFlags) -> u64 {
        let bit = |flag: PteFlags, bit: u64| if flags.contains(flag) { bit } else { 0 };
        // A leaf without access is encoded as G without V.
        let open = if flags.contains(PteFlags::NO_ACCESS) { G } else { V | bit(PteFlags::GLOBAL, G) };
        open | R
            | bit(PteFlags::WRITE, W)
            | bit(PteFlags::EXEC, X)
            | bit(PteFlags::USER, U)
            | bit(PteFlags::ACCESSED, A)
            | bit(PteFlags::DIRTY, D)
            | bit(PteFlags::SPECIAL, SPECIAL)
            | bit(PteFlags::UFFD_WP, UFFD_WP)
            | if RSW { bit(PteFlags::SOFT_DIRTY, SOFT_DIRTY) } else { 0 }
    }
}

impl<const N: usize, const SVADU: bool, const RSW: bool> Format for Riscv64<N, SVADU, RSW> {
    const LEVELS: usize = N;
    const MAX_LEAF: Level = Level::Pud;
    const PFN_BITS: u32 = 44;
    const FLAGS: PteFlags = {
        let absent = PteFlags::PKEY.union(PteFlags::WRITE_THROUGH).union(PteFlags::NO_CACHE);
        let absent = if RSW { absent } else { absent.union(PteFlags::SOFT_DIRTY) };
        PteFlags::all().difference(absent)
    };
    const HARDWARE_FLAGS: PteFlags =
        if SVADU { PteFlags::ACCESSED.union(PteFlags::DIRTY) } else { PteFlags::empty() };
    const CACHES_INVALID: bool = true;
    const COHERENT_FETCH: bool = false;
    const USER_END: u64 = 1 << (Self::ADDRESS_BITS - 1);

    #[inline]
    fn leaf(_level: Level, pfn: Pfn, flags: PteFlags) -> u64 {
        (pfn.get() << FRAME_SHIFT) & FRAME | Self::bits(flags)
    }

    #[inline]
    fn table(pfn: Pfn) -> u64 {
        (pfn.get() << FRAME_SHIFT) & FRAME | V
    }

    #[inline]
    fn marker(kind: MarkerKind, payload: u64) -> u64 {
        ((kind as u64) << KIND_SHIFT) | (payload << PAYLOAD_SHIFT)
    }

    #[inline]
    fn kind(raw: u64, level: Level) -> Kind {
        if Self::is_leaf(raw, level) {
            let mut flags = Self::flags(raw);
            flags.set(PteFlags::HUGE, level != Level::Pte);
            Kind::Leaf { pfn: Self::pfn(raw), flags }
        } else if raw & V != 0 {
            Kind::Table { pfn: Self::pfn(raw) }
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
        flag(W, PteFlags::WRITE)
            | flag(X, PteFlags::EXEC)
            | flag(U, PteFlags::USER)
            | flag(A, PteFlags::ACCESSED)
            | flag(D, PteFlags::DIRTY)
            | flag(SPECIAL, PteFlags::SPECIAL)
            | flag(UFFD_WP, PteFlags::UFFD_WP)
            | if RSW { flag(SOFT_DIRTY, PteFlags::SOFT_DIRTY) } else { PteFlags::SOFT_DIRTY }
            | if raw & V != 0 { flag(G, PteFlags::GLOBAL) } else { PteFlags::NO_ACCESS }
    }

    #[inline]
    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64 {
        Self::leaf(level, Self::pfn(raw), flags)
    }

    #[inline]
    fn without(raw: u64, flags: PteFlags) -> u64 {
        // The bits of a marker start below the bits of these flags, but only leaves get here.
        raw & FRAME | Self::bits(Self::flags(raw) - flags)
    }

    #[inline]
    fn pfn(raw: u64) -> Pfn {
        Pfn::new((raw & FRAME) >> FRAME_SHIFT)
    }

    #[inline]
    fn is_cached(raw: u64) -> bool {
        raw & V != 0
    }

    #[inline]
    fn is_leaf(raw: u64, level: Level) -> bool {
        match raw & (V | G) {
            0 => false,
            G => true,
            _ => level == Level::Pte || raw & (R | W | X) != 0,
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

    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault> {
        let fault = Err(WalkFault::Page(access.code()));
        let reserved = if RSW { RESERVED } else { RESERVED | RSW60T59B };
        if raw & V == 0 || raw & (R | W) == W || raw & reserved != 0 {
            return fault;
        }
        if raw & (R | X) == 0 {
            // A, D and U are reserved in an entry that points to a table.
            return if level == Level::Pte || raw & (A | D | U) != 0 { fault } else { Ok(raw) };
        }
        rights.write &= raw & W != 0;
        rights.user &= raw & U != 0;
        rights.exec &= raw & X != 0;
        let reads = !access.write && !access.exec;
        if reads && raw & R == 0 || access.write && !rights.write || access.exec && !rights.exec {
            return fault;
        }
        if access.user && !rights.user || !Self::pfn(raw).is_aligned(level) {
            return fault;
        }
        let marked = raw | A | if access.write { D } else { 0 };
        if SVADU || marked == raw { Ok(marked) } else { fault }
    }

    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault> {
        let unused = 64 - Self::ADDRESS_BITS;
        let extended = ((address << unused) as i64 >> unused) as u64;
        if extended == address { Ok(()) } else { Err(WalkFault::Page(access.code())) }
    }
}
