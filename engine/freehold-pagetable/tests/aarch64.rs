//! Tests of the encoding of Arm (`src/format/aarch64.rs`) and of the faults at each entry, bit by bit. The
//! numbers and the rules are those of the Arm Architecture Reference Manual for A-profile, sections D8.3
//! (descriptors), D8.4 (permissions) and D8.5 (hardware management of access flags and dirty state).
//! `format.rs` has the tests of all formats.

use freehold_pagetable::{
    Aarch64, Access, FaultCode, Format, Kind, Level, MarkerKind, Pfn, PteFlags, Rights, WalkFault,
};

type Arm = Aarch64<2>;

const ALL: Rights = Rights { write: true, user: true, exec: true };
/// AF, nG, inner shareable, PXN: what every accessed leaf of user space has.
const COMMON: u64 = 1 << 10 | 1 << 11 | 3 << 8 | 1 << 53;
/// A page of user space that may be read and written, as a processor's manual writes it.
const OPEN: u64 = 1 << 51 | 1 << 6 | COMMON | 3;

/// Executes the processor's step at `raw`, with all rights above.
fn step<F: Format>(raw: u64, level: Level, access: Access) -> Result<u64, WalkFault> {
    F::hardware_step(raw, level, access, &mut { ALL })
}

/// Returns the fault of an access in user mode.
fn fault(code: FaultCode) -> Result<u64, WalkFault> {
    Err(WalkFault::Page(code | FaultCode::USER))
}

#[test]
fn bits_are_those_of_the_manual() {
    let raw = |flags| Arm::leaf(Level::Pte, Pfn::new(0), flags);
    let (read_only, ng, pxn, uxn) = (1 << 7, 1 << 11, 1 << 53, 1 << 54);
    let page = 3 | 3 << 8;
    assert_eq!(raw(PteFlags::empty()), page | read_only | ng | pxn | uxn, "a kernel's page, clean");
    assert_eq!(raw(PteFlags::GLOBAL), page | read_only | pxn | uxn);
    assert_eq!(raw(PteFlags::EXEC), page | read_only | ng | uxn, "the kernel's code");
    let user = page | read_only | ng | pxn | 1 << 6;
    assert_eq!(raw(PteFlags::USER), user | uxn);
    assert_eq!(raw(PteFlags::USER | PteFlags::EXEC), user, "never executable for the kernel");
    for (flag, bits) in [
        (PteFlags::WRITE_THROUGH, 1 << 2),
        (PteFlags::NO_CACHE, 1 << 3),
        (PteFlags::ACCESSED, 1 << 10),
        (PteFlags::WRITE, 1 << 51),
        (PteFlags::DIRTY, 1 << 55),
        (PteFlags::SPECIAL, 1 << 56),
        (PteFlags::UFFD_WP, 1 << 57),
        (PteFlags::SOFT_DIRTY, 1 << 58),
    ] {
        assert_eq!(raw(PteFlags::USER | PteFlags::EXEC | flag), user | bits, "{flag:?}");
    }
    let written = PteFlags::USER | PteFlags::EXEC | PteFlags::WRITE | PteFlags::DIRTY;
    assert_eq!(raw(written), user & !read_only | 1 << 51 | 1 << 55, "only a written page is not read-only");
    assert_eq!(raw(PteFlags::USER | PteFlags::EXEC | PteFlags::NO_ACCESS), user & !1);
    assert_eq!(
        Arm::leaf(Level::Pte, Pfn::new((1 << 36) - 1), PteFlags::USER) & !(user | uxn),
        ((1 << 36) - 1) << 12
    );
    for level in [Level::Pmd, Level::Pud] {
        assert_eq!(Arm::leaf(level, Pfn::new(1 << 18), PteFlags::USER), 1 << 30 | user & !2 | uxn, "a block");
    }
    assert_eq!(Arm::table(Pfn::new(5)), 5 << 12 | 3);
    assert_eq!(Arm::marker(MarkerKind::Swap, 5), 5 << 12 | 3 << 2);
}

/// PAN stops accesses of the kernel to pages with unprivileged access (bit 6). PXN stops its fetches.
#[test]
fn pan_covers_every_leaf_of_programs() {
    let flags = (0..1 << 16).map(PteFlags::from_bits_truncate).filter(|flags| flags.contains(PteFlags::USER));
    for flags in flags {
        let raw = Arm::leaf(Level::Pte, Pfn::new(1), flags & Arm::FLAGS);
        assert_eq!(raw & (1 << 6 | 1 << 53), 1 << 6 | 1 << 53, "{flags:?}");
    }
}

#[test]
fn levels_and_addresses_are_those_of_the_manual() {
    assert_eq!((Arm::LEVELS, Arm::ROOT, Arm::USER_END, Arm::USER_ENTRIES), (4, Level::P4d, 1 << 48, 512));
    assert_eq!(Arm::MAP_WINDOW_END, 1 << 48);
    assert_eq!(Arm::hardware_address((1 << 48) - 1, Access::READ), Ok(()));
    for address in [1 << 48, 1 << 63, !0 << 48] {
        let result = Arm::hardware_address(address, Access::READ).map(|()| 0);
        assert_eq!(result, fault(FaultCode::empty()), "not an address of TTBR0");
    }
}

