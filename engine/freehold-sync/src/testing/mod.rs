//! Hosts for tests: `LoomHost` under `cfg(loom)`, `StdHost` with the feature `std-host`.
//!
//! Both do what [`Host`](crate::Host) asks and no more: waits end by a wake-up or a kill, never out of the
//! blue; a wake-up of one wakes the one that has slept longest. So a lost wake-up shows as a test that hangs,
//! which loom reports as a deadlock.
//!
//! A test under loom runs in `model`, so that the host's own parts exist before the threads do:
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
//! and is started with `RUSTFLAGS="--cfg loom" cargo test --release --test 'loom_*'`. Things to know:
//!
//! - Grace periods: callbacks run inside `rcu_defer` or `rcu_barrier` as soon as no reader is left. Entering
//!   a read section orders nothing with other readers, so it hides no missing order between them and a
//!   writer.
//! - A sleep and its wake-up order what came before the wake-up with what comes after the sleep, as they do
//!   in every kernel. Missing orders show on the schedules in which nobody had to sleep.
//! - The word that is slept on is compared under the host's own lock.

mod parking_lot;

#[cfg(loom)]
mod loom_host;
#[cfg(not(loom))]
mod std_host;

#[cfg(loom)]
pub use loom_host::{LoomHost, Task, model, model_bounded};
#[cfg(not(loom))]
pub use std_host::{StdHost, Task};
