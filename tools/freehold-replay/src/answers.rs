//! Converts results of engine calls to the form of recorded answers (`Returned`), so that both can be
//! compared for equality, and formats recorded answers for reports. `calls.rs`, `pagers.rs`, `perform.rs`,
//! `place.rs`, `prctl.rs` and `transfer.rs` use it.

use freehold::error::Errno;
use freehold_trace::Returned;

/// Returns the result of a call of the engine as a recorded answer.
pub(super) fn returned(result: Result<u64, Errno>) -> Returned {
    match result {
        Ok(value) => Returned::Value(value),
        Err(Errno(number)) => Returned::Error(number as u16),
    }
}

/// Formats the result of a call for a report of a difference.
pub(super) fn show_returned(returned: Returned) -> String {
    match returned {
        Returned::Value(value) => format!("{value:#x}"),
        Returned::Error(number) => format!("errno {number}"),
        Returned::Never => "never".to_owned(),
    }
}
