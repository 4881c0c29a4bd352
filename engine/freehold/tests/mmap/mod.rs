//! mmap: where mappings are placed, what they merge with, and limits.

mod committed;
mod five_levels;
mod layouts;
mod merging;
mod places;
mod remap_file_pages;
mod sizes;
mod zeroes;

use crate::support::*;
