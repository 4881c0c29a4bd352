//! Tests of the encoding of entries (`src/format/`), and of the constants of a format, for every format. Each
//! bit of x86-64. `riscv64.rs` and `aarch64.rs` have each bit of the other formats.
//!
//! An entry must be decoded to the values that it was encoded from, for all combinations of flags
//! ([`all_flags`]). The numbers of the bits are written down again here, from the manual. A new flag needs a
//! line in `the_bits_are_those_of_the_manual`; a new kind of marker needs an element of [`MARKERS`]; a new
//! format needs a line in [`for_each_format`].

use freehold_pagetable::{
    Aarch64, Access, Format, Kind, Level, MarkerKind, PAYLOAD_BITS, Pfn, Pte, PteFlags, Rights, Sv39, Sv48,
    Sv57, X86_4, X86_5,
};

/// An entry of x86-64.
type P = Pte<X86_4>;

const LEAVES: [Level; 3] = [Level::Pte, Level::Pmd, Level::Pud];
const MARKERS: [MarkerKind; 5] =
    [MarkerKind::Guard, MarkerKind::Migration, MarkerKind::Swap, MarkerKind::UffdWp, MarkerKind::Poison];

/// Calls a generic function once for each format.
macro_rules! for_each_format {
    ($check:ident) => {
        $check::<X86_4>();
        $check::<X86_5>();
        $check::<Sv39>();
        $check::<Sv48<true, true>>();
        $check::<Sv57<true>>();
        $check::<Sv57<false, true>>();
        $check::<Aarch64<0>>();
        $check::<Aarch64<1>>();
        $check::<Aarch64<2>>();
    };
}

/// Returns all combinations of flags that can be encoded. `HUGE` depends on the level.
fn all_flags<F: Format>() -> impl Iterator<Item = PteFlags> {
    (0..=PteFlags::all().bits())
        .filter_map(PteFlags::from_bits)
        .filter(|flags| (F::FLAGS - PteFlags::HUGE).contains(*flags))
        // `GLOBAL` and `NO_ACCESS` share a bit, because an entry without access is never in a TLB.
        .filter(|flags| !flags.contains(PteFlags::GLOBAL | PteFlags::NO_ACCESS))
}

/// Returns the flags that are read from a leaf that was written with `flags`.
fn kept<F: Format>(flags: PteFlags) -> PteFlags {
    flags & F::FLAGS | (PteFlags::SOFT_DIRTY - F::FLAGS)
}

fn leaves_are_decoded_as_they_were_encoded<F: Format>() {
    let key = |key: u8| if F::FLAGS.contains(PteFlags::PKEY) { key } else { 0 };
    for level in LEAVES {
        let size = if level == Level::Pte { PteFlags::empty() } else { PteFlags::HUGE };
        for pfn in [Pfn::new(0), Pfn::new(level.frames() * 5), Pfn::new((1 << F::PFN_BITS) - level.frames())]
        {
            for flags in all_flags::<F>() {
                let pte = Pte::<F>::leaf(level, pfn, flags);
                let flags = kept::<F>(flags);
                assert_eq!(pte.kind(level), Kind::Leaf { pfn, flags: flags | size }, "{level:?}");
                assert_eq!((pte.pfn(), pte.flags() | size, pte.pkey()), (pfn, flags | size, flags.pkey()));
                assert_eq!(pte.with_pkey(11).flags() | size, (flags | size).with_pkey(key(11)));
                assert!(pte.is_leaf(level) && !pte.is_none());
                assert_eq!(pte.is_cached(), !flags.contains(PteFlags::NO_ACCESS));
                for lost in [PteFlags::WRITE, PteFlags::ACCESSED | PteFlags::DIRTY, PteFlags::REVOCABLE] {
                    assert_eq!(pte.without(lost), pte.with_flags(level, flags - lost));
                }
                let other = pte.with_flags(level, PteFlags::USER.with_pkey(7));
                let user = kept::<F>(PteFlags::USER) | size;
                assert_eq!(
                    (other.pfn(), (other.flags() | size) - PteFlags::PKEY, other.pkey()),
                    (pfn, user, key(7))
                );
            }
        }
    }
}

#[test]
fn every_leaf_is_decoded_as_it_was_encoded() {
    for_each_format!(leaves_are_decoded_as_they_were_encoded);
}

/// Writes flags that the format does not have.
fn absent_flags_are_ignored<F: Format>() {
    for absent in (PteFlags::all() - F::FLAGS).iter() {
        let with = Pte::<F>::page(Pfn::new(3), PteFlags::USER | absent);
        assert_eq!(with, Pte::page(Pfn::new(3), PteFlags::USER), "{absent:?}");
        let soft_dirty = absent == PteFlags::SOFT_DIRTY;
        assert_eq!(with.flags().contains(absent), soft_dirty, "without soft-dirty bits all pages are dirty");
        assert_eq!(with.without(PteFlags::SOFT_DIRTY), with.without(PteFlags::empty()));
    }
    let needed = PteFlags::NO_ACCESS
        | PteFlags::WRITE
        | PteFlags::USER
        | PteFlags::EXEC
        | PteFlags::ACCESSED
        | PteFlags::DIRTY
        | PteFlags::SPECIAL;
    assert!(F::FLAGS.contains(needed));
}

