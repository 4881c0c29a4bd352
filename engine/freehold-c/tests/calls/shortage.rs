//! Tests of calls that find no frames. `tests/c.rs` has tests of calls that find no memory in the heap.

use super::kernel::*;
use freehold_c::call::{engine::*, fault::*, mapping::*, space::*};
use std::ptr::{null, null_mut};

#[test]
fn calls_without_frames_return_enomem() {
    boot();
    let mut engine = null_mut();
    assert_eq!(i64::from(with_frames(0, || unsafe { fh_engine_new(&mut engine) })), -ENOMEM);
    assert!(engine.is_null());

    let engine = Engine::new();
    let mut space = null_mut();
    assert_eq!(i64::from(with_frames(0, || unsafe { fh_space_new(engine.0, &mut space) })), -ENOMEM);
    assert!(space.is_null());

    let space = Space::new(&engine);
    let at = space.map(600);
    let mut signal = SignalInfo { number: 0, code: 0, address: 0, address_lsb: 0 };
    let fault = || unsafe { fh_fault(space.0, at, ACCESS_WRITE, &mut signal) };
    assert_eq!(i64::from(with_frames(0, fault)), -ENOMEM);
    assert_eq!(signal.number, 0, "the program gets no signal");
    space.store(at, 1).unwrap();

    let mut child = null_mut();
    assert_eq!(i64::from(with_frames(1, || unsafe { fh_fork(space.0, &mut child) })), -ENOMEM);
    assert!(child.is_null());
    assert_eq!(space.load(at).unwrap(), 1);
    let populated = || unsafe { fh_mmap(space.0, 0, 600 * PAGE, RW, PRIVATE, null(), 0) };
    assert!(with_frames(0, populated) > 0, "a mapping needs no frames");
}
