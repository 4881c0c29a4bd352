//! What is mapped when memory runs out, and what of it a program can see.

use super::{
    support::failure::{use_up_frames, use_up_vmas},
    *,
};
use freehold::{
    call::Advice,
    fault::FaultError,
    file::{Frames, Special},
    space::Counts,
    vma::flags::VmFlags,
};

/// ```text
/// page   0       8   12  16  20 22  26   32           48        600 .. 1224
///        |--rw---|-r-|   |rw-|  |rwd|    |r|w|r|w|..|w|         |----rw----|
///
///        2000    2004  2008   2100  2104  2200 2204   3000 3004  4000   5000 .. 6200
///        |-file p-|-file s-|  |-shm-|     |locked|     |stack|    free   |---rw---|
/// ```
pub struct Scene {
    pub world: World,
    pub process: Process,
    pub cpu: Vcpu,
    pub file: Counted<File<Machine>>,
    pub vdso: Counted<Special<Machine>>,
    /// Keeps frames and VMAs out of the engine's stores.
    hog: Process,
    /// A copy from before the call, which must not notice anything.
    child: Option<Process>,
}

/// The address of a page of the scene.
pub const fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

/// What a program sees.
#[derive(Debug, PartialEq)]
pub struct State {
    /// Start, end, flags, offset and name; VMAs that could be one are one.
    maps: Vec<(u64, u64, VmFlags, u64, String)>,
    /// But for the number of VMAs.
    counts: Counts,
    brk: u64,
    /// Pages looked at, and what is there.
    pub contents: Vec<(u64, Result<u64, FaultError>)>,
    /// What the child sees.
    child: Vec<(u64, Result<u64, FaultError>)>,
}

/// Pages whose contents are looked at; holes and edges among them, but not what lies below the stack.
fn sample() -> impl Iterator<Item = u64> {
    let small = (0..50).chain(98..104).chain(600..605).chain(698..704);
    let far = [650, 900, 1022, 1023, 1024, 1025, 1100, 1222, 1223, 1224];
    let files = (2000..2010).chain(2100..2105).chain(2200..2205).chain(3000..3005);
    small.chain(far).chain(files).chain(4000..4012).chain(5000..5002)
}

impl Scene {
    pub fn new(locking: Locking, forked: bool, spare: u64) -> Self {
        let world = World::new();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let file = world.file(16);
        map_all(&process, &mut cpu, &file);
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
        let child = forked.then(|| Process::of(process.fork().unwrap()));
        let hog = world.process(Locking::default());
        let mut scene = Scene { world, process, cpu, file, vdso, hog, child };
        use_up_frames(&scene.world, &scene.hog, &mut scene.cpu, at(1 << 20), spare);
        let child = scene.child.as_ref().map_or(0, |child| child.counts().map_count);
        let live = scene.process.counts().map_count + child;
        use_up_vmas(&scene.hog, live, at(0), spare);
        scene
    }

    pub fn check(&self) {
        assert!(self.process.try_read().is_some(), "a lock is still held");
        self.process.check();
        self.file.mapping().check();
        if let Some(child) = &self.child {
            child.check();
        }
    }

    pub fn state(&mut self) -> State {
        let maps = joined(&self.process);
        let counts = Counts { map_count: 0, ..self.process.counts() };
        let brk = self.process.brk(0).unwrap();
        let contents = contents(&self.process, &mut self.cpu, brk);
        let child = self.child.as_ref().map_or(Vec::new(), |child| contents_of(child, &mut self.cpu));
        State { maps, counts, brk, contents, child }
    }

    /// Pages of `32..48`, some of which have moved to `4000..4016`, that are in neither place.
    pub fn lost_by_a_move(&mut self) -> Vec<u64> {
        let mut is_at = |page, value| self.process.load::<u64>(&mut self.cpu, at(page)) == Ok(value);
        let written = (33..48).step_by(2);
        written.filter(|&page| is_at(page, 399 + page) == is_at(page + 4000 - 32, 399 + page)).collect()
    }

    pub fn end(self) {
        let Scene { world, process, cpu, file, vdso, hog, child } = self;
        process.check();
        drop((process, child, hog, cpu, file, vdso));
        world.end();
    }
}

impl State {
    /// What differs, a line for each thing.
    pub fn differences(&self, expected: &Self) -> String {
        fn lines(state: &State) -> Vec<String> {
            let mut lines: Vec<String> = state.maps.iter().map(|line| format!("{line:x?}")).collect();
            lines.push(format!("{:?}, break {:#x}", state.counts, state.brk));
            lines.extend(state.contents.iter().map(|page| format!("{page:?}")));
            lines.extend(state.child.iter().map(|page| format!("child {page:?}")));
            lines
        }
        let (found, expected) = (lines(self), lines(expected));
        let missing =
            expected.iter().filter(|line| !found.contains(line)).map(|line| format!("\n  - {line}"));
        let added = found.iter().filter(|line| !expected.contains(line)).map(|line| format!("\n  + {line}"));
        missing.chain(added).collect()
    }
}

fn contents_of(process: &Process, cpu: &mut Vcpu) -> Vec<(u64, Result<u64, FaultError>)> {
    sample().map(|page| (page, process.load(cpu, at(page)))).collect()
}

fn contents(process: &Process, cpu: &mut Vcpu, brk: u64) -> Vec<(u64, Result<u64, FaultError>)> {
    let mut found = contents_of(process, cpu);
    found.extend((1..8).map(|n| (u64::MAX - n, process.load(cpu, brk - n * PAGE))));
    found
}

/// The lines of maps, those that continue each other as one.
fn joined(process: &Process) -> Vec<(u64, u64, VmFlags, u64, String)> {
    let mut lines: Vec<(u64, u64, VmFlags, u64, String)> = Vec::new();
    for line in process.maps(0) {
        // Whether guards may be there stays noted where they could not be put, or were taken away.
        let flags = line.flags - VmFlags::MAYBE_GUARD;
        let name = line.name.as_str();
        match lines.last_mut() {
            Some((start, end, last, offset, its_name))
                if *end == line.start
                    && *last == flags
                    && its_name == name
                    && (line.offset == 0 || *offset + (*end - *start) == line.offset) =>
            {
                *end = line.end;
            }
            _ => lines.push((line.start, line.end, flags, line.offset, name.to_owned())),
        }
    }
    lines
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
