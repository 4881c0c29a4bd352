//! Executors of a load, each with a clock: threads of the host, or, with `cfg(sim)`, tasks on the processors
//! of a simulated machine in virtual time.
//!
//! `threads.rs` and `fibers.rs` define the same names; `cfg(sim)` chooses one of them, so a change of a name
//! in one file needs the same change in the other file. Loads on the engine use only these clocks, barriers
//! and sleeps, because those of the standard library do not use virtual time. `tests/sim_experiments.rs` runs
//! most experiments on simulated machines.

#[cfg(sim)]
mod fibers;
mod stop;
#[cfg(not(sim))]
mod threads;

#[cfg(sim)]
pub use fibers::*;
pub use stop::Stop;
#[cfg(not(sim))]
pub use threads::*;
