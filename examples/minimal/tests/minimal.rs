//! Tests of the example: the program prints the text of its page, and the platform passes the conformance
//! suite. Only one test may call the engine, because the platform has one task.

use freehold::platform::{X86_4, hw_walk};
use freehold::prelude::*;
use freehold_example_minimal::Board;
use freehold_kit::conformance::{self, Kernel, NotRun};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn program_prints_the_text_of_its_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_freehold-example-minimal")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let page = include_str!("../README.md");
    let shown = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(Some(printed.as_str()), shown);
    assert!(output.status.success() && printed.ends_with("\n0 frames leaked\n"));
}

/// The CPU of the board, for the conformance suite.
struct Cpu;

impl Kernel<Board> for Cpu {
    fn load(&self, board: &Board, root: &Pfn, address: u64) -> Result<Option<u64>, NotRun> {
        let at = VirtAddr::new(address);
        let found = hw_walk::<X86_4, Board>(board, *root, at, Access::READ);
        Ok(found.ok().map(|found| board.word(found.pfn, at.page_offset()).load(Relaxed)))
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }
}

#[test]
fn platform_passes_the_conformance_suite() {
    let board = Board::new(4096);
    // The board has no blocks and runs of frames, no second task, and no walks without a lock.
    conformance::platform(&board, &Cpu).assert_passed(&[
        "frames::blocks",
        "frames::runs",
        "cpus::numbers",
        "waits::differs",
        "waits::wake_one",
        "waits::wake_all",
        "waits::wake_killable",
        "waits::killed",
        "grace::other_reader",
        "grace::barrier",
        "spaces::flush_elsewhere",
        "spaces::walks",
    ]);
    let engine = Engine::new(board, Config::new()).unwrap();
    conformance::engine(&engine, &Cpu).assert_passed(&["engine::charges", "engine::pager"]);
}
