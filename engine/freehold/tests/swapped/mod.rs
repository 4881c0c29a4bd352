//! Pages that are swapped out and come back (`src/reclaim/swap_out.rs`, `src/fault/swap.rs`, and
//! `src/swap_entry.rs` of `freehold-vmspace`).
//!
//! A [`Swapped`] world has one swap device, a `MemorySwap`, which checks what the engine asks of it. Its
//! [`end`](Swapped::end) fails if a slot is in use, if a slot was not discarded, or if a frame leaked.
//! `swap.rs` tests the slots without page tables. `shuttle_engine/swapped.rs` explores the calls
//! concurrently.
//!
//! | file | contents |
//! | --- | --- |
//! | `out.rs` | which pages go, and how |
//! | `advice.rs` | MADV_PAGEOUT |
//! | `ahead.rs` | readahead |
//! | `back.rs` | faults: reads, waits, failures, exclusive and shared pages |
//! | `calls.rs` | calls on swapped memory: fork, mprotect, mremap, munmap, guards, userfaultfd and others |
//! | `copies.rs` | private copies of pages of files |
//! | `off.rs` | swapoff |
//! | `failed.rs` | memory failures of frames in the swap cache |
//! | `shared.rs`, `shared_random.rs` | shared memory |
//! | `shown.rs` | what reports show |
//! | `short.rs` | allocation failures |
//! | `random.rs` | random calls, compared with a copy of the memory |

mod advice;
mod ahead;
mod back;
mod calls;
mod copies;
mod failed;
mod off;
mod out;
mod random;
mod shared;
mod shared_random;
mod short;
mod shown;

use crate::support::*;
use freehold::{
    reclaim::{ReclaimPolicy, ReclaimRequest, Reclaimed},
    swap::SwapId,
};
use freehold_machine::MemorySwap;

/// A world with a swap device.
struct Swapped {
    world: World,
    device: MemorySwap,
    id: SwapId,
}

impl Swapped {
    fn new(slots: u64) -> Self {
        // The policy evicts each page that was not accessed since the last visit.
        let world = World::with(1 << 20, Config::new().reclaim(ReclaimPolicy::Clock));
        let device = MemorySwap::new(slots);
        let id = world.engine().swap_on(device.clone(), 0).unwrap();
        Swapped { world, device, id }
    }

    fn process(&self, locking: Locking) -> Process {
        self.world.process(locking)
    }

    /// Reclaims as many pages as possible.
    fn reclaim(&self) -> Reclaimed {
        self.world.engine().reclaim(&ReclaimRequest::pages(u64::MAX))
    }

    fn used(&self) -> u64 {
        self.world.engine().swap_usage(self.id).unwrap().used
    }

    /// Checks that nothing is left: no page in a slot, and no frame.
    fn end(self) {
        assert_eq!((self.used(), self.device.waiting()), (0, 0), "slots in use, waiting requests");
        assert_eq!(self.device.stored(), [], "a slot was not discarded");
        self.world.end();
    }
}

/// Runs a scenario on every design, with a process that has `pages` filled pages of private memory at
/// [`BASE`].
fn with_filled(pages: u64, scenario: impl Fn(&Swapped, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        let swapped = Swapped::new(64);
        let process = swapped.process(locking);
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, pages);
        fill(&process, &mut cpu, BASE, pages, 1);
        scenario(&swapped, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        swapped.end();
    }
}

/// Runs a scenario like [`with_filled`], with pages that are swapped out.
fn with_swapped(pages: u64, scenario: impl Fn(&Swapped, &Process, &mut Vcpu)) {
    with_filled(pages, |swapped, process, cpu| {
        assert_eq!(swapped.reclaim().freed, pages);
        assert_eq!((process.rss().anon, process.rss().swap, swapped.used()), (0, pages as i64, pages));
        process.check();
        scenario(swapped, process, cpu);
    });
}

/// Returns the number of pages of a process that are swapped out.
fn swapped_pages(process: &Process) -> i64 {
    process.rss().swap
}
