//! Access to the memory of a process on behalf of another task (`src/remote/`, except pins): the calls behind
//! ptrace, `/proc/PID/mem`, process_vm_readv and process_vm_writev. The tests compare the bytes on both
//! sides. They also check that a transfer ends at the first page that the access may not reach. `pins/` tests
//! pins, and `huge/access.rs` tests the access to huge pages.
//!
//! `memory.rs` tests transfers between an address space and a buffer, `between.rs` transfers between two
//! address spaces, and `code.rs` writes to memory that a program may execute.
//! `lab/freehold-machine/tests/shuttle_engine/forced.rs` explores forced stores during a DONTNEED.

mod between;
mod code;
mod memory;

use crate::support::{self, *};
