//! The measured operations: the names that `kernel/tests/programs/bench.rs` prints, their labels in the table
//! of instructions, and the target of each. `document.rs` makes a row of each entry, in this order, and marks
//! a missed target. `cargo xtask boot --bench` prints the table; its exit status does not depend on the
//! targets.

/// A target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aim {
    /// At most this number.
    AtMost(f64),
    /// At most half of Linux's number.
    Half,
    /// No target.
    None,
}

/// A row of the table of instructions.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name that the program prints.
    pub name: &'static str,
    /// The label in the table.
    pub what: &'static str,
    /// The target.
    pub aim: Aim,
}

const fn row(name: &'static str, what: &'static str, aim: Aim) -> Row {
    Row { name, what, aim }
}

/// The operations. Targets are in instructions.
pub const ROWS: &[Row] = &[
    row("fault", "first store to a page, zeroing it included", Aim::AtMost(1400.0)),
    row("munmap", "munmap of 64 MiB, per page", Aim::AtMost(250.0)),
    row("madvise-touch", "madvise(DONTNEED) of a page and a store to it", Aim::AtMost(2800.0)),
    row("mprotect-touch", "mprotect of a page to read-only and back, and a store", Aim::AtMost(3600.0)),
    row("null", "a call that does nothing (getppid)", Aim::AtMost(150.0)),
    row("mmap-munmap", "mmap and munmap of 1 MiB, untouched", Aim::Half),
    row("fork-empty", "fork, exit and wait of a small process", Aim::Half),
    row("fork-page", "fork, per page that the process has touched", Aim::Half),
    row("exec-least", "spawn, exec and exit of a program of 9 bytes of code", Aim::Half),
    row("exec-static", "spawn, exec and exit of a static Rust program, its start included", Aim::Half),
];
