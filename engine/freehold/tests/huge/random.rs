//! Random calls by processes that get huge pages wherever they fit, compared with a map from pages to bytes
//! (`random/known.rs`). One thread makes all calls, and every process is checked after each call.
//!
//! A failure names its design, its seed and the call. `FREEHOLD_SEED` chooses the first seed.
//! `FREEHOLD_EFFORT=long` runs thirty times as many seeds. A new kind of call is one more arm of `Run::step`,
//! and a method that also makes the change in the model.

mod known;

use super::*;
use freehold::{call::RemapFlags, remote::AccessMode};
use known::{Known, Page, at, compare, note};
use std::{env, ops::Range};

/// Number of pages in the window in which all calls take place.
const WINDOW: u64 = 4 * PAGES;
/// Number of calls in one run.
const STEPS: u64 = 150;
/// Number of runs of each design.
const RUNS: u64 = 8;
/// Largest number of processes at a time.
const MAX_PROCESSES: usize = 3;

impl Dice {
    /// Returns a page to begin or end at: often the start of a huge page, or a page next to it.
    fn place(&mut self) -> u64 {
        let huge = self.roll(WINDOW / PAGES + 1) * PAGES;
        match self.roll(4) {
            0 => self.roll(WINDOW + 1),
            1 => (huge + 1).saturating_sub(self.roll(3)).min(WINDOW),
            _ => huge,
        }
    }

    fn range(&mut self) -> Range<u64> {
        loop {
            let (a, b) = (self.place(), self.place());
            let b = if self.roll(3) == 0 { (a + 1 + self.roll(8)).min(WINDOW) } else { b };
            if a != b {
                return a.min(b)..a.max(b);
            }
        }
    }

    fn prot(&mut self) -> Prot {
        [RW, RW, R, Prot::empty()][self.roll(4) as usize]
    }
}

/// One run: a design, a seed, and the processes with their models.
struct Run {
    world: World,
    cpus: [Vcpu; 2],
    /// The processes. The process that makes the next call is last.
    processes: Vec<(Process, Known)>,
    dice: Dice,
    /// Description of the current call, for failure messages.
    doing: String,
    story: String,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.story, self.doing);
        }
    }
}

impl Run {
    fn new(locking: Locking, seed: u64) -> Self {
        let world = world(HugePages::Always);
        let processes = vec![(world.process(locking), Known::new())];
        let cpus = [world.machine.cpu(0), world.machine.cpu(1)];
        let story = format!("{locking:?}, FREEHOLD_SEED={seed}");
        Run { world, cpus, processes, dice: Dice::new(seed), doing: String::new(), story }
    }

    fn now(&mut self) -> (&mut Process, &mut Known, &mut Vcpu, &mut Dice) {
        let cpu = &mut self.cpus[self.dice.roll(2) as usize];
        let (process, known) = self.processes.last_mut().expect("there is always a process");
        (process, known, cpu, &mut self.dice)
    }

    fn step(&mut self) {
        let last = self.processes.len() - 1;
        let turn = self.dice.roll(last as u64 + 1) as usize;
        self.processes.swap(turn, last);
        let range = self.dice.range();
        let kind = self.dice.roll(22);
        self.doing = format!("{kind} of {range:?} by one of {}", last + 1);
        match kind {
            0..3 => self.map(range),
            3 => self.unmap(range),
            4 | 5 => self.protect(range),
            6 | 7 => self.advise(range),
            8 | 9 => self.carry(range),
            10 => self.fork(),
            11 => self.force(range),
            12..18 => self.write(range),
            _ => self.read(range),
        }
        self.processes.last().expect("there is always a process").0.check();
    }

    fn map(&mut self, range: Range<u64>) {
        let (process, known, _, dice) = self.now();
        let prot = dice.prot();
        let populate = if dice.roll(8) == 0 { MapFlags::POPULATE } else { MapFlags::empty() };
        let len = (range.end - range.start) * PAGE;
        process.mmap(at(range.start), len, prot, ANON | MapFlags::FIXED | populate, None, 0).unwrap();
        known.extend(range.map(|page| (page, Page::fresh(prot))));
    }

    fn unmap(&mut self, range: Range<u64>) {
        let (process, known, ..) = self.now();
        process.munmap(at(range.start), (range.end - range.start) * PAGE).unwrap();
        known.retain(|page, _| !range.contains(page));
    }

    fn protect(&mut self, range: Range<u64>) {
        let (process, known, _, dice) = self.now();
        let prot = dice.prot();
        let held = range.clone().take_while(|page| known.contains_key(page)).count() as u64;
        let done = process.mprotect(at(range.start), (range.end - range.start) * PAGE, prot);
        assert_eq!(done.is_ok(), held == range.end - range.start, "{done:?}");
        known.range_mut(range.start..range.start + held).for_each(|(_, page)| page.prot = prot);
    }

