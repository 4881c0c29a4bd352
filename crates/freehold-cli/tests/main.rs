//! The command and what it replays, one program.

mod command;
mod corpus;
mod hostile;
mod limits;
mod mounts;
mod places;
mod replay;
mod reproduce;
mod strace;
mod suites;
