//! Threads store to the same huge pages or blocks while other threads split, share, collapse, migrate and
//! discard them.
//!
//! Each thread has a word of its own in every page, so it knows the expected contents of that word wherever
//! the page is mapped. Seeds are fixed, but the interleaving is that of the host and differs between runs.
//! `lab/freehold-machine/tests/shuttle_engine/huge.rs` and `collapse.rs` have smaller scenarios whose
//! schedules can be repeated. A new change is one more arm of `reshape` if it keeps the contents of pages,
//! and of `take` if it discards pages.

use super::*;
use freehold::{engine::Blocks, fault::FaultError};
use std::sync::{
    Barrier,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Number of huge pages in the window.
const WINDOW: u64 = 3;
/// Number of threads that store.
const WRITERS: u64 = 2;
/// Number of threads that change mappings, and number of changes by each.
const CHANGERS: u64 = 2;
const CHANGES: u64 = 12;
/// Number of times that the run starts again with whole huge pages.
const EPISODES: u64 = 3;

/// Returns a part of the window, often a whole huge page.
fn part(dice: &mut Dice) -> (u64, u64) {
    let huge = dice.roll(WINDOW) * PAGES;
    let (first, pages) = match dice.roll(3) {
        0 => (huge, PAGES),
        1 => (huge + dice.roll(PAGES), 1),
        _ => (huge + dice.roll(PAGES - 64), 1 + dice.roll(64)),
    };
    (BASE + first * PAGE, pages * PAGE)
}

/// A thread that stores to its own word of each page, and checks that word.
struct Writer<'w> {
    process: &'w Process,
    cpu: Vcpu,
    dice: Dice,
    /// Offset of the thread's own word in each page.
    word: u64,
    /// The last stored value of each page.
    known: Vec<u64>,
    /// True if pages may be discarded and then hold zeroes.
    may_vanish: bool,
}

impl Writer<'_> {
    fn new<'w>(
        world: &World,
        process: &'w Process,
        (number, episode): (u64, u64),
        may_vanish: bool,
    ) -> Writer<'w> {
        Writer {
            process,
            cpu: world.machine.cpu(number as usize),
            dice: Dice::new(episode * 16 + number),
            word: 8 * number,
            known: vec![0; (WINDOW * PAGES) as usize],
            may_vanish,
        }
    }

    fn round(&mut self, round: u64) {
        let page = self.dice.roll(WINDOW * PAGES);
        let addr = BASE + page * PAGE + self.word;
        let value = addr << 16 | (round & 0xffff);
        match self.process.store(&mut self.cpu, addr, value) {
            Ok(()) => self.known[page as usize] = value,
            Err(error) => assert!(matches!(error, FaultError::Segv { .. }), "{error:?}"),
        }
        let other = self.dice.roll(WINDOW * PAGES);
        for page in [page, other] {
            let found = self.process.load::<u64>(&mut self.cpu, BASE + page * PAGE + self.word);
            let known = self.known[page as usize];
            let vanished = self.may_vanish && matches!(found, Ok(0) | Err(FaultError::Segv { .. }));
            assert!(found == Ok(known) || vanished, "page {page}: {found:x?} instead of {known:x}");
        }
    }
}

/// Forks. Each word of the child must be zero or a value that its owner stored. Stores of the child are
/// visible in the child only.
fn fork(process: &Process, cpu: &mut Vcpu, dice: &mut Dice) {
    let child = Process::of(cpu.call(|| process.fork()).unwrap());
    let mine = 1 + dice.roll(1 << 30);
    for _ in 0..64 {
        let addr = BASE + dice.roll(WINDOW * PAGES) * PAGE + 8 * dice.roll(WRITERS);
        let Ok(found) = child.load::<u64>(cpu, addr) else { continue };
        assert!(found == 0 || found == mine || found >> 16 == addr, "{found:#x} at {addr:#x}");
        let _ = child.store(cpu, addr, mine);
    }
    child.check();
}

