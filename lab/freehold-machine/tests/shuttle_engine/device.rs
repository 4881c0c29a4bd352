//! Steps that scenarios with a device share: a file that the scene's process maps, a queue of requests that a
//! thread of the scenario serves, and the end of the scene.
//!
//! `reads.rs`, `writes.rs`, `permits.rs` and `removals.rs` use these steps with pagers of their own.

use crate::{
    explore::thread,
    files::Opened,
    scene::{PAGE, RW, Scene, page, unmap},
};
use freehold::{
    file::{File, FileAccess, Mapping, Pager},
    space::{Locking, MapFlags},
};
use freehold_machine::Machine;
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Number of pages of the file, and of the largest request.
pub const PAGES: u64 = 2;

/// The requests that a pager has got and that no thread has served yet.
// A lock of the standard library, which is held without a wait in between.
pub struct Queue<R>(Arc<Mutex<Vec<R>>>);

impl<R> Clone for Queue<R> {
    fn clone(&self) -> Self {
        Queue(self.0.clone())
    }
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Queue(Arc::default())
    }
}

impl<R> Queue<R> {
    /// Adds a request.
    pub fn push(&self, request: R) {
        self.0.lock().unwrap().push(request);
    }

    /// Serves requests by `how` until the number of tasks that may wait for one is 0.
    pub fn serve_tasks(&self, tasks: &AtomicU64, how: impl Fn(R)) {
        self.serve(|| tasks.load(SeqCst) == 0, how);
    }

    /// Serves the requests that are left by `how`.
    pub fn serve_rest(&self, how: impl Fn(R)) {
        self.serve(|| self.0.lock().unwrap().is_empty(), how);
    }

    /// Serves requests by `how`, the last first, until `is_over` returns true.
    fn serve(&self, is_over: impl Fn() -> bool, how: impl Fn(R)) {
        while !is_over() {
            let request = self.0.lock().unwrap().pop();
            match request {
                Some(request) => how(request),
                None => thread::yield_now(),
            }
        }
    }

    /// Checks that every request was served.
    #[track_caller]
    pub fn assert_empty(&self) {
        assert!(self.0.lock().unwrap().is_empty(), "a request was not served");
    }
}

/// Returns a scene, and a file with this pager that the scene's process maps at page 0.
pub fn mapped(locking: Locking, pager: impl Pager<Machine>) -> (Scene, Opened) {
    let scene = Scene::new(locking);
    let mapping = Mapping::new(&scene.engine, pager, PAGES * PAGE, false).unwrap();
    let file = File::new(&mapping, FileAccess::READ_WRITE, "device").unwrap();
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    scene.process.mmap(page(0), PAGES * PAGE, RW, flags, Some(&file), 0).unwrap();
    (scene, file)
}

/// Unmaps the file and checks it.
pub fn unmap_file(scene: &Scene, file: &Opened) {
    unmap(&scene.process, 0..PAGES);
    file.mapping().check();
}

/// Ends a scene whose file is not mapped any more.
pub fn end(scene: Scene, file: Opened) {
    drop(file);
    scene.assert_empty();
    scene.end();
}
