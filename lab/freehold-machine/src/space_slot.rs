//! The set of CPUs that may hold translations of an address space, as a mask. `mmu.rs` explains the protocol
//! of the mask. `inner.rs` has an array of slots, one per possible address space; the [`Mmu`](crate::Mmu) of
//! a space uses the slot with the space's index.

use crate::config::MachineConfig;
use std::sync::atomic::AtomicU64;

/// The CPUs that may hold translations of one space. The `Mmu` of the space owns its slot.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SpaceSlot {
    /// One bit per CPU: the CPU runs the space or may hold translations of it. A bit changes only under the
    /// lock of its CPU.
    pub(crate) cpus: [AtomicU64; WORDS],
}

const WORDS: usize = MachineConfig::MAX_CPUS.div_ceil(64);

impl SpaceSlot {
    pub(crate) fn new() -> Self {
        SpaceSlot { cpus: [const { AtomicU64::new(0) }; WORDS] }
    }
}
