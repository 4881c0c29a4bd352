//! Access to the memory of a process on behalf of another task.

mod between;
mod memory;

use crate::support::{self, *};
