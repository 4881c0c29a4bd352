//! Entries that are not leaves: empty slots, markers, and pointers to tables.

use super::{leaf_levels, levels};
use crate::conformance::report::{Found, require};
use freehold_pagetable::{Format, Kind, Level, MarkerKind, PAYLOAD_BITS, Pfn, PteFlags};

/// All kinds of markers.
pub(super) const MARKERS: [MarkerKind; 5] =
    [MarkerKind::Guard, MarkerKind::Migration, MarkerKind::Swap, MarkerKind::UffdWp, MarkerKind::Poison];

/// Returns payloads: each bit alone, no bit, all bits, and a pattern.
pub(super) fn payloads() -> impl Iterator<Item = u64> {
    (0..PAYLOAD_BITS).map(|bit| 1 << bit).chain([0, (1 << PAYLOAD_BITS) - 1, 0x2_5555_5555_5555])
}

/// Decodes the word zero.
pub fn empty<F: Format>() -> Found {
    for level in levels::<F>() {
        let found = F::kind(0, level);
        require!(
            found == Kind::None,
            "the word 0 must be an empty slot, but kind() decodes it as {found:?} at {level:?}"
        );
        require!(
            !F::is_leaf(0, level),
            "the word 0 must be an empty slot, but is_leaf() is true at {level:?}"
        );
    }
    require!(!F::is_cached(0), "the word 0 must be an empty slot, but is_cached() is true");
    Ok(())
}

/// Writes and reads markers.
pub fn markers<F: Format>() -> Found {
    for kind in MARKERS {
        for payload in payloads() {
            let raw = F::marker(kind, payload);
            require!(raw != 0, "the marker {kind:?} with payload {payload:#x} is the word 0, an empty slot");
            for level in levels::<F>() {
                let found = F::kind(raw, level);
                let what = match found {
                    Kind::Leaf { .. } => "collides with a leaf",
                    Kind::Table { .. } => "collides with a table entry",
                    Kind::None => "collides with an empty slot",
                    Kind::Marker { kind: found, .. } if found != kind => "collides with another marker",
                    Kind::Marker { .. } => "loses bits of its payload",
                };
                require!(
                    found == Kind::Marker { kind, payload },
                    "the marker {kind:?} with payload {payload:#x} {what}: its word {raw:#x} is decoded as {found:?} at \
                     {level:?}"
                );
                require!(
                    !F::is_leaf(raw, level),
                    "the marker {kind:?} with payload {payload:#x} collides with a leaf: is_leaf({raw:#x}) is true at \
                     {level:?}"
                );
            }
            require!(
                !F::is_cached(raw),
                "the hardware translates through the marker {kind:?} with payload {payload:#x}: is_cached({raw:#x}) is true"
            );
        }
    }
    Ok(())
}

/// Writes and reads pointers to tables.
pub fn tables<F: Format>() -> Found {
    for pfn in [0, 0x1234, (1 << super::pfn_bits::<F>()) - 1].map(Pfn::new) {
        let raw = F::table(pfn);
        for level in levels::<F>().skip(1) {
            let found = F::kind(raw, level);
            require!(
                found == Kind::Table { pfn },
                "the entry of a table at {pfn:?} is {raw:#x}, which kind() decodes as {found:?} at {level:?}"
            );
            require!(!F::is_leaf(raw, level), "is_leaf() is true for the table entry {raw:#x} at {level:?}");
        }
        require!(F::is_cached(raw), "is_cached() is false for the table entry {raw:#x}");
    }
    Ok(())
}

/// Decodes words with one, two and three bits, and compares the functions that classify a word with each
/// other. No table entry exists at the lowest level, and no leaf above [`Format::MAX_LEAF`] is written.
pub fn distinct<F: Format>() -> Found {
    let bit = |n: u32| 1u64.checked_shl(n).unwrap_or(0);
    for level in levels::<F>() {
        for (first, second) in (0..64).flat_map(|first| (first..=64).map(move |second| (first, second))) {
            for third in [64, 0, 1, 63] {
                let raw = bit(first) | bit(second) | bit(third);
                let kind = F::kind(raw, level);
                require!(
                    matches!(kind, Kind::Leaf { .. }) == F::is_leaf(raw, level),
                    "kind() and is_leaf() disagree about the word {raw:#x} at {level:?}: {kind:?} and {}",
                    F::is_leaf(raw, level)
                );
                require!(kind != Kind::None, "the word {raw:#x} is decoded as an empty slot at {level:?}");
                require!(
                    level != Level::Pte || !matches!(kind, Kind::Table { .. }),
                    "the word {raw:#x} is decoded as {kind:?} at the lowest level"
                );
                let cached = match kind {
                    Kind::Leaf { flags, .. } => !flags.contains(PteFlags::NO_ACCESS),
                    Kind::Table { .. } => true,
                    _ => false,
                };
                require!(
                    cached == F::is_cached(raw),
                    "the word {raw:#x} is decoded as {kind:?} at {level:?}, but is_cached() is {}",
                    F::is_cached(raw)
                );
            }
        }
    }
    for level in leaf_levels::<F>().filter(|level| *level != Level::Pte) {
        let (pfn, open) = (Pfn::new(level.frames()), PteFlags::USER | PteFlags::WRITE | PteFlags::EXEC);
        let (leaf, table) = (F::leaf(level, pfn, open), F::table(pfn));
        require!(
            leaf != table,
            "a leaf of {level:?} and a table entry for the same frame are the same word {leaf:#x}"
        );
    }
    Ok(())
}
