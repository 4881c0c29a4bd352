//! Test of a kernel that provides optional functions: an RCU, memory for page tables, records of spaces.
#![expect(unsafe_code, reason = "calls functions in C's calling convention")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "all calls keep the rules at the head of the header")]

#[allow(dead_code, reason = "shared with the tests of the calls")]
#[path = "calls/kernel.rs"]
mod kernel;

use freehold_c::call::{boot::*, fault::*, space::*};
use freehold_c::{DeferredHead, FrameRequest, PlatformOps};
use kernel::{ENOMEM, Engine, PAGE, Space, with_frames};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

thread_local! {
    // One thread runs the test, so the state of the kernel is that of a thread.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: Cell<*mut DeferredHead> = const { Cell::new(null_mut()) };
    static DEFERS: Cell<u32> = const { Cell::new(0) };
    static SPINS: Cell<i32> = const { Cell::new(0) };
    static TABLES: Cell<i64> = const { Cell::new(0) };
    static SPACES: Cell<i64> = const { Cell::new(0) };
    static ZEROED: Cell<u32> = const { Cell::new(0) };
    static COPIED: Cell<u32> = const { Cell::new(0) };
    static SHORTAGES: Cell<u32> = const { Cell::new(0) };
    static FLUSHED: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

fn add(count: &'static std::thread::LocalKey<Cell<i64>>, by: i64) {
    count.set(count.get() + by);
}

unsafe extern "C" fn rcu_read_enter() {
    SECTIONS.set(SECTIONS.get() + 1);
}

unsafe extern "C" fn rcu_read_exit() {
    SECTIONS.set(SECTIONS.get() - 1);
}

unsafe extern "C" fn rcu_defer(head: *mut DeferredHead) {
    unsafe { (*head).next = DEFERRED.replace(head) };
    DEFERS.set(DEFERS.get() + 1);
}

unsafe extern "C" fn rcu_barrier() {
    assert_eq!(SECTIONS.get(), 0);
    let mut head = DEFERRED.take();
    while !head.is_null() {
        let next = unsafe { (*head).next };
        unsafe { freehold_c::fh_rcu_run(head) };
        head = next;
    }
}

unsafe extern "C" fn spin_enter() {
    SPINS.set(SPINS.get() + 1);
}

unsafe extern "C" fn spin_exit() {
    SPINS.set(SPINS.get() - 1);
}

unsafe extern "C" fn alloc_table(root: u64, table: *mut u64) -> bool {
    assert!(root != 0 && (root == NO_FRAME || TABLES.get() > 0));
    let request = FrameRequest { order: 0, purpose: 2, space: null_mut(), opportunistic: false };
    let found = unsafe { kernel::ops().alloc_frames.unwrap()(&request, table, 1) } == 1;
    if found {
        unsafe { kernel::page(*table).write_bytes(0, PAGE as usize) };
        add(&TABLES, 1);
    }
    found
}

unsafe extern "C" fn free_table(table: u64) {
    let bytes = unsafe { std::slice::from_raw_parts(kernel::page(table), PAGE as usize) };
    assert!(bytes.iter().all(|byte| *byte == 0), "a freed table contains zeroes");
    unsafe { kernel::ops().free_frames.unwrap()(&table, 1) };
    add(&TABLES, -1);
}

unsafe extern "C" fn space_created(root: u64, space: *mut *mut c_void) -> bool {
    add(&SPACES, 1);
    unsafe { space.write((root << 8) as *mut c_void) };
    true
}

unsafe extern "C" fn space_ending(space: *mut c_void, root: u64) {
    assert_eq!(space.addr() as u64, root << 8);
    add(&SPACES, -1);
}

unsafe extern "C" fn runs_elsewhere(_: *mut c_void) -> bool {
    false
}

unsafe extern "C" fn flush(space: *mut c_void, request: *const freehold_c::FlushRequest) {
    assert_eq!(space.addr() as u64, unsafe { (*request).root } << 8);
    FLUSHED.set(space);
}

unsafe extern "C" fn zero_frame(frame: u64) {
    ZEROED.set(ZEROED.get() + 1);
    unsafe { kernel::page(frame).write_bytes(0, PAGE as usize) };
}

unsafe extern "C" fn copy_frame(to: u64, from: u64) {
    COPIED.set(COPIED.get() + 1);
    unsafe { kernel::page(from).copy_to_nonoverlapping(kernel::page(to), PAGE as usize) };
}

unsafe extern "C" fn memory_short(order: u32, round: u32) -> bool {
    assert_eq!((order, round, SECTIONS.get(), SPINS.get()), (0, SHORTAGES.get(), 0, 0));
    SHORTAGES.set(SHORTAGES.get() + 1);
    round < 2
}

fn ops() -> PlatformOps {
    PlatformOps {
        flush: Some(flush),
        rcu_read_enter: Some(rcu_read_enter),
        rcu_read_exit: Some(rcu_read_exit),
        rcu_defer: Some(rcu_defer),
        rcu_barrier: Some(rcu_barrier),
        spin_enter: Some(spin_enter),
        spin_exit: Some(spin_exit),
        alloc_table: Some(alloc_table),
        free_table: Some(free_table),
        space_created: Some(space_created),
        space_ending: Some(space_ending),
        runs_elsewhere: Some(runs_elsewhere),
        zero_frame: Some(zero_frame),
        copy_frame: Some(copy_frame),
        memory_short: Some(memory_short),
        ..kernel::ops()
    }
}

#[test]
fn optional_functions_replace_those_of_the_library() {
    assert_eq!(unsafe { fh_init(&ops(), &kernel::machine()) }, 0);
    let free = kernel::frames_free();
    let engine = Engine::booted();
    let parent = Space::new(&engine);
    let record = unsafe { fh_space_record(parent.0) };
    assert_eq!(record.addr() as u64, unsafe { fh_space_root(parent.0) } << 8);
    let at = parent.map(2);
    parent.store(at, 1).unwrap();
    let child = parent.fork();
    child.store(at, 2).unwrap();
    assert_eq!((parent.load(at).unwrap(), child.load(at).unwrap()), (1, 2));
    assert!(TABLES.get() >= 8 && ZEROED.get() > 0 && COPIED.get() == 1 && !FLUSHED.get().is_null());
    assert_eq!((SPACES.get(), SECTIONS.get(), SPINS.get()), (2, 0, 0));

    // The kernel is asked three times, and the third answer ends the call.
    unsafe { freehold_c::call::engine::fh_trim(engine.0) };
    let mut signal = SignalInfo { number: 0, code: 0, address: 0, address_lsb: 0 };
    let fault = || unsafe { fh_fault(child.0, at + PAGE, ACCESS_WRITE, &mut signal) };
    assert_eq!((i64::from(with_frames(0, fault)), SHORTAGES.get()), (-ENOMEM, 3));

    drop((parent, child));
    drop(engine);
    freehold_c::fh_tick();
    freehold_c::fh_rcu_barrier();
    assert_eq!((SPACES.get(), TABLES.get(), kernel::frames_free()), (0, 0, free));
    assert!(DEFERS.get() > 0 && DEFERRED.get().is_null());
}
