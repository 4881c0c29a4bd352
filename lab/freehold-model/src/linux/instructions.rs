//! Instructions of the child that depend on the architecture: accesses to the arena that may fault, and the
//! instruction of a system call.
//!
//! An access stores the address of its label 2 in `resume` and then executes the load or store. If the access
//! faults, the signal handler ([`set_pc`]) continues the process at label 2. A new architecture needs an arm
//! in each function.
#![expect(unsafe_code, reason = "raw system calls, faulting on purpose")]

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the interrupted code continue at `pc` when the signal handler returns.
pub(super) fn set_pc(context: &mut libc::ucontext_t, pc: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = pc as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.uc_mcontext.pc = pc;
    }
}

/// Executes one load or store. `$x86` and `$arm` are the instruction; `v` is the value and `a` the address.
/// Returns the value, or fails if a signal arrives.
macro_rules! access {
    ($resume:expr, $x86:literal, $arm:literal, $addr:expr, $($value:tt)*) => {{
        let failed: u64;
        // SAFETY: the address may be any value, because a fault resumes at label 2. A store is to the arena,
        // which contains no memory of Rust. Only the named registers change.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "xor {f:e}, {f:e}", $x86, "jmp 3f", "2:",
                "mov {f:e}, 1", "3:", t = out(reg) _, r = in(reg) $resume.as_ptr(), f = out(reg) failed,
                a = in(reg) $addr, $($value)*);
            #[cfg(target_arch = "aarch64")]
            asm!("adr {t}, 2f", "str {t}, [{r}]", "mov {f}, xzr", $arm, "b 3f", "2:", "mov {f}, #1", "3:",
                t = out(reg) _, r = in(reg) $resume.as_ptr(), f = out(reg) failed, a = in(reg) $addr,
                $($value)*);
        }
        $resume.store(0, Ordering::Relaxed);
        if failed == 0 { Ok(()) } else { Err(()) }
    }};
}

/// Loads one byte. Fails if a signal arrives.
pub(super) fn load(resume: &AtomicU64, addr: u64) -> Result<u8, ()> {
    let value: u64;
    let done = access!(resume, "movzx {v:e}, byte ptr [{a}]", "ldrb {v:w}, [{a}]", addr, v = out(reg) value);
    done.map(|()| value as u8)
}

/// Loads an aligned word. Fails if a signal arrives.
pub(super) fn load_word(resume: &AtomicU64, addr: u64) -> Result<u64, ()> {
    let value: u64;
    let done = access!(resume, "mov {v}, qword ptr [{a}]", "ldr {v}, [{a}]", addr, v = out(reg) value);
    done.map(|()| value)
}

/// Stores one byte. Fails if a signal arrives.
pub(super) fn store(resume: &AtomicU64, addr: u64, value: u8) -> Result<(), ()> {
    let value = u64::from(value);
    // `cl` is the low byte of the register that is named here on x86-64.
    #[cfg(target_arch = "x86_64")]
    return access!(resume, "mov byte ptr [{a}], cl", "", addr, in("rcx") value);
    #[cfg(target_arch = "aarch64")]
    return access!(resume, "", "strb {v:w}, [{a}]", addr, v = in(reg) value);
}

/// Makes a system call. Returns the kernel's result, in which a negative value is an errno.
pub(super) fn call(number: u64, a: &[u64; 6]) -> i64 {
    let value: i64;
    // SAFETY: the parent passes only calls that cannot reach memory that this program uses.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", inlateout("rax") number as i64 => value, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], out("rcx") _, out("r11") _);
        #[cfg(target_arch = "aarch64")]
        asm!("svc #0", inlateout("x0") a[0] as i64 => value, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], in("x8") number);
    }
    value
}
