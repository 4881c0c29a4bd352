//! What programs are told of an address space.

mod maps;
mod readers;
mod usage;

use crate::support::*;
