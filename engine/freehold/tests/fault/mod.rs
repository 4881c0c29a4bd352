//! Page faults (`src/fault/`): concurrent faults, the frames that they request, the accessed and dirty bits
//! that they set, and concurrent walks of page tables. Faults on one kind of memory are tested with that
//! memory: `files/mapped.rs`, `huge/`, `hugetlb/`, `uffd/`.
//!
//! The subjects of the files: faults of several threads in one VMA, batches of frames and the choice of the
//! anon_vma (`concurrent.rs`); frame requests (`requests.rs`); accessed and dirty bits (`software_bits.rs`);
//! concurrent walks (`walkers.rs`). `lab/freehold-machine/tests/shuttle_engine/waiting.rs` explores faults
//! that wait for a file.

mod concurrent;
mod requests;
mod software_bits;
mod walkers;

use crate::support::*;
