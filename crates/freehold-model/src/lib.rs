//! Oracles for the engine: a naive sequential model of Linux's address-space semantics, the running kernel
//! itself, and the machinery that compares any two executors of the same calls.
//!
//! - [`op`]: the calls ([`Op`]), their results ([`Outcome`]) and who can execute them ([`Subject`]).
//! - [`model`]: the model, written for clarity.
//! - [`linux`]: the running kernel as a subject, inside child processes.
//! - [`generate`]: random calls, biased towards collisions and edges.
//! - [`compare`]: runs two subjects side by side; shrinks what differs.
//! - [`cases`]: calls with their expected results as text files, for every subject.
#![deny(unsafe_code)]

pub mod cases;
pub mod compare;
pub mod escape;
pub mod generate;
pub mod linux;
pub mod model;
pub mod op;
pub mod text;
pub mod world;

pub use model::Model;
pub use op::{
    Call, Counters, FileId, Limit, MapFile, MapLine, Op, Outcome, PAGE, Signal, SignalKind, Subject,
};
pub use world::World;
