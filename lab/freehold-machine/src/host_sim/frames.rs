//! Per-CPU lists of free numbers in front of the shared list of a pool (`pool.rs`), as in a kernel's page
//! allocator.
//!
//! The simulation must show what a kernel would pay. `host_std/lists.rs` has the lists of machines that run
//! on threads. A processor reuses the numbers that it freed. When its list is empty or too long, a batch
//! moves between the list and the memory of its socket, under the lock of that memory. Only this move takes
//! virtual time: `memory.frame` of the simulated machine for each number, and the accesses to the lock.
//! [`Lists::check_thread`] panics if a machine is used on another thread than its own
//! (`tests/sim_engine/names.rs`).

use freehold_pagetable::Pfn;
use freehold_sim::{
    Machine,
    atomic::{AtomicU32, Ordering},
    task,
};
use freehold_sync::atomic::announce_records;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Number of free frame or table numbers that move together between a processor's list and its socket's
/// memory. Linux uses this value for the processors of a large machine.
const BATCH: usize = 63;
/// Maximum number of sockets with a lock of their own.
const SOCKETS: usize = 8;

/// The free lists of a pool.
#[derive(Debug)]
pub(crate) struct Lists {
    /// The list of each CPU. The number that was freed last is taken first.
    of_cpus: Mutex<Vec<Vec<Pfn>>>,
    zones: Box<[Zone; SOCKETS]>,
    /// The thread that owns the machine.
    thread: ThreadId,
}

/// The lock of a socket's free memory.
#[derive(Debug)]
#[repr(align(128))]
struct Zone(AtomicU32);

impl Lists {
    pub(crate) fn new(_oracles: bool) -> Lists {
        let zones = Box::new([const { Zone(AtomicU32::new(0)) }; SOCKETS]);
        announce_records("FreeMemory.lock", &raw const zones[0], SOCKETS, &[]);
        Lists {
            of_cpus: Mutex::new(vec![Vec::new(); Machine::MAX_CPUS]),
            zones,
            thread: thread::current().id(),
        }
    }

    /// Takes as many free numbers as exist, at most the length of `out`, from the processor's list. `refill`
    /// refills the list. Outside a run, takes the numbers from the shared list.
    pub(crate) fn take(&self, out: &mut [Pfn], refill: impl Fn(&mut [Pfn]) -> usize) -> usize {
        self.check_thread();
        let Some(cpu) = task::cpu() else { return refill(out) };
        if self.lists()[cpu].len() < out.len() {
            self.pass_batch();
            let mut batch = vec![Pfn::new(0); BATCH.max(out.len())];
            let got = refill(&mut batch);
            let list = &mut self.lists()[cpu];
            // The lowest number is taken first, so it is last in the list.
            list.splice(0..0, batch[..got].iter().rev().copied());
        }
        let list = &mut self.lists()[cpu];
        let rest = list.len().saturating_sub(out.len());
        let taken = list.drain(rest..).rev();
        out.iter_mut().zip(taken).map(|(out, pfn)| *out = pfn).count()
    }

    /// Adds the numbers to the processor's list. If the list is too long, passes its oldest numbers to
    /// `spill`.
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

    /// Leaves the numbers in the lists, and returns false. No experiment takes a run of frames that its
    /// processors have freed one by one.
    pub(crate) fn drain(&self, _spill: impl Fn(&[Pfn])) -> bool {
        false
    }

    /// Checks that the machine stays on its thread. Processors, clocks and grace periods belong to the
    /// thread.
    fn check_thread(&self) {
        assert_eq!(
            thread::current().id(),
            self.thread,
            "a simulated machine must stay on the thread that built it"
        );
    }

    /// Charges the move of a batch between a processor's list and its socket's memory.
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
