//! The suite on every format of the repository. A new format needs a line here.

use freehold_kit::conformance;
use freehold_machine::{DefaultFormat, SoftwareBits};
use freehold_pagetable::{Aarch64, Aarch64NoHafdbs, Sv39, Sv48, Sv57, X86_4, X86_5};

#[test]
fn formats_of_x86_64_pass() {
    conformance::format::<X86_4>().assert_passed(&[]);
    conformance::format::<X86_5>().assert_passed(&[]);
}

#[test]
fn formats_of_riscv64_pass_with_bits_by_software() {
    conformance::format::<Sv39>().assert_passed(&[]);
    conformance::format::<Sv48>().assert_passed(&[]);
    conformance::format::<Sv57>().assert_passed(&[]);
}

#[test]
fn formats_of_riscv64_pass_with_bits_by_hardware() {
    conformance::format::<Sv39<true>>().assert_passed(&[]);
    conformance::format::<Sv48<true>>().assert_passed(&[]);
    conformance::format::<Sv57<true>>().assert_passed(&[]);
}

#[test]
fn formats_of_riscv64_pass_with_more_bits_for_software() {
    conformance::format::<Sv39<false, true>>().assert_passed(&[]);
    conformance::format::<Sv48<true, true>>().assert_passed(&[]);
    conformance::format::<Sv57<false, true>>().assert_passed(&[]);
}

#[test]
fn formats_of_aarch64_pass_with_each_degree_of_hardware_bits() {
    conformance::format::<Aarch64NoHafdbs>().assert_passed(&[]);
    conformance::format::<Aarch64<1>>().assert_passed(&[]);
    conformance::format::<Aarch64<2>>().assert_passed(&[]);
}

#[test]
fn formats_of_the_machine_pass() {
    conformance::format::<DefaultFormat>().assert_passed(&[]);
    conformance::format::<SoftwareBits<DefaultFormat>>().assert_passed(&[]);
}
