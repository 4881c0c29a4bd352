//! Parts of a platform of `freehold`, for kernels that do not have them yet: grace periods, flushes of the
//! TLBs of other CPUs, address-space identifiers, and counts of charged pages.
//!
//! | module | implements | the kernel provides |
//! | --- | --- | --- |
//! | [`qsbr`] | `Host::rcu_read`, `rcu_defer`, `rcu_barrier` | a call at each context switch or tick, and calls around idling |
//! | [`account`] | the counts and limits behind `Platform::charge` and `uncharge` | the account of each frame, by its number |
//! | [`shootdown`] | `Platform::flush`, `runs_elsewhere`, `space_ending` | a call around each switch of address spaces, an interrupt to another CPU, and an instruction that flushes |
//! | [`asid`] | the identifiers of translations, if flushes are broadcast instructions | a call before each load of a root, and an instruction that flushes |
//! | [`walkers`] | `Platform::walk_tables`, if flushes are broadcast instructions | a call in each flush that frees tables |
//!
//! With the feature `conformance`, the module of that name has a suite that checks the platform and the
//! page-table format of an embedder (`docs/guide/conformance.md` in the repository).
//!
//! All other parts are plain memory without allocation, threads or clocks. A kernel keeps one value of each
//! of them, except [`account`], in a `static`. The comment at every atomic access names the access that it
//! pairs with. loom checks the protocols over every interleaving (`tests/loom_kit`). `examples/embedding` of
//! the repository, and of the package `freehold`, uses [`qsbr`] and [`shootdown`]; `examples/bare` uses
//! [`asid`] and [`walkers`], too. [`mask`] defines the sets of CPUs that [`shootdown`] uses. A further part
//! of a platform gets a module here, a row in the table above, and a module in `tests/loom_kit`. `cargo xtask
//! loom` runs these tests.
#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "conformance")]
extern crate alloc;
#[cfg(all(test, not(loom)))]
extern crate std;

pub mod account;
pub mod asid;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod mask;
pub mod qsbr;
pub mod shootdown;
pub mod walkers;

pub use asid::{AsidCpu, AsidLoad, Asids, SpaceAsid};
pub use mask::{CpuMask, MAX_CPUS};
pub use qsbr::{Qsbr, QsbrCpu};
pub use shootdown::{CONTEXTS, Load, Processors, ShootCpu, Shootdown, SpaceCpus};
pub use walkers::{Walker, Walkers};
