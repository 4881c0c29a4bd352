//! Arithmetic of virtual and physical addresses (`src/phys_addr.rs`), at both ends of the address range, and
//! the conversions to the types of other crates.

use freehold_pagetable::{Pfn, PhysAddr, VirtAddr};

/// The last address.
const LAST: VirtAddr = VirtAddr::new(u64::MAX);

#[test]
fn checked_arithmetic_reports_overflow() {
    assert_eq!(LAST.checked_add(1), None);
    assert_eq!(VirtAddr::new(5).checked_sub(6), None);
    assert_eq!(LAST.align_up(2), None);
    assert_eq!(VirtAddr::new(0).align_up(1 << 63), Some(VirtAddr::new(0)));
    assert_eq!(PhysAddr::new(u64::MAX).checked_add(1), None);
}

#[test]
fn alignment_keeps_multiples_and_rounds_other_addresses() {
    for align in [1u64, 2, 4096, 1 << 21, 1 << 63] {
        for number in [0, 1, 4095, 4096, 4097, (1 << 21) - 1, 1 << 47] {
            let at = VirtAddr::new(number);
            let (down, up) = (at.align_down(align), at.align_up(align).unwrap());
            assert!(down <= at && at <= up && up.get() - down.get() <= align, "{at:?} {align:#x}");
            assert!(down.is_aligned(align) && up.is_aligned(align));
            assert_eq!(at.is_aligned(align), down == at && up == at);
        }
    }
}

#[test]
fn operators_agree_with_numbers() {
    let at = VirtAddr::from(0x1000);
    assert_eq!(u64::from(at + 0x234), 0x1234);
    assert_eq!(at - 0x1000, VirtAddr::new(0));
    assert_eq!((at + 5) - at, 5);
    assert_eq!(PhysAddr::new(0x5fff).pfn(), Pfn::from(5));
    assert_eq!(u64::from(Pfn::new(5)), 5);
    assert_eq!(Pfn::new(5).start() + 0xfff, PhysAddr::new(0x5fff));
}

#[test]
#[should_panic = "the sum exceeds the last address"]
fn operator_panics_on_overflow() {
    let _ = LAST + 1;
}

#[test]
#[should_panic = "the difference is negative"]
fn distance_panics_if_negative() {
    let _ = VirtAddr::new(0) - LAST;
}

#[cfg(feature = "x86_64")]
#[test]
fn addresses_of_the_crate_x86_64_convert() {
    let at = VirtAddr::new(0x7fff_ffff_f000);
    let theirs = x86_64::VirtAddr::try_from(at).unwrap();
    assert_eq!(VirtAddr::from(theirs), at);
    assert!(x86_64::VirtAddr::try_from(VirtAddr::new(1 << 47)).is_err(), "not canonical");
    let at = PhysAddr::new((1 << 52) - 1);
    assert_eq!(PhysAddr::from(x86_64::PhysAddr::try_from(at).unwrap()), at);
    assert!(x86_64::PhysAddr::try_from(at + 1).is_err(), "more than 52 bits");
}

#[cfg(feature = "memory_addr")]
#[test]
fn addresses_of_the_crate_memory_addr_convert() {
    for number in [0, 0x1234, u64::MAX] {
        let (virt, phys) = (VirtAddr::new(number), PhysAddr::new(number));
        assert_eq!(VirtAddr::from(memory_addr::VirtAddr::from(virt)), virt);
        assert_eq!(PhysAddr::from(memory_addr::PhysAddr::from(phys)), phys);
    }
}
