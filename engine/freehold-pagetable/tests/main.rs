//! The tests of page tables, in one program.

mod common;
mod format;
mod gather;
mod hardware;
mod kept;
mod reclaim;
mod refused;
mod shared;
mod tables;
mod walker_model;
