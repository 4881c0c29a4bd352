//! Makes random calls on the running kernel: a program to be recorded. See `random/mod.rs` for its options.

#[path = "random/mod.rs"]
mod program;

fn main() {
    program::main();
}
