//! Processor features that the kernel turns on. All CPUs get the same set.
//!
//! Each CPU calls [`init`] when it starts, and all of them write the same values into the statics. No static
//! changes after the first program runs, so the statics are read without a lock. This file also saves,
//! restores and changes the state that a feature adds: vector registers (XSAVE) and PKRU, the register with a
//! thread's rights by protection keys. `process/signal/frame.rs` stores this state in signal frames,
//! `process/trace.rs` shows it to tracers, and `sched/scheduler.rs` saves and loads it at switches. An image
//! from a program must not contain bits at which the processor faults in the kernel. The tests `registers`,
//! `registers-avx`, `keys` and `traced` check this file.
//!
//! A new feature is turned on in [`init`], from a bit of CPUID. If the feature has register state, add its
//! component to `wanted`; the image must still fit into `VectorState::ROOM`.

use crate::arch::frame::Vectors;
use alloc::boxed::Box;
use core::arch::x86_64::{__cpuid, __cpuid_count, _fxrstor64, _fxsave64};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;
use freehold::platform::PkeyRights;
use x86_64::registers::control::{Cr4, Cr4Flags};

/// True if supervisor-mode access prevention is on. Written before the first program runs, like all statics
/// below.
static SMAP: AtomicBool = AtomicBool::new(false);
/// True if TLB entries are tagged with a context number (PCID).
static CONTEXTS: AtomicBool = AtomicBool::new(false);
/// True if XSAVE saves the vector registers.
static XSAVE: AtomicBool = AtomicBool::new(false);
/// The state components that XSAVE saves, one bit each.
static PARTS: AtomicU64 = AtomicU64::new(3);
/// Size of the image that XSAVE or FXSAVE writes, in bytes.
static BYTES: AtomicUsize = AtomicUsize::new(512);
/// Offset of PKRU, the thread's rights by protection keys, in the image; 0 if there are no keys.
static PKRU_AT: AtomicUsize = AtomicUsize::new(0);
/// The bit of the state component PKRU.
const PKRU: u32 = 1 << 9;
/// PKRU of a new program and of a signal handler: only pages of key 0 may be accessed.
const FIRST_PKRU: u32 = 0x5555_5554;

/// Turns on the features that this processor has.
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
    // PCID may be turned on only while the context number is 0. The kernel's root is loaded with this number.
    flags.set(Cr4Flags::PCID, one.ecx >> 17 & 1 != 0);
    let keys = seven.is_some_and(|seven| seven.ecx >> 3 & 1 != 0) && flags.contains(Cr4Flags::OSXSAVE);
    flags.set(Cr4Flags::PROTECTION_KEY_USER, keys);
    // SAFETY: CPUID reports each of these features. With SMAP the kernel touches programs' memory only in
    // ucopy.s.
    unsafe { Cr4::write(flags) };
    SMAP.store(flags.contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION), Relaxed);
    CONTEXTS.store(flags.contains(Cr4Flags::PCID), Relaxed);
    if flags.contains(Cr4Flags::OSXSAVE) {
        let wanted = if one.ecx >> 28 & 1 != 0 { 7 } else { 3 } | if keys { PKRU } else { 0 };
        // SAFETY: the components are x87, SSE and, where they exist, AVX state and PKRU.
        unsafe { core::arch::asm!("xsetbv", in("ecx") 0, in("eax") wanted, in("edx") 0) };
        XSAVE.store(true, Relaxed);
        PARTS.store(wanted.into(), Relaxed);
        let bytes = __cpuid_count(0xd, 0).ebx as usize;
        assert!(bytes < VectorState::ROOM, "XSAVE needs {bytes} bytes");
        BYTES.store(bytes, Relaxed);
        if keys {
            PKRU_AT.store(__cpuid_count(0xd, 9).ebx as usize, Relaxed);
        }
    }
}

/// Returns true if TLB entries are tagged with the context number (PCID) with which a root is loaded.
pub fn has_contexts() -> bool {
    CONTEXTS.load(Relaxed)
}

/// Returns true if the processor has protection keys.
pub fn has_pkeys() -> bool {
    PKRU_AT.load(Relaxed) != 0
}

/// Returns PKRU of the calling thread, or 0 (all rights) if there are no keys.
#[inline(always)]
pub fn pkru() -> u32 {
    let mut rights = 0;
    if has_pkeys() {
        // SAFETY: the register exists, as `has_pkeys` says.
        unsafe {
            core::arch::asm!("rdpkru", inout("ecx") 0 => _, out("eax") rights, out("edx") _, options(nomem, nostack));
        }
    }
    rights
}

/// Sets PKRU of the calling thread, if there are keys.
pub fn set_pkru(rights: u32) {
    if has_pkeys() {
        // SAFETY: the register exists. PKRU limits accesses only to pages of programs.
        unsafe { core::arch::asm!("wrpkru", in("ecx") 0, in("eax") rights, in("edx") 0, options(nostack)) };
    }
}

