//! Tests of system calls and faults: values, and errno numbers.

use super::kernel::*;
use freehold_c::call::{fault::*, file::*, mapping::*, space::*};
use std::ptr::{null, null_mut};

#[test]
fn calls_return_values_and_errno_numbers() {
    let engine = Engine::new();
    let space = Space::new(&engine);
    let at = space.map(4);
    space.store(at, 1).unwrap();
    let s = space.0;
    unsafe {
        assert_eq!(fh_resident(s), 1);
        assert_eq!(fh_mmap(s, 0, 0, RW, PRIVATE, null(), 0), -EINVAL, "no length");
        assert_eq!(fh_mmap(s, 0, PAGE, RW, 2, null(), 0), -9, "EBADF: neither a file nor anonymous");
        assert_eq!(fh_mmap(s, at, PAGE, RW, PRIVATE | 0x10_0000, null(), 0), -EEXIST);
        assert_eq!(i64::from(fh_munmap(s, at + 1, PAGE)), -EINVAL, "not at a page");
        assert_eq!(i64::from(fh_munmap(s, at, 0)), -EINVAL);
        assert_eq!(i64::from(fh_mprotect(s, at + 4 * PAGE, PAGE, 1)), -ENOMEM, "a hole");
        assert_eq!(fh_mprotect(s, at, PAGE, 1), 0);
        assert_eq!(fh_mremap(s, at + 4 * PAGE, PAGE, 2 * PAGE, 1, 0), -EFAULT, "a hole");
        assert_eq!(i64::from(fh_madvise(s, at, PAGE, 5)), -EINVAL, "no such advice");
        assert_eq!(fh_madvise(s, at + PAGE, PAGE, 4), 0);
        assert_eq!(i64::from(fh_mlock(s, at, PAGE, 2)), -EINVAL, "no such flag");
        assert_eq!((fh_mlock(s, at, PAGE, 0), fh_munlock(s, at, PAGE)), (0, 0));
        assert_eq!(i64::from(fh_msync(s, at, PAGE, 5)), -EINVAL, "both MS_ASYNC and MS_SYNC");
        assert_eq!(fh_msync(s, at, PAGE, 4), 0);
        let mut resident = [9; 4];
        assert_eq!(fh_mincore(s, at, 4 * PAGE, resident.as_mut_ptr()), 0);
        assert_eq!(resident, [1, 0, 0, 0]);
        assert_eq!(i64::from(fh_mincore(s, at + 8 * PAGE, PAGE, resident.as_mut_ptr())), -ENOMEM);
        let heap = fh_brk(s, 0);
        assert_eq!(fh_brk(s, heap as u64 + PAGE), heap + PAGE as i64);
        let moved = fh_mremap(s, at + PAGE, 3 * PAGE, 64 * PAGE, 1, 0);
        assert!(moved > 0);
        assert_eq!(fh_munmap(s, moved as u64, 64 * PAGE), 0);
    }
}

#[test]
fn faults_return_signals() {
    let engine = Engine::new();
    let space = Space::new(&engine);
    let at = space.map(1);
    assert_eq!(space.load(at).unwrap(), 0);
    assert_eq!(unsafe { fh_mprotect(space.0, at, PAGE, 1) }, 0);
    let denied = space.store(at + 8, 1).unwrap_err();
    assert_eq!((denied.number, denied.code, denied.address), (11, 2, at + 8), "SEGV_ACCERR");
    let hole = space.load(at + PAGE).unwrap_err();
    assert_eq!((hole.number, hole.code, hole.address), (11, 1, at + PAGE), "SEGV_MAPERR");
    assert_eq!(space.access(at, ACCESS_EXEC, |_| ()).unwrap_err().code, 2);
    let mut file = null_mut();
    assert_eq!(unsafe { fh_memory_file_new(engine.0, 100, &mut file) }, 0);
    let mapped = unsafe { fh_mmap(space.0, 0, 2 * PAGE, RW, SHARED, file, 0) } as u64;
    let beyond = space.load(mapped + PAGE).unwrap_err();
    assert_eq!((beyond.number, beyond.code), (7, 2), "BUS_ADRERR");
    unsafe { fh_file_put(file) };
}

#[test]
fn fork_copies_at_the_first_store() {
    let engine = Engine::new();
    let parent = Space::new(&engine);
    let at = parent.map(2);
    parent.store(at, 1).unwrap();
    let child = parent.fork();
    child.store(at, 2).unwrap();
    assert_eq!((parent.load(at).unwrap(), child.load(at).unwrap()), (1, 2));
    assert_ne!(unsafe { fh_space_root(parent.0) }, unsafe { fh_space_root(child.0) });
}

#[test]
fn memory_is_read_and_written_for_calls() {
    let engine = Engine::new();
    let space = Space::new(&engine);
    let at = space.map(2);
    let mut out = [0; 8];
    unsafe {
        assert_eq!(fh_write_memory(space.0, at + PAGE - 4, b"abcdefgh".as_ptr().cast(), 8), 8);
        assert_eq!(fh_read_memory(space.0, at + PAGE - 4, out.as_mut_ptr().cast(), 8), 8);
        assert_eq!(&out, b"abcdefgh");
        assert_eq!(fh_read_memory(space.0, at + 2 * PAGE - 4, out.as_mut_ptr().cast(), 8), 4, "the rest");
        assert_eq!(fh_read_memory(space.0, at + 2 * PAGE, out.as_mut_ptr().cast(), 8), -EFAULT);
        assert_eq!(fh_read_memory(space.0, at, null_mut(), 0), 0);
    }
}

#[test]
fn pending_fatal_signal_ends_a_call() {
    let engine = Engine::new();
    let space = Space::new(&engine);
    let at = space.map(100);
    let mut bytes = vec![0_u8; 100 * PAGE as usize];
    let mut read = || unsafe { fh_read_memory(space.0, at, bytes.as_mut_ptr().cast(), bytes.len()) };
    assert_eq!(read(), 100 * PAGE as i64);
    KILLED.set(true);
    let before_the_end = read();
    KILLED.set(false);
    assert!(before_the_end < 100 * PAGE as i64, "{before_the_end} bytes were read");
}
