#![no_std]
//! Freehold: sync.
