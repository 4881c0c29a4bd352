//! The same addresses in every process, as far as runs depend on them: an allocator that begins every object
//! at a line of its own, and no randomness of the operating system.
#![expect(unsafe_code, reason = "an allocator, and a call of the host")]

use crate::line::LINE;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, but that no two objects share a line: so a run does not depend on what the program
/// allocated before, and is the same to the digit in every process. What shares a line within an object does
/// so still.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: freehold_sim::Apart = freehold_sim::Apart;
///
/// assert_eq!(Box::leak(Box::new(1u8)) as *const u8 as usize % 64, 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Apart;

fn apart(layout: Layout) -> Layout {
    // A size that cannot be aligned so is refused by the system in any case.
    layout.align_to(LINE).map_or(layout, |layout| layout.pad_to_align())
}

// SAFETY: the system's, asked for more alignment and room than was wanted, with the same layout for the same
// object each time.
unsafe impl GlobalAlloc for Apart {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(apart(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(apart(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; it came from `alloc` of this layout.
        unsafe { System.dealloc(pointer, apart(layout)) }
    }
}

/// Begins the program once more with everything at the same addresses each time, which an operating system
/// varies otherwise. To be called first. Where that is not possible the program goes on as it is.
pub fn same_addresses() {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;
        // SAFETY: asks for the present setting.
        let now = unsafe { libc::personality(0xffff_ffff) };
        if now == -1 || now & libc::ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        // SAFETY: changes where programs that begin later are put.
        unsafe { libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) };
        if let Ok(program) = std::env::current_exe() {
            // Comes back only if it failed.
            let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
        }
    }
}
