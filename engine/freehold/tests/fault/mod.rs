//! Faults that run concurrently with each other and with walks of the page tables.

mod requests;
mod software_bits;
mod together;
mod walkers;

use crate::support::*;
