//! Makes random system calls on the running kernel, as a program to record. `random/mod.rs` has the program
//! and lists the options; this file only makes it an example. The test `tests/random.rs` contains the same
//! program.

#[path = "random/mod.rs"]
mod program;

fn main() {
    program::main();
}
