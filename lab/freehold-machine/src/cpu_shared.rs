//! The part of a virtual CPU that flushes and other CPUs use: its TLB behind the CPU's lock, and its claim.
//!
//! `inner.rs` has one such part per CPU of the machine. The CPU itself (`cpu.rs`) holds the lock during each
//! access, a flush (`mmu.rs`) while it drops entries, and the oracles while they search a TLB. A thread holds
//! the lock of one CPU at a time, so the locks need no order. `tests/memory.rs` checks that a CPU is claimed
//! only once.

use crate::host::Lock;
use crate::tlb::Tlb;
use std::sync::atomic::AtomicBool;

/// Initial value of a CPU's register of protection-key rights: rights to key 0 only, as Linux sets it.
const FIRST_PKRU: u32 = 0x5555_5554;

/// The part of a CPU that other CPUs access.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CpuShared {
    tlb: Lock<Tlb>,
    /// True while a [`Cpu`](crate::Cpu) exists for this CPU.
    pub(crate) claimed: AtomicBool,
}

impl CpuShared {
    pub(crate) fn new(pkeys: bool) -> Self {
        CpuShared {
            tlb: Lock::new(Tlb::new(if pkeys { FIRST_PKRU } else { 0 })),
            claimed: AtomicBool::new(false),
        }
    }

    /// Locks the CPU. While the guard lives, no other thread accesses memory as this CPU.
    #[inline]
    pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = Tlb> + '_ {
        self.tlb.lock()
    }
}
