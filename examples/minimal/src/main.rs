//! The smallest program that embeds Freehold: anonymous memory, and a fork with copying on write.
//!
//! `README.md` explains the program. `cargo run --package freehold-example-minimal` runs it.
#![deny(unsafe_code)]

use freehold::prelude::*;
use freehold_example_minimal::{Board, Process};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Board::new(256), Config::new())?;
    let parent = Process(AddressSpace::new(&engine, &SpaceConfig::new())?);

    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    let at = parent.0.mmap(0, 4 * PAGE_SIZE, Prot::READ | Prot::WRITE, flags, None, 0)?;
    println!("mmap: 4 pages are mapped, {} are resident", parent.0.rss().total());
    assert_eq!(parent.0.rss().total(), 0);

    parent.store(at, 1)?;
    parent.store(at + PAGE_SIZE, 2)?;
    println!("two stores fault: {} pages are resident", parent.0.rss().total());
    assert_eq!(parent.0.rss().total(), 2);

    let child = Process(parent.0.fork()?);
    let shared = parent.translate(at, Access::READ)?;
    println!("fork: parent and child map the first page to frame {}", shared.get());
    assert_eq!(child.translate(at, Access::READ)?, shared);

    child.store(at, 10)?;
    let copy = child.translate(at, Access::READ)?;
    println!("the child stores to the first page: the page is copied to frame {}", copy.get());
    assert_ne!(copy, shared);
    for (name, process) in [("parent", &parent), ("child", &child)] {
        println!("the {name} loads {} and {}", process.load(at)?, process.load(at + PAGE_SIZE)?);
    }
    assert_eq!((parent.load(at)?, parent.load(at + PAGE_SIZE)?), (1, 2));
    assert_eq!((child.load(at)?, child.load(at + PAGE_SIZE)?), (10, 2));

    parent.0.munmap(at, 4 * PAGE_SIZE)?;
    let segv = FaultError::Segv { addr: at, code: SegvCode::Maperr };
    assert_eq!(parent.load(at), Err(segv));
    assert_eq!(child.load(at + PAGE_SIZE)?, 2, "the child keeps its memory");
    println!("munmap: a load of the parent raises SIGSEGV, the child still loads {}", child.load(at)?);

    // The engine drops the board, which counts its frames.
    drop((parent, child));
    drop(engine);
    Ok(())
}
