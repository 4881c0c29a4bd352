//! Test of the platform's limit: only the thread that calls the engine first may call it.

use freehold::platform::Host;
use freehold_example_minimal::{Board, tick};
use std::thread;

#[test]
fn a_second_task_is_refused() {
    let board = Board::new(2);
    tick();
    let calls: [fn(); 4] =
        [tick, Board::rcu_barrier, || <Board as Host>::rcu_read(), || <Board as Host>::with_cpu(|_| ())];
    for call in calls {
        assert!(thread::spawn(call).join().is_err());
    }
    drop(board);
}
