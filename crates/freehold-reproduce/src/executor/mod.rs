//! What does the work of a load, and by which clock.

mod threads;

pub use threads::*;
