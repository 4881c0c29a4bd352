//! fork, and copy on write.

mod borrowed;
mod children;

use crate::support::{self, *};
