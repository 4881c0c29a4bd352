//! Faults that run concurrently with each other and with walks of the page tables.

mod concurrent;
mod requests;
mod software_bits;
mod walkers;

use crate::support::*;
