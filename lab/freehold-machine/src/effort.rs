//! The amount of time that tests may take.
//!
//! Tests call [`Effort::of`] with three numbers of cases. `cargo xtask test` sets the variable
//! `FREEHOLD_EFFORT`, which only this module and the loom host read. `docs/reference/testing.md` lists the
//! numbers of all tests; a change of a number must also change that table.

use std::env;

/// The amount of time that tests may take. Tests choose their number of cases, runs or schedules by this
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// All tests together take minutes. Every test runs, with fewer cases (`quick`).
    Quick,
    /// The tests that every change must pass (`full`, or the variable is not set).
    Full,
    /// The tests take hours (`long`).
    Long,
}

impl Effort {
    /// Returns the value of the variable `FREEHOLD_EFFORT`.
    ///
    /// # Panics
    ///
    /// Panics if the variable has an unknown value.
    #[must_use]
    pub fn asked() -> Self {
        match env::var("FREEHOLD_EFFORT").as_deref() {
            Err(_) | Ok("full") => Effort::Full,
            Ok("quick") => Effort::Quick,
            Ok("long") => Effort::Long,
            Ok(other) => panic!("FREEHOLD_EFFORT must be quick, full or long, not {other}"),
        }
    }

    /// Returns the value for the effort that the variable sets.
    pub fn of<T>(quick: T, full: T, long: T) -> T {
        match Self::asked() {
            Effort::Quick => quick,
            Effort::Full => full,
            Effort::Long => long,
        }
    }
}
