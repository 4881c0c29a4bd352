//! Descriptors of processes (pidfd_open(2)). A pidfd is readable once its process has ended, and also hung up once
//! the parent has waited for the process.
//! `calls/pidfds.rs` has the calls; a clone with CLONE_PIDFD also makes a pidfd. The file keeps its reference
//! to the process even after the process has ended. The programs `processes.c` and `ended.c` of the tests check the
//! file.

use crate::files::{File, HUNG_UP, READABLE, Stat, open::Open};
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
        Stat { inode: self.0.pid.into(), mode: 0o700, links: 1, ..Stat::default() }
    }

    // As on Linux, pread and pwrite fail like read and write.
    fn takes_offsets(&self) -> bool {
        true
    }

    fn ready(&self) -> u32 {
        match *self.0.status.lock() {
            None => 0,
            Some(_) if self.0.is_forgotten() => READABLE | HUNG_UP,
            Some(_) => READABLE,
        }
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
