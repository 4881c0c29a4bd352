//! The workers: threads of the host, or, in a simulation, tasks on the processors of a simulated machine.
//! Both modules define the same names.

#[cfg(not(sim))]
mod threads;
#[cfg(sim)]
mod virtual_time;

#[cfg(not(sim))]
pub(super) use threads::{Changed, lock, now, side_by_side};
#[cfg(sim)]
pub(super) use virtual_time::{Changed, lock, now, side_by_side};

#[cfg(not(sim))]
pub use threads::Workers;
#[cfg(sim)]
pub use virtual_time::Workers;
