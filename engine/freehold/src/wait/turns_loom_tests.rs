//! A test of the sleepers of a counter under loom, which tries all schedules and the results that the memory
//! model allows. A sleeper that is never woken makes loom report a deadlock.

use super::*;
use freehold_sync::{
    publish::PublishedNumber,
    testing::{LoomHost, model_bounded},
};
use loom::{sync::Arc, thread};

/// The words of two waiters that sleep on one counter.
struct Queue {
    counter: AtomicU32,
    woken: [PublishedNumber; 2],
}

/// Two wakers wake one waiter each. Each waiter sees that its own word is set, although the wake of the other
/// one changes the counter.
#[test]
fn each_waiter_on_a_shared_counter_is_woken() {
    model_bounded(3, || {
        let queue = Arc::new(Queue { counter: AtomicU32::new(0), woken: [0; 2].map(PublishedNumber::new) });
        let waiters = [0, 1].map(|n| {
            let queue = queue.clone();
            thread::spawn(move || {
                let woken = || (queue.woken[n].get() == 1).then_some(());
                Turn::on(&queue.counter).wait_by(LoomHost::wait_killable, woken).unwrap();
            })
        });
        let wake = |queue: &Queue, n: usize| {
            queue.woken[n].publish(1);
            Turn::on(&queue.counter).wake::<LoomHost>();
        };
        wake(&queue, 0);
        wake(&queue, 1);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}
