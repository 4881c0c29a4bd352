//! Types for system calls: the functions that perform them, and the answers of these functions. All files of
//! this folder use these types. `mod.rs` stores the answer in rax; an error is stored as its negative number.

use crate::arch::frame::Frame;
use freehold::error::Errno;

/// The result of a system call: the number to return, or an error.
pub type Answer = Result<u64, Errno>;
/// A function that performs a system call.
pub type Call = fn(&mut Frame) -> Answer;
/// The calls that a file of this folder implements, by number.
pub type Calls = &'static [(u32, Call)];

/// Performs a call that succeeds without an effect.
pub fn nothing(_: &mut Frame) -> Answer {
    Ok(0)
}
