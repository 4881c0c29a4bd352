//! What does the work of a load, and by which clock: threads of the host, or, built with `cfg(sim)`, tasks on
//! the processors of a simulated machine, in virtual time. Both have the same calls.

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
