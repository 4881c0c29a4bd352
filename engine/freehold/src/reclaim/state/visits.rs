//! The order in which tasks visit the frames of memory: [`Visits`].
//!
//! Memory consists of chunks, and each CPU has a part of the chunks. In a cycle each chunk is visited once. A
//! CPU takes the chunks of its own part first, and then the chunks that are left in the parts of other CPUs.
//! If several CPUs reclaim, each of them thus finds mostly the same frames in each cycle. The pages that it
//! makes free there become its next pages, so that the records and page tables of these pages are in its
//! caches.
//!
//! The cycle ends when no chunk is left. All CPUs advance to the next cycle together, so no CPU visits its
//! pages more often than those of other CPUs. Two cycles may have different orders, if other CPUs take part:
//! between two visits of a frame, at most all frames are visited twice.

use crate::error::NoMemory;
use core::{iter, ops::Range};
use freehold_pagetable::Pfn;
use freehold_sync::{
    Host, PerCpu,
    atomic::{AtomicU64, CHECKED, Ordering::Relaxed},
};

/// Number of frames that a task visits between two accesses to the shared state.
const CHUNK: u64 = if CHECKED { 8 } else { 512 };

/// Distance of the parts at which two neighbouring CPUs begin to search: a prime number, so that it has no
/// common divisor with the number of CPUs of most machines.
const APART: usize = 7919;

/// The state of a CPU.
struct Part {
    /// The rest of a chunk that a call on this CPU has not visited, as its start times `CHUNK + 1` plus its
    /// length; 0 if there is none.
    rest: AtomicU64,
    /// Number of chunks of this part that were taken in all cycles. Mostly written by this CPU.
    taken: AtomicU64,
    /// The part in which this CPU has found its last chunk, plus the cycle times the number of parts; the
    /// largest number before the first chunk.
    last: AtomicU64,
}

/// The cycle of visits.
///
/// No word of this type protects other data, so every access is relaxed. Tasks that take different chunks
/// share no data. A task may still visit a chunk when the next cycle begins.
pub(super) struct Visits<H: Host> {
    /// The numbers of the frames.
    frames: Range<u64>,
    parts: PerCpu<Part, H>,
    /// Number of cycles that have ended. Read for each chunk, and written once in a cycle.
    ended: AtomicU64,
}

