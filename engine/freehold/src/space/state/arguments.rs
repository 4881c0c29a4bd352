//! Location of a program's arguments and environment, which the kernel shows in /proc/PID/cmdline and
//! /proc/PID/environ.
//!
//! This file defines a plain value without checks. `space/arguments.rs` checks and stores the value, and
//! `remote/arguments.rs` reads the bytes that the value locates.

use core::ops::Range;

/// Location of a program's arguments and environment: addresses of this space, which need not be mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The arguments, each terminated by a zero byte.
    pub args: Range<u64>,
    /// The environment, in the same format.
    pub env: Range<u64>,
}
