//! Tests with threads: changes of one space, and the grace periods of the library.

use super::kernel::*;
use freehold_c::call::mapping::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

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

/// Checks that a deferred function waits for a read section of another thread, and that a thread that sleeps
/// outside of sections delays nothing.
#[test]
fn deferred_function_waits_for_open_sections() {
    use freehold_c::Kernel;
    use freehold_vmspace::platform::{Host, RcuHead};
    use std::ptr::NonNull;
    use std::sync::mpsc::channel;

    static RAN: AtomicBool = AtomicBool::new(false);
    boot();
    let ((opened, is_open), (close, may_close)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let ran = scope.spawn(move || {
            let section = Kernel::rcu_read();
            let inner = Kernel::rcu_read();
            opened.send(()).unwrap();
            may_close.recv().unwrap();
            drop(section);
            let ran = RAN.load(SeqCst);
            drop(inner);
            // Sleeps outside of sections until the end of the test.
            (ran, may_close.recv())
        });
        is_open.recv().unwrap();
        let head = Box::leak(Box::new(RcuHead::new()));
        unsafe { Kernel::rcu_defer(NonNull::from(head), |_| RAN.store(true, SeqCst)) };
        for _ in 0..10 {
            freehold_c::fh_tick();
            assert!(!RAN.load(SeqCst), "a section is open");
        }
        close.send(()).unwrap();
        freehold_c::fh_rcu_barrier();
        assert!(RAN.load(SeqCst));
        drop(close);
        assert!(!ran.join().unwrap().0, "the inner section was open");
    });
}
