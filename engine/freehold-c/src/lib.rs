//! Freehold for kernels in C: the calls of the header `include/freehold.h`.
//!
//! A kernel in C links a static library, which `cargo xtask c-library` builds from this crate. The kernel
//! passes a table of functions, [`PlatformOps`], to [`fh_init`](call::boot::fh_init), and then creates
//! engines, address spaces, files and stages. `examples/c` of the repository has two such kernels, and
//! `docs/guide/platform.md` is the contract of the functions.
//!
//! The header is generated from this crate, so its comments are the documentation of the items here.
//! `cbindgen.toml` has the head of the header, with the rules for all calls. `tests/header.rs` compares the
//! header with the crate, and says how to write it again.
//!
//! | file | contents |
//! | --- | --- |
//! | `ops.rs`, `machine.rs` | the functions and the numbers that the kernel provides |
//! | `setup.rs`, `link_time.rs` | the table in use, from `fh_init` or from external functions |
//! | `host.rs`, `grace.rs` | waiting, CPU numbers, grace periods |
//! | `contents.rs`, `platform.rs` | frames, tables, TLBs |
//! | `runtime.rs` | the global allocator and the panic handler of the static library |
//! | `handle.rs`, `result.rs` | pointers to objects, and results as errno numbers |
//! | `call/` | the calls, one file for each kind of object |
//!
//! No panic crosses the border to C. The static library is compiled with `panic = "abort"`, and calls the
//! kernel's function. In every other build, a panic that reaches the border aborts the program.
//!
//! A new call gets a test in `tests/calls`, and the header is written again. A new callback is a field at the
//! end of [`PlatformOps`] and a function in `link_time.rs`; the compiler compares both. The callback must be
//! optional, because kernels with an older header pass a shorter table.
//!
//! | feature | effect |
//! | --- | --- |
//! | `conformance` | The call `fh_check_platform`, which checks the functions of a kernel |
//! | `link-time` | The callbacks are external functions with names such as `fh_platform_wait`. The compiler then calls them directly, and a linker with link-time optimisation can inline them |
//! | `staticlib` | The crate has a global allocator and a panic handler. Only for the static library |
#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "conformance")]
extern crate alloc;

pub mod call;
mod contents;
mod grace;
mod handle;
mod host;
#[cfg(feature = "link-time")]
mod link_time;
mod machine;
mod ops;
mod platform;
mod result;
#[cfg(all(feature = "staticlib", panic = "abort"))]
mod runtime;
mod setup;

pub use grace::{fh_rcu_barrier, fh_rcu_run, fh_tick};
pub use handle::{EngineHandle, FileHandle, MemoryHandle, SpaceHandle};
pub use host::Kernel;
pub use machine::{FRAME_RECORD_SIZE, Machine, TABLE_RECORD_SIZE};
pub use ops::{DeferredHead, FlushRequest, FrameRequest, PlatformOps};
pub use platform::SpaceRecord;
