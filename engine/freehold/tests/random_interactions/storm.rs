//! Random interactions on several threads: each thread uses a common process and children of its own. No
//! model predicts the contents under concurrency, so only the checks of the engine and of the machine detect
//! errors. `FREEHOLD_SEED` chooses the first seed, but the interleaving is that of the host and differs
//! between runs. A new call is one more arm of `Storm::step`.

use super::*;
use freehold::PageRange;
use std::thread;

/// Runs the calls of the random interactions, and others, on several threads concurrently. Contents are not
/// compared. The engine's own checks, the TLBs and the frame accounting of the machine detect errors.
#[test]
fn concurrent_interactions_pass_all_checks() {
    let first: u64 = env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().unwrap());
    let runs = Effort::of(1, 1, 30);
    for seed in first..first + runs {
        for file_rmap in FileRmap::ALL {
            for locking in Locking::ALL {
                let mut run = Run::new(locking, file_rmap, seed);
                run.cpus.iter_mut().for_each(Vcpu::idle);
                let left = thread::scope(|scope| {
                    let run = &run;
                    let blow = |thread: u64| {
                        let rng = Pcg64Mcg::seed_from_u64(seed << 8 | thread);
                        let cpu = run.world.machine.cpu(4 + thread as usize);
                        let mut storm = Storm { run, rng, cpu, children: Vec::new() };
                        (0..STEPS).for_each(|_| storm.step());
                        storm.children
                    };
                    let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || blow(thread))).collect();
                    threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
                });
                // The checks run only here, because walks from a page reach every process.
                left.iter().for_each(|process| process.check());
                drop(left);
                run.processes[0].0.check();
                run.failed = run.world.engine().failed_frames();
                run.end();
            }
        }
    }
}

/// One thread of the test. The thread uses the common process and its own children of that process.
struct Storm<'r> {
    run: &'r Run,
    rng: Pcg64Mcg,
    cpu: Vcpu,
    children: Vec<Process>,
}

impl Storm<'_> {
    fn pick(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn step(&mut self) {
        let (kind, who) = (self.pick(20), self.pick(1 + self.children.len() as u64) as usize);
        let at = match self.pick(5) {
            0 => HUGE + self.pick(4) * PAGE,
            _ => BASE + self.pick(WINDOW) * PAGE,
        };
        let (len, to, value) = ((1 + self.pick(4)) * PAGE, BASE + self.pick(WINDOW) * PAGE, self.pick(100));
        let (which, index) = (self.pick(5) as usize, self.pick(PAGES));
        let run = self.run;
        let process = if who == 0 { &run.processes[0].0 } else { &self.children[who - 1] };
        let mapping = run.files[which.min(3)].file.mapping();
        let engine = run.world.engine();
        let frame = process.frame_at(at);
        match kind {
            0 | 1 => {
                let shared = if value % 2 == 0 { MapFlags::SHARED } else { MapFlags::PRIVATE };
                let prot = if which == 1 { R } else { RW };
                let flags = MapFlags::FIXED | if which == 4 { ANON } else { shared };
                let file = run.files.get(which).map(|known| &known.file);
                let _ = process.mmap(to, len, prot, flags, file, if which == 4 { 0 } else { index * PAGE });
            }
            2 => drop(process.mmap(HUGE, HUGE_PAGES * PAGE, RW, ANON | MapFlags::FIXED, None, 0)),
            3..6 => drop(process.store(&mut self.cpu, at, value)),
            6 | 7 => drop(process.load::<u64>(&mut self.cpu, at)),
            8 => drop(process.write_memory(at, &[1; 8], AccessMode::Forced)),
            9 if self.children.len() < 2 => {
                let child = Process::of(process.fork().unwrap());
                self.children.push(child);
            }
            9 if who > 0 => drop(self.children.swap_remove(who - 1)),
            10 => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let _ = process.mremap(at, len, len, flags, to);
            }
            11 => drop(process.mprotect(at, len, if value % 2 == 0 { R } else { RW })),
            12 => drop(process.madvise(at, len, Advice::DontNeed)),
            13 => drop(mapping.truncate(index * PAGE + value)),
            14 => drop(mapping.punch(index * PAGE..index * PAGE + len)),
            15 => drop(mapping.write_back(PageRange::ALL)),
            16 => drop(mapping.write_at(index * PAGE + PAGE / 2, &[2; 16])),
            17 => {
                let offset = index * PAGE + PLACE;
                if mapping.add_probe(offset, &TRAP).is_err() {
                    let _ = mapping.remove_probe(offset);
                }
            }
            _ => {
                let Some(pfn) = frame else { return };
                match value % 8 {
                    0..3 => drop(engine.migrate(pfn)),
                    3 => drop(engine.soft_offline(pfn)),
                    4 => drop(engine.memory_failure(pfn)),
                    5 => drop(engine.try_to_unmap(pfn)),
                    6 => drop(engine.mkclean(pfn)),
                    _ => drop(process.madvise(at, PAGE, Advice::HwPoison)),
                }
            }
        }
    }
}
