//! Which CPUs may hold translations of an address space.

use crate::config::MachineConfig;
use std::sync::atomic::AtomicU64;

/// Per space: which CPUs may hold something of it. A space's `Mmu` owns its slot.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SpaceSlot {
    /// Bit per CPU: it runs the space or may hold translations of it. A bit is changed only under the
    /// lock of its CPU.
    pub(crate) cpus: [AtomicU64; WORDS],
}

const WORDS: usize = MachineConfig::MAX_CPUS.div_ceil(64);

impl SpaceSlot {
    pub(crate) fn new() -> Self {
        SpaceSlot { cpus: [const { AtomicU64::new(0) }; WORDS] }
    }
}
