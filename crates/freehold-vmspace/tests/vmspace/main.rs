//! Tests of the public calls of this crate on the machine in a process. One program, a subject a module.
#![cfg(not(loom))]

mod run;
