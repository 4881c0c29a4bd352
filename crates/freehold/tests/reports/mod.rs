//! What programs are told of an address space.

mod maps;
mod readers;

use crate::support::*;
