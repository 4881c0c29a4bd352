//! Moves by range writers (`docs/guide/ranges.md`) have the results of moves by the exclusive writer.
//!
//! The test runs the same random calls on two processes ([`Side`]), whose designs differ only in the kind of
//! writer. After each call the results, the maps, the contents and the counts of the two processes must be
//! equal. A failure names the seed and the step. The calls of [`step`] run on one thread; claims that
//! conflict are tested in `range_writers.rs` of the parent folder.

use crate::support::*;
use freehold::{
    call::{LockFlags, RemapFlags},
    space::Write,
};

const DEFAULT: Locking = Locking::ALL[Locking::ALL.len() - 1];
const RANGE_WRITERS: Locking = DEFAULT.write(Write::RangesOnly);
const WHOLE: Locking = DEFAULT.write(Write::Whole);
const MAYMOVE: RemapFlags = RemapFlags::MAYMOVE;

/// A mapping: start, end, flags, offset, and the first word of each readable page.
type Line = (u64, u64, u64, u64, Vec<Option<u64>>);

/// A process with small mappings that are moved, and a CPU.
struct Side {
    world: World,
    process: Process,
    cpu: Vcpu,
    file: Counted<File<freehold_machine::Machine>>,
}

impl Side {
    fn new(locking: Locking) -> Self {
        let world = World::new();
        let process = world.process(locking);
        let (cpu, file) = (world.machine.cpu(0), world.file(16));
        Side { world, process, cpu, file }
    }

    fn end(self) {
        let Side { world, process, cpu, file } = self;
        process.check();
        drop((process, cpu, file));
        world.end();
    }

    fn scene(&mut self) -> Vec<Line> {
        let mut scene = Vec::new();
        for line in self.process.maps(0) {
            let pages = (line.start..line.end).step_by(PAGE as usize);
            let words = pages.map(|at| self.process.load::<u64>(&mut self.cpu, at).ok()).collect();
            scene.push((line.start, line.end, line.flags.bits(), line.offset, words));
        }
        scene
    }
}

/// Makes a random call on the mappings in `known`. Returns a description of the call and its result.
fn step(side: &mut Side, dice: &mut Dice, known: &mut Vec<(u64, u64)>) -> String {
    let process = &side.process;
    if known.len() < 3 || dice.roll(4) == 0 && known.len() < 24 {
        let len = (1 + dice.roll(5)) * PAGE;
        let prot = if dice.roll(3) == 0 { Prot::READ } else { RW };
        let at = match dice.roll(4) {
            0 => process.mmap(0, len, prot, MapFlags::PRIVATE, Some(&side.file), dice.roll(3) * PAGE),
            1 => process.mmap(0, len, prot, MapFlags::SHARED, Some(&side.file), dice.roll(3) * PAGE),
            _ => process.mmap(0, len, prot, ANON, None, 0),
        };
        known.extend(at.iter().map(|at| (*at, len)));
        return format!("mmap {at:?}");
    }
    let nth = dice.roll(known.len() as u64) as usize;
    let (at, len) = known[nth];
    match dice.roll(8) {
        0 => {
            known.swap_remove(nth);
            format!("munmap {:?}", process.munmap(at, len))
        }
        1..=2 => {
            let page = at + dice.roll(len / PAGE) * PAGE;
            format!("store {:?}", process.store(&mut side.cpu, page, page ^ len).is_ok())
        }
        3 => format!("mlock {:?}", process.mlock2(at, len, LockFlags::ONFAULT)),
        _ => {
            // Moves the whole mapping, one of its ends, or a part in the middle.
            let skip = dice.roll(len / PAGE) * dice.roll(2) * PAGE;
            let old = len - skip - dice.roll((len - skip) / PAGE) * dice.roll(2) * PAGE;
            let new = old + (1 + dice.roll(3)) * PAGE;
            let moved = process.mremap(at + skip, old, new, MAYMOVE, 0);
            if let Ok(to) = moved {
                known.swap_remove(nth);
                let parts = [(to, new), (at, skip), (at + skip + old, len - skip - old)];
                known.extend(parts.into_iter().filter(|(_, len)| *len > 0));
            }
            format!("mremap {moved:?}")
        }
    }
}

#[test]
fn range_writer_moves_match_exclusive_writer_moves() {
    for seed in 0..30 {
        let mut sides = [WHOLE, RANGE_WRITERS].map(Side::new);
        let mut dice = [Dice::new(seed), Dice::new(seed)];
        let mut known = [Vec::new(), Vec::new()];
        for turn in 0..60 {
            let [one, two] = std::array::from_fn(|n| step(&mut sides[n], &mut dice[n], &mut known[n]));
            assert_eq!(one, two, "seed {seed}, turn {turn}");
            let [one, two] = &mut sides;
            assert_eq!(one.scene(), two.scene(), "seed {seed}, turn {turn}: the maps");
            assert_eq!(one.process.counts(), two.process.counts(), "seed {seed}, turn {turn}");
            assert_eq!(one.process.rss(), two.process.rss(), "seed {seed}, turn {turn}");
        }
        sides.into_iter().for_each(Side::end);
    }
}
