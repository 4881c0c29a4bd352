//! A test of the announcement of a removal under loom, which tries all schedules and the results that the
//! memory model allows.

use super::*;
use freehold_sync::{atomic::Ordering::Acquire, testing::model};
use loom::{sync::Arc, thread};

/// A fault finds an entry empty, which a removal has emptied by a relaxed exchange of another crate.
#[test]
fn fault_that_finds_a_removed_entry_finds_the_removal_announced() {
    model(|| {
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(7)));
        let fault = {
            let words = words.clone();
            thread::spawn(move || words.1.load(Acquire) != 0 || has_begun(&words.0))
        };
        begin(&words.0);
        words.1.swap(0, Relaxed);
        assert!(fault.join().unwrap(), "an empty entry is taken for memory that was never written");
    });
}
