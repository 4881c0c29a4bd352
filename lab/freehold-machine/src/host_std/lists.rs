//! Lists of free numbers, one for each CPU, in front of the shared list of a pool (`pool.rs`), as in a
//! kernel's page allocator. Without these lists, each operation would move cache lines from CPU to CPU: the
//! lines of the shared list, and the lines with the record and the contents of the lowest free number.
//!
//! Only a machine without oracles has these lists. The tests of other machines expect that the lowest free
//! number is taken first, and that a second free of a number is found at once. With lists, a second free is
//! found only when the number leaves its list. `tests/memory.rs` checks that no number is lost in a list.

use super::{Lock, MAX_CPUS, with_cpu};
use freehold_pagetable::Pfn;

/// Size of the batches in which free numbers move between a CPU's list and the shared list.
const BATCH: usize = 64;

/// The free lists of a pool.
#[derive(Debug)]
pub(crate) struct Lists {
    /// The list of each CPU. The number that was freed last is taken first. Empty with oracles.
    of_cpus: Box<[List]>,
}

/// The list of one CPU, on cache lines of its own. The list never outgrows its initial capacity, because an
/// allocation may fail in a test that injects failures.
#[derive(Debug)]
#[repr(align(128))]
struct List(Lock<Vec<Pfn>>);

impl Lists {
    /// Creates empty lists, or none if the machine has oracles.
    pub(crate) fn new(oracles: bool) -> Lists {
        let cpus = if oracles { 0 } else { MAX_CPUS };
        Lists { of_cpus: (0..cpus).map(|_| List(Lock::new(Vec::with_capacity(3 * BATCH)))).collect() }
    }

    /// Takes as many free numbers as exist, at most the length of `out`. Takes them from the CPU's list, then
    /// from the shared list with `refill`, and then from the lists of other CPUs.
    #[inline]
    pub(crate) fn take(&self, out: &mut [Pfn], refill: impl Fn(&mut [Pfn]) -> usize) -> usize {
        if self.of_cpus.is_empty() {
            return refill(out);
        }
        let own = &self.of_cpus[with_cpu(|cpu| cpu)];
        let mut got = own.pop(out);
        if out.len() - got >= BATCH {
            got += refill(&mut out[got..]);
        } else if got < out.len() {
            let mut batch = [Pfn::new(0); BATCH];
            let mut fresh = refill(&mut batch);
            while got < out.len() && fresh > 0 {
                fresh -= 1;
                out[got] = batch[fresh];
                got += 1;
            }
            own.0.lock().extend_from_slice(&batch[..fresh]);
        }
        let mut others = self.of_cpus.iter();
        while got < out.len()
            && let Some(other) = others.next()
        {
            got += other.pop(&mut out[got..]);
        }
        got
    }

    /// Adds the numbers to the CPU's list. If the list is too long, passes its oldest numbers to `spill`.
    #[inline]
    pub(crate) fn give(&self, numbers: &[Pfn], spill: impl Fn(&[Pfn])) {
        if self.of_cpus.is_empty() || numbers.len() > BATCH {
            return spill(numbers);
        }
        let mut list = self.of_cpus[with_cpu(|cpu| cpu)].0.lock();
        list.extend_from_slice(numbers);
        if list.len() > 2 * BATCH {
            let oldest = list.len() - BATCH;
            spill(&list[..oldest]);
            list.drain(..oldest);
        }
    }

    /// Passes all numbers in the lists to `spill`. Returns true if there were any.
    #[cold]
    pub(crate) fn drain(&self, spill: impl Fn(&[Pfn])) -> bool {
        let mut any = false;
        for list in &self.of_cpus {
            let mut list = list.0.lock();
            any |= !list.is_empty();
            spill(&list);
            list.clear();
        }
        any
    }
}

impl List {
    /// Moves numbers from the list to `out`. Returns how many.
    #[inline]
    fn pop(&self, out: &mut [Pfn]) -> usize {
        let mut list = self.0.lock();
        let got = out.len().min(list.len());
        for out in &mut out[..got] {
            *out = list.pop().expect("the list is long enough");
        }
        got
    }
}
