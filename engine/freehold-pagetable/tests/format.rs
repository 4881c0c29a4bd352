//! Tests of the encoding of entries (`src/format/`): every kind at every level, and each bit of x86-64.
//!
//! An entry must be decoded to the values that it was encoded from, for all combinations of flags
//! ([`all_flags`]). The numbers of the bits are written down again here, from the manual. A new flag needs a
//! line in `the_bits_are_those_of_the_manual`; a new kind of marker needs an element of [`MARKERS`].

use freehold_pagetable::{Format, Kind, Level, MarkerKind, PAYLOAD_BITS, Pfn, Pte, PteFlags, X86_4, X86_5};

/// An entry under test.
type P = Pte<X86_4>;

const LEAVES: [Level; 3] = [Level::Pte, Level::Pmd, Level::Pud];
const MARKERS: [MarkerKind; 5] =
    [MarkerKind::Guard, MarkerKind::Migration, MarkerKind::Swap, MarkerKind::UffdWp, MarkerKind::Poison];

/// Returns all combinations of flags that can be encoded. `HUGE` depends on the level.
fn all_flags() -> impl Iterator<Item = PteFlags> {
    (0..=PteFlags::all().bits())
        .filter_map(PteFlags::from_bits)
        .filter(|flags| !flags.contains(PteFlags::HUGE))
        // `GLOBAL` and `NO_ACCESS` share a bit, because an entry without access is never in a TLB.
        .filter(|flags| !flags.contains(PteFlags::GLOBAL | PteFlags::NO_ACCESS))
}

#[test]
fn every_leaf_is_decoded_as_it_was_encoded() {
    for level in LEAVES {
        let size = if level == Level::Pte { PteFlags::empty() } else { PteFlags::HUGE };
        for pfn in [Pfn::new(0), Pfn::new(level.frames() * 5), Pfn::new((1 << 40) - level.frames())] {
            for flags in all_flags() {
                let pte = P::leaf(level, pfn, flags);
                assert_eq!(pte.kind(level), Kind::Leaf { pfn, flags: flags | size }, "{level:?}");
                assert_eq!((pte.pfn(), pte.flags(), pte.pkey()), (pfn, flags | size, flags.pkey()));
                assert_eq!(pte.with_pkey(11).flags(), (flags | size).with_pkey(11));
                assert!(pte.is_leaf(level) && !pte.is_none());
                assert_eq!(pte.is_cached(), !flags.contains(PteFlags::NO_ACCESS));
                for lost in [PteFlags::WRITE, PteFlags::ACCESSED | PteFlags::DIRTY, PteFlags::REVOCABLE] {
                    assert_eq!(pte.without(lost), pte.with_flags(level, flags - lost));
                }
                let other = pte.with_flags(level, PteFlags::USER.with_pkey(7));
                assert_eq!(
                    (other.pfn(), other.flags() - PteFlags::PKEY, other.pkey()),
                    (pfn, PteFlags::USER | size, 7)
                );
            }
        }
    }
}

/// Hazard C-42: an entry is never decoded as another kind.
#[test]
fn c42_all_kinds_of_entries_are_distinct() {
    for level in [Level::Pte, Level::Pmd, Level::Pud, Level::P4d] {
        assert_eq!(P::NONE.kind(level), Kind::None);
        for kind in MARKERS {
            for payload in [0, 1, 0x2_5555_5555_5555, (1 << PAYLOAD_BITS) - 1] {
                let pte = P::marker(kind, payload);
                assert_eq!(pte.kind(level), Kind::Marker { kind, payload });
                assert!(!pte.is_cached() && !pte.is_leaf(level) && !pte.is_none());
            }
        }
    }
    for level in [Level::Pmd, Level::Pud, Level::P4d] {
        let pte = P::table(Pfn::new(0x1234));
        assert_eq!(pte.kind(level), Kind::Table { pfn: Pfn::new(0x1234) });
        assert!(pte.is_cached() && !pte.is_leaf(level));
    }
}

#[test]
fn an_unknown_marker_is_poison() {
    for code in [0u64, 6, 31] {
        let raw = code << 2 | 1 << 60;
        assert!(matches!(P::from_raw(raw).kind(Level::Pte), Kind::Marker { kind: MarkerKind::Poison, .. }));
    }
}

#[test]
fn the_bits_are_those_of_the_manual() {
    let raw = |flags| P::page(Pfn::new(0), flags | PteFlags::EXEC).raw();
    assert_eq!(raw(PteFlags::empty()), 1);
    assert_eq!(P::page(Pfn::new(0), PteFlags::empty()).raw(), 1 << 63 | 1);
    for (flag, bit) in [
        (PteFlags::WRITE, 1),
        (PteFlags::USER, 2),
        (PteFlags::WRITE_THROUGH, 3),
        (PteFlags::NO_CACHE, 4),
        (PteFlags::ACCESSED, 5),
        (PteFlags::DIRTY, 6),
        (PteFlags::GLOBAL, 8),
        (PteFlags::SPECIAL, 9),
        (PteFlags::UFFD_WP, 10),
        (PteFlags::SOFT_DIRTY, 11),
    ] {
        assert_eq!(raw(flag), 1 << bit | 1, "{flag:?}");
    }
    assert_eq!(P::leaf(Level::Pmd, Pfn::new(512), PteFlags::EXEC).raw(), 512 << 12 | 1 << 7 | 1);
    assert_eq!(P::page(Pfn::new((1 << 40) - 1), PteFlags::EXEC).raw(), ((1 << 40) - 1) << 12 | 1);
    assert_eq!(P::page(Pfn::new(0), PteFlags::EXEC).with_pkey(15).raw(), 15 << 59 | 1);
    assert_eq!(P::table(Pfn::new(3)).raw() & 7, 7);
}

#[test]
fn four_levels_have_47_bits_for_users_and_five_have_56() {
    assert_eq!((X86_4::LEVELS, X86_4::ROOT, X86_4::USER_END), (4, Level::P4d, 1 << 47));
    assert_eq!((X86_5::LEVELS, X86_5::ROOT, X86_5::USER_END), (5, Level::Pgd, 1 << 56));
    assert_eq!((Level::Pte.span(), Level::Pmd.span(), Level::Pud.span()), (4 << 10, 2 << 20, 1 << 30));
}
