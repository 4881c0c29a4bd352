//! Values per CPU, each on its own cache lines ([`PerCpu`]), and sums made of them ([`Counter`]).
//!
//! These types are for values that many CPUs write often and that few tasks read as a whole. Examples are
//! lists of free frames, the slab of VMAs, and counts of resident pages. A CPU writes its own value without a
//! lock and without read-modify-writes. This is correct because of the contract of [`Host::with_cpu`]: no two
//! contexts run with the same number at the same time. So the closure that gets the value must be short, and
//! must not wait.
//!
//! All values are allocated at creation; later calls allocate nothing and cannot fail. The test
//! `a_counter_adds_up` in `tests/threads.rs` adds to one counter on several threads.

use crate::atomic::{AtomicI64, Ordering, announce_records};
use crate::host::Host;
use allocator_api2::alloc::AllocError;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use crossbeam_utils::CachePadded;

/// A value per CPU number of `H`, padded so that no two values share a cache line.
///
/// Any thread may *read* any cell at any time. A CPU *writes* its own cell inside [`with`](Self::with)
/// without read-modify-writes, because no other context is inside `with` with the same number.
pub struct PerCpu<T, H> {
    cells: Box<[CachePadded<T>]>,
    host: PhantomData<fn() -> H>,
}

impl<T, H: Host> PerCpu<T, H> {
    /// Creates a cell for each CPU number below [`Host::cpus`].
    ///
    /// # Errors
    /// Fails with [`AllocError`] if there is no memory.
    pub fn try_new(mut init: impl FnMut(usize) -> T) -> Result<Self, AllocError> {
        let mut cells = Vec::new();
        let cpus = H::cpus();
        cells.try_reserve_exact(cpus).map_err(|_| AllocError)?;
        for cpu in 0..cpus {
            // The capacity is reserved, so the push does not allocate.
            cells.push(CachePadded::new(init(cpu)));
        }
        let cells = cells.into_boxed_slice();
        announce_records(core::any::type_name::<T>(), cells.as_ptr(), cells.len(), &[]);
        Ok(PerCpu { cells, host: PhantomData })
    }

    /// Runs `f` on the cell of the current CPU. `f` neither waits nor nests, as in [`Host::with_cpu`].
    #[inline]
    pub fn with<'s, R>(&'s self, f: impl FnOnce(&'s T) -> R) -> R {
        self.with_index(|_, cell| f(cell))
    }

    /// Like [`with`](Self::with), but also passes the CPU number to `f`.
    #[inline]
    pub fn with_index<'s, R>(&'s self, f: impl FnOnce(usize, &'s T) -> R) -> R {
        H::with_cpu(|cpu| f(cpu, &self.cells[cpu]))
    }

    /// Returns the cell of a CPU. Returns `None` if there is no CPU with this number.
    #[inline]
    pub fn get(&self, cpu: usize) -> Option<&T> {
        self.cells.get(cpu).map(|cell| &**cell)
    }

    /// Returns all cells, in the order of CPU numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator + Clone {
        self.cells.iter().map(|cell| &**cell)
    }
}

impl<T: fmt::Debug, H: Host> fmt::Debug for PerCpu<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A sum with one part per CPU. Adding shares no cache line; reading visits all parts.
pub struct Counter<H> {
    parts: PerCpu<AtomicI64, H>,
}

impl<H: Host> Counter<H> {
    /// Creates a counter with the value zero.
    ///
    /// # Errors
    /// Fails with [`AllocError`] if there is no memory.
    pub fn try_new() -> Result<Self, AllocError> {
        let parts = PerCpu::try_new(|_| AtomicI64::new(0))?;
        announce_records("Counter", parts.cells.as_ptr(), parts.cells.len(), &[]);
        Ok(Counter { parts })
    }

    /// Adds `n`, which may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        self.parts.with(|part| {
            // Relaxed load and store instead of a read-modify-write: no other context writes this part during
            // `with`. Pairs with the relaxed load in `sum`; orders nothing.
            part.store(part.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        });
    }

    /// Returns the sum. The result is exact if no thread adds at the same time.
    pub fn sum(&self) -> i64 {
        self.parts.iter().fold(0, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)))
    }
}

impl<H: Host> fmt::Debug for Counter<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.sum()).finish()
    }
}
