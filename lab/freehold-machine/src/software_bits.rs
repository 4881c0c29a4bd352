//! A format whose hardware leaves the accessed and dirty bits of leaves to software.
//!
//! Some processors fault when a bit must be set, and the kernel sets it. [`SoftwareBits`] wraps any format
//! and changes only the hardware's step ([`Format::hardware_step`]), which the walks of `cpu.rs` use: instead
//! of setting a bit, this step raises a fault. All other functions call those of `F`; a new function of
//! [`Format`] must be added here if it has a default. Tests run the engine on this format
//! (`tests/shuttle_engine/software_bits.rs`).

use freehold_pagetable::{
    Access, FaultCode, Format, Kind, Level, MarkerKind, Pfn, PteFlags, Rights, WalkFault,
};

/// The format `F` on hardware that sets no bit in a leaf. An access through a leaf that lacks
/// [`ACCESSED`](PteFlags::ACCESSED) faults, and so does a store through a leaf that lacks
/// [`DIRTY`](PteFlags::DIRTY).
///
/// RISC-V with Svade and arm64 without FEAT_HAFDBS work like this. With `HARDWARE_ACCESSED` the hardware sets
/// accessed bits, as some arm64 processors do, and only a missing dirty bit faults.
///
/// The format has no flag that is in `ABSENT`, which has the bits of [`PteFlags`]. Tests use `ABSENT` for
/// combinations that no real format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareBits<F, const HARDWARE_ACCESSED: bool = false, const ABSENT: u32 = 0>(F);

impl<F, const HARDWARE_ACCESSED: bool, const ABSENT: u32> SoftwareBits<F, HARDWARE_ACCESSED, ABSENT> {
    const ABSENT: PteFlags = PteFlags::from_bits_retain(ABSENT);

    /// The bits that the hardware sets.
    const SET: PteFlags = if HARDWARE_ACCESSED { PteFlags::ACCESSED } else { PteFlags::empty() };
}

impl<F: Format, const HARDWARE_ACCESSED: bool, const ABSENT: u32> Format
    for SoftwareBits<F, HARDWARE_ACCESSED, ABSENT>
{
    const LEVELS: usize = F::LEVELS;
    const MAX_LEAF: Level = F::MAX_LEAF;
    const PFN_BITS: u32 = F::PFN_BITS;
    const FLAGS: PteFlags = F::FLAGS.difference(Self::ABSENT);
    const HARDWARE_FLAGS: PteFlags = F::HARDWARE_FLAGS.intersection(Self::SET);
    const BREAK_BEFORE_MAKE: bool = F::BREAK_BEFORE_MAKE;
    const COHERENT_FETCH: bool = F::COHERENT_FETCH;
    const CACHES_INVALID: bool = F::CACHES_INVALID;
    const USER_END: u64 = F::USER_END;
    const MAP_WINDOW_END: u64 = F::MAP_WINDOW_END;

    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64 {
        F::leaf(level, pfn, flags - Self::ABSENT)
    }

    fn table(pfn: Pfn) -> u64 {
        F::table(pfn)
    }

    fn marker(kind: MarkerKind, payload: u64) -> u64 {
        F::marker(kind, payload)
    }

    fn kind(raw: u64, level: Level) -> Kind {
        match F::kind(raw, level) {
            Kind::Leaf { pfn, flags } => {
                Kind::Leaf { pfn, flags: flags | (Self::ABSENT & PteFlags::SOFT_DIRTY) }
            }
            kind => kind,
        }
    }

    fn flags(raw: u64) -> PteFlags {
        F::flags(raw) | (Self::ABSENT & PteFlags::SOFT_DIRTY)
    }

    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64 {
        F::with_flags(raw, level, flags - Self::ABSENT)
    }

    fn without(raw: u64, flags: PteFlags) -> u64 {
        F::without(raw, flags)
    }

    fn pfn(raw: u64) -> Pfn {
        F::pfn(raw)
    }

    fn is_cached(raw: u64) -> bool {
        F::is_cached(raw)
    }

    fn is_leaf(raw: u64, level: Level) -> bool {
        F::is_leaf(raw, level)
    }

    fn pkey(raw: u64) -> u8 {
        F::pkey(raw)
    }

    fn with_pkey(raw: u64, pkey: u8) -> u64 {
        F::with_pkey(raw, pkey)
    }

    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault> {
        let marked = F::hardware_step(raw, level, access, rights)?;
        if !F::is_leaf(raw, level) {
            return Ok(raw);
        }
        let missing = F::flags(marked) - F::flags(raw);
        if Self::SET.contains(missing) {
            return Ok(marked);
        }
        let mut code = FaultCode::PRESENT;
        code.set(FaultCode::WRITE, access.write);
        code.set(FaultCode::USER, access.user);
        code.set(FaultCode::FETCH, access.exec);
        Err(WalkFault::Page(code))
    }

    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault> {
        F::hardware_address(address, access)
    }
}
