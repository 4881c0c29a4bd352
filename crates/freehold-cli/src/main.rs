//! The command `freehold`.
fn main() {}
