//! A suite that checks a page-table format and a platform against the contracts of `freehold::platform`.
//!
//! | function | checks | needs |
//! | --- | --- | --- |
//! | [`format`] | the functions and constants of a [`Format`](freehold_pagetable::Format) | nothing |
//! | [`platform`] | each function of a [`Platform`](freehold::platform::Platform) | the platform, and a [`Kernel`] |
//! | [`engine`] | what the engine makes of the platform: memory, charges, shortages, pagers, listeners | an engine on the platform, and a [`Kernel`] |
//! | [`swap`] | a [`SwapDevice`](freehold::swap::SwapDevice) | the same, and the device |
//!
//! Each function returns a [`Report`], which has one line for each check: passed, failed with the mistake, or
//! not run with the reason. A [`Kernel`] provides what the traits of the platform do not have, such as a
//! second task. `docs/guide/conformance.md` in the repository describes the use.

mod engine;
mod format;
mod kernel;
mod later;
mod platform;
mod report;
mod suite;
mod swap;

pub use engine::engine;
pub use format::format;
pub use kernel::{Kernel, NotRun};
pub use platform::platform;
pub use report::{Check, Outcome, Report};
pub use swap::swap;
