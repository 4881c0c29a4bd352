//! Huge pages of pools (`src/hugetlb/`): mapping, sharing, copying, truncation, reservation and release.
//! Transparent huge pages are tested in `huge/`, and huge pages with a userfaultfd in `uffd/pools.rs`.
//!
//! Most scenarios run on every design, with both designs of the locks of huge pages ([`everywhere`]). The
//! TLBs of the machine keep stale translations until they are flushed. At the end of a scenario all pages of
//! the pool must be free and unreserved, so a leaked page or reservation fails the test. A *span* is the 1
//! GiB that one table of huge pages covers; address spaces can share such a table.
//!
//! The subjects of the files: calls and their arguments (`calls.rs`, `failed_calls.rs`), private and shared
//! mappings (`private.rs`, `shared.rs`), counts of a pool (`pools.rs`), pages that another task uses
//! (`pages_in_use.rs`), and failed allocations (`oom.rs`). A new reason for which a call fails belongs in
//! `failed_calls.rs` or `oom.rs`, which check that the pool is unchanged.

mod calls;
mod failed_calls;
mod oom;
mod pages_in_use;
mod pools;
mod private;
mod shared;

use crate::support::{
    self, Config, Counted, Engine, File, FileAccess, HUGE, LEVELS, Machine, MachineConfig, MapFlags, Mapping,
    PAGE, Process, R, RW, SpaceConfig, USER_END, Vcpu, World,
};
use freehold::{
    call::Advice,
    error::Errno,
    fault::FaultError,
    hugetlb::{HugePageSize, HugePoolCounts},
    space::{HugetlbLock, Locking},
};

/// Bytes that one table of huge pages covers.
const SPAN: u64 = 1 << 30;
/// An address at the start of such a span.
const BASE: u64 = 0x80 * SPAN;
/// Flags of a shared mapping without a reservation.
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED).union(MapFlags::NORESERVE);
/// Flags of private memory of huge pages.
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::HUGETLB);

/// Returns every design.
fn designs() -> impl Iterator<Item = Locking> {
    let both = [HugetlbLock::FileLock, HugetlbLock::VmaLock];
    Locking::ALL.into_iter().flat_map(move |locking| both.map(|hugetlb| locking.hugetlb(hugetlb)))
}

/// Returns a machine with a pool of `pages` pages of 2 MiB.
fn world(pages: u64) -> World {
    let world = World::with((pages + 4) * HUGE, Config::default());
    assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
    world
}

/// Runs `scenario` on every design with a pool of `pages` pages. Checks that all pages are free and
/// unreserved at the end.
fn everywhere(pages: u64, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for locking in designs() {
        let world = world(pages);
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        assert_eq!(counts(&world), all_free(pages), "{locking:?}");
        world.end();
    }
}

/// Returns the counts of the pool.
fn counts(world: &World) -> HugePoolCounts {
    world.engine().huge_pool(HugePageSize::Mib2).counts(None)
}

/// Returns the counts of a pool whose pages are all free.
fn all_free(pages: u64) -> HugePoolCounts {
    HugePoolCounts { total: pages, free: pages, reserved: 0, surplus: 0 }
}

/// Returns a file of huge pages with the given size in bytes.
fn file(world: &World, bytes: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, bytes, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap()
}

/// Maps 1 GiB of a file at the start of a span, without reservations.
fn map_span(process: &Process, file: &Counted<File<Machine>>, at: u64) {
    assert_eq!(process.mmap(at, SPAN, RW, SHARED, Some(file), 0), Ok(at));
}