/// Migrates the pages of a part, wherever they are mapped.
fn migrate(process: &Process, dice: &mut Dice) {
    let (at, len) = part(dice);
    for addr in (at..at + len).step_by(PAGE as usize) {
        if let Some(pfn) = process.frame_at(addr) {
            let _ = process.engine().migrate(pfn);
        }
    }
}

/// Makes a change that does not change the contents of pages.
fn reshape(process: &Process, cpu: &mut Vcpu, dice: &mut Dice) {
    let (at, len) = part(dice);
    match dice.roll(12) {
        // The collapse may fail because of a reference to a page or because the block has no page.
        8 | 9 => drop(process.madvise(BASE, WINDOW * HUGE, Advice::Collapse)),
        10.. => migrate(process, dice),
        0..3 => process.mprotect(at, len, R).unwrap(),
        3..6 => process.mprotect(BASE, WINDOW * HUGE, RW).unwrap(),
        6 => process.madvise(at, len, [Advice::DontDump, Advice::DoDump][dice.roll(2) as usize]).unwrap(),
        _ => fork(process, cpu, dice),
    }
}

/// Makes a change that discards pages.
fn take(process: &Process, cpu: &mut Vcpu, dice: &mut Dice) {
    let (at, len) = part(dice);
    match dice.roll(10) {
        8.. => drop(process.madvise(BASE, WINDOW * HUGE, Advice::Collapse)),
        0..3 => drop(process.madvise(at, len, Advice::DontNeed)),
        3 => process.munmap(at, len).unwrap(),
        4 | 5 => drop(process.mmap(at, len, RW, ANON | MapFlags::FIXED, None, 0).unwrap()),
        6 => drop(process.mmap(BASE, WINDOW * HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap()),
        _ => fork(process, cpu, dice),
    }
}

fn storm(config: &Config, may_vanish: bool, change: Change) {
    for locking in Locking::ALL {
        let config = config.clone();
        // Enough memory for all pages that two children can keep and that four threads are mapping at the
        // same time.
        let world = World::with(64 << 20, config);
        (0..EPISODES)
            .for_each(|episode| play(&world, &world.process(locking), episode, (may_vanish, change)));
        world.end();
    }
}

/// A random change by a changing thread.
type Change = fn(&Process, &mut Vcpu, &mut Dice);

/// Runs one episode: threads write to the window while other threads change its mappings.
fn play(world: &World, process: &Process, episode: u64, (may_vanish, change): (bool, Change)) {
    map(process, BASE, WINDOW);
    let (start, over) = (Barrier::new((WRITERS + CHANGERS) as usize), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (start, over) = (&start, &over);
            scope.spawn(move || {
                let mut writer = Writer::new(world, process, (number, episode), may_vanish);
                start.wait();
                (0..).take_while(|_| !over.load(Relaxed)).for_each(|round| writer.round(round));
            });
        }
        let changers: Vec<_> = (WRITERS..WRITERS + CHANGERS)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    let (mut cpu, mut dice) =
                        (world.machine.cpu(number as usize), Dice::new(episode * 16 + number));
                    start.wait();
                    (0..CHANGES).for_each(|_| change(process, &mut cpu, &mut dice));
                })
            })
            .collect();
        let results: Vec<_> = changers.into_iter().map(|changer| changer.join()).collect();
        over.store(true, Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    process.check();
}

fn huge() -> Config {
    Config::new().huge_pages(HugePages::Always)
}

/// Few and large block sizes, so that other threads often fault while a block is allocated.
fn blocks() -> Config {
    let blocks = Blocks::new().always(1 << 20 | 1 << 14);
    Config::new().huge_pages(HugePages::Never).blocks(blocks)
}

#[test]
fn stores_to_huge_pages_survive_splits_and_forks() {
    storm(&huge(), false, reshape);
}

#[test]
fn stores_to_huge_pages_survive_discards() {
    storm(&huge(), true, take);
}

#[test]
fn stores_to_blocks_survive_forks() {
    storm(&blocks(), false, reshape);
}

#[test]
fn stores_to_blocks_survive_discards() {
    storm(&blocks(), true, take);
}
