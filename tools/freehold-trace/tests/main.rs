//! Tests of recordings as files, in one program.

mod mutations;
mod shared;
mod strace;