/// Runs `f` with access to pages of all keys, because a program's stack may have any key.
pub fn with_all_keys<R>(f: impl FnOnce() -> R) -> R {
    let rights = pkru();
    set_pkru(0);
    let result = f();
    set_pkru(rights);
    result
}

/// Returns the rights that the calling thread denies itself for pages of one key.
pub fn pkey_rights(pkey: u8) -> PkeyRights {
    PkeyRights::from_bits_truncate(pkru() >> (2 * u32::from(pkey)))
}

/// Sets the rights that the calling thread denies itself for pages of one key.
pub fn set_pkey_rights(pkey: u8, rights: PkeyRights) {
    let shift = 2 * u32::from(pkey);
    set_pkru(pkru() & !(3 << shift) | rights.bits() << shift);
}

/// Lets the kernel touch programs' memory until [`forbid_user`].
#[inline(always)]
pub fn allow_user() {
    if SMAP.load(Relaxed) {
        // SAFETY: sets only the flag AC, which the kernel uses for nothing else.
        unsafe { core::arch::asm!("stac", options(nostack, nomem)) };
    }
}

/// Ends [`allow_user`].
#[inline(always)]
pub fn forbid_user() {
    if SMAP.load(Relaxed) {
        // SAFETY: clears only the flag AC, which the kernel uses for nothing else.
        unsafe { core::arch::asm!("clac", options(nostack, nomem)) };
    }
}

/// A function that copies from a program's memory.
pub type CopyIn = fn(u64, &mut [u8]) -> Result<(), Errno>;

/// An image of the x87, SSE and AVX registers and PKRU, in the format of XSAVE or, without XSAVE, of FXSAVE.
#[repr(C, align(64))]
pub struct VectorState([u8; VectorState::ROOM]);

impl VectorState {
    /// Maximum size of an image with its end mark, in bytes. Of the components that are turned on, PKRU has
    /// the highest offset: 2688 on Intel processors. Bochs reports 64 bytes as the size of PKRU.
    const ROOM: usize = 2816;

    /// Returns the state with which a program starts.
    pub fn new() -> Self {
        let mut state = VectorState([0; Self::ROOM]);
        state.begin();
        state
    }

    /// Returns the state with which a program starts, built on the heap rather than on the stack.
    pub fn boxed() -> Box<Self> {
        // SAFETY: all bytes may be zero.
        let mut state = unsafe { Box::<Self>::new_zeroed().assume_init() };
        state.begin();
        state
    }

    /// Sets the registers with which a program starts.
    fn begin(&mut self) {
        self.0[..2].copy_from_slice(&0x037fu16.to_le_bytes());
        self.0[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87, SSE and PKRU.
        self.0[512] = 3;
        if has_pkeys() {
            self.0[513] = (PKRU >> 8) as u8;
            self.put(PKRU_AT.load(Relaxed), &FIRST_PKRU.to_le_bytes());
        }
    }

    /// Saves the processor's registers in this image.
    pub fn save(&mut self) {
        // SAFETY: the buffer is aligned and has room for all components that `init` turned on.
        unsafe {
            match XSAVE.load(Relaxed) {
                true => {
                    core::arch::asm!("xsave64 [{}]", in(reg) &mut self.0, in("eax") u32::MAX, in("edx") 0)
                }
                false => _fxsave64(self.0.as_mut_ptr()),
            }
        }
    }

    /// Loads the registers from this image. The load overwrites vector registers, so the assembly declares
    /// these registers as changed.
    pub fn load(&self) {
        // SAFETY: `new` or `save` wrote the image.
        unsafe {
            match XSAVE.load(Relaxed) {
                true => core::arch::asm!(
                    "xrstor64 [{}]", in(reg) &self.0, in("eax") u32::MAX, in("edx") 0, clobber_abi("C")
                ),
                false => {
                    _fxrstor64(self.0.as_ptr());
                    core::arch::asm!("", clobber_abi("C"));
                }
            }
        }
    }
}

/// The image in a signal frame, from which `rt_sigreturn` restores the registers. The first part of the image
/// has the layout of FXSAVE. With XSAVE, three further parts follow, between Linux's marks
/// (`struct _fpx_sw_bytes`): a header, the upper halves of the AVX registers, and PKRU.
impl VectorState {
    /// Size of the part of the image that FXSAVE writes, in bytes.
    const LEGACY: usize = 512;
    /// Size of the header that XSAVE adds behind the part of FXSAVE, in bytes.
    const HEADER: usize = 64;
    /// Offset of the SSE registers.
    const XMM: usize = 160;
    /// Offset of MXCSR, the control register of SSE.
    const MXCSR: usize = 24;
    /// Offset of `struct _fpx_sw_bytes`.
    const MARKS: usize = 464;
    /// The first word of `struct _fpx_sw_bytes`.
    const MAGIC1: u32 = 0x4650_5853;
    /// The word behind the image.
    const MAGIC2: u32 = 0x4650_5845;
    /// The bit of the state component SSE.
    const SSE: u64 = 2;

    /// Returns true if images have the format of XSAVE.
    pub fn is_extended() -> bool {
        XSAVE.load(Relaxed)
    }

