//! The tests of page tables that run with ordinary threads, in one program. The tests under loom are programs
//! of their own (`loom.rs`, `loom_reclaim.rs`, `loom_share.rs`). `common/` has the memory and the `Tlb` that
//! all of them use. A new file gets a `mod` line here.

mod aarch64;
mod addresses;
mod break_before_make;
mod common;
mod format;
mod gather;
mod hardware;
mod kept;
mod publish_code;
mod reclaim;
mod refused;
mod riscv64;
mod shared;
mod tables;
mod walker_model;
