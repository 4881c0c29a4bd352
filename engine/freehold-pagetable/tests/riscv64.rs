//! Tests of the encoding of RISC-V (`src/format/riscv64.rs`) and of the faults at each entry, bit by bit. The
//! numbers and the rules are those of the privileged architecture, section "Virtual Address Translation
//! Process", and of the extensions Svade, Svadu and Svrsw60t59b. `format.rs` has the tests of all formats.

use freehold_pagetable::{
    Access, FaultCode, Format, Level, MarkerKind, Pfn, PteFlags, Rights, Sv39, Sv48, Sv57, WalkFault,
};

type Full = Sv48<true, true>;

/// Executes the processor's step at `raw`, with all rights above.
fn step<F: Format>(raw: u64, level: Level, access: Access) -> Result<u64, WalkFault> {
    F::hardware_step(raw, level, access, &mut Rights { write: true, user: true, exec: true })
}

/// Returns the fault of an access in user mode.
fn fault(code: FaultCode) -> Result<u64, WalkFault> {
    Err(WalkFault::Page(code | FaultCode::USER))
}

#[test]
fn bits_are_those_of_the_manual() {
    let raw = |flags| Full::leaf(Level::Pte, Pfn::new(0), flags);
    assert_eq!(raw(PteFlags::empty()), 0b11, "V and R");
    for (flag, bit) in [
        (PteFlags::WRITE, 2),
        (PteFlags::EXEC, 3),
        (PteFlags::USER, 4),
        (PteFlags::GLOBAL, 5),
        (PteFlags::ACCESSED, 6),
        (PteFlags::DIRTY, 7),
        (PteFlags::SPECIAL, 8),
        (PteFlags::UFFD_WP, 9),
        (PteFlags::SOFT_DIRTY, 59),
    ] {
        assert_eq!(raw(flag), 1 << bit | 0b11, "{flag:?}");
    }
    assert_eq!(raw(PteFlags::NO_ACCESS), 1 << 5 | 0b10, "no V; G tells the entry from a marker");
    assert_eq!(Full::leaf(Level::Pud, Pfn::new(1 << 18), PteFlags::empty()), 1 << 28 | 0b11);
    assert_eq!(Full::leaf(Level::Pte, Pfn::new((1 << 44) - 1), PteFlags::empty()), ((1 << 44) - 1) << 10 | 3);
    assert_eq!(Full::table(Pfn::new(5)), 5 << 10 | 1, "a table has V only");
    assert_eq!(Full::marker(MarkerKind::Swap, 5), 5 << 11 | 3 << 6);
    assert_eq!(Sv39::<false>::leaf(Level::Pte, Pfn::new(0), PteFlags::SOFT_DIRTY), 0b11, "no bit 59");
}

#[test]
fn levels_and_addresses_are_those_of_the_manual() {
    assert_eq!(
        (Sv39::<false>::LEVELS, Sv39::<false>::ROOT, Sv39::<false>::USER_END),
        (3, Level::Pud, 1 << 38)
    );
    assert_eq!((Full::LEVELS, Full::ROOT, Full::USER_END), (4, Level::P4d, 1 << 47));
    assert_eq!(
        (Sv57::<false>::LEVELS, Sv57::<false>::ROOT, Sv57::<false>::USER_END),
        (5, Level::Pgd, 1 << 56)
    );
    assert_eq!(
        (Sv39::<false>::MAP_WINDOW_END, Full::MAP_WINDOW_END, Sv57::<false>::MAP_WINDOW_END),
        (1 << 38, 1 << 47, 1 << 47)
    );
    let sv39 = |address| Sv39::<false>::hardware_address(address, Access::WRITE);
    assert_eq!(sv39(u64::MAX << 38), Ok(()), "bits 39 to 63 equal bit 38");
    for address in [1 << 38, 1 << 39, 1 << 63, !0 << 39 & !(1 << 40)] {
        assert_eq!(sv39(address).map(|()| 0), fault(FaultCode::WRITE), "a page fault, not another trap");
    }
}

