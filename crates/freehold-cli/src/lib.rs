//! What the command `freehold` does, for the binary and the tests.
#![deny(unsafe_code)]

pub mod cli;
pub mod command;
mod help;
pub mod locking;
pub mod output;
pub mod picture;
pub mod progress;
pub mod record;
pub mod replay;
pub mod report;
pub mod reproduce;
pub mod source;
pub mod tasks;
pub mod units;
