//! Access to the memory of a process on behalf of another task (`src/remote/`, except pins): the calls behind
//! ptrace, `/proc/PID/mem`, process_vm_readv and process_vm_writev. The tests compare the bytes on both
//! sides, and the page at which a transfer ends with the first page that the access may not reach. `pins/`
//! tests pins, and `huge/access.rs` tests the access to huge pages.

mod between;
mod memory;

use crate::support::{self, *};
