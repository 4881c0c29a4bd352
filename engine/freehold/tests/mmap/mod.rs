//! mmap: where mappings go, what they merge with, how much there may be.

mod committed;
mod five_levels;
mod layouts;
mod merging;
mod places;
mod remap_file_pages;
mod sizes;
mod zeroes;

use crate::support::*;
