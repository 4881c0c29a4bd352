//! The mappings of a process whose calls run out of memory, and a view of what the process can see.
//!
//! `calls.rs` has the calls that are made on a scene. `support/oom.rs` has the harness that makes their
//! allocations fail. A [`Scene`] is built again for every call, on a [`Stage`] that outlives it. The calls
//! name pages by their numbers in the drawing below. A change of the layout therefore needs changes of the
//! calls and of `sample`, which lists the pages that are compared.

use super::{
    calls::Call,
    support::{oom, scarce::ScarceWorld, view::View},
    *,
};
use freehold::{
    call::Advice,
    file::{Frames, Special},
};

/// ```text
/// page   0       8   12  16  20 22  26   32           48        600 .. 1224
///        |--rw---|-r-|   |rw-|  |rwd|    |r|w|r|w|..|w|         |----rw----|
///
///        2000    2004  2008   2100  2104  2200 2204   3000 3004  4000   5000 .. 6200
///        |-file p-|-file s-|  |-shm-|     |locked|     |stack|    free   |---rw---|
/// ```
pub struct Scene {
    stage: Stage,
    /// Name of the call.
    doing: &'static str,
    pub process: Process,
    pub cpu: Vcpu,
    pub file: Counted<File<Machine>>,
    pub vdso: Counted<Special<Machine>>,
    /// A child that was forked before the call. The child must not see a change.
    child: Option<Process>,
}

/// Returns the address of a page of the scene.
pub const fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

/// A world, and the number of frames and VMAs in its engine's caches when a call begins. `None` stands
/// for any number.
pub struct Stage {
    scarce: ScarceWorld,
    spare: Option<u64>,
}

impl Stage {
    pub fn new(spare: Option<u64>) -> Self {
        Stage { scarce: ScarceWorld::new(World::new()), spare }
    }

    pub fn end(self) {
        self.scarce.end();
    }
}

/// Returns the pages whose contents are compared: pages, holes and edges, but not the pages below the stack.
fn sample() -> impl Iterator<Item = u64> {
    let small = (0..50).chain(98..104).chain(600..605).chain(698..704);
    let far = [650, 900, 1022, 1023, 1024, 1025, 1100, 1222, 1223, 1224];
    let files = (2000..2010).chain(2100..2105).chain(2200..2205).chain(3000..3005);
    small.chain(far).chain(files).chain(4000..4012).chain(5000..5002)
}

impl Scene {
    /// Fails if a page of `32..48` is in neither its old nor its new place. Some of these pages have moved to
    /// `4000..4016`.
    pub fn lost_by_a_move(&mut self) -> Result<(), String> {
        let mut is_at = |page, value| self.process.load::<u64>(&mut self.cpu, at(page)) == Ok(value);
        let written = (33..48).step_by(2);
        let lost: Vec<u64> =
            written.filter(|&page| is_at(page, 399 + page) == is_at(page + 4000 - 32, 399 + page)).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("lost pages {lost:?}")) }
    }
}

impl oom::Scene for Scene {
    type Stage = Stage;

    fn new(stage: Stage, call: &Call, locking: Locking) -> Self {
        let mut stage = if stage.scarce.is_worn() {
            let spare = stage.spare;
            stage.end();
            Stage::new(spare)
        } else {
            stage
        };
        let world = &stage.scarce.world;
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let file = world.file(16);
        map_all(&process, &mut cpu, &file);
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
        let child = call.forked.then(|| Process::of(process.fork().unwrap()));
        if let Some(spare) = stage.spare {
            stage.scarce.use_up(spare);
        }
        Scene { stage, doing: call.name, process, cpu, file, vdso, child }
    }

    fn check(&self) {
        oom::check(&self.process, self.child.as_ref());
        self.file.mapping().check();
    }

    fn view(&mut self) -> View {
        let machine = &self.stage.scarce.world.machine;
        View::new(machine, &mut self.cpu, &self.process, self.child.as_ref(), sample().map(at))
    }

    fn end(self) -> Stage {
        self.process.check();
        let Scene { stage, doing, process, cpu, file, vdso, child } = self;
        drop((process, child, cpu, file, vdso));
        // If `spare` is `None`, another thread may have made the call, and the CPU of that thread keeps
        // frames.
        stage.scarce.check_that_all_is_back(stage.spare.is_none(), || doing.to_owned());
        stage
    }
}

fn map_all(process: &Process, cpu: &mut Vcpu, file: &Counted<File<Machine>>) {
    let fixed = |page, pages, prot, flags, file, offset| {
        process.mmap(at(page), pages * PAGE, prot, flags | MapFlags::FIXED, file, offset * PAGE).unwrap()
    };
    anon(process, at(0), 12);
    fill(process, cpu, at(0), 12, 100);
    process.mprotect(at(8), 4 * PAGE, R).unwrap();
    anon(process, at(16), 4);
    fill(process, cpu, at(16), 4, 200);
    anon(process, at(22), 4);
    process.madvise(at(22), 4 * PAGE, Advice::DontFork).unwrap();
    fill(process, cpu, at(22), 2, 300);
    for page in (32..48).step_by(2) {
        fixed(page, 1, R, ANON, None, 0);
        fixed(page + 1, 1, RW, ANON, None, 0);
        fill(process, cpu, at(page + 1), 1, 400 + page);
    }
    anon(process, at(600), 624);
    for page in [600, 900, 1023, 1024, 1100, 1223] {
        fill(process, cpu, at(page), 1, page);
    }
    fixed(2000, 4, RW, MapFlags::PRIVATE, Some(file), 0);
    fixed(2004, 4, RW, MapFlags::SHARED, Some(file), 4);
    fill(process, cpu, at(2000), 1, 500);
    fill(process, cpu, at(2004), 1, 501);
    fixed(2100, 4, RW, MapFlags::SHARED | MapFlags::ANONYMOUS, None, 0);
    fill(process, cpu, at(2100), 2, 600);
    anon(process, at(5000), 1200);
    anon(process, at(2200), 4);
    process.mlock(at(2200), 4 * PAGE).unwrap();
    fixed(3000, 4, RW, ANON | MapFlags::GROWSDOWN, None, 0);
    fill(process, cpu, at(3003), 1, 700);
    let heap = process.brk(0).unwrap();
    process.brk(heap + 4 * PAGE).unwrap();
    fill(process, cpu, heap, 2, 800);
}