#[test]
fn reserved_encodings_fault() {
    let block = OPEN & !2;
    assert_eq!(step::<Arm>(OPEN, Level::Pte, Access::READ), Ok(OPEN));
    assert_eq!(step::<Arm>(block, Level::Pte, Access::READ), fault(FaultCode::empty()), "a block at level 3");
    assert_eq!(step::<Arm>(block, Level::Pmd, Access::READ), Ok(block));
    assert_eq!(step::<Arm>(block, Level::Pud, Access::READ), Ok(block));
    assert_eq!(step::<Arm>(block, Level::P4d, Access::READ), fault(FaultCode::empty()), "a block at level 0");
    assert_eq!(step::<Arm>(OPEN & !1, Level::Pte, Access::READ), fault(FaultCode::empty()), "not valid");
    for bit in [48, 49] {
        assert_eq!(
            step::<Arm>(OPEN | 1 << bit, Level::Pte, Access::READ),
            fault(FaultCode::empty()),
            "{bit}"
        );
    }
    for (level, frames) in [(Level::Pmd, 512), (Level::Pud, 1 << 18)] {
        assert_eq!(step::<Arm>(frames << 12 | block, level, Access::READ), Ok(frames << 12 | block));
        assert_eq!(step::<Arm>((frames + 1) << 12 | block, level, Access::READ), fault(FaultCode::empty()));
    }
}

#[test]
fn tables_restrict_the_rights_below() {
    let table = Arm::table(Pfn::new(5));
    let below = |bits: u64, access: Access| {
        let mut rights = ALL;
        Arm::hardware_step(table | bits, Level::Pmd, access, &mut rights).unwrap();
        rights
    };
    assert_eq!(below(0, Access::READ), ALL);
    assert_eq!(below(1 << 61, Access::READ), Rights { user: false, ..ALL }, "APTable[0]");
    assert_eq!(below(1 << 62, Access::READ), Rights { write: false, ..ALL }, "APTable[1]");
    assert_eq!(below(1 << 60, Access::EXEC), Rights { exec: false, ..ALL }, "UXNTable");
    let kernel = Access { user: false, ..Access::EXEC };
    assert_eq!(below(1 << 60, kernel), ALL);
    assert_eq!(below(1 << 59, kernel), Rights { exec: false, ..ALL }, "PXNTable");
    let mut rights = Rights { write: false, ..ALL };
    assert_eq!(Arm::hardware_step(OPEN, Level::Pte, Access::WRITE, &mut rights), fault(FaultCode::WRITE));
}

#[test]
fn hafdbs_decides_which_bits_the_hardware_sets() {
    let (af, read_only, dbm) = (1 << 10, 1 << 7, 1 << 51);
    let clean = OPEN | read_only;
    let old = clean & !af;
    assert_eq!(step::<Aarch64<0>>(old, Level::Pte, Access::READ), fault(FaultCode::empty()), "access flag");
    assert_eq!(step::<Aarch64<1>>(old, Level::Pte, Access::READ), Ok(clean));
    assert_eq!(step::<Aarch64<2>>(old, Level::Pte, Access::READ), Ok(clean));
    assert_eq!(step::<Aarch64<0>>(clean, Level::Pte, Access::WRITE), fault(FaultCode::WRITE));
    assert_eq!(step::<Aarch64<1>>(clean, Level::Pte, Access::WRITE), fault(FaultCode::WRITE));
    assert_eq!(step::<Aarch64<2>>(clean, Level::Pte, Access::WRITE), Ok(OPEN), "AP[2] is cleared");
    assert_eq!(step::<Aarch64<2>>(old, Level::Pte, Access::WRITE), Ok(OPEN));
    assert_eq!(step::<Aarch64<2>>(clean & !dbm, Level::Pte, Access::WRITE), fault(FaultCode::WRITE));
    for flags in [Aarch64::<0>::flags(OPEN), Aarch64::<2>::flags(OPEN)] {
        assert!(flags.contains(PteFlags::DIRTY), "a leaf whose read-only bit the hardware cleared is dirty");
    }
    assert!(!Arm::flags(clean).contains(PteFlags::DIRTY));
    // Software's bit keeps the dirty state of a leaf that loses the right to write.
    let protected = Arm::without(OPEN, PteFlags::WRITE);
    assert_eq!(protected, OPEN & !dbm | read_only | 1 << 55);
    assert!(Arm::flags(protected).contains(PteFlags::DIRTY));
    assert_eq!(Arm::without(OPEN, PteFlags::DIRTY), clean);
}

#[test]
fn permissions_are_those_of_the_leaf() {
    let kernel = |access: Access| Access { user: false, ..access };
    let data = OPEN & !(1 << 6);
    assert_eq!(step::<Arm>(data, Level::Pte, Access::READ), fault(FaultCode::empty()), "AP[1] is clear");
    assert_eq!(step::<Arm>(data, Level::Pte, kernel(Access::WRITE)), Ok(data));
    assert_eq!(step::<Arm>(OPEN | 1 << 54, Level::Pte, Access::EXEC), fault(FaultCode::FETCH), "UXN");
    assert_eq!(step::<Arm>(OPEN, Level::Pte, Access::EXEC), Ok(OPEN));
    assert!(step::<Arm>(OPEN, Level::Pte, kernel(Access::EXEC)).is_err(), "PXN");
    assert!(matches!(Arm::kind(OPEN, Level::Pte), Kind::Leaf { .. }));
}
