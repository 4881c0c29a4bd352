//! Test of `fh_init`, in a process of its own, because the call succeeds once in a process.
#![expect(unsafe_code, reason = "calls functions in C's calling convention")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "all calls keep the rules at the head of the header")]

#[allow(dead_code, reason = "shared with the tests of the calls")]
#[path = "calls/kernel.rs"]
mod kernel;

use freehold_c::call::{boot::*, engine::fh_engine_new, memory::fh_memory_new};
use freehold_c::{Machine, PlatformOps};
use kernel::{EBUSY, EINVAL, machine, ops};
use std::ptr::{null, null_mut};

fn init(ops: &PlatformOps, machine: &Machine) -> i64 {
    unsafe { fh_init(ops, machine) }.into()
}

fn wrong_arguments_are_refused() {
    let (good, board) = (ops(), machine());
    unsafe extern "C" fn nothing() {}
    let tables = [
        PlatformOps { alloc: None, ..good },
        PlatformOps { free: None, ..good },
        PlatformOps { panic: None, ..good },
        PlatformOps { wait: None, ..good },
        PlatformOps { wake: None, ..good },
        PlatformOps { cpu_enter: None, ..good },
        PlatformOps { cpu_exit: None, ..good },
        PlatformOps { alloc_frames: None, ..good },
        PlatformOps { free_frames: None, ..good },
        PlatformOps { flush: None, ..good },
        // Parts of groups.
        PlatformOps { spin_enter: Some(nothing), ..good },
        PlatformOps { rcu_read_enter: Some(nothing), rcu_read_exit: Some(nothing), ..good },
        // Sizes of no header.
        PlatformOps { size: 0, ..good },
        PlatformOps { size: good.size - 1, ..good },
        PlatformOps { size: good.size + 1, ..good },
    ];
    for (at, table) in tables.iter().enumerate() {
        assert_eq!(init(table, &board), -EINVAL, "table {at}");
    }
    let machines = [
        Machine { size: 0, ..board },
        Machine { cpus: 0, ..board },
        Machine { cpus: 257, ..board },
        Machine { frames: 0, ..board },
        Machine { first_frame: u64::MAX, ..board },
        Machine { frames: 1 << 40, ..board },
        Machine { direct_map: null_mut(), ..board },
        Machine { direct_map: board.direct_map.wrapping_byte_add(8), ..board },
        Machine { frame_records: board.frame_records.wrapping_byte_add(4), ..board },
        Machine { table_records: board.table_records.wrapping_byte_add(32), ..board },
    ];
    for (at, machine) in machines.iter().enumerate() {
        assert_eq!(init(&good, machine), -EINVAL, "machine {at}");
    }
    assert_eq!(unsafe { fh_init(null(), &board) }, -(EINVAL as i32));
    assert_eq!(unsafe { fh_init(&good, null()) }, -(EINVAL as i32));
}

#[test]
fn init_refuses_mistakes_and_succeeds_once() {
    let no_engine = || i64::from(unsafe { fh_engine_new(null_mut()) });
    assert_eq!((fh_version(), no_engine()), (0x00_0100, -EINVAL));
    assert_eq!(unsafe { fh_memory_new(null_mut()) }, -(EINVAL as i32));
    wrong_arguments_are_refused();
    assert_eq!(no_engine(), -EINVAL, "a refused call changes nothing");
    assert_eq!(init(&ops(), &machine()), 0);
    assert_eq!(init(&ops(), &machine()), -EBUSY);
    wrong_arguments_are_refused();
}
