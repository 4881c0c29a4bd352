//! Texts of strace, and the events in them.
