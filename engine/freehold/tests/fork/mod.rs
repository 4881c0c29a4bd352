//! fork, and copy on write.

mod children;
mod held_pages;

use crate::support::{self, *};
