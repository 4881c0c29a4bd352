//! Types of system calls: functions of a frame, and their answers.

use crate::arch::frame::Frame;
use freehold::error::Errno;

/// What a call answers.
pub type Answer = Result<u64, Errno>;
/// A call.
pub type Call = fn(&mut Frame) -> Answer;
/// Calls of a file, by number.
pub type Calls = &'static [(u32, Call)];

/// A call that does nothing, and may do nothing.
pub fn nothing(_: &mut Frame) -> Answer {
    Ok(0)
}
