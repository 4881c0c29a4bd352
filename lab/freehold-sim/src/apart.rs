//! Equal addresses in every process, as far as the results of runs depend on them.
//!
//! The simulation charges for cache lines, and the address of a word determines its cache line. A program
//! that must print the same figures each time therefore uses [`Apart`] as its global allocator, and calls
//! [`same_addresses`] first. Such programs are `tests/sim_engine/` of `freehold-machine`, and the tests and
//! the example `simulate` of `freehold-reproduce`; the example `coverage` of `freehold-machine` uses only the
//! allocator. Without the allocator and that call, a run is still correct, but the figures of the run vary
//! from process to process. The allocator must never place two objects on one line.
#![expect(unsafe_code, reason = "an allocator, and a call of the host")]

use crate::line::LINE;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, except that no two objects share a cache line. A run therefore does not depend on
/// earlier allocations, and gives exactly the same results in every process. Fields within one object may
/// still share a line.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: freehold_sim::Apart = freehold_sim::Apart;
///
/// assert_eq!(Box::leak(Box::new(1u8)) as *const u8 as usize % 64, 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Apart;

/// Returns the layout for whole cache lines that contains an object of `layout`.
fn apart(layout: Layout) -> Layout {
    // A size that cannot be aligned in this way is passed on unchanged, and the system refuses that size.
    layout.align_to(LINE).map_or(layout, |layout| layout.pad_to_align())
}

// SAFETY: the system's allocator, called with greater alignment and size than requested. The same layout
// always maps to the same system layout.
unsafe impl GlobalAlloc for Apart {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`; `apart` only adds size and alignment.
        unsafe { System.alloc(apart(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`; `apart` only adds size and alignment.
        unsafe { System.alloc_zeroed(apart(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a pointer and the layout that it got the pointer for. `apart` returns the
        // same layout now as at the allocation.
        unsafe { System.dealloc(pointer, apart(layout)) }
    }
}

/// Restarts the program without address space randomization, so that everything is at the same addresses in
/// each process. Must be called first. If a restart is not possible, the program continues unchanged.
pub fn same_addresses() {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;
        // SAFETY: reads the current setting.
        let now = unsafe { libc::personality(0xffff_ffff) };
        if now == -1 || now & libc::ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        // SAFETY: changes only where programs that start later are loaded.
        unsafe { libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) };
        if let Ok(program) = std::env::current_exe() {
            // The call returns only if it has failed.
            let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
        }
    }
}
