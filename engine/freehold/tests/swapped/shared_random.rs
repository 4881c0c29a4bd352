//! Random stores, reads, writes, truncations, holes, forks and reclaims of shared memory, compared with a copy of
//! the file. The device completes requests late, and fails some writes.
//!
//! A failure names its seed. `FREEHOLD_SEED` chooses the first seed.

use super::Swapped;
use crate::support::*;
use freehold::{
    call::Advice,
    fault::FaultError,
    file::{File, FileAccess, Mapping},
    reclaim::ReclaimRequest,
};
use freehold_vmspace::PageIndex;
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

const PAGES: u64 = 12;
const STEPS: u64 = 500;

struct Run {
    swapped: Swapped,
    processes: Vec<Process>,
    file: Counted<File<Machine>>,
    /// The contents of the file.
    known: Vec<u8>,
    random: Pcg64Mcg,
}

impl Run {
    fn new(seed: u64, locking: Locking) -> Self {
        let swapped = Swapped::new(40);
        let mapping = Mapping::memfd(swapped.world.engine(), PAGES * PAGE).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        let process = swapped.process(locking);
        process.mmap(BASE, PAGES * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let known = vec![0; (PAGES * PAGE) as usize];
        let random = Pcg64Mcg::seed_from_u64(seed);
        Run { swapped, processes: vec![process], file, known, random }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn size(&self) -> u64 {
        self.known.len() as u64
    }

    /// Returns a range of bytes inside the file, of at most three pages.
    fn bytes(&mut self) -> std::ops::Range<usize> {
        let start = self.below(self.size());
        let len = match self.below(3) {
            0 => PAGE.min(self.size() - start),
            _ => 1 + self.below((3 * PAGE).min(self.size() - start)),
        };
        // A whole page, as often as not.
        let start = if len == PAGE && start.is_multiple_of(2) { start - start % PAGE } else { start };
        start as usize..(start + len) as usize
    }

    fn step(&mut self, cpu: &mut Vcpu) {
        let (which, value) = (self.below(self.processes.len() as u64) as usize, self.random.next_u64());
        let at = self.below(PAGES * PAGE / 8) * 8;
        let place = at as usize..at as usize + 8;
        let is_inside = at < self.size().next_multiple_of(PAGE);
        let mapping = self.file.mapping().clone();
        match self.below(100) {
            0..20 => match self.processes[which].store(cpu, BASE + at, value) {
                Ok(()) => {
                    // Bytes behind the end of the file, in its last page, are lost.
                    let kept = place.end.min(self.known.len()).saturating_sub(place.start);
                    let known = self.known.iter_mut().skip(place.start);
                    known.zip(value.to_le_bytes()).take(kept).for_each(|(known, byte)| *known = byte);
                }
                Err(error) => {
                    assert!(!is_inside && matches!(error, FaultError::Bus { .. }), "{error:?} at {at:#x}");
                }
            },
            20..40 if place.end <= self.known.len() => {
                let found: u64 = self.processes[which].load(cpu, BASE + at).unwrap();
                assert_eq!(found.to_le_bytes(), self.known[place], "at {at:#x}");
            }
            40..50 => {
                let bytes = self.bytes();
                let data: Vec<u8> = bytes.clone().map(|n| (n as u64 ^ value) as u8).collect();
                assert_eq!(mapping.write_at(bytes.start as u64, &data), Ok(data.len()));
                self.known[bytes].copy_from_slice(&data);
            }
            50..56 => {
                let bytes = self.bytes();
                let mut found = vec![0; bytes.len()];
                assert_eq!(mapping.read_at(bytes.start as u64, &mut found), Ok(found.len()));
                assert!(found == self.known[bytes.clone()], "bytes {bytes:?}");
            }
            56..76 => {
                // Some writes end in later steps.
                self.swapped.device.complete_later(value & 0x100 != 0);
                self.swapped.world.engine().reclaim(&ReclaimRequest::pages(1 + value % 8));
                self.swapped.device.complete_later(false);
            }
            76..80 => {
                let bytes = self.bytes();
                mapping.punch(bytes.start as u64..bytes.end as u64).unwrap();
                self.known[bytes].fill(0);
            }
            80..83 => {
                let size = 1 + self.below(PAGES * PAGE);
                mapping.truncate(size).unwrap();
                self.known.resize(size as usize, 0);
            }
            83..86 if self.processes.len() < 3 => {
                let child = Process::of(self.processes[which].fork().unwrap());
                self.processes.push(child);
            }
            86..88 if self.processes.len() > 1 => drop(self.processes.swap_remove(which)),
            88..91 => self.processes[which].madvise(BASE, PAGES * PAGE, Advice::WillNeed).unwrap(),
            91..93 => self.processes[which].madvise(BASE, PAGES * PAGE, Advice::PageOut).unwrap(),
            93..95 => mapping.reserve(PageIndex::new(self.below(self.size()) / PAGE)).unwrap(),
            95..98 => _ = self.swapped.device.complete_last(),
            98.. => {
                mapping.check();
                self.processes[which].check();
            }
            _ => {}
        }
    }
}

fn run(seed: u64, locking: Locking) {
    let mut run = Run::new(seed, locking);
    let mut cpu = run.swapped.world.machine.cpu(0);
    let bad = run.below(40);
    run.swapped.device.fail_writes([bad]);
    for _ in 0..STEPS {
        run.step(&mut cpu);
    }
    while run.swapped.device.complete_next() {}
    let mut found = vec![0; run.known.len()];
    assert_eq!(run.file.mapping().read_at(0, &mut found), Ok(found.len()));
    assert!(found == run.known, "the contents differ");
    run.file.mapping().check();
    let Run { swapped, processes, file, .. } = run;
    drop((processes, file, cpu));
    swapped.end();
}

#[test]
fn file_has_the_contents_that_were_stored() {
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
