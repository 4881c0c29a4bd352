//! Tests of the example: the program prints the text of its page, and no call changes the kernel's memory.
//! Only one test may call the engine, because the platform has one task.

use freehold::prelude::*;
use freehold_example_unikernel::{KERNEL_WORD, Kernel, PROGRAM};
use std::process::Command;

/// The number of EPERM.
const EPERM: i32 = 1;

#[test]
fn program_prints_the_text_of_its_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_freehold-example-unikernel")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let page = include_str!("../README.md");
    let shown = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(Some(printed.as_str()), shown);
    assert!(output.status.success() && printed.ends_with("\n0 frames leaked\n"));
}

#[test]
fn calls_cannot_change_the_kernel_or_the_anchors() {
    let kernel = Kernel::new(256).unwrap();
    kernel.store(KERNEL_WORD, 42).unwrap();
    let second = PROGRAM.start.midpoint(PROGRAM.end);
    for at in [KERNEL_WORD, PROGRAM.start, second, PROGRAM.end] {
        assert_eq!(kernel.munmap(at, PAGE_SIZE), Err(EPERM), "{at:#x}");
        assert_eq!(kernel.mprotect(at, PAGE_SIZE, Prot::READ | Prot::WRITE), Err(EPERM), "{at:#x}");
    }
    assert_eq!(kernel.munmap(PROGRAM.start, PROGRAM.end - PROGRAM.start), Err(EPERM));

    // A mapping of more than half of the addresses has pages in both entries of the root.
    let (len, rw) = (PROGRAM.end - second - (1 << 30), Prot::READ | Prot::WRITE);
    let mapped = [(); 2].map(|()| kernel.mmap(len, rw).unwrap());
    assert!(mapped.iter().any(|at| *at < second) && mapped.iter().any(|at| *at > second));
    assert!(kernel.mmap(len, rw).is_err(), "all addresses of the program are in use");
    for (at, value) in mapped.into_iter().zip(1..) {
        kernel.store(at, value).unwrap();
        assert_eq!(kernel.load(at), Ok(value));
        kernel.check();
    }
    for at in mapped {
        kernel.munmap(at, len).unwrap();
        assert!(kernel.load(at).is_err());
        kernel.check();
    }
    assert_eq!((kernel.load(KERNEL_WORD), kernel.resident()), (Ok(42), 0));
}
