//! Tests that read recordings as files through the public functions of the crate, in one program: damaged
//! files (`mutations.rs`), the shared recordings (`shared.rs`), and strace output (`strace.rs`). Tests of
//! single lines are next to the readers, in `src`.

mod mutations;
mod shared;
mod strace;
