//! Events of threads and processes, for a recorder (option `record`).

use crate::platform::Space;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The functions of a recorder.
pub struct Observer {
    /// A thread is about to run for the first time. The arguments are its number, its process's number, the
    /// flags of clone, and the time at which copying its space began.
    pub task: fn(u32, u32, u64, u64),
    /// A fault caused this signal, with this code.
    pub signal: fn(u32, i32),
    /// The calling thread ends. The argument is true if it is the last of its process.
    pub exit: fn(bool),
    /// The calling thread leaves its space.
    pub leave: fn(Option<Space>),
}

static NOBODY: Observer = Observer { task: |_, _, _, _| {}, signal: |_, _| {}, exit: |_| {}, leave: drop };
static WATCHES: AtomicPtr<Observer> = AtomicPtr::new(ptr::from_ref(&NOBODY).cast_mut());

/// Installs a recorder.
pub fn watch(observer: &'static Observer) {
    // Relaxed: the observer is a constant.
    WATCHES.store(ptr::from_ref(observer).cast_mut(), Relaxed);
}

/// Returns the installed recorder, or one that ignores all events.
pub fn observer() -> &'static Observer {
    // SAFETY: the pointer comes from a `'static` reference to a constant.
    unsafe { &*WATCHES.load(Relaxed) }
}
