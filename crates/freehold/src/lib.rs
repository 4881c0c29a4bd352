#![no_std]
//! Freehold: address spaces.
