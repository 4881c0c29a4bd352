//! Memory of a program that others read and write.

mod between;
mod memory;

use crate::support::{self, *};
