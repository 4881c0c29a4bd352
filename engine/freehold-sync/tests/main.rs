//! Tests of the locks with real threads, on `StdHost`, in one program, because each test program links the
//! code under test once more. The tests under loom are programs of their own (`loom_*.rs`), which `cargo
//! xtask loom` runs. A new file of tests with real threads gets a `mod` line here.
#![cfg(not(loom))]

mod lock_stats;
#[cfg(all(not(loom), debug_assertions))]
mod ranks;
mod threads;
