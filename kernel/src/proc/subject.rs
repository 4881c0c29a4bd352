//! The process or thread that a folder of /proc shows, and the checks that it still exists.
//!
//! A folder or file of /proc may stay open for longer than its process exists. The folder of a process has names
//! until the parent has waited for the process, and the folder of a thread until the thread has ended; the first
//! thread counts as long as its process. Most files can be read for the same time. The files of the old program's
//! memory can be read for ever, but they cannot be opened after the end of the program.
//!
//! `proc/process.rs`, `proc/maps.rs` and `proc/descriptors.rs` call the checks when a name is looked up, and when
//! a file is opened or read. The program `ended.c` of the tests checks them.

use crate::proc::maps::space;
use crate::process::Process;
use alloc::sync::Arc;
use freehold::error::Errno;

/// A process, or one of its threads.
#[derive(Clone)]
pub struct Subject {
    pub process: Arc<Process>,
    /// The number of the thread, if this is a thread.
    pub thread: Option<u32>,
}

impl Subject {
    /// Returns the number of the thread: the process's first thread, if this is a process.
    pub fn tid(&self) -> u32 {
        self.thread.unwrap_or(self.process.pid)
    }

    /// Checks that the process or the thread exists.
    ///
    /// # Errors
    ///
    /// ESRCH.
    pub fn exists(&self) -> Result<(), Errno> {
        if self.process.has_thread(self.tid()) { Ok(()) } else { Err(Errno::ESRCH) }
    }

    /// Checks that the process has memory.
    ///
    /// # Errors
    ///
    /// ESRCH.
    pub fn has_memory(&self) -> Result<(), Errno> {
        space(&self.process).map(|_| ()).ok_or(Errno::ESRCH)
    }
}