#[test]
fn flags_that_a_format_does_not_have_are_ignored() {
    for_each_format!(absent_flags_are_ignored);
}

/// Hazard C-42: an entry is never decoded as another kind.
fn kinds_are_distinct<F: Format>() {
    for level in [Level::Pte, Level::Pmd, Level::Pud, Level::P4d] {
        assert_eq!(Pte::<F>::NONE.kind(level), Kind::None);
        for kind in MARKERS {
            for payload in [0, 1, 0x2_5555_5555_5555, (1 << PAYLOAD_BITS) - 1] {
                let pte = Pte::<F>::marker(kind, payload);
                assert_eq!(pte.kind(level), Kind::Marker { kind, payload });
                assert!(!pte.is_cached() && !pte.is_leaf(level) && !pte.is_none());
            }
        }
    }
    for level in [Level::Pmd, Level::Pud, Level::P4d] {
        let pte = Pte::<F>::table(Pfn::new(0x1234));
        assert_eq!(pte.kind(level), Kind::Table { pfn: Pfn::new(0x1234) });
        assert!(pte.is_cached() && !pte.is_leaf(level));
    }
}

#[test]
fn c42_all_kinds_of_entries_are_distinct() {
    for_each_format!(kinds_are_distinct);
}

/// Executes the processor's step at leaves with and without accessed and dirty bits.
fn steps_keep_the_contract<F: Format>() {
    let rights = || Rights { write: true, user: true, exec: true };
    let (accessed, dirty) = (PteFlags::ACCESSED, PteFlags::DIRTY);
    for level in LEAVES {
        for bits in [PteFlags::empty(), accessed, dirty, accessed | dirty] {
            for access in [Access::READ, Access::WRITE, Access::EXEC] {
                let open = PteFlags::USER | PteFlags::WRITE | PteFlags::EXEC | bits;
                let raw = F::leaf(level, Pfn::new(level.frames()), open);
                let set = if access.write { accessed | dirty } else { accessed };
                let missing = set - bits;
                match F::hardware_step(raw, level, access, &mut rights()) {
                    Ok(marked) => {
                        assert!(F::HARDWARE_FLAGS.contains(missing), "{bits:?} {access:?}");
                        assert_eq!(F::flags(marked), F::flags(raw) | set);
                        assert_eq!((F::pfn(marked), F::is_leaf(marked, level)), (F::pfn(raw), true));
                        assert_eq!(F::hardware_step(marked, level, access, &mut rights()), Ok(marked));
                    }
                    Err(_) => assert!(!F::HARDWARE_FLAGS.contains(missing), "{bits:?} {access:?}"),
                }
                for right in [PteFlags::USER, PteFlags::WRITE, PteFlags::EXEC] {
                    let used = right == PteFlags::USER
                        || access.write && right == PteFlags::WRITE
                        || access.exec && right == PteFlags::EXEC;
                    let raw = F::leaf(level, Pfn::new(level.frames()), (open | set) - right);
                    let step = F::hardware_step(raw, level, access, &mut rights());
                    assert_eq!(step.is_err(), used, "{level:?} without {right:?}: {access:?}");
                }
                let closed = F::leaf(level, Pfn::new(level.frames()), open | set | PteFlags::NO_ACCESS);
                assert!(F::hardware_step(closed, level, access, &mut rights()).is_err());
            }
        }
    }
    for kind in MARKERS {
        let raw = F::marker(kind, (1 << PAYLOAD_BITS) - 1);
        assert!(F::hardware_step(raw, Level::Pte, Access::READ, &mut rights()).is_err());
    }
    let table = F::table(Pfn::new(5));
    let mut all = rights();
    assert_eq!(F::hardware_step(table, Level::Pmd, Access::WRITE, &mut all), Ok(table));
    assert_eq!(all, rights(), "the leaf decides");
    assert!(F::hardware_step(0, Level::Pte, Access::READ, &mut rights()).is_err());
}

#[test]
fn the_hardware_sets_the_bits_that_the_format_says() {
    for_each_format!(steps_keep_the_contract);
}

/// Checks the constants that bound addresses.
fn bounds_fit<F: Format>() {
    assert!((3..=5).contains(&F::LEVELS) && F::MAX_LEAF <= Level::Pud && F::MAX_LEAF <= F::ROOT);
    assert!(F::MAP_WINDOW_END <= F::USER_END);
    for address in [0, 1 << 30, F::USER_END - 1] {
        assert_eq!(F::hardware_address(address, Access::READ), Ok(()));
    }
    assert!(F::hardware_address(F::USER_END, Access::READ).is_err(), "no hole above user space");
    assert_eq!(F::USER_ENTRIES as u64 * F::ROOT.span(), F::USER_END);
}

#[test]
fn addresses_of_users_exist() {
    for_each_format!(bounds_fit);
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
    assert_eq!((X86_4::MAP_WINDOW_END, X86_5::MAP_WINDOW_END), (1 << 47, 1 << 47));
    assert_eq!((Level::Pte.span(), Level::Pmd.span(), Level::Pud.span()), (4 << 10, 2 << 20, 1 << 30));
}
