//! Tests of the sleepers of a full file under loom, which tries all schedules and the results that the memory
//! model allows.
//!
//! A task that waits for room is woken by the end of any write, or finds the room itself. It is also woken by
//! the end of a removal that holds writes back. A sleeper that is never woken makes loom report a deadlock.
//! The loops of the tests are that of `Mapping::throttle`. In most tests all pages are being written already,
//! so that a task can begin no write.

use super::Throttle;
use freehold_sync::{
    Killed,
    atomic::Ordering::Relaxed,
    testing::{LoomHost, model, model_bounded},
};
use loom::{
    sync::{Arc, Mutex},
    thread,
};

/// Creates the count of a file that is full of pages whose writes have not ended.
fn full(limit: u64) -> Arc<Throttle> {
    let throttle = Throttle::new(limit);
    (0..limit).for_each(|_| throttle.add());
    Arc::new(throttle)
}

/// Waits until the file has room.
fn wait_for_room(throttle: &Throttle) -> Result<(), Killed> {
    while !throttle.has_room() {
        throttle.wait::<LoomHost>(throttle.seen())?;
    }
    Ok(())
}

#[test]
fn end_of_a_write_wakes_a_task_that_waits_for_room() {
    model(|| {
        let throttle = full(1);
        let waiter = {
            let throttle = throttle.clone();
            thread::spawn(move || wait_for_room(&throttle))
        };
        throttle.subtract::<LoomHost>(1);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(throttle.sleepers.load(Relaxed), 0);
    });
}

/// One write ends and makes room for both tasks, because each looks at the count and adds its page later.
#[test]
fn end_of_one_write_wakes_every_task_that_waits_for_room() {
    model_bounded(3, || {
        let throttle = full(2);
        let waiter = {
            let throttle = throttle.clone();
            thread::spawn(move || wait_for_room(&throttle))
        };
        let writer = {
            let throttle = throttle.clone();
            thread::spawn(move || throttle.subtract::<LoomHost>(1))
        };
        assert_eq!(wait_for_room(&throttle), Ok(()));
        writer.join().unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}

/// One write that ends makes no room in a file with a larger limit: a quarter of the limit does.
#[test]
fn task_waits_for_a_quarter_of_the_limit() {
    model(|| {
        let throttle = full(8);
        let writer = {
            let throttle = throttle.clone();
            thread::spawn(move || (0..2).for_each(|_| throttle.subtract::<LoomHost>(1)))
        };
        assert_eq!(wait_for_room(&throttle), Ok(()));
        assert_eq!(throttle.pages.load(Relaxed), 6);
        writer.join().unwrap();
    });
}

/// Pages become dirty and are written while a task waits: each end of a write is a chance, and the last makes
/// room for good.
#[test]
fn task_waits_again_if_the_file_is_full_again() {
    model_bounded(3, || {
        let throttle = full(1);
        let waiter = {
            let throttle = throttle.clone();
            thread::spawn(move || wait_for_room(&throttle))
        };
        throttle.subtract::<LoomHost>(1);
        throttle.add();
        throttle.subtract::<LoomHost>(1);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(throttle.pages.load(Relaxed), 0);
    });
}

/// A removal holds back the only write. The mutex stands for the lock of the marks.
#[test]
fn end_of_a_removal_wakes_a_task_that_found_no_write_to_begin() {
    model(|| {
        let (throttle, held) = (full(1), Arc::new(Mutex::new(true)));
        let waiter = {
            let (throttle, held) = (throttle.clone(), held.clone());
            thread::spawn(move || {
                loop {
                    let seen = throttle.seen();
                    if !*held.lock().unwrap() {
                        return;
                    }
                    throttle.wait::<LoomHost>(seen).unwrap();
                }
            })
        };
        *held.lock().unwrap() = false;
        throttle.end_hold::<LoomHost>();
        waiter.join().unwrap();
    });
}

#[test]
fn fatal_signal_ends_the_wait_for_room() {
    model(|| {
        let throttle = full(1);
        let waiter = LoomHost::current_task();
        let killer = thread::spawn(move || waiter.kill());
        assert_eq!(wait_for_room(&throttle), Err(Killed));
        killer.join().unwrap();
        assert_eq!(throttle.sleepers.load(Relaxed), 0);
    });
}
