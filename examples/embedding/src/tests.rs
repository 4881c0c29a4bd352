//! Tests of the example: it runs, supports threads, and frees all memory.
//!
//! An example that does not work misleads its readers, so it is tested like the engine. The tests use
//! [`Program`] of `main.rs` and a [`Board`] of `kernel.rs`. Two boards have little memory, so their frames
//! soon run out if frames are not freed. `check` of the address space then compares the engine's structures
//! with each other. The suite of `freehold-kit` (feature `conformance`) checks the platform
//! function by function.

use super::{Board, Program, kernel, main};
use freehold::platform::{X86_4, hw_walk};
use freehold::prelude::*;
use freehold_kit::{
    SpaceCpus,
    conformance::{self, Kernel, NotRun},
};
use std::sync::atomic::Ordering::SeqCst;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

/// The kernel around the board, for the suite: the second task is a thread, and an access is a walk.
struct Threads;

impl Kernel<Board> for Threads {
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        std::thread::scope(|scope| {
            scope.spawn(second);
            first();
        });
        Ok(())
    }

    fn load(&self, board: &Board, mmu: &SpaceCpus, address: u64) -> Result<Option<u64>, NotRun> {
        Ok(kernel::run(mmu, || {
            let at = VirtAddr::new(address);
            let found = hw_walk::<X86_4, Board>(board, mmu.root(), at, Access::READ).ok()?;
            Some(board.word(found.pfn, at.page_offset() as usize).load(SeqCst))
        }))
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }
}

#[test]
fn platform_passes_the_conformance_suite() {
    let board = Board::new(4096);
    // No blocks and runs of frames, no signals, and no walks without a lock.
    let not_run = ["frames::blocks", "frames::runs", "waits::killed", "spaces::walks"];
    conformance::platform(&board, &Threads).assert_passed(&not_run);
    assert_eq!(board.free_frames(), 4095, "the suite frees all frames");
    let engine = Engine::new(board, Config::new()).unwrap();
    conformance::engine(&engine, &Threads).assert_passed(&["engine::charges"]);
}

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
