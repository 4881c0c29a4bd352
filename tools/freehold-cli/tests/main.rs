//! Tests of the command, in one program.

mod command;
mod reproduce;
