//! Faults beside each other, and beside who walks the page tables.

mod requests;
mod together;
mod walkers;

use crate::support::*;