impl<H: Host> Visits<H> {
    /// Creates the cycle of visits of a memory.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn try_new(memory: &Range<Pfn>) -> Result<Self, NoMemory> {
        let part = |_| {
            let [rest, taken] = [(); 2].map(|()| AtomicU64::new(0));
            Part { rest, taken, last: AtomicU64::new(u64::MAX) }
        };
        Ok(Visits {
            frames: memory.start.get()..memory.end.get(),
            parts: PerCpu::try_new(part)?,
            ended: AtomicU64::new(0),
        })
    }

    /// Takes the rest of the calling CPU's last chunk, or another chunk. Calls `ends` when a cycle has ended.
    /// Returns `None` if there is no memory.
    pub fn next(&self, mut ends: impl FnMut()) -> Option<Range<u64>> {
        if self.frames.is_empty() {
            return None;
        }
        let (cpu, rest) = self.parts.with_index(|cpu, part| {
            let rest = part.rest.load(Relaxed);
            part.rest.store(0, Relaxed);
            (cpu, rest)
        });
        if rest != 0 {
            let start = rest / (CHUNK + 1);
            return Some(start..start + rest % (CHUNK + 1));
        }
        loop {
            let cycle = self.ended.load(Relaxed);
            if let Some(chunk) = self.take(cpu, cycle) {
                let start = self.frames.start + chunk * CHUNK;
                return Some(start..self.frames.end.min(start + CHUNK));
            }
            // A failure means that another task has ended the cycle.
            if self.ended.compare_exchange(cycle, cycle + 1, Relaxed, Relaxed).is_ok() {
                ends();
            }
        }
    }

    /// Takes a chunk in this cycle. Returns `None` if none is left.
    fn take(&self, cpu: usize, cycle: u64) -> Option<u64> {
        let parts = self.parts.iter().len();
        let own = self.parts.get(cpu)?;
        let last = own.last.load(Relaxed);
        // Each CPU searches the parts of others from another part on, so that CPUs that have finished their
        // parts do not meet in one part. The order is the same in each cycle, so that about as many visits
        // are between two visits of a page.
        let first = match last / parts as u64 == cycle {
            true => (last % parts as u64) as usize,
            false => cpu * APART % parts,
        };
        iter::once(cpu).chain(first..parts).chain(0..first).find_map(|number| {
            let chunks = self.chunks_of(number);
            let (len, part) = (chunks.end - chunks.start, self.parts.get(number)?);
            let is_left = |taken: u64| (taken < (cycle + 1) * len).then_some(taken + 1);
            let taken = part.taken.fetch_update(Relaxed, Relaxed, is_left).ok()?;
            own.last.store(cycle * parts as u64 + number as u64, Relaxed);
            Some(chunks.start + taken % len)
        })
    }

    /// Returns the chunks of a part.
    fn chunks_of(&self, part: usize) -> Range<u64> {
        let (part, parts) = (part as u64, self.parts.iter().len() as u64);
        let chunks = (self.frames.end - self.frames.start).div_ceil(CHUNK);
        chunks * part / parts..chunks * (part + 1) / parts
    }

    /// Returns the rest of a chunk, which a call on this CPU visits next. If the CPU has another rest, the
    /// frames are visited in the next cycle.
    pub fn put_back(&self, rest: Range<u64>) {
        if !rest.is_empty() {
            let word = rest.start * (CHUNK + 1) + (rest.end - rest.start);
            self.parts.with(|part| part.rest.store(word, Relaxed));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    extern crate std;

    use super::{CHUNK, Visits};
    use freehold_machine::Machine;
    use freehold_pagetable::Pfn;
    use freehold_sync::Host;
    use std::vec::Vec;

    /// Returns visits of a memory with `chunks` chunks and half a chunk.
    fn visits(chunks: u64) -> Visits<Machine> {
        Visits::try_new(&(Pfn::new(64)..Pfn::new(64 + chunks * CHUNK + CHUNK / 2))).unwrap()
    }

    #[test]
    fn cycle_visits_each_frame_once() {
        let (visits, mut ends) = (visits(100), 0);
        for cycle in 0..3 {
            let mut frames = Vec::new();
            while let Some(chunk) = visits.next(|| ends += 1) {
                if ends > cycle {
                    visits.put_back(chunk);
                    break;
                }
                frames.extend(chunk);
            }
            frames.sort_unstable();
            assert_eq!(frames, (64..64 + 100 * CHUNK + CHUNK / 2).collect::<Vec<_>>());
            // The chunk that began the next cycle is taken again.
            ends = cycle + 1;
        }
    }

    #[test]
    fn cpu_takes_chunks_of_its_part_first() {
        let parts = <Machine as Host>::cpus();
        let visits = visits(4 * parts as u64 - 1);
        for cycle in 0..3 {
            for cpu in 0..parts {
                let own = visits.chunks_of(cpu);
                let taken: Vec<_> = (0..4).filter_map(|_| visits.take(cpu, cycle)).collect();
                assert_eq!(taken, own.collect::<Vec<_>>());
            }
            assert_eq!(visits.take(0, cycle), None);
        }
    }

    #[test]
    fn one_cpu_takes_all_parts() {
        let visits = visits(1000);
        for cycle in 0..2 {
            let mut taken: Vec<_> = (0..1001).filter_map(|_| visits.take(1, cycle)).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..1001).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rest_of_a_chunk_comes_first() {
        let visits = visits(2);
        visits.put_back(70..73);
        assert_eq!(visits.next(|| ()), Some(70..73));
        assert_ne!(visits.next(|| ()), Some(70..73));
    }

    #[test]
    fn no_memory_has_no_chunk() {
        let visits = Visits::<Machine>::try_new(&(Pfn::new(0)..Pfn::new(0))).unwrap();
        assert_eq!(visits.next(|| unreachable!()), None);
    }
}
