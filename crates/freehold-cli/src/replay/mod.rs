//! Replays recordings on the engine and checks every answer.

pub mod outcome;
