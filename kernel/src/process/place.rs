//! The working directory and the file mode mask of a thread. The threads of a process usually share them, and
//! processes made with CLONE_FS share them too. unshare(CLONE_FS) gives a thread its own.
//!
//! A spin lock guards the directory, and another one in the thread (`thread.rs`) guards the reference to the
//! place. Neither is held while a path is looked up. A thread leaves its place when it ends, because its last
//! reference may be dropped in an interrupt, where no file may be freed. The programs `descriptors.c` and
//! `processes.c` of the tests check that places are shared or not.

use crate::arch::lock::SpinLock;
use crate::files::tree::{self, Node};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A working directory and a file mode mask.
pub struct Place {
    /// The working directory.
    pub directory: SpinLock<Arc<Node>>,
    /// The file mode mask: permissions that new files do not get.
    pub umask: AtomicU32,
}

impl Place {
    /// Returns the place of the first thread.
    pub fn first() -> Arc<Self> {
        Arc::new(Place { directory: SpinLock::new(tree::root()), umask: AtomicU32::new(0o022) })
    }

    /// Returns the place of all threads that have ended. `start.rs` calls this function first, so that the end of
    /// a thread needs no memory.
    pub fn of_ended() -> Arc<Self> {
        static PLACE: SpinLock<Option<Arc<Place>>> = SpinLock::new(None);
        PLACE.lock().get_or_insert_with(Self::first).clone()
    }

    /// Returns a place with the same directory and the same mask, which no other thread shares.
    pub fn copy(&self) -> Arc<Self> {
        let directory = SpinLock::new(self.directory.lock().clone());
        Arc::new(Place { directory, umask: AtomicU32::new(self.umask.load(Relaxed)) })
    }
}
