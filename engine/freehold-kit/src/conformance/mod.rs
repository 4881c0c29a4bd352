//! A suite that checks a page-table format and a platform against the contracts of `freehold::platform`.
//!
//! | function | checks | needs |
//! | --- | --- | --- |
//! | [`format`] | the functions and constants of a [`Format`](freehold_pagetable::Format) | nothing |
//!
//! Each function returns a [`Report`], which has one line for each check: passed, failed with the mistake, or
//! not run with the reason.

mod format;
mod report;

pub use format::format;
pub use report::{Check, Outcome, Report};
