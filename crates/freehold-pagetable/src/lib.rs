#![no_std]
//! Freehold: pagetable.
