//! The command, one program.

mod command;
mod reproduce;
