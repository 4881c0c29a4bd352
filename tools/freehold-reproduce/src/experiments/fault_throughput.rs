//! Step 0: compares the designs of munmap by the faults per second of programs that repeatedly map files,
//! read or write every page, and unmap.
//!
//! Sides: the four designs of munmap. [`Case`] names the access patterns of the published test. In a turn,
//! each thread maps its part of a file, touches every page and unmaps the part, again and again until the
//! time is over. The result is the number of faults per second. A long munmap under the mmap lock lowers the
//! rate of the cases with one process and many threads. A new access pattern needs a variant of [`Case`], an
//! entry in `Case::ALL`, and its part of `passes`.

use super::{Experiment, published};
use crate::executor::Stop;
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::load::{Format, GIB, Open, PAGE, RW, World, unmap_name, unmap_names, unmaps};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{memory, scale::Scale, steps::Steps};
use freehold::fault::Access;
use freehold::space::{FaultLock, Locking, MapFlags, Prot, Write};
use freehold_machine::{Cpu, Process};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// See the [module](self).
pub struct FaultThroughput;

/// The mappings of a case, and the processes that make them.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    /// Every process reads its own file in order.
    PreadSeq,
    /// Every thread of one process reads its own file in order.
    PreadSeqMt,
    /// Every thread of one process reads the same file in order.
    XreadSeqMt,
    /// Every process writes all pages of its part of a file, and unmaps the part piece by piece in random
    /// order.
    MmapFile,
}

impl Case {
    const ALL: [Case; 4] = [Case::PreadSeq, Case::PreadSeqMt, Case::XreadSeqMt, Case::MmapFile];

    fn name(self) -> &'static str {
        match self {
            Case::PreadSeq => "mmap-pread-seq",
            Case::PreadSeqMt => "mmap-pread-seq-mt",
            Case::XreadSeqMt => "mmap-xread-seq-mt",
            Case::MmapFile => "mmap-file",
        }
    }

    /// Returns the published faults per second, before and after the step.
    fn published(self) -> Option<(f64, f64)> {
        let found = published::FAULTS.iter().find(|(name, ..)| *name == self.name())?;
        Some((found.1, found.2))
    }

    fn one_process(self) -> bool {
        matches!(self, Case::PreadSeqMt | Case::XreadSeqMt)
    }
}

/// Number of pieces in which [`Case::MmapFile`] unmaps a part of the file.
const PIECES: u64 = 64;

/// The files of a run.
struct Files {
    /// The files.
    all: Vec<Open>,
    /// Number of bytes that each thread maps.
    bytes: u64,
}

/// Returns the number of bytes that each thread maps.
fn bytes(scale: &Scale) -> u64 {
    (scale.size(8 * GIB, GIB / 2) / scale.cpus as u64).next_multiple_of(PIECES * PAGE)
}

impl Experiment for FaultThroughput {
    fn name(&self) -> &'static str {
        "fault-throughput"
    }

    fn title(&self) -> &'static str {
        "faults per second of programs that map files (step 0)"
    }

    fn sides(&self) -> Vec<String> {
        unmap_names()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        // Counts each page once in its file and once as mapped by the processes.
        memory::of_phantom(bytes(scale) * scale.cpus as u64) * 2
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        scale.seconds(Case::ALL.len() * 4)
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let threads = scale.cpus;
        let bytes = bytes(scale);
        let world = World::new(bytes * threads as u64 + GIB, threads, scale.config())?;
        let files = (0..threads).map(|_| world.file(bytes / PAGE)).collect::<anyhow::Result<_>>()?;
        let files = Files { all: files, bytes };
        let mut designs =
            unmaps(scale.locking(Locking::default().fault(FaultLock::MmapLock).write(Write::Whole)));
        let mut rates = Vec::new();
        for case in Case::ALL {
            let found = in_turns(scale.turns(), &mut designs, |design, turn| {
                let what = format!("{}, turn {}", case.name(), turn + 1);
                steps.step(what, scale.turn.as_secs_f64(), || rate(&world, *design, case, &files, scale))
            })?;
            rates.push(figures(&found, |rate| *rate));
        }
        Ok(findings(&designs, &rates, threads, bytes))
    }
}