#[test]
fn reserved_encodings_fault() {
    let open = 0b1101_1111; // D A U X W R V
    for level in [Level::Pte, Level::Pmd, Level::Pud] {
        assert_eq!(step::<Full>(open, level, Access::WRITE), Ok(open));
        assert_eq!(step::<Full>(open & !1, level, Access::READ), fault(FaultCode::empty()), "V = 0");
        assert_eq!(step::<Full>(open & !2, level, Access::EXEC), fault(FaultCode::FETCH), "W without R");
        for bit in [54, 55, 56, 57, 58, 61, 62, 63] {
            assert_eq!(
                step::<Full>(open | 1 << bit, level, Access::READ),
                fault(FaultCode::empty()),
                "{bit}"
            );
        }
        for bit in [59, 60] {
            let reserved = open | 1 << bit;
            assert_eq!(step::<Full>(reserved, level, Access::READ), Ok(reserved), "software's bit {bit}");
            assert_eq!(step::<Sv39>(reserved, level, Access::READ), fault(FaultCode::empty()), "{bit}");
        }
    }
    let table = Full::table(Pfn::new(7));
    assert_eq!(step::<Full>(table, Level::Pmd, Access::READ), Ok(table));
    assert_eq!(step::<Full>(table, Level::Pte, Access::READ), fault(FaultCode::empty()), "no level below");
    for bit in [4, 6, 7] {
        assert_eq!(
            step::<Full>(table | 1 << bit, Level::Pmd, Access::READ),
            fault(FaultCode::empty()),
            "{bit}"
        );
    }
    let global = table | 1 << 5 | 3 << 8;
    assert_eq!(step::<Full>(global, Level::Pmd, Access::READ), Ok(global), "G and RSW are permitted");
}

#[test]
fn misaligned_superpages_fault() {
    let open = 0b1101_1111;
    for (level, frames) in [(Level::Pmd, 512), (Level::Pud, 1 << 18), (Level::P4d, 1 << 27)] {
        let at = |pfn: u64| step::<Full>(pfn << 10 | open, level, Access::WRITE);
        assert_eq!(at(frames), Ok(frames << 10 | open), "every level may have leaves");
        for pfn in [1, frames / 2, frames + 1] {
            assert_eq!(at(pfn), fault(FaultCode::WRITE), "{pfn:#x} at {level:?}");
        }
    }
}

#[test]
fn permissions_are_those_of_the_leaf() {
    // X without R is execute-only memory; R and X without W is a read-only page.
    for (bits, read, write, exec) in [
        (0b1000, false, false, true),
        (0b0010, true, false, false),
        (0b1010, true, false, true),
        (0b0110, true, true, false),
    ] {
        let raw = bits | 1 | 1 << 4 | 3 << 6;
        for (access, permitted) in [(Access::READ, read), (Access::WRITE, write), (Access::EXEC, exec)] {
            assert_eq!(step::<Sv39>(raw, Level::Pte, access).is_ok(), permitted, "{bits:#b} {access:?}");
            let kernel = raw & !(1 << 4);
            assert!(step::<Sv39>(kernel, Level::Pte, access).is_err(), "user mode, without U");
            let supervisor = Access { user: false, ..access };
            assert_eq!(step::<Sv39>(kernel, Level::Pte, supervisor).is_ok(), permitted);
        }
    }
}

#[test]
fn svade_faults_where_svadu_sets_bits() {
    let (a, d) = (1 << 6, 1 << 7);
    let raw = 0b11111;
    assert_eq!(step::<Sv48<true>>(raw, Level::Pte, Access::READ), Ok(raw | a));
    assert_eq!(step::<Sv48<true>>(raw, Level::Pte, Access::WRITE), Ok(raw | a | d));
    assert_eq!(step::<Sv48<false>>(raw, Level::Pte, Access::READ), fault(FaultCode::empty()));
    assert_eq!(step::<Sv48<false>>(raw | a, Level::Pte, Access::READ), Ok(raw | a));
    assert_eq!(step::<Sv48<false>>(raw | a, Level::Pte, Access::WRITE), fault(FaultCode::WRITE));
    assert_eq!(step::<Sv48<false>>(raw | d, Level::Pte, Access::WRITE), fault(FaultCode::WRITE));
    assert_eq!(step::<Sv48<false>>(raw | a | d, Level::Pte, Access::WRITE), Ok(raw | a | d));
}
