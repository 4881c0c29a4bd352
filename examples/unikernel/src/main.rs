//! The program of a unikernel: memory on demand beside the kernel's own memory.
//!
//! `README.md` explains the program. `cargo run --package freehold-example-unikernel` runs it.
#![deny(unsafe_code)]

use freehold::prelude::*;
use freehold_example_unikernel::{KERNEL_WORD, Kernel};
use std::error::Error;

const RW: Prot = Prot::READ.union(Prot::WRITE);

fn main() -> Result<(), Box<dyn Error>> {
    let kernel = Kernel::new(256)?;
    kernel.store(KERNEL_WORD, 42)?;

    let at = kernel.mmap(16 * PAGE_SIZE, RW).map_err(errno)?;
    println!("mmap: 16 pages are mapped, {} are resident", kernel.resident());
    kernel.store(at + PAGE_SIZE, 7)?;
    println!("a store faults in kernel mode: {} page is resident", kernel.resident());
    assert_eq!((kernel.load(at)?, kernel.load(at + PAGE_SIZE)?), (0, 7));

    let refused = kernel.munmap(KERNEL_WORD, PAGE_SIZE);
    println!("munmap of the kernel's memory: error {}", refused.unwrap_err());
    assert_eq!(kernel.load(KERNEL_WORD)?, 42);

    kernel.mprotect(at, 16 * PAGE_SIZE, Prot::READ).map_err(errno)?;
    println!("a store after mprotect: {}", kernel.store(at + PAGE_SIZE, 8).unwrap_err());
    kernel.munmap(at, 16 * PAGE_SIZE).map_err(errno)?;

    // A runtime reserves addresses, and opens the first pages when it needs them.
    let heap = kernel.mmap(4 << 30, Prot::empty()).map_err(errno)?;
    kernel.mprotect(heap, 2 * PAGE_SIZE, RW).map_err(errno)?;
    kernel.store(heap, 1)?;
    println!("4 GiB are reserved, 2 pages are opened, {} is resident", kernel.resident());
    assert!(kernel.store(heap + 2 * PAGE_SIZE, 1).is_err());
    kernel.munmap(heap, 4 << 30).map_err(errno)?;

    write_to_a_device(&kernel)?;
    kernel.check();
    println!("the end: {} pages are resident", kernel.resident());
    assert_eq!(kernel.resident(), 0);
    Ok(())
}

/// Passes a buffer that the program has not touched to a driver, which must not fault.
fn write_to_a_device(kernel: &Kernel) -> Result<(), Box<dyn Error>> {
    let buffer = kernel.mmap(3 * PAGE_SIZE, RW).map_err(errno)?;
    let present = || {
        let pages = (0..3).map(|page| buffer + page * PAGE_SIZE);
        pages.filter(|page| kernel.present(*page, Access::READ).is_some()).count()
    };
    assert_eq!(present(), 0);
    kernel.fault_in(buffer..buffer + 3 * PAGE_SIZE, Access::READ)?;
    println!("a driver finds {} pages of the buffer without a fault", present());
    assert_eq!(present(), 3);
    kernel.munmap(buffer, 3 * PAGE_SIZE).map_err(errno)?;
    Ok(())
}

fn errno(number: i32) -> String {
    format!("error {number}")
}
