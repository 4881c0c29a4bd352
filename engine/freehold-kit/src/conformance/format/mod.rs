//! The checks of a [`Format`]. All functions of a format are pure, so the checks need no machine.
//!
//! `leaves.rs` has the checks of leaves and their flags, `entries.rs` those of the other kinds of entries,
//! and `hardware.rs` the step of the processor and the constants that bound addresses.

mod entries;
mod hardware;
mod leaves;

use super::report::Report;
use freehold_pagetable::{Format, Level, PteFlags};

/// Checks that a format keeps the contract of [`Format`].
///
/// | check | the format |
/// | --- | --- |
/// | `format::constants` | has 3 to 5 levels, the flags that every format needs, and limits that agree with each other |
/// | `format::empty` | decodes the word zero as an empty slot at every level |
/// | `format::leaves` | decodes each leaf of each level as it was encoded, for every combination of flags |
/// | `format::frames` | stores every bit of a frame number, in leaves and in table entries |
/// | `format::edits` | changes only the named flags, or the key, in `with_flags`, `without` and `with_pkey` |
/// | `format::absent_flags` | ignores the flags that it does not have, and reports them as the contract says |
/// | `format::markers` | decodes each marker as it was encoded, at every level |
/// | `format::distinct` | never encodes two kinds of entries in the same word, and decodes any word |
/// | `format::tables` | decodes each table entry as it was encoded |
/// | `format::hardware` | sets and checks the bits that its constants promise, in `hardware_step` |
/// | `format::addresses` | translates the addresses of users, and no address behind them |
///
/// The functions of the format are called only with arguments that the contract permits.
///
/// # Examples
///
/// ```
/// use freehold_pagetable::{Aarch64, X86_4};
///
/// for report in [freehold_kit::conformance::format::<X86_4>(), freehold_kit::conformance::format::<Aarch64>()] {
///     report.assert_passed(&[]);
/// }
/// ```
pub fn format<F: Format>() -> Report {
    let mut report = Report::default();
    report.add_found("format::constants", hardware::constants::<F>());
    report.add_found("format::empty", entries::empty::<F>());
    report.add_found("format::leaves", leaves::leaves::<F>());
    report.add_found("format::frames", leaves::frames::<F>());
    report.add_found("format::edits", leaves::edits::<F>());
    report.add_found("format::absent_flags", leaves::absent_flags::<F>());
    report.add_found("format::markers", entries::markers::<F>());
    report.add_found("format::distinct", entries::distinct::<F>());
    report.add_found("format::tables", entries::tables::<F>());
    report.add_found("format::hardware", hardware::steps::<F>());
    report.add_found("format::addresses", hardware::addresses::<F>());
    report
}

/// Returns the levels of the format's tables, from the lowest.
fn levels<F: Format>() -> impl Iterator<Item = Level> {
    (0..F::LEVELS.min(5)).map(Level::from_number)
}

/// Returns the levels that have leaves, from the lowest.
fn leaf_levels<F: Format>() -> impl Iterator<Item = Level> {
    levels::<F>().filter(|level| *level <= F::MAX_LEAF)
}

/// The protection keys that checks use: each bit of a key alone, and all bits.
const KEYS: [u8; 6] = [0, 1, 2, 4, 8, 15];

/// Returns all combinations of flags that can be written, with the keys of [`KEYS`]. [`PteFlags::HUGE`]
/// depends on the level. `GLOBAL` and `NO_ACCESS` may share a bit, because an entry without access is in no
/// TLB.
fn all_flags<F: Format>() -> impl Iterator<Item = PteFlags> {
    let written = F::FLAGS - PteFlags::HUGE - PteFlags::PKEY;
    let keys = if F::FLAGS.contains(PteFlags::PKEY) { &KEYS[..] } else { &KEYS[..1] };
    (0..=PteFlags::all().bits())
        .filter(move |bits| bits & !written.bits() == 0)
        .map(PteFlags::from_bits_truncate)
        .filter(|flags| !flags.contains(PteFlags::GLOBAL | PteFlags::NO_ACCESS))
        .flat_map(|flags| keys.iter().map(move |key| flags.with_pkey(*key)))
}

/// Returns the flags that are read from a leaf of `level` that was written with `flags`. `kind` reports
/// `HUGE`, and `flags` may.
fn kept<F: Format>(flags: PteFlags, level: Level) -> PteFlags {
    let size = if level == Level::Pte { PteFlags::empty() } else { PteFlags::HUGE };
    flags & (F::FLAGS - PteFlags::HUGE) | (PteFlags::SOFT_DIRTY - F::FLAGS) | size
}

/// Returns the number of frame-number bits to use: what the format says, unless that is not possible.
fn pfn_bits<F: Format>() -> u32 {
    F::PFN_BITS.min(52)
}
