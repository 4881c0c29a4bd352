//! Page faults, and table walks for kernels that simulate a processor.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    handle::{SpaceHandle, lend},
    host::Kernel,
    platform::PageFormat,
    result::failure,
};
use core::ffi::c_int;
use freehold::error::Errno;
use freehold::platform::{Pfn, VirtAddr, hw_walk};
use freehold::prelude::{Access, FaultError};

/// Bit of an access: a store.
pub const ACCESS_WRITE: u32 = 1;
/// Bit of an access: an instruction fetch.
pub const ACCESS_EXEC: u32 = 2;
/// Bit of an access: the processor was in its privileged mode.
pub const ACCESS_KERNEL: u32 = 4;

/// The signal for the program whose access cannot continue. The numbers are those of Linux.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalInfo {
    /// si_signo: 11 for SIGSEGV, 7 for SIGBUS.
    pub number: i32,
    /// si_code.
    pub code: i32,
    /// si_addr: the address of the access.
    pub address: u64,
    /// si_addr_lsb, for failed memory; otherwise 0.
    pub address_lsb: u32,
}

/// Returns the access that these bits describe.
fn access_of(bits: u32) -> Access {
    let has = |bit| bits & bit != 0;
    Access { write: has(ACCESS_WRITE), exec: has(ACCESS_EXEC), user: !has(ACCESS_KERNEL), pkru: 0 }
}

/// Handles a page fault of a task of the space. access has bits FH_ACCESS_. Called with interrupts on, by the
/// task that has faulted; may sleep.
///
/// Returns 0 or 1 if the task repeats the access: 1 after a major fault, which has read from a file. Returns
/// -EFAULT if the program gets the signal that is written to signal. Returns -ENOMEM if there is no memory;
/// the kernel then makes memory free and repeats the access, or ends a process. Returns -EINTR if a signal is
/// pending, which the task handles first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_fault(
    space: *const SpaceHandle,
    address: u64,
    access: u32,
    signal: *mut SignalInfo,
) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let error = match unsafe { lend(space) }.handle_fault(address, access_of(access)) {
        Ok(done) => return c_int::from(done.major),
        Err(error) => error,
    };
    let Some(of) = error.signal() else {
        return failure(if error == FaultError::OutOfMemory { Errno::ENOMEM } else { Errno::EINTR });
    };
    let info =
        SignalInfo { number: of.number, code: of.code, address: of.addr, address_lsb: of.addr_lsb.into() };
    // SAFETY: by the rules of the header, `signal` leads to a structure.
    unsafe { signal.write(info) };
    failure(Errno::EFAULT)
}

/// Walks the page tables below a root, as the processor does, and sets accessed and dirty bits. For kernels
/// that simulate a processor, and for tests.
///
/// Returns 0 and writes the frame of the address to frame, or returns -EFAULT if the processor would fault.
/// Takes no lock. The flush of the kernel must wait until both the walk and the access to the frame are over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_walk(root: u64, address: u64, access: u32, frame: *mut u64) -> c_int {
    let found =
        hw_walk::<PageFormat, Kernel>(&WALKER, Pfn::new(root), VirtAddr::new(address), access_of(access));
    let Ok(found) = found else {
        return failure(Errno::EFAULT);
    };
    // SAFETY: by the rules of the header, `frame` leads to a number.
    unsafe { frame.write(found.pfn.get()) };
    crate::result::OK
}

/// The kernel, for walks. Never dropped.
static WALKER: Kernel = Kernel;
