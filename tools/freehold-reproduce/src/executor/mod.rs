//! Executors of a load, each with a clock: threads of the host, or, with `cfg(sim)`, tasks on the processors
//! of a simulated machine in virtual time. Both define the same functions.

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
