//! What many processors do, in virtual time: built for the simulation, and empty elsewhere.
//!
//! A test here counts how often cache lines pass between processors, which is the same in every run. What is
//! done once (the first touch of a line, a VMA that goes per-CPU) costs transfers once; so the tests look at
//! what *more of the same* costs: [`World::more`]. They fail when a shared word comes onto a frequent path.
#![cfg(sim)]

#[global_allocator]
static APART: freehold_sim::Apart = freehold_sim::Apart;

mod changes;
mod faults;
mod files;
mod grace;
mod names;
mod world;
