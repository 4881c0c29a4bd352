//! Tests of the count of writers under loom, which tries all schedules and the results that the memory model
//! allows.
#![expect(unsafe_code, reason = "the contents of a page, which loom checks")]

use super::*;
use freehold_sync::testing::model;
use loom::{cell::UnsafeCell, sync::Arc, thread};

struct File {
    sealing: Sealing,
    contents: UnsafeCell<u32>,
}

// SAFETY: writers are counted, and the contents are read when there is none; loom checks that this
// suffices.
unsafe impl Sync for File {}
// SAFETY: the contents are a number.
unsafe impl Send for File {}

/// A writer stores and leaves. A task that has denied writers then reads the contents, which do not change
/// any more.
#[test]
fn stores_of_a_writer_happen_before_the_seal() {
    model(|| {
        let file = Arc::new(File { sealing: Sealing::new(true), contents: UnsafeCell::new(0) });
        assert!(file.sealing.allow());
        let writer = {
            let file = file.clone();
            thread::spawn(move || {
                // SAFETY: loom checks the access.
                file.contents.with_mut(|contents| unsafe { *contents = 1 });
                file.sealing.leave();
                // Another mapping comes and goes, unless writers are denied.
                if file.sealing.allow() {
                    file.sealing.leave();
                }
            })
        };
        if file.sealing.deny() {
            // SAFETY: as above.
            assert_eq!(file.contents.with(|contents| unsafe { *contents }), 1);
            assert!(!file.sealing.allow());
        }
        writer.join().unwrap();
    });
}
