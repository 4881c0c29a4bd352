//! Threads of two processes map, touch, protect, move, fork and unmap in the same windows (C-4, C-21, C-22,
//! C-56).
//!
//! Each thread owns a window and knows at every moment what each page must hold: a tag of the address and of
//! the writer. One more window is shared by all threads: a page there may hold nothing, or a tag that a
//! thread of this process wrote to that page. The tag reveals a page that appears at another address or in
//! the other process, or that is used after it was freed. The machine reveals a translation that outlived its
//! page.
//!
//! The calls of each thread come from fixed seeds, but the interleaving is that of the host and differs
//! between runs. A failure names the address. `lab/freehold-machine/tests/shuttle_engine` has smaller
//! scenarios whose schedules can be repeated.
//!
//! A new kind of change is one more arm of `Worker::run`. The change must also update the expected pages
//! (`Worker::set`).

use super::*;
use freehold::{
    call::{Advice, RemapFlags},
    fault::FaultError,
};
use std::sync::Barrier;

/// Number of pages in a window.
const PAGES: u64 = 48;
/// Distance between two windows: each begins in the middle of a page table that it shares with its neighbour.
const STRIDE: u64 = 300 * PAGE;
const THREADS: u64 = 2;
const ROUNDS: u64 = 6000;

/// Returns a few pages of a window.
fn part(dice: &mut Dice) -> (u64, u64) {
    let first = dice.roll(PAGES);
    (first, 1 + dice.roll((PAGES - first).min(12)))
}

/// Returns the value that a thread stores at an address in a round.
fn tag(addr: u64, owner: u64, round: u64) -> u64 {
    addr ^ owner << 8 ^ round << 40
}

/// Returns true if `found` is zero, or if a thread of the process of `owner` wrote it to `addr`.
fn belongs(found: u64, addr: u64, owner: u64) -> bool {
    found == 0 || (found ^ addr) & 0xff_ffff_ff00 == owner << 8
}

/// Expected state of a page of a thread's window.
#[derive(Clone, Copy, PartialEq)]
struct Page {
    mapped: bool,
    writable: bool,
    value: u64,
}

const GONE: Page = Page { mapped: false, writable: false, value: 0 };

/// One thread, with its window and the expected contents of the window.
struct Worker<'w> {
    process: &'w Process,
    cpu: Vcpu,
    dice: Dice,
    base: u64,
    owner: u64,
    pages: Vec<Page>,
}

