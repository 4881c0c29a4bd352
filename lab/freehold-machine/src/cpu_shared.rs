//! The part of a virtual CPU that flushes and other CPUs use.

use crate::host::Lock;
use crate::tlb::Tlb;
use std::sync::atomic::AtomicBool;

/// The initial value of a thread's register of protection-key rights: rights to key 0 only.
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

    #[inline]
    pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = Tlb> + '_ {
        self.tlb.lock()
    }
}