    /// Returns the size of the image in bytes, without the mark at its end.
    fn size() -> usize {
        BYTES.load(Relaxed)
    }

    /// Returns the eight bytes at this offset as a number.
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Stores bytes at this offset.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the registers of the calling thread's program. The SSE registers come from `vectors`, which
    /// `entry.s` saved. All other registers are still in the processor and are saved now.
    pub fn of_program(vectors: &Vectors) -> Self {
        let mut state = Self::new();
        state.save();
        for (n, register) in vectors.0.iter().enumerate() {
            state.put(Self::XMM + 16 * n, register);
        }
        state.0[Self::MARKS..Self::LEGACY].fill(0);
        if Self::is_extended() {
            let (size, parts) = (Self::size(), state.word(Self::LEGACY) | Self::SSE);
            state.put(Self::LEGACY, &parts.to_le_bytes());
            state.put(Self::MARKS, &Self::MAGIC1.to_le_bytes());
            state.put(Self::MARKS + 4, &(size as u32 + 4).to_le_bytes());
            state.put(Self::MARKS + 8, &PARTS.load(Relaxed).to_le_bytes());
            state.put(Self::MARKS + 16, &(size as u32).to_le_bytes());
            state.put(size, &Self::MAGIC2.to_le_bytes());
        }
        state
    }

    /// Returns the image with its marks.
    pub fn bytes_for_program(&self) -> &[u8] {
        &self.0[..Self::size_for_program()]
    }

    /// Returns the length of `bytes_for_program`.
    pub fn size_for_program() -> usize {
        Self::size() + if Self::is_extended() { 4 } else { 0 }
    }

    /// Reads the image that a handler left at this address, and clears every bit that the processor would
    /// refuse.
    ///
    /// # Errors
    ///
    /// EFAULT if the image cannot be read.
    pub fn read_from_program(at: u64, copy_in: CopyIn) -> Result<Self, Errno> {
        let mut state = Self::new();
        copy_in(at, &mut state.0[..Self::LEGACY])?;
        let marked = state.word(Self::MARKS) as u32 == Self::MAGIC1
            && state.word(Self::MARKS + 16) as u32 as usize == Self::size();
        if Self::is_extended() && marked {
            let rest = Self::LEGACY..Self::size();
            copy_in(at + Self::LEGACY as u64, &mut state.0[rest])?;
            let parts = state.word(Self::LEGACY) & PARTS.load(Relaxed);
            state.0[Self::LEGACY..Self::LEGACY + Self::HEADER].fill(0);
            state.put(Self::LEGACY, &parts.to_le_bytes());
        }
        // In the kernel, the processor would fault on bits of MXCSR that do not exist.
        state.0[Self::MXCSR + 2..Self::MXCSR + 8].fill(0);
        Ok(state)
    }

    /// Returns a copy of the image.
    pub fn copy(&self) -> Self {
        VectorState(self.0)
    }

    /// Returns the image for a tracer: the part that FXSAVE writes or, with `all`, the whole image with XCR0
    /// in place of the marks.
    pub fn for_tracer(&mut self, all: bool) -> &[u8] {
        self.0[Self::MARKS..Self::LEGACY].fill(0);
        if all {
            self.put(Self::MARKS, &PARTS.load(Relaxed).to_le_bytes());
        }
        &self.0[..if all { Self::size() } else { Self::LEGACY }]
    }

    /// Reads `bytes` bytes of the image from a tracer.
    ///
    /// # Errors
    ///
    /// EFAULT if the image cannot be read; EINVAL if the image sets unknown bits of MXCSR, or if its header
    /// names components that are not turned on, selects the compacted form, or sets reserved bytes.
    pub fn take_from_tracer(&mut self, at: u64, bytes: usize, copy_in: CopyIn) -> Result<(), Errno> {
        /// The bits of MXCSR that exist.
        const MXCSR_BITS: u64 = 0xffff;
        copy_in(at, &mut self.0[..bytes])?;
        let mxcsr = self.word(Self::MXCSR) & 0xffff_ffff;
        let (parts, form) = (self.word(Self::LEGACY), self.word(Self::LEGACY + 8));
        let reserved = &self.0[Self::LEGACY + 16..Self::LEGACY + Self::HEADER];
        let is_odd = parts & !PARTS.load(Relaxed) != 0 || form != 0 || reserved.iter().any(|byte| *byte != 0);
        if mxcsr & !MXCSR_BITS != 0 || Self::is_extended() && bytes > Self::LEGACY && is_odd {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Returns the SSE registers, which `entry.s` loads when it returns to the program.
    pub fn vectors(&self) -> Vectors {
        let mut vectors = Vectors([[0; 16]; 16]);
        if !Self::is_extended() || self.word(Self::LEGACY) & Self::SSE != 0 {
            for (n, register) in vectors.0.iter_mut().enumerate() {
                register.copy_from_slice(&self.0[Self::XMM + 16 * n..Self::XMM + 16 * n + 16]);
            }
        }
        vectors
    }
}
