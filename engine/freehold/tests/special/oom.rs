//! Memory runs out while devices are mapped, split, moved, shared and copied (C-10, C-31, C-47, C-64). Every
//! allocation of every call fails once, alone or together with all later allocations.
//!
//! A failed call has no effect, except that VMAs may stay split. Afterwards the number of opened and not yet
//! closed VMAs equals the number of existing VMAs, and the same call succeeds.
//!
//! A new call is one more entry of `CALLS`. The checks are in `failing`; the harness of `support/oom.rs` is
//! not used, because it does not check hooks.

use super::{
    support::{
        failure::{Failure, Point, at_every_allocation},
        scarce::ScarceWorld,
    },
    *,
};
use freehold::{call::RemapFlags, error::Errno};
use std::sync::{Arc, atomic::Ordering::SeqCst};

/// Target of moves and mappings: the last pages of the span of a page table, so that two tables are needed.
const TARGET: u64 = BASE + (64 << 30) - 2 * PAGE;

/// A process with mappings of a board, on a world whose engine has empty caches.
struct Scene {
    scarce: ScarceWorld,
    process: Process,
    cpu: Vcpu,
    board: Arc<Board>,
    file: Counted<File<Machine>>,
}

impl Scene {
    fn new(locking: Locking) -> Self {
        let mut scarce = ScarceWorld::new(World::new());
        let world = &scarce.world;
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let board = Board::new(&world.machine);
        let file = board.open(world);
        board.driver_mode().splits = true;
        process.mmap(BASE, 6 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        board.driver_mode().whole = Some(u64::MAX);
        process.mmap(BASE + 8 * PAGE, 4 * PAGE, RW, PRIVATE, Some(&file), 0).unwrap();
        process.store(&mut cpu, BASE + 9 * PAGE, 77u64).unwrap();
        assert_eq!(process.load(&mut cpu, BASE), Ok(Board::number(0)));
        scarce.use_up(0);
        Scene { scarce, process, cpu, board, file }
    }

    fn contents(&mut self) -> Vec<Option<u64>> {
        let pages = (0..12).map(|page| BASE + page * PAGE).chain((0..4).map(|page| TARGET + page * PAGE));
        pages.map(|at| self.process.load(&mut self.cpu, at).ok()).collect()
    }

    fn check(&self, what: &str) {
        assert!(self.process.try_read().is_some(), "{what}: a lock is still held");
        self.process.check();
        self.file.mapping().check();
        let vmas = self.process.counts().map_count;
        assert_eq!(self.board.open_vmas(), vmas, "{what}: number of open VMAs (left) and of existing VMAs");
    }

    fn end(self) {
        let Scene { scarce, process, cpu, board, file } = self;
        drop((process, cpu, file));
        board.assert_closed();
        drop(board);
        scarce.end();
    }
}

/// A call that is made on a [`Scene`].
struct Call {
    name: &'static str,
    run: fn(&mut Scene) -> Result<(), Errno>,
}

const CALLS: [Call; 9] = [
    Call { name: "mapped as a whole", run: |s| map(s, true, TARGET) },
    Call { name: "mapped by faults", run: |s| map(s, false, TARGET) },
    Call { name: "mapped as a whole in place of an older mapping", run: |s| map(s, true, BASE + PAGE) },
    Call { name: "cut", run: |s| s.process.munmap(BASE + PAGE, PAGE).map_err(|error| error.errno()) },
    Call {
        name: "protected",
        run: |s| s.process.mprotect(BASE + PAGE, PAGE, R).map_err(|error| error.errno()),
    },
    Call { name: "moved", run: |s| remap(s, BASE, 4) },
    Call { name: "copies moved", run: |s| remap(s, BASE + 8 * PAGE, 4) },
    Call { name: "forked", run: |s| s.process.fork().map(drop).map_err(|error| error.errno()) },
    Call {
        name: "stored to",
        run: |s| s.process.store(&mut s.cpu, BASE + 10 * PAGE, 1u64).map_err(|_| Errno::ENOMEM),
    },
];

fn map(s: &Scene, whole: bool, at: u64) -> Result<(), Errno> {
    s.board.driver_mode().whole = whole.then_some(u64::MAX);
    let mapped = s.process.mmap(at, 4 * PAGE, RW, SHARED, Some(&s.file), PAGE);
    mapped.map(drop).map_err(|error| error.errno())
}

fn remap(s: &Scene, from: u64, pages: u64) -> Result<(), Errno> {
    let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let moved = s.process.mremap(from, pages * PAGE, pages * PAGE, fixed, TARGET);
    moved.map(drop).map_err(|error| error.errno())
}

fn failing(call: &Call, locking: Locking, point: &Point) {
    let what = format!("{}, {locking:?}, {point}", call.name);
    let mut scene = Scene::new(locking);
    let before = scene.contents();
    let made = scene.board.counts.made.load(SeqCst);
    let result = point.fail(|| (call.run)(&mut scene));
    scene.check(&what);
    if let Err(error) = result {
        assert_eq!(error, Errno::ENOMEM, "{what}");
        let left = scene.board.counts.made.load(SeqCst) - scene.board.counts.dropped.load(SeqCst);
        assert!(left <= made, "{what}: a failed mapping leaked its private data");
        for (page, (before, after)) in before.iter().zip(scene.contents()).enumerate() {
            assert_eq!(*before, after, "{what}: page {page}");
        }
        assert_eq!((call.run)(&mut scene), Ok(()), "{what}: a second attempt with memory");
        scene.check(&what);
    }
    scene.end();
}

#[test]
fn c10_failed_allocation_in_device_calls_changes_nothing() {
    let mut met = 0;
    for call in &CALLS {
        for locking in [Locking::ALL[0], Locking::default()] {
            met += at_every_allocation(&Failure::ALL, |point| failing(call, locking, point));
        }
    }
    assert!(met > 100, "only {met} allocations failed");
}