    fn advise(&mut self, range: Range<u64>) {
        use Advice::*;
        let (process, known, _, dice) = self.now();
        let choice =
            [DontNeed, DontNeed, Free, HugePage, NoHugePage, GuardInstall, GuardRemove, PopulateWrite];
        let advice = choice[dice.roll(choice.len() as u64) as usize];
        let done = process.madvise(at(range.start), (range.end - range.start) * PAGE, advice);
        let whole = known.range(range.clone()).count() as u64 == range.end - range.start;
        assert!(done.is_ok() == whole || advice == PopulateWrite, "{advice:?}: {done:?}");
        for (_, page) in known.range_mut(range) {
            match advice {
                DontNeed => page.empty(),
                GuardInstall => *page = Page { guard: true, ..Page::fresh(page.prot) },
                GuardRemove => page.guard = false,
                _ => {}
            }
        }
    }

    /// Moves a mapped range without holes.
    fn carry(&mut self, range: Range<u64>) {
        let (process, known, _, dice) = self.now();
        let len = range.end - range.start;
        let to = dice.place().min(WINDOW - len);
        let target = to..to + len;
        let apart = target.end <= range.start || range.end <= target.start;
        if !apart || known.range(range.clone()).count() as u64 != len {
            return;
        }
        let keep = dice.roll(3) == 0;
        let kept = if keep { RemapFlags::DONTUNMAP } else { RemapFlags::empty() };
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED | kept;
        let moved = process.mremap(at(range.start), len * PAGE, len * PAGE, flags, at(to));
        assert_eq!(moved, Ok(at(to)));
        for (from, to) in range.zip(target) {
            let page = known.remove(&from).expect("it is mapped");
            if keep {
                known.insert(from, Page::fresh(page.prot));
            }
            known.insert(to, page);
        }
    }

    fn fork(&mut self) {
        if self.processes.len() == MAX_PROCESSES {
            let gone = self.dice.roll(MAX_PROCESSES as u64) as usize;
            self.look(gone);
            self.processes.remove(gone);
        }
        let (process, known, ..) = self.now();
        let copy = (Process::of(process.fork().unwrap()), known.clone());
        self.processes.push(copy);
    }

    /// Writes as a debugger, ignoring rights.
    fn force(&mut self, range: Range<u64>) {
        let (process, known, _, dice) = self.now();
        let (addr, mark) = (at(range.start) + dice.roll(PAGE), dice.roll(256) as u8);
        let data = [mark; 100];
        let wrote = process.write_memory(addr, &data, AccessMode::Forced).unwrap_or(0);
        let fits = note(known, addr, &data, |page| !page.guard);
        assert_eq!(wrote, fits, "a debugger's write at {addr:#x}");
    }

    fn write(&mut self, range: Range<u64>) {
        let (process, known, cpu, dice) = self.now();
        // A few bytes, or several pages.
        let len = if dice.roll(4) == 0 { dice.roll(3 * PAGE) } else { dice.roll(64) } + 1;
        let data = vec![1 + dice.roll(255) as u8; len as usize];
        let addr = at(range.start) + dice.roll(PAGE);
        let wrote = process.write(cpu, addr, &data);
        let fits = note(known, addr, &data, |page| !page.guard && page.prot == RW);
        assert_eq!(wrote.is_ok(), fits == data.len(), "a write at {addr:#x}: {wrote:?}");
    }

    fn read(&mut self, range: Range<u64>) {
        let (process, known, cpu, _) = self.now();
        for page in range.clone().take(8).chain(range.end.saturating_sub(8).max(range.start)..range.end) {
            compare(process, known, cpu, page);
        }
    }

    /// Checks everything that a process can see.
    fn look(&mut self, which: usize) {
        self.doing = format!("a look at {which}");
        let (process, known) = &self.processes[which];
        (0..WINDOW).for_each(|page| compare(process, known, &mut self.cpus[0], page));
        process.check();
    }

    /// Checks everything once more. Returns the bytes in huge pages.
    fn end(mut self) -> u64 {
        let huge = self.processes.iter().map(|(process, _)| huge_bytes(process)).sum();
        (0..self.processes.len()).for_each(|which| self.look(which));
        self.processes.clear();
        std::mem::replace(&mut self.world, World::new()).end();
        huge
    }
}

#[test]
fn random_calls_on_huge_pages_match_the_model() {
    let first = env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().expect("FREEHOLD_SEED is a number"));
    let runs = Effort::of(RUNS / 4, RUNS, 30 * RUNS);
    for locking in Locking::ALL {
        let mut huge = 0;
        for seed in first..first + runs {
            let mut run = Run::new(locking, seed);
            for _ in 0..STEPS {
                run.step();
            }
            huge += run.end();
        }
        // A quick run may be too short to leave a huge page.
        assert!(
            huge > 0 || runs < RUNS,
            "{locking:?}: no huge page was left in any run from seed {first} on"
        );
    }
}
