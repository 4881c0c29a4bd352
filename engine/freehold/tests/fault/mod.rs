//! Page faults (`src/fault/`): concurrent faults, the frames that they request, the accessed and dirty bits
//! that they set, and walks of page tables that run at the same time. Faults on one kind of memory are tested
//! with that memory: `files/mapped.rs`, `huge/`, `hugetlb/`, `uffd/`.

mod concurrent;
mod requests;
mod software_bits;
mod walkers;

use crate::support::*;
