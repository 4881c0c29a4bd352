//! Lists of free numbers for each processor, as a kernel's page allocator has them, in front of the one that
//! all share: what a processor gives back it takes again, and every so many, a batch passes between its list
//! and its socket's memory, under the lock of that.

use freehold_pagetable::Pfn;
use freehold_sim::{
    Machine,
    atomic::{AtomicU32, Ordering},
    task,
};
use freehold_sync::atomic::announce_records;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Numbers that pass between a processor's list and its socket's memory at once: what Linux uses for a
/// processor of a large machine, a multiple of its smallest batch.
const BATCH: usize = 63;
const SOCKETS: usize = 8;

/// The lists of a pool.
#[derive(Debug)]
pub(crate) struct Lists {
    /// The last one given back is the first to be taken.
    of_cpus: Mutex<Vec<Vec<Pfn>>>,
    zones: Box<[Zone; SOCKETS]>,
    /// Whose machine it is.
    thread: ThreadId,
}

/// The lock of a socket's free memory.
#[derive(Debug)]
#[repr(align(128))]
struct Zone(AtomicU32);

impl Lists {
    pub(crate) fn new() -> Lists {
        let zones = Box::new([const { Zone(AtomicU32::new(0)) }; SOCKETS]);
        announce_records("FreeMemory.lock", &raw const zones[0], SOCKETS, &[]);
        Lists {
            of_cpus: Mutex::new(vec![Vec::new(); Machine::MAX_CPUS]),
            zones,
            thread: thread::current().id(),
        }
    }

    /// Takes as many as there are: from the processor's list, which `refill` fills up. Outside of a run from
    /// what all share.
    pub(crate) fn take(&self, out: &mut [Pfn], refill: impl Fn(&mut [Pfn]) -> usize) -> usize {
        self.check_thread();
        let Some(cpu) = task::cpu() else { return refill(out) };
        if self.lists()[cpu].len() < out.len() {
            self.pass_batch();
            let mut batch = vec![Pfn::new(0); BATCH.max(out.len())];
            let got = refill(&mut batch);
            let list = &mut self.lists()[cpu];
            // The lowest comes first.
            list.splice(0..0, batch[..got].iter().rev().copied());
        }
        let list = &mut self.lists()[cpu];
        let rest = list.len().saturating_sub(out.len());
        let taken = list.drain(rest..).rev();
        out.iter_mut().zip(taken).map(|(out, pfn)| *out = pfn).count()
    }

    /// Puts these into the processor's list, and what is too much for it to where `spill` puts it.
    pub(crate) fn give(&self, numbers: &[Pfn], spill: impl Fn(&[Pfn])) {
        self.check_thread();
        let Some(cpu) = task::cpu() else { return spill(numbers) };
        self.lists()[cpu].extend_from_slice(numbers);
        while self.lists()[cpu].len() > 2 * BATCH {
            self.pass_batch();
            let oldest: Vec<Pfn> = self.lists()[cpu].drain(..BATCH).collect();
            spill(&oldest);
        }
    }

    /// Processors, clocks and grace periods are the thread's: a machine on another one would be without them.
    fn check_thread(&self) {
        assert_eq!(
            thread::current().id(),
            self.thread,
            "a simulated machine stays on the thread that made it"
        );
    }

    /// A batch passes between a processor's list and its socket's memory.
    fn pass_batch(&self) {
        task::keep();
        let zone = &self.zones[task::socket().unwrap_or(0) % SOCKETS].0;
        while zone.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while zone.load(Ordering::Relaxed) != 0 {
                task::relax();
            }
        }
        task::frames(BATCH);
        zone.store(0, Ordering::Release);
        task::release();
    }

    fn lists(&self) -> MutexGuard<'_, Vec<Vec<Pfn>>> {
        self.of_cpus.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
