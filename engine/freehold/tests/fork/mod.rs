//! fork, and pages that are copied when they are written.

mod borrowed;
mod children;

use crate::support::{self, *};
