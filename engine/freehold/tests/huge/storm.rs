//! Everything at once: threads store to the same huge pages while others split, share and take them.
//!
//! In every page each thread has a word of its own, so that it knows what must be there, however the page
//! came to lie where it does.

use super::*;
use freehold::{engine::Blocks, fault::FaultError};
use std::sync::{
    Barrier,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Huge pages of the window.
const WINDOW: u64 = 3;
/// Threads that store.
const WRITERS: u64 = 2;
/// Threads that change the mappings, and how often each does.
const CHANGERS: u64 = 2;
const CHANGES: u64 = 12;
/// How often it begins anew with whole huge pages.
const EPISODES: u64 = 3;

/// Some pages of the window: often whole huge ones.
fn part(dice: &mut Dice) -> (u64, u64) {
    let huge = dice.roll(WINDOW) * PAGES;
    let (first, pages) = match dice.roll(3) {
        0 => (huge, PAGES),
        1 => (huge + dice.roll(PAGES), 1),
        _ => (huge + dice.roll(PAGES - 64), 1 + dice.roll(64)),
    };
    (BASE + first * PAGE, pages * PAGE)
}

struct Writer<'w> {
    process: &'w Process,
    cpu: Vcpu,
    dice: Dice,
    /// Which word of each page is its own.
    word: u64,
    /// What it stored last.
    known: Vec<u64>,
    /// Pages may be taken, and then hold zeroes.
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

/// A child finds in each word nothing, or what its owner stored there; what the child stores nobody else
/// finds.
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

/// Pages move, wherever they are mapped.
fn migrate(process: &Process, dice: &mut Dice) {
    let (at, len) = part(dice);
    for addr in (at..at + len).step_by(PAGE as usize) {
        if let Some(pfn) = process.frame_at(addr) {
            let _ = process.engine().migrate(pfn);
        }
    }
}

/// Changes that leave contents alone.
fn reshape(process: &Process, cpu: &mut Vcpu, dice: &mut Dice) {
    let (at, len) = part(dice);
    match dice.roll(12) {
        // Something may be in the way: somebody's reference to a page, or nothing at all.
        8 | 9 => drop(process.madvise(BASE, WINDOW * HUGE, Advice::Collapse)),
        10.. => migrate(process, dice),
        0..3 => process.mprotect(at, len, R).unwrap(),
        3..6 => process.mprotect(BASE, WINDOW * HUGE, RW).unwrap(),
        6 => process.madvise(at, len, [Advice::DontDump, Advice::DoDump][dice.roll(2) as usize]).unwrap(),
        _ => fork(process, cpu, dice),
    }
}

/// Changes that take pages away.
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
        // Enough for all that two children can keep, and that four threads are about to map.
        let world = World::with(64 << 20, config);
        (0..EPISODES)
            .for_each(|episode| play(&world, &world.process(locking), episode, (may_vanish, change)));
        world.end();
    }
}

type Change = fn(&Process, &mut Vcpu, &mut Dice);

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
    Config { huge_pages: HugePages::Always, ..Config::default() }
}

/// Of few and large sizes, so that others come while a block is made.
fn blocks() -> Config {
    let blocks = Blocks { always: 1 << 20 | 1 << 14, advised: 0 };
    Config { huge_pages: HugePages::Never, blocks, ..Config::default() }
}

#[test]
fn stores_beside_splits_and_forks() {
    storm(&huge(), false, reshape);
}

#[test]
fn stores_beside_what_takes_pages() {
    storm(&huge(), true, take);
}

#[test]
fn stores_to_blocks_beside_forks() {
    storm(&blocks(), false, reshape);
}

#[test]
fn stores_to_blocks_beside_what_takes_pages() {
    storm(&blocks(), true, take);
}
