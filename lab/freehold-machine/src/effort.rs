//! How much time tests have: the only place that reads `FREEHOLD_EFFORT`, which `cargo xtask test` sets.

use std::env;

/// How much time tests have. What chooses numbers of cases, runs or schedules asks this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Minutes for all together: everything is represented, by fewer cases (`quick`).
    Quick,
    /// What a change must pass (`full`, or nothing).
    Full,
    /// Hours (`long`).
    Long,
}

impl Effort {
    /// What the variable `FREEHOLD_EFFORT` says.
    ///
    /// # Panics
    ///
    /// If it is a word that means nothing.
    #[must_use]
    pub fn asked() -> Self {
        match env::var("FREEHOLD_EFFORT").as_deref() {
            Err(_) | Ok("full") => Effort::Full,
            Ok("quick") => Effort::Quick,
            Ok("long") => Effort::Long,
            Ok(other) => panic!("FREEHOLD_EFFORT is quick, full or long, not {other}"),
        }
    }

    /// One of three values.
    pub fn of<T>(quick: T, full: T, long: T) -> T {
        match Self::asked() {
            Effort::Quick => quick,
            Effort::Full => full,
            Effort::Long => long,
        }
    }
}
