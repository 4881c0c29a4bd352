//! A bare-metal kernel that runs Linux programs on the address spaces of Freehold. `README.md` says how to
//! build and run it, and has the order of the layers: a module uses only layers above its own. A test checks
//! this rule (`kernel/xtask/tests/layers.rs`). `kernel_main` (`start.rs`) boots the kernel step by step.
//!
//! A new folder, or a new file directly in `src`, also needs its place in `LAYERS` of that test and in the
//! table of `README.md`.
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

/// Tells how to build the kernel. Without `--cfg bare_metal` the package has no kernel, but the workspace
/// builds.
#[cfg(not(bare_metal))]
fn main() {
    eprintln!("freehold-kernel: built without bare_metal; see kernel/README.md");
    std::process::exit(2);
}
