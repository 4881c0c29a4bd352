//! Descriptors of processes (pidfd_open(2)). A pidfd is readable once its process has ended.
//! `calls/pidfds.rs` has the calls; a clone with CLONE_PIDFD also makes a pidfd. The file keeps its reference
//! to the process even after the process has ended. The program `processes.c` of the tests checks the file.

use crate::files::{File, READABLE, Stat, open::Open};
use crate::process::Process;
use crate::sched::wait::Key;
use alloc::sync::Arc;
use core::any::Any;
use linux_raw_sys::general::O_RDWR;

/// The file of a pidfd.
pub struct PidFile(pub Arc<Process>);

/// Makes an open file that represents the process.
pub fn open(process: &Arc<Process>, flags: u32) -> Arc<Open> {
    Open::new(Arc::new(PidFile(process.clone())), O_RDWR | flags, b"anon_inode:[pidfd]")
}

impl File for PidFile {
    fn stat(&self) -> Stat {
        Stat { inode: self.0.pid.into(), mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        if self.0.status.lock().is_some() { READABLE } else { 0 }
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.0.end_key())
    }

    fn process(&self) -> Option<u32> {
        Some(self.0.pid)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
