//! A kernel on bare metal that runs Linux programs on the address spaces of Freehold. `README.md` says how
//! to build and run it; [`kernel_main`] is what happens when it boots, in order.
#![cfg_attr(bare_metal, no_std, no_main)]
#![cfg_attr(bare_metal, expect(unsafe_code, reason = "a kernel"))]

#[cfg(bare_metal)]
extern crate alloc;

#[cfg(bare_metal)]
mod arch;
#[cfg(bare_metal)]
mod boot;
#[cfg(bare_metal)]
mod calls;
#[cfg(bare_metal)]
mod errno;
#[cfg(bare_metal)]
mod files;
#[cfg(bare_metal)]
mod memory;
#[cfg(bare_metal)]
mod options;
#[cfg(bare_metal)]
mod platform;
#[cfg(bare_metal)]
mod proc;
#[cfg(bare_metal)]
mod process;
#[cfg(bare_metal)]
mod record;
#[cfg(bare_metal)]
mod sched;
#[cfg(bare_metal)]
mod start;
#[cfg(bare_metal)]
mod start_info;

/// Without `--cfg bare_metal` there is no kernel, but the workspace builds.
#[cfg(not(bare_metal))]
fn main() {
    eprintln!("This is a kernel; kernel/README.md says how to build it.");
    std::process::exit(2);
}
