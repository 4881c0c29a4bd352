//! The checks of a [`Platform`], function by function, without an engine.

mod contents;
mod cpus;
mod frames;
mod grace;
mod scene;
mod spaces;
mod tables;
mod waits;

pub(super) use frames::AllFrames;
pub(super) use scene::AT;

use super::kernel::Kernel;
use super::report::Report;
use super::suite::Suite;
use freehold::platform::Platform;

/// Checks that a platform keeps the contract of `freehold::platform`.
///
/// | check | the platform | needs |
/// | --- | --- | --- |
/// | `frames::numbers` | returns frames that exist, are free, fit the format, and have records of their own | |
/// | `frames::no_frame_twice` | returns no frame that is in use, also after frames were freed | |
/// | `frames::direct_map` | reaches different memory through different frame numbers | |
/// | `frames::blocks` | returns aligned blocks for the larger leaves of the format | blocks |
/// | `frames::runs` | returns consecutive frames | runs |
/// | `tables::zeroed` | returns tables of zeroes, aligned, also if the memory had data before | |
/// | `tables::direct_map` | reaches different memory through different tables and frames | |
/// | `contents::zero`, `write`, `copy` | changes exactly the named bytes of a frame | |
/// | `cpus::numbers` | has CPU numbers below the limit, which two tasks never have at once | two tasks |
/// | `cpus::clock` | has a clock that never runs backwards | |
/// | `waits::differs` | does not sleep if the word has changed | two tasks |
/// | `waits::wake_one`, `wake_all`, `wake_killable` | loses no wake-up | two tasks |
/// | `waits::killed` | ends killable and interruptible waits at a fatal signal | signals |
/// | `grace::own_reader`, `other_reader` | runs deferred functions after the read sections before them | two tasks for the second |
/// | `grace::once` | runs each deferred function once, before `rcu_barrier` returns | |
/// | `grace::barrier` | waits in `rcu_barrier` for a reader | two tasks |
/// | `spaces::created` | leaves the entries below `USER_END` empty in a new root table | |
/// | `spaces::flush_here`, `flush_elsewhere` | removes flushed translations from this CPU, and from another CPU | accesses; two tasks for the second |
/// | `spaces::tables` | removes cached tables when a flush says that tables were freed | accesses |
/// | `spaces::contexts`, `reused` | keeps the translations of spaces apart, with many spaces and after their end | accesses |
/// | `spaces::walks` | holds a flush of tables back during `walk_tables` | two tasks, accesses |
///
/// Call this function in a task that may sleep and holds no lock, while no other task uses the platform. The
/// suite needs 200 frames. After a failed check, frames and tables may stay allocated, because the platform
/// cannot be trusted with them.
///
/// # Examples
///
/// `examples/embedding/src/tests.rs` of the repository runs the suite on a platform made of threads.
pub fn platform<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Report {
    let mut suite = Suite::new(kernel);
    suite.check("frames::numbers", || frames::numbers(platform));
    suite.check("frames::no_frame_twice", || frames::no_frame_twice(platform));
    suite.check("frames::direct_map", || frames::direct_map(platform));
    suite.check("frames::blocks", || frames::blocks(platform));
    suite.check("frames::runs", || frames::runs(platform));
    suite.check("tables::zeroed", || tables::zeroed(platform));
    suite.check("tables::direct_map", || tables::direct_map(platform));
    suite.check("contents::zero", || contents::zero(platform));
    suite.check("contents::write", || contents::write(platform));
    suite.check("contents::copy", || contents::copy(platform));
    suite.check("cpus::numbers", || cpus::numbers::<P, K>(kernel));
    suite.check("cpus::clock", cpus::clock::<P>);
    suite.check("waits::differs", || waits::differs::<P, K>(kernel));
    suite.check("waits::wake_one", || waits::wake_one::<P, K>(kernel));
    suite.check("waits::wake_all", || waits::wake_all::<P, K>(kernel));
    suite.check("waits::wake_killable", || waits::wake_killable::<P, K>(kernel));
    suite.check("waits::killed", || waits::killed::<P, K>(kernel));
    suite.check("grace::own_reader", grace::own_reader::<P>);
    suite.check("grace::once", grace::once::<P>);
    suite.check("grace::other_reader", || grace::other_reader::<P, K>(kernel));
    suite.check("grace::barrier", || grace::barrier::<P, K>(kernel));
    suite.check("spaces::created", || spaces::created(platform));
    suite.check("spaces::flush_here", || spaces::flush_here(platform, kernel));
    suite.check("spaces::flush_elsewhere", || spaces::flush_elsewhere(platform, kernel));
    suite.check("spaces::tables", || spaces::tables(platform, kernel));
    suite.check("spaces::contexts", || spaces::contexts(platform, kernel));
    suite.check("spaces::reused", || spaces::reused(platform, kernel));
    suite.check("spaces::walks", || spaces::walks(platform, kernel));
    suite.finish()
}