impl Worker<'_> {
    fn at(&self, page: u64) -> u64 {
        self.base + page * PAGE
    }

    fn set(&mut self, (first, pages): (u64, u64), change: impl Fn(&mut Page)) {
        self.pages[first as usize..(first + pages) as usize].iter_mut().for_each(change);
    }

    fn map(&mut self, part: (u64, u64), prot: Prot) {
        let flags = ANON | MapFlags::FIXED;
        self.process.mmap(self.at(part.0), part.1 * PAGE, prot, flags, None, 0).unwrap();
        self.set(part, |page| *page = Page { mapped: true, writable: prot == RW, value: 0 });
    }

    fn protect(&mut self, part: (u64, u64), prot: Prot) {
        // mprotect stops at a hole. The range before the hole has the new rights.
        let done = self.process.mprotect(self.at(part.0), part.1 * PAGE, prot);
        let held =
            self.pages[part.0 as usize..].iter().take(part.1 as usize).take_while(|page| page.mapped).count();
        assert_eq!(done.is_ok(), held as u64 == part.1);
        self.set((part.0, held as u64), |page| page.writable = prot == RW);
    }

    fn discard(&mut self, part: (u64, u64)) {
        let _ = self.process.madvise(self.at(part.0), part.1 * PAGE, Advice::DontNeed);
        self.set(part, |page| page.value = 0);
    }

    fn touch(&mut self, page: u64, round: u64) {
        let (addr, known) = (self.at(page), self.pages[page as usize]);
        let value = tag(addr, self.owner, round);
        match self.process.store(&mut self.cpu, addr, value) {
            Ok(()) => {
                assert!(known.mapped && known.writable, "a store to {addr:#x} went through");
                self.pages[page as usize].value = value;
            }
            Err(error) => {
                assert!(matches!(error, FaultError::Segv { .. }), "{error:?}");
                assert!(!(known.mapped && known.writable), "a store to {addr:#x}: {error:?}");
            }
        }
    }

    /// Moves a page to another place of the window, in place of the page there.
    fn carry(&mut self, from: u64, to: u64) {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        if from == to || !self.pages[from as usize].mapped {
            return;
        }
        let moved = self.process.mremap(self.at(from), PAGE, PAGE, flags, self.at(to));
        assert_eq!(moved, Ok(self.at(to)));
        self.pages[to as usize] = self.pages[from as usize];
        self.pages[from as usize] = GONE;
    }

    /// Forks. The child must see the expected contents, and keep them while the parent continues.
    fn fork(&mut self, round: u64) {
        let child = Process::of(self.cpu.call(|| self.process.fork()).unwrap());
        let known = self.pages.clone();
        for page in 0..PAGES {
            self.touch(page, round);
        }
        for (page, known) in (0..).zip(&known) {
            let addr = self.at(page);
            let found = child.load::<u64>(&mut self.cpu, addr);
            assert_eq!(found.is_ok(), known.mapped);
            assert!(!known.mapped || found == Ok(known.value), "a child reads {found:x?} at {addr:#x}");
            if known.writable {
                child.store(&mut self.cpu, addr, !0u64).unwrap();
            }
        }
        child.check();
    }

    /// Uses the window that belongs to all threads of the process.
    fn share(&mut self, shared: u64, round: u64) {
        let (first, pages) = part(&mut self.dice);
        let (addr, len) = (shared + first * PAGE, pages * PAGE);
        match self.dice.roll(6) {
            0 => drop(self.process.mmap(addr, len, RW, ANON | MapFlags::FIXED, None, 0).unwrap()),
            1 => self.process.munmap(addr, len).unwrap(),
            2 => drop(self.process.mprotect(addr, len, if round.is_multiple_of(2) { R } else { RW })),
            3 => drop(self.process.madvise(addr, len, Advice::DontNeed)),
            _ => {}
        }
        for addr in (addr..addr + len).step_by(PAGE as usize) {
            let _ = self.process.store(&mut self.cpu, addr, tag(addr, self.owner, round));
            if let Ok(found) = self.process.load::<u64>(&mut self.cpu, addr) {
                assert!(belongs(found, addr, self.owner), "{found:#x} at {addr:#x}");
            }
        }
    }

    fn run(&mut self, shared: u64) {
        for round in 1..=ROUNDS {
            let part = part(&mut self.dice);
            match self.dice.roll(10) {
                0 | 1 => self.map(part, RW),
                2 => self.map(part, R),
                3 => {
                    self.process.munmap(self.at(part.0), part.1 * PAGE).unwrap();
                    self.set(part, |page| *page = GONE);
                }
                4 => self.protect(part, R),
                5 => self.protect(part, RW),
                6 => self.discard(part),
                7 => {
                    let to = self.dice.roll(PAGES);
                    self.carry(part.0, to);
                }
                8 if round.is_multiple_of(8) => self.fork(round),
                _ => self.share(shared, round),
            }
            (0..4).for_each(|_| {
                let page = self.dice.roll(PAGES);
                self.touch(page, round);
            });
            let page = self.dice.roll(PAGES);
            let (addr, known) = (self.at(page), self.pages[page as usize]);
            let found = self.process.load::<u64>(&mut self.cpu, addr);
            assert_eq!(found.ok(), known.mapped.then_some(known.value), "at {addr:#x}");
        }
    }
}

#[test]
fn concurrent_changes_keep_every_page_intact() {
    for (seed, locking) in (1..).zip(Locking::ALL) {
        let world = World::new();
        let parent = world.process(locking);
        let child = {
            let mut cpu = world.machine.cpu(7);
            anon(&parent, BASE, PAGES);
            fill(&parent, &mut cpu, BASE, PAGES, 0);
            // Zeroes are stored before the fork, so at first the two processes share the pages of the
            // windows.
            (0..PAGES).for_each(|page| parent.store(&mut cpu, BASE + page * PAGE, 0u64).unwrap());
            Process::of(parent.fork().unwrap())
        };
        let start = Barrier::new(2 * THREADS as usize);
        std::thread::scope(|scope| {
            for (number, process) in [(0, &parent), (1, &child)] {
                for thread in 0..THREADS {
                    let (world, start) = (&world, &start);
                    scope.spawn(move || {
                        let mut worker = Worker {
                            process,
                            cpu: world.machine.cpu((number * THREADS + thread) as usize),
                            dice: Dice::new(seed * 100 + number * 10 + thread),
                            base: BASE + (thread + 1) * STRIDE,
                            owner: number + 1,
                            pages: vec![GONE; PAGES as usize],
                        };
                        start.wait();
                        worker.run(BASE);
                    });
                }
            }
        });
        parent.check();
        child.check();
        drop((parent, child));
        world.end();
    }
}
