//! Events of threads and processes, for a recorder (option `record`).
//!
//! The recorder (`record.rs`) is a later layer, so this layer calls it through a table of functions, which is
//! installed at boot. `clone.rs`, `fault.rs` and `exit.rs` report the events. The functions run on the thread
//! of the event, without a spin lock.
//!
//! A new event needs a field of [`Observer`], a function in `NOBODY`, and a function in `OBSERVER` of
//! `record.rs`.

use crate::platform::Space;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The functions of a recorder.
pub struct Observer {
    /// A thread is about to run for the first time. The arguments: the thread's number, its process's number,
    /// the flags of clone, and the time at which copying the address space began.
    pub task: fn(u32, u32, u64, u64),
    /// A fault caused this signal, with this code.
    pub signal: fn(u32, i32),
    /// The calling thread ends. The argument is true if the thread is the last of its process.
    pub exit: fn(bool),
    /// The calling thread has left this address space. The function drops the reference.
    pub leave: fn(Option<Space>),
}

/// The observer of a kernel without option `record`: ignores all events.
static NOBODY: Observer = Observer { task: |_, _, _, _| {}, signal: |_, _| {}, exit: |_| {}, leave: drop };
/// The installed recorder.
static WATCHES: AtomicPtr<Observer> = AtomicPtr::new(ptr::from_ref(&NOBODY).cast_mut());

/// Installs a recorder.
pub fn watch(observer: &'static Observer) {
    // Relaxed: the observer is a constant.
    WATCHES.store(ptr::from_ref(observer).cast_mut(), Relaxed);
}

/// Returns the installed recorder, or an observer that ignores all events.
pub fn observer() -> &'static Observer {
    // SAFETY: the pointer comes from a `'static` reference to a constant.
    unsafe { &*WATCHES.load(Relaxed) }
}
