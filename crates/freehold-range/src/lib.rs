#![no_std]
//! Freehold: range.
