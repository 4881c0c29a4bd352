//! The tests of recordings as files, one program.

mod mutations;
mod shared;
mod strace;
