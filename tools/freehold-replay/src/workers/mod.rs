//! The workers that run the tasks of a replay (`run.rs`): threads of the host, or, with `cfg(sim)`, tasks on
//! the processors of a simulated machine.
//!
//! `threads.rs` and `virtual_time.rs` define the same names with the same signatures; `cfg(sim)` chooses one
//! of them. All files of the crate lock mutexes with `lock`, and workers wait with `Changed`, because a wait
//! for a lock of the host would stop all tasks of a simulation.

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
