//! What the threads of a program share, and which process is a child of which.

use super::{Space, Thread, exit::Status};
use crate::arch::lock::SpinLock;
use crate::files::table::FileTable;
use crate::files::tree::{self, Node};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static NEXT_PID: AtomicU32 = AtomicU32::new(1);
/// Every process that was not waited for yet.
static ALL: SpinLock<BTreeMap<u32, Arc<Process>>> = SpinLock::new(BTreeMap::new());

/// A number that no thread or process has.
pub fn new_tid() -> u32 {
    NEXT_PID.fetch_add(1, Relaxed)
}

/// A process.
pub struct Process {
    pub pid: u32,
    pub parent: SpinLock<Option<Arc<Process>>>,
    pub children: SpinLock<Vec<Arc<Process>>>,
    /// Those that have not ended.
    pub threads: SpinLock<Vec<Arc<Thread>>>,
    /// The address space, for others; gone when the last thread ends.
    pub space: SpinLock<Option<Space>>,
    /// Set once, by the first thread that ends the process.
    pub ending: SpinLock<Option<Status>>,
    /// What is left of it when the last thread has ended.
    pub status: SpinLock<Option<Status>>,
    pub files: FileTable,
    pub directory: SpinLock<Arc<Node>>,
    /// The file of its program.
    pub exe: SpinLock<Option<Arc<Node>>>,
    pub umask: AtomicU32,
    /// The signal that its parent gets when it ends.
    pub exit_signal: AtomicU32,
    /// What `rt_sigaction` has set: handler, flags, restorer, mask, by signal.
    pub actions: SpinLock<[[u64; 4]; 65]>,
    /// The program's path, for reports.
    pub name: SpinLock<Vec<u8>>,
}

impl Process {
    /// A process without threads, known by its number from now on.
    pub fn new(pid: u32, parent: Option<&Arc<Process>>) -> Arc<Process> {
        let (files, directory, actions, umask) = match parent {
            Some(parent) => (
                parent.files.fork(),
                parent.directory.lock().clone(),
                *parent.actions.lock(),
                parent.umask.load(Relaxed),
            ),
            None => (FileTable::new(), tree::root(), [[0; 4]; 65], 0o022),
        };
        let process = Arc::new(Process {
            pid,
            parent: SpinLock::new(parent.cloned()),
            children: SpinLock::new(Vec::new()),
            threads: SpinLock::new(Vec::new()),
            space: SpinLock::new(None),
            ending: SpinLock::new(None),
            status: SpinLock::new(None),
            files,
            directory: SpinLock::new(directory),
            exe: SpinLock::new(parent.and_then(|parent| parent.exe.lock().clone())),
            umask: AtomicU32::new(umask),
            exit_signal: AtomicU32::new(17),
            actions: SpinLock::new(actions),
            name: SpinLock::new(parent.map_or(Vec::new(), |parent| parent.name.lock().clone())),
        });
        ALL.lock().insert(pid, process.clone());
        process
    }

    /// The parent's number; 0: none.
    pub fn parent_pid(&self) -> u32 {
        self.parent.lock().as_ref().map_or(0, |parent| parent.pid)
    }

    /// The key that is woken when a thread ends.
    pub fn thread_key(&self) -> super::wait::Key {
        super::wait::Key::kernel(&raw const self.threads as u64)
    }

    /// The key that a process sleeps on which waits for its children.
    pub fn child_key(&self) -> super::wait::Key {
        super::wait::Key::kernel(&raw const self.children as u64)
    }
}

/// The process with this number.
pub fn find(pid: u32) -> Option<Arc<Process>> {
    ALL.lock().get(&pid).cloned()
}

/// The numbers of all processes.
pub fn pids() -> Vec<u32> {
    ALL.lock().keys().copied().collect()
}

/// Nobody can name it any more.
pub fn forget(pid: u32) {
    let gone = ALL.lock().remove(&pid);
    drop(gone);
}

/// The first process, which inherits children whose parents end.
pub fn first() -> Option<Arc<Process>> {
    find(1)
}
