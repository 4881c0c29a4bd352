//! Tests of stages.

use super::kernel::*;
use freehold_c::MemoryHandle;
use freehold_c::call::{fault::*, memory::*, stage::*};
use std::ptr::null_mut;

fn memory() -> *mut MemoryHandle {
    boot();
    let mut memory = null_mut();
    assert_eq!(unsafe { fh_memory_new(&mut memory) }, 0);
    memory
}

#[test]
fn stage_maps_protects_and_unmaps_pages() {
    let memory = memory();
    let mut stage = null_mut();
    unsafe {
        assert_eq!(fh_stage_new(memory, &mut stage), 0);
        fh_memory_put(memory);
        let root = fh_stage_root(stage);
        let (mut frame, mut walked) = (0, 0);
        assert_eq!(fh_stage_map(stage, PAGE, 3 * PAGE, RIGHTS_WRITE), 0);
        assert_eq!(i64::from(fh_stage_map(stage, 2 * PAGE, 4 * PAGE, 0)), -EEXIST);
        assert_eq!(i64::from(fh_stage_map(stage, 1, PAGE, 0)), -EINVAL);
        assert_eq!(i64::from(fh_stage_map(stage, 0, u64::MAX - 4095, 0)), -EINVAL);
        assert_eq!(fh_stage_resident(stage), 2);
        assert_eq!(fh_stage_translate(stage, 2 * PAGE + 5, &mut frame), 0);
        assert_eq!(fh_walk(root, 2 * PAGE + 5, ACCESS_WRITE, &mut walked), 0);
        assert_eq!(frame, walked);
        assert_eq!(i64::from(fh_walk(root, PAGE, ACCESS_EXEC, &mut walked)), -EFAULT);
        fh_stage_protect(stage, 0, u64::MAX, RIGHTS_EXEC);
        assert_eq!(i64::from(fh_walk(root, PAGE, ACCESS_WRITE, &mut walked)), -EFAULT);
        assert_eq!(fh_walk(root, PAGE, ACCESS_EXEC, &mut walked), 0);
        fh_stage_unmap(stage, 0, 2 * PAGE);
        assert_eq!(i64::from(fh_stage_translate(stage, PAGE, &mut frame)), -EFAULT);
        assert_eq!(fh_stage_resident(stage), 1);
        fh_stage_end(stage);
        fh_stage_end(null_mut());
    }
}

#[test]
fn stage_without_frames_fails_and_maps_nothing() {
    let memory = memory();
    let mut stage = null_mut();
    unsafe {
        assert_eq!(i64::from(with_frames(0, || fh_stage_new(memory, &mut stage))), -ENOMEM);
        assert!(stage.is_null());
        assert_eq!(fh_stage_new(memory, &mut stage), 0);
        // Three tables, and not all of the pages.
        let mapped = with_frames(40, || fh_stage_map(stage, 0, 400 * PAGE, 0));
        assert_eq!((i64::from(mapped), fh_stage_resident(stage)), (-ENOMEM, 0));
        fh_stage_end(stage);
        fh_memory_put(memory);
    }
}
