//! A suite that checks a page-table format and a platform against the contracts of `freehold::platform`.
//!
//! | function | checks | needs |
//! | --- | --- | --- |
//! | [`format`] | the functions and constants of a [`Format`](freehold_pagetable::Format) | nothing |
//! | [`platform`] | each function of a [`Platform`](freehold::platform::Platform) | the platform, and a [`Kernel`] |
//!
//! Each function returns a [`Report`], which has one line for each check: passed, failed with the mistake, or
//! not run with the reason. A [`Kernel`] provides what the traits of the platform do not have, such as a
//! second task. `docs/guide/conformance.md` in the repository describes the use.

mod format;
mod kernel;
mod platform;
mod report;
mod suite;

pub use format::format;
pub use kernel::{Kernel, NotRun};
pub use platform::platform;
pub use report::{Check, Outcome, Report};
