//! Moving, copying, reporting and looking into address spaces, on the machine with TLBs that remember: every scenario under
//! every design of the locks.

mod access;
mod fork;
mod mremap;
mod reports;
mod stack;

use crate::support::{self, *};
