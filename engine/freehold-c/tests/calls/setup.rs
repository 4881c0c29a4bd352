//! Tests of `fh_init`.

use super::kernel::{self, EBUSY, EINVAL, machine, ops};
use freehold_c::call::{boot::*, engine::fh_engine_new, memory::fh_memory_new};
use freehold_c::{Machine, PlatformOps};
use std::ptr::{null, null_mut};

fn init(ops: &PlatformOps, machine: &Machine) -> i64 {
    unsafe { fh_init(ops, machine) }.into()
}

/// Makes every mistake with `fh_init`, then boots the kernel.
pub fn boot_after_mistakes() {
    assert_eq!(unsafe { fh_engine_new(null_mut()) }, -(EINVAL as i32), "no fh_init before");
    assert_eq!(unsafe { fh_memory_new(null_mut()) }, -(EINVAL as i32));
    wrong_arguments_are_refused();
    assert_eq!(unsafe { fh_engine_new(null_mut()) }, -(EINVAL as i32), "a refused fh_init does nothing");
    assert_eq!(init(&ops(), &machine()), 0);
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
fn init_succeeds_once() {
    kernel::boot();
    assert_eq!(init(&ops(), &machine()), -EBUSY);
    wrong_arguments_are_refused();
    assert_eq!(fh_version(), 0x00_0100);
}
