//! Faults beside each other, and beside walks of the page tables.

mod requests;
mod software_bits;
mod together;
mod walkers;

use crate::support::*;
