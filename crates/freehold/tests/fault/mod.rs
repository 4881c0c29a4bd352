//! Faults beside each other, and beside walks of the page tables.

mod requests;
mod together;
mod walkers;

use crate::support::*;
