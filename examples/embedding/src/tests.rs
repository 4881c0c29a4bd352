//! Tests of the example: it runs, supports threads, and frees all memory.
//!
//! An example that does not work misleads its readers, so it is tested like the engine. The tests use
//! [`Program`] of `main.rs` and a [`Board`] of `kernel.rs`. Two boards have little memory, so their frames
//! soon run out if frames are not freed. `check` of the address space then compares the engine's structures
//! with each other.

use super::{Board, Program, main};
use freehold::prelude::*;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

#[test]
fn example_runs_without_error() {
    main().unwrap();
}

#[test]
fn unmapped_frames_can_be_allocated_again() {
    let engine = Engine::new(Board::new(256), Config::new()).unwrap();
    let program = Program(AddressSpace::new(&engine, &SpaceConfig::new()).unwrap());
    // Maps more memory in total than the board has. If frames were not freed, they would run out.
    for turn in 0..20 {
        let at = program.0.mmap(0, 64 * PAGE_SIZE, RW, ANON, None, 0).unwrap();
        for page in 0..64 {
            program.store(at + page * PAGE_SIZE, turn).unwrap();
        }
        program.0.munmap(at, 64 * PAGE_SIZE).unwrap();
        let gone = FaultError::Segv { addr: at, code: SegvCode::Maperr };
        assert_eq!(program.load(at), Err(gone));
    }
    assert_eq!(program.0.rss().total(), 0);
    program.0.check();
    assert!(engine.platform().free_frames() > 0);
}

#[test]
fn mappings_of_huge_pages_need_the_feature() {
    let engine = Engine::new(Board::new(256), Config::new()).unwrap();
    let program = Program(AddressSpace::new(&engine, &SpaceConfig::new()).unwrap());
    let flags = ANON | MapFlags::HUGETLB | MapFlags::NORESERVE;
    let mapped = program.0.mmap(0, 2 << 20, RW, flags, None, 0);
    if cfg!(feature = "hugetlb") {
        let at = mapped.unwrap();
        assert_eq!(program.store(at, 1), Err(FaultError::Bus { addr: at }), "the pool is empty");
    } else {
        assert_eq!(mapped.unwrap_err().to_errno(), Errno::EINVAL);
    }
    program.0.check();
}

#[test]
fn threads_share_a_space() {
    let engine = Engine::new(Board::new(4096), Config::new()).unwrap();
    let program = Program(AddressSpace::new(&engine, &SpaceConfig::new()).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let program = &program;
            scope.spawn(move || {
                for turn in 0..50 {
                    let at = program.0.mmap(0, 8 * PAGE_SIZE, RW, ANON, None, 0).unwrap();
                    for page in 0..8 {
                        program.store(at + page * PAGE_SIZE, thread * 1000 + turn).unwrap();
                    }
                    for page in 0..8 {
                        assert_eq!(program.load(at + page * PAGE_SIZE), Ok(thread * 1000 + turn));
                    }
                    program.0.munmap(at, 8 * PAGE_SIZE).unwrap();
                }
            });
        }
    });
    assert_eq!(program.0.counts().map_count, 0);
    program.0.check();
}