/// Measures the faults per second of one turn.
fn rate(world: &World, locking: Locking, case: Case, files: &Files, scale: &Scale) -> anyhow::Result<f64> {
    let processes: Vec<Process> = match case.one_process() {
        true => vec![world.process(locking)?; scale.cpus],
        false => (0..scale.cpus).map(|_| world.process(locking)).collect::<anyhow::Result<_>>()?,
    };
    let (_, took) = world.for_a_while(scale.cpus, scale.turn, |thread, cpu, stop| {
        let process = &processes[thread];
        cpu.run(process.mmu());
        let file = &files.all[if case == Case::XreadSeqMt { 0 } else { thread }];
        passes(process, cpu, file, case, files.bytes, stop)
    })?;
    let counted = |process: &Process| {
        let faults = process.faults();
        faults.vma_lock + faults.mmap_lock
    };
    let counting = if case.one_process() { &processes[..1] } else { &processes[..] };
    Ok(counting.iter().map(counted).sum::<u64>() as f64 / took.as_secs_f64())
}

/// Maps, touches and unmaps until the end of the turn.
fn passes(
    process: &Process,
    cpu: &mut Cpu<Format>,
    file: &Open,
    case: Case,
    bytes: u64,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut random = Pcg64::seed_from_u64(cpu.number() as u64);
    let writes = case == Case::MmapFile;
    let (prot, access) = if writes { (RW, Access::WRITE) } else { (Prot::READ, Access::READ) };
    while !stop.is_told() {
        let at = cpu.call(|| process.mmap(0, bytes, prot, MapFlags::SHARED, Some(file), 0))?;
        let mut page = at;
        while page < at + bytes && !stop.is_told() {
            process.touch(cpu, page, access)?;
            page += PAGE;
        }
        let mut pieces: Vec<u64> = if writes { (0..PIECES).collect() } else { vec![0] };
        let piece_bytes = bytes / pieces.len() as u64;
        while !pieces.is_empty() {
            let piece = pieces.swap_remove(random.next_u64() as usize % pieces.len());
            cpu.call(|| process.munmap(at + piece * piece_bytes, piece_bytes))?;
        }
    }
    Ok(())
}

/// Returns the findings from the rates by case and design.
fn findings(designs: &[Locking; 4], rates: &[Vec<Figure>], threads: usize, bytes: u64) -> Findings {
    let names = designs.map(|design| unmap_name(design.unmap));
    let rows = Case::ALL.iter().zip(rates).map(|(case, rates)| {
        let rate = |side: usize| Cell::measured(Unit::PerSecond, rates[side].clone());
        let change = |side: usize| Cell::measured(Unit::Change, rates[side].change(&rates[0]));
        let published = case.published();
        let cells = vec![
            rate(0),
            rate(1),
            change(1),
            rate(2),
            change(2),
            rate(3),
            change(3),
            Cell::published(Unit::PerSecond, published.map(|(before, _)| before)),
            Cell::published(Unit::PerSecond, published.map(|(_, after)| after)),
            Cell::published(Unit::Change, published.map(|(before, after)| after / before - 1.0)),
        ];
        Row { name: case.name().to_owned(), cells }
    });
    let columns = [
        "load",
        "Exclusive",
        "Sectioned",
        "change",
        "Downgraded",
        "change",
        "Released",
        "change",
        "step 0: before",
        "after",
        "change",
    ];
    let lines = names.iter().enumerate().map(|(side, name)| Line {
        name: (*name).to_owned(),
        points: rates
            .iter()
            .enumerate()
            .map(|(case, rates)| Point { x: case as f64 + 1.0, y: rates[side].clone() })
            .collect(),
    });
    let table = Table {
        title: "faults per second".to_owned(),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
    };
    let found = table
        .rows
        .first()
        .and_then(|row| table.row_says(&format!("Faults per second, {}", row.name), &row.name, &names));
    Findings {
        experiment: FaultThroughput.name(),
        title: FaultThroughput.title(),
        found: found.into_iter().collect(),
        work: format!(
            "{threads} threads, in one process (-mt) or in a process each, map {} of a file in the page cache, touch every page in order, and unmap it, repeatedly.",
            freehold_replay::units::bytes(bytes)
        ),
        tables: vec![table],
        plots: vec![Plot {
            title: "Faults per second".to_owned(),
            x: Axis::of(Case::ALL.iter().map(|case| case.name())),
            y: Axis::linear("faults", Unit::PerSecond),
            lines: lines.collect(),
        }],
        notes: vec![
            "The loads follow vm-scalability (the first three) and stress-ng's mmap-file; they have the same pattern but are not those programs. Faults take the mmap lock, as at the \
             time of the step. A read fault also maps the pages around its own."
                .to_owned(),
        ],
        seconds: 0.0,
    }
}
