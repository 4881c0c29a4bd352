//! The format of page tables that a [`Machine`](crate::Machine) has if its user names no other.
//!
//! The format is x86-64 with four levels. The tests of the engine name this type, so all of them run on
//! another format if the workspace is built with `--cfg machine_format="NAME"`. `cargo xtask formats` does
//! that; `docs/reference/testing.md` describes it. A new name is also added to `check-cfg` in the Cargo.toml
//! of the workspace, and to `xtask/src/suite.rs`.
//!
//! | name | format | what differs from x86-64 |
//! | --- | --- | --- |
//! | `x86_5` | [`X86_5`](freehold_pagetable::X86_5) | five levels |
//! | `sv39` | [`Sv39`](freehold_pagetable::Sv39) | three levels; software sets accessed and dirty bits; no soft-dirty bit |
//! | `sv48` | [`Sv48`](freehold_pagetable::Sv48) with Svadu and Svrsw60t59b | no protection keys |
//! | `sv57` | [`Sv57`](freehold_pagetable::Sv57) with Svrsw60t59b | five levels; software sets accessed and dirty bits |
//! | `aarch64` | [`Aarch64`](freehold_pagetable::Aarch64) | break-before-make; user space ends at 2^48 |
//! | `aarch64_0` | [`Aarch64NoHafdbs`](freehold_pagetable::Aarch64NoHafdbs) | also: software sets accessed and dirty bits |

/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(not(any(
    machine_format = "x86_5",
    machine_format = "sv39",
    machine_format = "sv48",
    machine_format = "sv57",
    machine_format = "aarch64",
    machine_format = "aarch64_0"
)))]
pub type DefaultFormat = freehold_pagetable::X86_4;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "x86_5")]
pub type DefaultFormat = freehold_pagetable::X86_5;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "sv39")]
pub type DefaultFormat = freehold_pagetable::Sv39;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "sv48")]
pub type DefaultFormat = freehold_pagetable::Sv48<true, true>;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "sv57")]
pub type DefaultFormat = freehold_pagetable::Sv57<false, true>;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "aarch64")]
pub type DefaultFormat = freehold_pagetable::Aarch64;
/// The format of page tables of a [`Machine`](crate::Machine) whose user names no other.
#[cfg(machine_format = "aarch64_0")]
pub type DefaultFormat = freehold_pagetable::Aarch64NoHafdbs;
