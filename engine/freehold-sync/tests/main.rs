//! Tests of the locks with real threads, in one program.
#![cfg(not(loom))]

mod lock_stats;
#[cfg(all(not(loom), debug_assertions))]
mod ranks;
mod threads;
