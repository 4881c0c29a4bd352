//! What of the processor is turned on, on each processor alike.

use core::arch::x86_64::{__cpuid, __cpuid_count, _fxrstor64, _fxsave64};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use x86_64::registers::control::{Cr4, Cr4Flags};

/// Supervisor-mode access prevention is on. Written before the first program runs.
static SMAP: AtomicBool = AtomicBool::new(false);
/// Vector registers are kept by XSAVE.
static XSAVE: AtomicBool = AtomicBool::new(false);

/// Turns on what there is.
pub fn init() {
    let most = __cpuid(0).eax;
    let (one, seven) = (__cpuid(1), if most >= 7 { Some(__cpuid_count(7, 0)) } else { None });
    let mut flags = Cr4::read();
    if let Some(seven) = seven {
        flags.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, seven.ebx >> 7 & 1 != 0);
        flags.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, seven.ebx >> 20 & 1 != 0);
        flags.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, seven.ecx >> 2 & 1 != 0);
    }
    flags.set(Cr4Flags::OSXSAVE, one.ecx >> 26 & 1 != 0);
    // SAFETY: each is there; the kernel touches memory of programs in ucopy.s alone.
    unsafe { Cr4::write(flags) };
    SMAP.store(flags.contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION), Relaxed);
    if flags.contains(Cr4Flags::OSXSAVE) {
        let wanted = if one.ecx >> 28 & 1 != 0 { 7u32 } else { 3 };
        // SAFETY: x87, SSE and, where it is there, AVX state.
        unsafe { core::arch::asm!("xsetbv", in("ecx") 0, in("eax") wanted, in("edx") 0) };
        XSAVE.store(true, Relaxed);
    }
}

/// Programs' memory may be touched until [`forbid_user`].
#[inline(always)]
pub fn allow_user() {
    if SMAP.load(Relaxed) {
        // SAFETY: sets one flag.
        unsafe { core::arch::asm!("stac", options(nostack, nomem)) };
    }
}

/// It may not any more.
#[inline(always)]
pub fn forbid_user() {
    if SMAP.load(Relaxed) {
        // SAFETY: clears one flag.
        unsafe { core::arch::asm!("clac", options(nostack, nomem)) };
    }
}

/// Room for x87, SSE and AVX registers.
#[repr(C, align(64))]
pub struct VectorState([u8; 1024]);

impl VectorState {
    /// As a program finds them when it starts.
    pub fn new() -> Self {
        let mut state = VectorState([0; 1024]);
        state.0[..2].copy_from_slice(&0x037fu16.to_le_bytes());
        state.0[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87 and SSE.
        state.0[512] = 3;
        state
    }

    /// Puts the processor's registers here.
    pub fn save(&mut self) {
        // SAFETY: room for all that `init` turned on, aligned.
        unsafe {
            match XSAVE.load(Relaxed) {
                true => core::arch::asm!("xsave64 [{}]", in(reg) &mut self.0, in("eax") 7, in("edx") 0),
                false => _fxsave64(self.0.as_mut_ptr()),
            }
        }
    }

    /// Loads them. The kernel's own contents are lost: callers have none.
    pub fn load(&self) {
        // SAFETY: what `new` or `save` left.
        unsafe {
            match XSAVE.load(Relaxed) {
                true => {
                    core::arch::asm!("xrstor64 [{}]", in(reg) &self.0, in("eax") 7, in("edx") 0, clobber_abi("C"))
                }
                false => {
                    _fxrstor64(self.0.as_ptr());
                    core::arch::asm!("", clobber_abi("C"));
                }
            }
        }
    }
}
