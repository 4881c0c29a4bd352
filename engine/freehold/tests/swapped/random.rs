//! Random.
