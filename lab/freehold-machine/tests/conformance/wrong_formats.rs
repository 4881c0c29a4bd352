//! Formats with one mistake each, made of x86-64. The suite must name the mistake.

use freehold_kit::conformance;
use freehold_pagetable::{
    Access, Format, Kind, Level, MarkerKind, PAYLOAD_BITS, Pfn, PteFlags, Rights, WalkFault, X86_4,
};

/// Markers in use as if the payload had one bit less.
const SHORT_PAYLOAD: u8 = 0;
/// The marker of a guard page has the bit of a leaf without access.
const MARKER_IS_LEAF: u8 = 1;
/// `without` drops the dirty bit, whatever it is asked to drop.
const WITHOUT_DROPS_DIRTY: u8 = 2;
/// A leaf above 4 KiB has no bit that makes it a leaf.
const HUGE_IS_TABLE: u8 = 3;
/// `FLAGS` does not contain `SOFT_DIRTY`, but the bit is stored.
const STORES_ABSENT: u8 = 4;
/// The processor's step at a store leaves the dirty bit clear.
const NEVER_DIRTY: u8 = 5;
/// The processor fetches instructions through every leaf.
const NO_EXECUTE_IGNORED: u8 = 6;
/// The frame number of `PFN_BITS` does not fit in an entry.
const TOO_MANY_FRAMES: u8 = 7;
/// User space ends inside an entry of the root.
const ODD_END: u8 = 8;
/// `with_pkey` changes the right to execute.
const KEY_PERMITS_FETCH: u8 = 9;

/// x86-64 with a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wrong<const MISTAKE: u8>;

impl<const MISTAKE: u8> Format for Wrong<MISTAKE> {
    const LEVELS: usize = X86_4::LEVELS;
    const MAX_LEAF: Level = X86_4::MAX_LEAF;
    const PFN_BITS: u32 = X86_4::PFN_BITS + if MISTAKE == TOO_MANY_FRAMES { 1 } else { 0 };
    const FLAGS: PteFlags = match MISTAKE {
        STORES_ABSENT => PteFlags::all().difference(PteFlags::SOFT_DIRTY),
        _ => PteFlags::all(),
    };
    const USER_END: u64 = X86_4::USER_END - if MISTAKE == ODD_END { 1 << 30 } else { 0 };

    fn leaf(level: Level, pfn: Pfn, flags: PteFlags) -> u64 {
        let level = if MISTAKE == HUGE_IS_TABLE { Level::Pte } else { level };
        X86_4::leaf(level, pfn, flags)
    }

    fn table(pfn: Pfn) -> u64 {
        X86_4::table(pfn)
    }

    fn marker(kind: MarkerKind, payload: u64) -> u64 {
        let raw = X86_4::marker(
            kind,
            match MISTAKE {
                SHORT_PAYLOAD => payload & !(1 << (PAYLOAD_BITS - 1)),
                _ => payload,
            },
        );
        if MISTAKE == MARKER_IS_LEAF && kind == MarkerKind::Guard { raw | 1 << 8 } else { raw }
    }

    fn kind(raw: u64, level: Level) -> Kind {
        X86_4::kind(raw, level)
    }

    fn flags(raw: u64) -> PteFlags {
        X86_4::flags(raw)
    }

    fn with_flags(raw: u64, level: Level, flags: PteFlags) -> u64 {
        Self::leaf(level, X86_4::pfn(raw), flags)
    }

    fn without(raw: u64, flags: PteFlags) -> u64 {
        let more = if MISTAKE == WITHOUT_DROPS_DIRTY { PteFlags::DIRTY } else { PteFlags::empty() };
        X86_4::without(raw, flags | more)
    }

    fn pfn(raw: u64) -> Pfn {
        X86_4::pfn(raw)
    }

    fn is_cached(raw: u64) -> bool {
        X86_4::is_cached(raw)
    }

    fn is_leaf(raw: u64, level: Level) -> bool {
        X86_4::is_leaf(raw, level)
    }

    fn pkey(raw: u64) -> u8 {
        X86_4::pkey(raw)
    }

    fn with_pkey(raw: u64, pkey: u8) -> u64 {
        let raw = X86_4::with_pkey(raw, pkey);
        if MISTAKE == KEY_PERMITS_FETCH { raw & !(1 << 63) } else { raw }
    }

    fn hardware_step(raw: u64, level: Level, access: Access, rights: &mut Rights) -> Result<u64, WalkFault> {
        let access = Access { exec: access.exec && MISTAKE != NO_EXECUTE_IGNORED, ..access };
        let marked = X86_4::hardware_step(raw, level, access, rights)?;
        let was_clean = MISTAKE == NEVER_DIRTY && X86_4::is_leaf(raw, level) && raw & 1 << 6 == 0;
        Ok(if was_clean { marked & !(1 << 6) } else { marked })
    }

    fn hardware_address(address: u64, access: Access) -> Result<(), WalkFault> {
        X86_4::hardware_address(address, access)
    }
}

/// Checks that the suite finds the mistake, by the check of this name and with this text in the message.
#[track_caller]
fn finds<const MISTAKE: u8>(check: &str, text: &str) {
    let report = conformance::format::<Wrong<MISTAKE>>();
    let found = report.failures().any(|(name, message)| name == check && message.contains(text));
    assert!(found, "{check} must fail with {text:?}\n{report}");
}

#[test]
fn a_payload_that_loses_a_bit_is_found() {
    finds::<SHORT_PAYLOAD>("format::markers", "the marker Guard with payload 0x2000000000000 loses bits");
}

#[test]
fn a_marker_that_collides_with_a_leaf_is_found() {
    finds::<MARKER_IS_LEAF>("format::markers", "the marker Guard with payload 0x1 collides with a leaf");
}

#[test]
fn an_edit_that_changes_another_flag_is_found() {
    finds::<WITHOUT_DROPS_DIRTY>("format::edits", "without(PteFlags(WRITE)) gives a wrong leaf");
    finds::<WITHOUT_DROPS_DIRTY>("format::edits", "lost PteFlags(DIRTY)");
    finds::<KEY_PERMITS_FETCH>("format::edits", "with_pkey(0) gives a wrong leaf");
}

#[test]
fn a_huge_leaf_that_is_decoded_as_a_table_is_found() {
    finds::<HUGE_IS_TABLE>("format::leaves", "which kind() decodes as Table");
}

#[test]
fn a_flag_that_is_stored_although_it_is_absent_is_found() {
    finds::<STORES_ABSENT>("format::absent_flags", "FLAGS does not contain PteFlags(SOFT_DIRTY)");
}

#[test]
fn a_step_of_the_hardware_that_breaks_a_promise_is_found() {
    finds::<NEVER_DIRTY>("format::hardware", "must set PteFlags(ACCESSED | DIRTY), but leaves");
    finds::<NO_EXECUTE_IGNORED>("format::hardware", "without PteFlags(EXEC) must fail");
}

#[test]
fn constants_that_do_not_fit_are_found() {
    finds::<TOO_MANY_FRAMES>("format::frames", "pfn 0x10000000000");
    finds::<ODD_END>("format::constants", "USER_END is 0x7fffc0000000");
}
