//! A program that embeds Freehold: `kernel.rs` implements the platform, and this file uses the engine.
//!
//! `cargo run --package freehold-example-embedding` runs the program in the repository. The package
//! `freehold` has copies of the three files, for a project that depends on `freehold` and `freehold-kit`.
//!
//! `main` creates an address space, stores to its memory, forks it, changes rights, and prints what the two
//! processes see. There are no real programs: `Program` acts as the hardware that runs a program. It walks
//! the page tables for each load and store, and calls the fault handler of the engine if the walk finds no
//! translation. A real kernel has a CPU that walks, and a fault entry that makes this call. `tests.rs` runs
//! the example. `cargo xtask package` builds the example from the packages alone, so it must work without the
//! cargo features of `freehold` and with no other dependency.
#![deny(unsafe_code)]

mod kernel;

use freehold::platform::{
    X86_4,
    atomic::{AtomicU64, Ordering::SeqCst},
    hw_walk,
};
use freehold::prelude::*;
use kernel::Board;
use std::error::Error;

/// A program's view of its memory.
struct Program(Counted<AddressSpace<Board>>);

impl Program {
    fn load(&self, address: u64) -> Result<u64, FaultError> {
        self.access(address, Access::READ, |word| word.load(SeqCst))
    }

    fn store(&self, address: u64, value: u64) -> Result<(), FaultError> {
        self.access(address, Access::WRITE, |word| word.store(value, SeqCst))
    }

    /// Acts as the CPU: walks the tables. On a fault, calls the engine and tries again.
    fn access<R>(
        &self,
        address: u64,
        access: Access,
        f: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, FaultError> {
        let (board, mmu, mut f) = (self.0.engine().platform(), self.0.mmu(), Some(f));
        loop {
            let done = kernel::run(mmu, || {
                let found = hw_walk::<X86_4, Board>(board, mmu.root(), VirtAddr::new(address), access);
                let word = board.word(found.ok()?.pfn, (address % PAGE_SIZE) as usize);
                f.take().map(|f| f(word))
            });
            if let Some(result) = done {
                return Ok(result);
            }
            self.0.handle_fault(address, access)?;
            kernel::tick();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Board::new(4096), Config::new())?;
    let program = Program(AddressSpace::new(&engine, &SpaceConfig::new())?);

    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    let at = program.0.mmap(0, 16 * PAGE_SIZE, Prot::READ | Prot::WRITE, flags, None, 0)?;
    program.store(at, 1)?;
    program.store(at + PAGE_SIZE, 2)?;
    println!(
        "the program stores 1 and 2 in two pages and reads {} from a third",
        program.load(at + 2 * PAGE_SIZE)?
    );

    let child = Program(program.0.fork()?);
    program.store(at, 10)?;
    child.store(at + PAGE_SIZE, 20)?;
    for (who, space) in [("the parent", &program), ("its child", &child)] {
        println!("{who} sees {} and {}", space.load(at)?, space.load(at + PAGE_SIZE)?);
    }
    assert_eq!((program.load(at)?, program.load(at + PAGE_SIZE)?), (10, 2));
    assert_eq!((child.load(at)?, child.load(at + PAGE_SIZE)?), (1, 20));

    program.0.mprotect(at, PAGE_SIZE, Prot::READ)?;
    program.0.munmap(at + 8 * PAGE_SIZE, PAGE_SIZE)?;
    println!("store to a read-only page: {:?}", program.store(at, 11));
    println!("load from an unmapped page: {:?}", program.load(at + 8 * PAGE_SIZE));
    println!("{} resident pages; mapped:", program.0.rss().total());
    for line in program.0.maps(0) {
        println!("{line}");
    }
    drop((program, child));
    engine.trim();
    println!(
        "{} of 4095 frames are free; the engine keeps the page of zeroes",
        engine.platform().free_frames()
    );
    Ok(())
}

#[cfg(test)]
mod tests;
