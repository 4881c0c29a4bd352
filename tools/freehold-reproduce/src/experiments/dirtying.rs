//! Threads that make pages of a file dirty beside write-back, for the experiment `file-reads`.
//!
//! The threads store to all pages of a file through a mapping, each to a part of its own. One thread writes
//! the file back all the time, to a device that serves one request in 100 us. Another thread of the process
//! maps and faults elsewhere. The sides are limits on the dirty pages of the file
//! ([`Config::dirty_limit`]). A good limit keeps the device busy and delays only the threads that make pages
//! dirty.
//!
//! `file/throttle.rs` and `file/change/write_back.rs` of `freehold` are the code under test. `file_reads.rs`
//! runs this part, and has the device and the other thread.

use super::file_reads::{Device, Served, beside_seconds, idle_time, map_and_fault, size};
use crate::executor::{Instant, idle, sleep, together};
use crate::findings::{Cell, Row, Table};
use crate::load::{PAGE, RW, World, since};
use crate::measure::{figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::{
    PageRange,
    fault::Access,
    file::{File, FileAccess, Mapping, Pager, WriteRequest},
    space::MapFlags,
};
use freehold_machine::{Machine, Process};
use freehold_sync::stats::Histogram;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The limits on dirty pages; `u64::MAX` is no limit.
pub(super) const LIMITS: [u64; 3] = [256, 4096, u64::MAX];
/// Number of threads that make pages dirty.
pub(super) const WRITERS: usize = 4;
/// Numbers of the threads that are not writers: the device, the other thread, the thread that writes back.
const DEVICE: usize = 0;
const OTHER: usize = 1;
const WRITE_BACK: usize = 2;

impl Pager<Machine> for Device<WriteRequest<Machine>> {
    // Absent pages are not read, so that each page becomes dirty by its first store.
    fn reads_zeroes(&self) -> bool {
        true
    }

    fn write(&self, request: WriteRequest<Machine>) {
        self.push(request);
    }

    fn write_pages(&self) -> u64 {
        WriteRequest::<Machine>::MAX_PAGES
    }
}

/// Results of a turn.
struct Dirtying {
    /// Times of the other thread's operations before the stores, in nanoseconds.
    alone: Histogram,
    /// The same, during the stores.
    beside: Histogram,
    /// Pages that were written, per page of the file.
    writes: f64,
    /// Share of the time in which the device had a request, from the first store until all pages are written.
    busy: f64,
    /// Pages in a request, on average.
    request: f64,
}

/// The measurements of one thread in a turn.
#[derive(Default)]
struct Thread {
    alone: Histogram,
    beside: Histogram,
    served: Served,
    /// Time from the first store until all pages are written, in nanoseconds.
    took: f64,
}

/// Runs all limits in turns, and returns their table.
pub(super) fn measure(scale: &Scale, steps: &Steps) -> anyhow::Result<Table> {
    let world = |limit| {
        let config = scale.config().dirty_limit(limit);
        World::new(4 * size(scale) + (1 << 28), WRITE_BACK + 1 + WRITERS, config)
    };
    let mut worlds = LIMITS.map(world).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let found = in_turns(scale.turns(), &mut worlds, |world, turn| {
        let what = format!("{WRITERS} threads that make pages dirty, turn {}", turn + 1);
        steps.step(what, beside_seconds(scale), || threads(world, scale))
    })?;
    Ok(table(&found))
}

/// Makes all pages of a file dirty by several threads, beside write-back and beside a thread of the process
/// that maps and faults in memory.
fn threads(world: &World, scale: &Scale) -> anyhow::Result<Dirtying> {
    let (device, bytes) = (Device::<WriteRequest<Machine>>::default(), size(scale));
    let mapping = Mapping::new(&world.engine, device.clone(), bytes, false)?;
    let file = File::new(&mapping, FileAccess::READ_WRITE, "file")?;
    let process = world.process(scale.usual_locking())?;
    let at = process.mmap(0, bytes, RW, MapFlags::SHARED, Some(&file), 0)?;
    // The thread that writes back ends last, and only then the device.
    let (begun, left, written) = (AtomicBool::new(false), AtomicUsize::new(WRITERS), AtomicBool::new(false));
    let results = together(WRITE_BACK + 1 + WRITERS, |thread| {
        let mut turn = Thread::default();
        if thread == DEVICE {
            turn.served = device.serve(|| written.load(SeqCst));
            return anyhow::Ok(turn);
        }
        let mut cpu = world.machine.cpu(thread);
        cpu.run(process.mmu());
        match thread {
            OTHER => {
                while left.load(SeqCst) > 0 {
                    let started = Instant::now();
                    cpu.call(|| map_and_fault(&process))?;
                    let times = if begun.load(SeqCst) { &mut turn.beside } else { &mut turn.alone };
                    times.record(since(started) as u64);
                }
            }
            WRITE_BACK => {
                while !begun.load(SeqCst) {
                    idle();
                }
                let started = Instant::now();
                let result = cpu.call(|| write_back_until(&mapping, || left.load(SeqCst) == 0));
                turn.took = since(started);
                written.store(true, SeqCst);
                result?;
            }
            writer => {
                sleep(idle_time(scale));
                begun.store(true, SeqCst);
                let stored = cpu.call(|| store_to_part(&process, at, bytes, writer - WRITE_BACK - 1));
                left.fetch_sub(1, SeqCst);
                stored?;
            }
        }
        Ok(turn)
    });
    let turns: Vec<Thread> = results.into_iter().collect::<anyhow::Result<_>>()?;
    process.munmap(at, bytes)?;
    let (served, took) = (&turns[DEVICE].served, turns[WRITE_BACK].took);
    Ok(Dirtying {
        alone: turns[OTHER].alone.clone(),
        beside: turns[OTHER].beside.clone(),
        writes: served.pages as f64 / (bytes / PAGE) as f64,
        busy: (served.busy / took).min(1.0),
        request: served.pages as f64 / served.requests as f64,
    })
}

/// Writes a file back again and again until `is_over` returns true, and then once more.
fn write_back_until(mapping: &Mapping<Machine>, is_over: impl Fn() -> bool) -> anyhow::Result<()> {
    loop {
        let last = is_over();
        mapping.write_back(PageRange::ALL)?;
        if last {
            return Ok(());
        }
        idle();
    }
}

/// Makes the pages of one part of the mapping dirty, in ascending order.
fn store_to_part(process: &Process, at: u64, bytes: u64, part: usize) -> anyhow::Result<()> {
    let pages = bytes / PAGE / WRITERS as u64;
    for page in (0..pages).map(|page| part as u64 * pages + page) {
        process.space().handle_fault(at + page * PAGE, Access::WRITE)?;
    }
    Ok(())
}

fn table(found: &[Vec<Dirtying>]) -> Table {
    let times = [
        figures(found, |turn| turn.alone.percentile(5_000) as f64),
        figures(found, |turn| turn.alone.percentile(9_900) as f64),
        figures(found, |turn| turn.beside.percentile(5_000) as f64),
        figures(found, |turn| turn.beside.percentile(9_900) as f64),
    ];
    let writes = figures(found, |turn| turn.writes);
    let busy = figures(found, |turn| turn.busy);
    let request = figures(found, |turn| turn.request);
    let rows = LIMITS.into_iter().enumerate().map(|(side, limit)| {
        let mut cells: Vec<Cell> =
            times.iter().map(|figures| Cell::measured(Unit::Nanoseconds, figures[side].clone())).collect();
        cells.push(Cell::measured(Unit::Times, writes[side].clone()));
        cells.push(Cell::measured(Unit::Share, busy[side].clone()));
        cells.push(Cell::measured(Unit::Count, request[side].clone()));
        Row { name: name(limit), cells }
    });
    let columns = [
        "side",
        "before: median",
        "99 %",
        "during: median",
        "99 %",
        "writes per page",
        "device busy",
        "pages/request",
    ];
    Table {
        title: format!(
            "operations of a thread beside write-back and {WRITERS} threads that make pages dirty"
        ),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
    }
}

fn name(limit: u64) -> String {
    match limit {
        u64::MAX => "no limit".to_owned(),
        pages => format!("at most {pages} dirty pages"),
    }
}
