//! Tests of the command `freehold`, in one program: replay, help and manual pages (`command.rs`), and
//! reproduction (`reproduce.rs`). `record.rs` and `random.rs` are programs of their own, because they record
//! themselves.

mod command;
mod reproduce;
