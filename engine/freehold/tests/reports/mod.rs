//! Reports about an address space.

mod maps;
mod readers;
mod usage;

use crate::support::*;
