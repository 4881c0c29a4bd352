//! Tests of walks without a lock while another CPU frees a table.

use super::Memory;
use freehold_kit::{Walker, Walkers};
use freehold_sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;

struct World {
    walkers: Walkers<2>,
    /// True while an entry points to the table.
    linked: AtomicBool,
    table: Memory,
}

impl World {
    fn walk(&self) {
        self.walkers.walk(1, || {
            if self.linked.load(Relaxed) {
                self.table.read();
            }
        });
    }
}

/// The second walk may begin before or after the end of the wait.
#[test]
fn table_is_not_freed_under_a_walk() {
    model(|| {
        let world = Arc::new(World {
            walkers: Walkers::new([Walker::new(), Walker::new()]),
            linked: AtomicBool::new(true),
            table: Memory::new(),
        });
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                world.walk();
                world.walk();
            })
        };
        world.linked.store(false, Relaxed);
        world.walkers.wait(thread::yield_now);
        world.table.free();
        other.join().unwrap();
    });
}
