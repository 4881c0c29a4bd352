//! What many processors do, in virtual time: built for the simulation, and empty elsewhere.
#![cfg(sim)]

mod faults;
