//! Tests with threads: changes of one space, and the grace periods of the library.

use super::kernel::*;
use freehold_c::Kernel;
use freehold_c::call::mapping::*;
use freehold_vmspace::platform::{Host, RcuHead};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;

#[test]
fn threads_share_a_space() {
    let engine = Engine::new();
    let space = Space::new(&engine);
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let space = &space;
            scope.spawn(move || {
                for turn in 0..200 {
                    let at = space.map(8);
                    for page in 0..8 {
                        space.store(at + page * PAGE, thread * 1000 + turn).unwrap();
                    }
                    for page in 0..8 {
                        assert_eq!(space.load(at + page * PAGE).unwrap(), thread * 1000 + turn);
                    }
                    assert_eq!(unsafe { fh_munmap(space.0, at, 8 * PAGE) }, 0);
                }
            });
        }
    });
}

/// Checks that a deferred function waits for both nested read sections of another thread, and that a thread
/// that sleeps outside of sections delays nothing.
#[test]
fn deferred_function_waits_for_open_sections() {
    static RAN: AtomicBool = AtomicBool::new(false);
    boot();
    let ((steps, step), (done, is_done)) = (channel(), channel());
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let mut sections = vec![Kernel::rcu_read(), Kernel::rcu_read()];
            done.send(()).unwrap();
            // The last receive fails, at the end of the test.
            while step.recv().is_ok() {
                sections.pop();
                done.send(()).unwrap();
            }
        });
        is_done.recv().unwrap();
        let head = Box::leak(Box::new(RcuHead::new()));
        unsafe { Kernel::rcu_defer(NonNull::from(head), |_| RAN.store(true, SeqCst)) };
        for open in [2, 1] {
            (0..10).for_each(|_| freehold_c::fh_tick());
            assert!(!RAN.load(SeqCst), "{open} sections are open");
            steps.send(()).unwrap();
            is_done.recv().unwrap();
        }
        freehold_c::fh_rcu_barrier();
        assert!(RAN.load(SeqCst));
    });
}
