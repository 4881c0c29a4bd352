//! Hosts for tests: `LoomHost` under `cfg(loom)`, `StdHost` with the feature `std-host`.
//!
//! Both hosts do what [`Host`](crate::Host) requires and no more. A wait ends with a wake-up or a kill, never
//! spuriously, and `wake_one` wakes the task that has slept longest. So a test hangs if a wake-up is lost,
//! and loom reports the hang as a deadlock. A test that needs a host with one other property wraps `StdHost`,
//! as `tests/lock_stats.rs` does for the clock.
//!
//! A test under loom runs in `model`, so that the host's own objects exist before the threads do:
//!
//! ```ignore
//! #![cfg(loom)]
//! use freehold_sync::testing::{LoomHost, model};
//!
//! #[test]
//! fn readers_share() {
//!     model(|| {
//!         let lock = loom::sync::Arc::new(freehold_sync::MmapLock::<LoomHost>::new());
//!         // spawn, lock, join, LoomHost::rcu_barrier()
//!     });
//! }
//! ```
//!
//! The command is `RUSTFLAGS="--cfg loom" cargo test --release --test 'loom_*'`. Properties of the hosts:
//!
//! - Grace periods: callbacks run inside `rcu_defer` or `rcu_barrier` as soon as no reader is left. Entering
//!   a read section orders nothing with other readers, so it does not hide a missing order between readers
//!   and a writer.
//! - A sleep orders everything before its wake-up with everything after the sleep, as in every kernel. So
//!   missing orders are visible only in schedules in which no task sleeps.
//! - A sleep compares the word under the lock of the parking lot, which every waker takes. So no wake-up
//!   between the comparison and the sleep is lost.

mod parking_lot;

#[cfg(loom)]
mod loom_host;
#[cfg(not(loom))]
mod std_host;

#[cfg(loom)]
pub use loom_host::{LoomHost, Task, model, model_bounded};
#[cfg(not(loom))]
pub use std_host::{StdHost, Task};
