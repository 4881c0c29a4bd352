//! Random stores, reads, forks, exits, moves, changes of rights, discards and reclaims, compared with a copy
//! of the memory. The device completes requests late, and fails some of them.
//!
//! A failure names its seed. `FREEHOLD_SEED` chooses the first seed.

use super::Swapped;
use crate::support::*;
use freehold::{
    call::{Advice, RemapFlags},
    fault::FaultError,
    reclaim::ReclaimRequest,
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

const PAGES: u64 = 12;
const STEPS: u64 = 400;
const MAX_PROCESSES: usize = 4;

/// A process, and the first word of each of its pages.
struct Known {
    process: Process,
    words: [u64; PAGES as usize],
    /// The address of the first page; each other page follows.
    at: u64,
}

impl Known {
    fn page(&self, number: u64) -> u64 {
        self.at + number * PAGE
    }
}

struct Run {
    swapped: Swapped,
    known: Vec<Known>,
    random: Pcg64Mcg,
}

impl Run {
    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    /// Makes a random step.
    fn step(&mut self, cpu: &mut Vcpu) {
        let (which, page) = (self.below(self.known.len() as u64) as usize, self.below(PAGES));
        let (action, value) = (self.below(100), self.random.next_u64());
        match action {
            0..30 => {
                let known = &mut self.known[which];
                known.process.store(cpu, known.page(page), value).unwrap();
                known.words[page as usize] = value;
            }
            30..50 => {
                let known = &self.known[which];
                assert_eq!(known.process.load(cpu, known.page(page)), Ok(known.words[page as usize]));
            }
            50..70 => {
                // Some writes end in later steps.
                self.swapped.device.complete_later(value & 0x100 != 0);
                let request = ReclaimRequest::pages(1 + value % 8);
                self.swapped.world.engine().reclaim(&request);
                self.swapped.device.complete_later(false);
            }
            70..75 if self.known.len() < MAX_PROCESSES => {
                let known = &self.known[which];
                let (words, at) = (known.words, known.at);
                let process = Process::of(known.process.fork().unwrap());
                self.known.push(Known { process, words, at });
            }
            75..79 if self.known.len() > 1 => drop(self.known.swap_remove(which)),
            79..83 => {
                let known = &mut self.known[which];
                known.process.madvise(known.page(page), PAGE, Advice::DontNeed).unwrap();
                known.words[page as usize] = 0;
            }
            83..88 => {
                let known = &self.known[which];
                let at = known.page(page);
                known.process.mprotect(at, PAGE, R).unwrap();
                assert!(matches!(known.process.store(cpu, at, 1u64), Err(FaultError::Segv { .. })));
                known.process.mprotect(at, PAGE, RW).unwrap();
            }
            88..92 => {
                let known = &mut self.known[which];
                let to = BASE + (value % 8) * 64 * PAGE;
                if to != known.at {
                    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                    known.process.mremap(known.at, PAGES * PAGE, PAGES * PAGE, flags, to).unwrap();
                    known.at = to;
                }
            }
            92..95 => {
                // Memory without content lies between pages with content.
                let known = &mut self.known[which];
                known.process.store(cpu, known.page(page), 0u64).unwrap();
                known.words[page as usize] = 0;
            }
            95..98 => _ = self.swapped.device.complete_last(),
            _ => self.known[which].process.check(),
        }
    }
}

fn run(seed: u64, locking: Locking) {
    let swapped = Swapped::new(40);
    let process = swapped.process(locking);
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, PAGES);
    let known = Known { process, words: [0; PAGES as usize], at: BASE };
    let mut run = Run { swapped, known: vec![known], random: Pcg64Mcg::seed_from_u64(seed) };
    // Failed writes only: a failed read is an error of the program.
    let bad = run.below(40);
    run.swapped.device.fail_writes([bad]);
    for _ in 0..STEPS {
        run.step(&mut cpu);
    }
    while run.swapped.device.complete_next() {}
    for known in &run.known {
        for page in 0..PAGES {
            assert_eq!(known.process.load(&mut cpu, known.page(page)), Ok(known.words[page as usize]));
        }
        known.process.check();
    }
    let Run { swapped, known, .. } = run;
    drop((known, cpu));
    swapped.end();
}

#[test]
fn memory_has_the_contents_that_were_stored() {
    let first = std::env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let seeds = match Effort::asked() {
        Effort::Quick => 2,
        Effort::Full => 5,
        Effort::Long => 1000,
    };
    for seed in first..first + seeds {
        for locking in Locking::ALL {
            println!("FREEHOLD_SEED={seed} {locking:?}");
            run(seed, locking);
        }
    }
}
