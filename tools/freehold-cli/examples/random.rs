//! Makes random system calls on the running kernel, as a program to record. `random/mod.rs` lists the
//! options.

#[path = "random/mod.rs"]
mod program;

fn main() {
    program::main();
}
