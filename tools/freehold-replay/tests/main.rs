//! Tests that replay recordings, in one program.

mod corpus;
mod hostile;
mod limits;
mod mounts;
mod places;
mod small;
mod strace;
mod suites;
mod untold;
