//! The part of a virtual CPU that flushes and other CPUs use.

use crate::host::Lock;
use crate::tlb::Tlb;
use std::sync::atomic::AtomicBool;

/// The register of rights by protection keys of a thread that never changed it: none, but to key 0.
const FIRST_PKRU: u32 = 0x5555_5554;

/// What others see of a CPU.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CpuShared {
    tlb: Lock<Tlb>,
    /// A [`Cpu`](crate::Cpu) exists for it.
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
