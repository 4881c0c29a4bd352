//! Random calls on mappings of a device by a process and its children. At any time the number of opened and
//! not yet closed VMAs equals the number of existing VMAs (C-31, C-33), and mapped pages have the expected
//! contents (C-30).
//!
//! The driver's mode changes at random too. The model knows which page of the board backs a page, as far as
//! that is certain after failed calls. A failure names its seed. A new call is one more arm of
//! `Player::play`.

use super::*;
use freehold::call::{Advice, LockFlags, RemapFlags};
use std::{collections::BTreeMap, sync::Arc};

/// Number of pages in the test window.
const SIZE: u64 = 40;
const ROUNDS: u64 = 150;

/// Page of the board that backs each page of the window, as far as it is known.
type Known = BTreeMap<u64, u64>;

/// Removes pages from the model.
fn forget(known: &mut Known, first: u64, pages: u64) {
    known.retain(|page, _| !(first..first + pages).contains(page));
}

/// A process that makes random calls, and its model.
struct Player<'w> {
    process: Process,
    known: Known,
    board: &'w Arc<Board>,
    file: &'w Counted<File<Machine>>,
}

impl Player<'_> {
    fn vmas(&self) -> u64 {
        self.process.maps(0).filter(|line| line.name.as_str() == "/dev/board").count() as u64
    }

    fn play(&mut self, dice: &mut Dice) {
        let (first, pages) = (dice.roll(SIZE - 8), 1 + dice.roll(8));
        let (at, len, process) = (BASE + first * PAGE, pages * PAGE, &self.process);
        match dice.roll(12) {
            0..3 => {
                let whole = dice.roll(3);
                {
                    let mut driver_mode = self.board.driver_mode();
                    driver_mode.whole = [None, Some(u64::MAX), Some(dice.roll(9))][whole as usize];
                    driver_mode.splits = dice.roll(4) > 0;
                    driver_mode.one_for_all = dice.roll(2) > 0 && whole == 0;
                }
                let kind = if dice.roll(2) > 0 { SHARED } else { PRIVATE };
                let offset = dice.roll(PAGES - 1);
                let pages = pages.min(PAGES - offset);
                if process.mmap(at, pages * PAGE, R, kind, Some(self.file), offset * PAGE).is_ok() {
                    self.known.extend((0..pages).map(|page| (first + page, offset + page)));
                }
            }
            3 => {
                if process.munmap(at, len).is_ok() {
                    forget(&mut self.known, first, pages);
                }
            }
            4 => {
                if process.mmap(at, len, RW, ANON | MapFlags::FIXED, None, 0).is_ok() {
                    forget(&mut self.known, first, pages);
                }
            }
            5..7 => {
                let to = dice.roll(SIZE - 8);
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let moved = process.mremap(at, len, len, flags, BASE + to * PAGE).is_ok();
                let found: Vec<_> = (0..pages).map(|page| self.known.get(&(first + page)).copied()).collect();
                if to.abs_diff(first) >= pages {
                    // A refused move may have unmapped the target and may have moved some of several VMAs.
                    forget(&mut self.known, to, pages);
                    forget(&mut self.known, first, pages);
                }
                for (page, found) in (to..).zip(found).filter(|_| moved) {
                    self.known.extend(found.map(|found| (page, found)));
                }
            }
            7 => drop(process.mprotect(at, len, if dice.roll(2) > 0 { R } else { Prot::empty() })),
            8 => drop(process.madvise(
                at,
                len,
                if dice.roll(2) > 0 { Advice::DontFork } else { Advice::DoFork },
            )),
            9 => drop(process.set_policy(at, len, dice.roll(2))),
            10 => drop(process.mlock2(at, len, LockFlags::ONFAULT)),
            _ => self.file.mapping().revoke((dice.roll(PAGES)..PAGES).into(), dice.roll(2) > 0),
        }
    }

    fn look(&self, cpu: &mut Vcpu) {
        for (page, known) in &self.known {
            if let Ok(found) = self.process.load::<u64>(cpu, BASE + page * PAGE) {
                assert_eq!(found, Board::number(*known), "page {page}");
            }
        }
    }
}

#[test]
fn c31_random_calls_open_and_close_each_vma_once() {
    let mut tried = 0;
    for seed in 0..if cfg!(debug_assertions) { 4 } else { 12 } {
        everywhere(|world, process, cpu| {
            let mut dice = Dice::new(seed);
            let board = Board::new(&world.machine);
            let file = board.open(world);
            let first = Player { process: process.clone(), known: Known::new(), board: &board, file: &file };
            let mut players = vec![first];
            for _ in 0..ROUNDS {
                let chosen = dice.roll(players.len() as u64) as usize;
                match dice.roll(20) {
                    0 if players.len() < 4 => {
                        let parent = &players[chosen];
                        let child = Process::of(parent.process.fork().unwrap());
                        players.push(Player { process: child, known: parent.known.clone(), ..*parent });
                    }
                    1 if chosen > 0 => drop(players.remove(chosen)),
                    _ => players[chosen].play(&mut dice),
                }
                let vmas: u64 = players.iter().map(Player::vmas).sum();
                assert_eq!(
                    board.open_vmas(),
                    vmas,
                    "seed {seed}: number of open VMAs (left) and of existing VMAs"
                );
                players.iter().for_each(|player| player.look(cpu));
            }
            players.iter().for_each(|player| player.process.check());
            drop(players);
            // An unsplittable VMA may extend over the end of the range. Such a VMA is unmapped with the
            // process.
            let _ = process.munmap(BASE, 64 * PAGE);
            if process.counts().map_count == 0 {
                drop(file);
                board.assert_closed();
            }
        });
        tried += 1;
    }
    assert!(tried > 0);
}
