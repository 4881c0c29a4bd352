//! Reads of cold files from a device with a latency of 100 us: by one task in ascending order, and by threads
//! that fault in pages while another thread maps and faults elsewhere. `dirtying.rs` adds threads that make
//! pages dirty beside write-back.
//!
//! The device has a queue and serves one request at a time, so its bandwidth is the number of pages of a
//! request divided by the latency. The sides are the same engine with and without readahead. Without
//! readahead, a miss reads the aligned block of 32 pages around the page. A good reader keeps the device busy
//! all the time. A good fault reads each page once, however many threads need the page, and does not delay
//! other operations of the process.
//!
//! `file/readahead/` of `freehold` is the code under test. `registry.rs` lists the experiment.

use super::{Experiment, dirtying};
use crate::executor::{Instant, idle, sleep, together};
use crate::findings::{Cell, Findings, Row, Table};
use crate::load::{ANON, Open, PAGE, RW, World, fault_in, since};
use crate::measure::{figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::{
    fault::Access,
    file::{File, FileAccess, Mapping, Pager, ReadRequest, WriteRequest},
    space::{MapFlags, Prot},
};
use freehold_machine::{Machine, Process};
use freehold_sync::stats::Histogram;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// See the [module](self).
pub struct FileReads;

/// Time that a device needs for a request.
pub(super) const LATENCY: Duration = Duration::from_micros(100);
/// Size of the files of a full run and of a quick run, in bytes.
const SIZES: [u64; 2] = [64 << 20, 8 << 20];
/// Number of threads that read by faults.
const READERS: usize = 4;
/// Number of pages that the other thread maps and faults in.
const AREA: u64 = 4;

/// A side: the maximum number of pages of a window.
#[derive(Clone, Copy)]
struct Side(u32);

impl Side {
    const ALL: [Side; 3] = [Side(0), Side(32), Side(128)];

    fn name(self) -> String {
        match self.0 {
            0 => "no readahead".to_owned(),
            pages => format!("windows of {pages} pages"),
        }
    }
}

/// The way in which one task reads a file.
#[derive(Clone, Copy)]
enum Way {
    /// Calls of 4 KiB.
    Calls,
    /// Faults on a mapping.
    Faults,
}

/// A device with a queue of requests to read or to write, which [`serve`](Self::serve) serves.
pub(super) struct Device<R>(Arc<Mutex<VecDeque<R>>>);

/// A request of a [`Device`].
pub(super) trait Request {
    /// Returns the number of pages that are not complete.
    fn pages(&self) -> u64;
    /// Completes all pages.
    fn complete_all(self);
}

impl Request for ReadRequest<Machine> {
    fn pages(&self) -> u64 {
        self.len().get()
    }

    fn complete_all(mut self) {
        while let Some((index, _)) = self.next_page() {
            self.complete(index, Ok(()));
        }
    }
}

impl Request for WriteRequest<Machine> {
    fn pages(&self) -> u64 {
        self.len().get()
    }

    fn complete_all(mut self) {
        while let Some((index, _)) = self.next_page() {
            self.complete(index, Ok(()));
        }
    }
}

impl Pager<Machine> for Device<ReadRequest<Machine>> {
    fn read(&self, request: ReadRequest<Machine>) {
        self.push(request);
    }

    fn read_pages(&self) -> u64 {
        ReadRequest::<Machine>::MAX_PAGES
    }
}

/// Work that a device has done.
#[derive(Default)]
pub(super) struct Served {
    /// Nanoseconds in which the device had a request.
    pub busy: f64,
    pub requests: u64,
    pub pages: u64,
}

impl<R> Clone for Device<R> {
    fn clone(&self) -> Self {
        Device(self.0.clone())
    }
}

impl<R> Default for Device<R> {
    fn default() -> Self {
        Device(Arc::default())
    }
}

impl Device<ReadRequest<Machine>> {
    /// Creates a file of this number of bytes, whose pages are not in the cache.
    fn file(&self, world: &World, bytes: u64, side: Side) -> anyhow::Result<Open> {
        let mapping = Mapping::new(&world.engine, self.clone(), bytes, false)?;
        mapping.set_readahead(side.0);
        Ok(File::new(&mapping, FileAccess::READ, "file")?)
    }
}

impl<R: Request> Device<R> {
    /// Adds a request to the queue.
    pub fn push(&self, request: R) {
        self.0.lock().expect("the lock of the queue").push_back(request);
    }

    /// Serves requests, one at a time, until `is_over` returns true and the queue is empty.
    pub fn serve(&self, is_over: impl Fn() -> bool) -> Served {
        let mut served = Served::default();
        loop {
            let request = self.0.lock().expect("the lock of the queue").pop_front();
            let Some(request) = request else {
                if is_over() {
                    return served;
                }
                idle();
                continue;
            };
            let started = Instant::now();
            sleep(LATENCY);
            served.requests += 1;
            served.pages += request.pages();
            request.complete_all();
            served.busy += since(started);
        }
    }
}

/// One task reads a file.
struct Alone {
    /// Bytes of the file per second.
    rate: f64,
    /// Share of the time in which the device had a request.
    busy: f64,
    /// Pages in a request, on average.
    request: f64,
    /// Accesses that waited for the device, per page.
    waits: f64,
}

/// Threads read a file beside another thread.
struct Beside {
    /// Times of the other thread's operations before the reads, in nanoseconds.
    alone: Histogram,
    /// The same, during the reads.
    beside: Histogram,
    /// Pages that were read, per page of the file.
    reads: f64,
    /// Share of the time in which the device had a request.
    busy: f64,
}

impl Experiment for FileReads {
    fn name(&self) -> &'static str {
        "file-reads"
    }

    fn title(&self) -> &'static str {
        "reads of cold files, in order and by several threads"
    }

    fn sides(&self) -> Vec<String> {
        Side::ALL.map(Side::name).into()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        (1 << 28) + size(scale)
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let turn = 2.0 * seconds(scale) + beside_seconds(scale);
        let dirtying = dirtying::LIMITS.len() as f64 * beside_seconds(scale);
        scale.turns() as f64 * (Side::ALL.len() as f64 * turn + dirtying)
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let world = World::new(4 * size(scale) + (1 << 28), 2 + READERS, scale.config())?;
        let mut sides = Side::ALL;
        let alone = [(Way::Calls, "read calls"), (Way::Faults, "faults")].map(|(way, name)| {
            in_turns(scale.turns(), &mut sides, |side, turn| {
                let what = format!("{name}, turn {}", turn + 1);
                steps.step(what, seconds(scale), || in_order(&world, *side, way, scale))
            })
        });
        let [calls, faults] = alone;
        let beside = in_turns(scale.turns(), &mut sides, |side, turn| {
            let what = format!("{READERS} threads, turn {}", turn + 1);
            steps.step(what, beside_seconds(scale), || threads(&world, *side, scale))
        })?;
        let dirtying = dirtying::measure(scale, steps)?;
        Ok(findings(&[("read calls", calls?), ("faults", faults?)], &beside, dirtying))
    }
}

/// Returns the size of the files in bytes.
pub(super) fn size(scale: &Scale) -> u64 {
    scale.size(SIZES[0], SIZES[1])
}

/// Returns the approximate time of a turn of one task, in seconds. A sleep of a host takes longer than the
/// latency.
fn seconds(scale: &Scale) -> f64 {
    (size(scale) / PAGE / 32) as f64 * 200e-6
}

/// Returns the approximate time of a turn of several threads, in seconds.
pub(super) fn beside_seconds(scale: &Scale) -> f64 {
    seconds(scale) + idle_time(scale).as_secs_f64()
}

/// Returns the time for which the other thread is watched before the readers or writers begin.
pub(super) fn idle_time(scale: &Scale) -> Duration {
    scale.turn / 4
}

/// Reads a cold file in ascending order by one task.
fn in_order(world: &World, side: Side, way: Way, scale: &Scale) -> anyhow::Result<Alone> {
    let (device, bytes) = (Device::default(), size(scale));
    let file = device.file(world, bytes, side)?;
    let process = world.process(scale.usual_locking())?;
    let over = AtomicBool::new(false);
    let results = together(2, |thread| {
        if thread == 0 {
            return anyhow::Ok((device.serve(|| over.load(SeqCst)), 0, 0.0));
        }
        let mut cpu = world.machine.cpu(1);
        cpu.run(process.mmu());
        let started = Instant::now();
        let waits = cpu.call(|| read_in_order(&process, &file, way, bytes));
        let took = since(started);
        over.store(true, SeqCst);
        Ok((Served::default(), waits?, took))
    });
    let mut results = results.into_iter();
    let (served, ..) = results.next().expect("the device")?;
    let (_, waits, took) = results.next().expect("the reader")?;
    let pages = (bytes / PAGE) as f64;
    Ok(Alone {
        rate: bytes as f64 / took * 1e9,
        busy: (served.busy / took).min(1.0),
        request: served.pages as f64 / served.requests as f64,
        waits: waits as f64 / pages,
    })
}

/// Reads all pages of a file. Returns the number of faults that waited; 0 for calls, which do not report it.
fn read_in_order(process: &Process, file: &Open, way: Way, bytes: u64) -> anyhow::Result<u64> {
    let mut waits = 0;
    match way {
        Way::Calls => {
            let mut buffer = [0; PAGE as usize];
            for page in 0..bytes / PAGE {
                file.read_at(page * PAGE, &mut buffer)?;
            }
        }
        Way::Faults => {
            let at = process.mmap(0, bytes, Prot::READ, MapFlags::SHARED, Some(file), 0)?;
            for page in 0..bytes / PAGE {
                let done = process.space().handle_fault(at + page * PAGE, Access::READ)?;
                waits += u64::from(done.major);
            }
            process.munmap(at, bytes)?;
        }
    }
    Ok(waits)
}

/// Reads a cold file by the faults of several threads, each of which faults in all pages in another order,
/// while another thread of the process maps and faults in memory.
fn threads(world: &World, side: Side, scale: &Scale) -> anyhow::Result<Beside> {
    let (device, bytes) = (Device::default(), size(scale));
    let file = device.file(world, bytes, side)?;
    let process = world.process(scale.usual_locking())?;
    let (begun, left) = (AtomicBool::new(false), AtomicUsize::new(READERS));
    let results = together(2 + READERS, |thread| {
        let mut turn = (Histogram::default(), Histogram::default(), Served::default(), 0.0);
        if thread == 0 {
            turn.2 = device.serve(|| left.load(SeqCst) == 0);
            return anyhow::Ok(turn);
        }
        let mut cpu = world.machine.cpu(thread);
        cpu.run(process.mmu());
        if thread == 1 {
            while left.load(SeqCst) > 0 {
                let started = Instant::now();
                cpu.call(|| map_and_fault(&process))?;
                let during = begun.load(SeqCst);
                (if during { &mut turn.1 } else { &mut turn.0 }).record(since(started) as u64);
            }
            return Ok(turn);
        }
        sleep(idle_time(scale));
        begun.store(true, SeqCst);
        let started = Instant::now();
        let read = cpu.call(|| fault_all(&process, &file, bytes, thread - 2));
        turn.3 = since(started);
        left.fetch_sub(1, SeqCst);
        read.map(|()| turn)
    });
    let turns: Vec<_> = results.into_iter().collect::<anyhow::Result<_>>()?;
    let took = turns.iter().map(|turn| turn.3).fold(0.0, f64::max);
    Ok(Beside {
        alone: turns[1].0.clone(),
        beside: turns[1].1.clone(),
        reads: turns[0].2.pages as f64 / (bytes / PAGE) as f64,
        busy: (turns[0].2.busy / took).min(1.0),
    })
}

/// Maps, faults in and unmaps a small area.
pub(super) fn map_and_fault(process: &Process) -> anyhow::Result<()> {
    let at = process.mmap(0, AREA * PAGE, RW, ANON, None, 0)?;
    fault_in(process, at, AREA, Access::WRITE)?;
    Ok(process.munmap(at, AREA * PAGE)?)
}

/// Maps a file and faults in all its pages, beginning at the part of this number.
fn fault_all(process: &Process, file: &Open, bytes: u64, part: usize) -> anyhow::Result<()> {
    let at = process.mmap(0, bytes, Prot::READ, MapFlags::SHARED, Some(file), 0)?;
    let pages = bytes / PAGE;
    let first = part as u64 * (pages / READERS as u64);
    for page in 0..pages {
        process.space().handle_fault(at + (first + page) % pages * PAGE, Access::READ)?;
    }
    Ok(process.munmap(at, bytes)?)
}

fn findings(alone: &[(&str, Vec<Vec<Alone>>); 2], beside: &[Vec<Beside>], dirtying: Table) -> Findings {
    let mut tables: Vec<Table> =
        alone.iter().map(|(name, found)| in_order_table(name, matches!(*name, "faults"), found)).collect();
    tables.push(beside_table(beside));
    let busy =
        |table: &Table| table.column_says(&format!("Time in which the device is busy, {}", table.title), 1);
    let mut found: Vec<String> = tables[..2].iter().filter_map(busy).collect();
    found.extend(tables[2].column_says("99 % of operations beside readers take at most", 3));
    found.extend(
        dirtying.column_says("99 % of operations beside threads that make pages dirty take at most", 3),
    );
    tables.push(dirtying);
    Findings {
        experiment: FileReads.name(),
        title: FileReads.title(),
        found,
        work: format!(
            "A device serves one request of at most 32 pages at a time, in {} us. One task reads a cold file in ascending order. Then {READERS} threads fault in all pages \
             of a cold file, each from another part on, while another thread of the process maps, faults in and unmaps {AREA} pages repeatedly. Then {} threads make all \
             pages of a file dirty through a mapping, while another thread writes the file back and the device needs the same time for a request to write.",
            LATENCY.as_micros(),
            dirtying::WRITERS
        ),
        tables,
        plots: Vec::new(),
        notes: vec![
            "The device sleeps for the time of a request, which on a host takes longer than the latency. The share of time in which it is busy does not depend on that."
                .to_owned(),
            "Without readahead, a miss reads the aligned block of 32 pages around the page, and waits for it.".to_owned(),
        ],
        seconds: 0.0,
    }
}

fn in_order_table(name: &str, counts_waits: bool, found: &[Vec<Alone>]) -> Table {
    let rate = figures(found, |turn| turn.rate);
    let busy = figures(found, |turn| turn.busy);
    let request = figures(found, |turn| turn.request);
    let waits = figures(found, |turn| turn.waits);
    let rows = Side::ALL.into_iter().enumerate().map(|(side, which)| {
        let cells = vec![
            Cell::measured(Unit::PerSecond, rate[side].clone()),
            Cell::measured(Unit::Share, busy[side].clone()),
            Cell::measured(Unit::Count, request[side].clone()),
            Cell::measured(Unit::Share, counts_waits.then(|| waits[side].clone())),
        ];
        Row { name: which.name(), cells }
    });
    let columns = ["side", "bytes/s", "device busy", "pages/request", "pages waited for"];
    Table {
        title: format!("{name} in order"),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
    }
}

fn beside_table(found: &[Vec<Beside>]) -> Table {
    let times = [
        figures(found, |turn| turn.alone.percentile(5_000) as f64),
        figures(found, |turn| turn.alone.percentile(9_900) as f64),
        figures(found, |turn| turn.beside.percentile(5_000) as f64),
        figures(found, |turn| turn.beside.percentile(9_900) as f64),
    ];
    let reads = figures(found, |turn| turn.reads);
    let busy = figures(found, |turn| turn.busy);
    let rows = Side::ALL.into_iter().enumerate().map(|(side, which)| {
        let mut cells: Vec<Cell> =
            times.iter().map(|figures| Cell::measured(Unit::Nanoseconds, figures[side].clone())).collect();
        cells.push(Cell::measured(Unit::Times, reads[side].clone()));
        cells.push(Cell::measured(Unit::Share, busy[side].clone()));
        Row { name: which.name(), cells }
    });
    let columns =
        ["side", "before: median", "99 %", "during: median", "99 %", "reads per page", "device busy"];
    Table {
        title: format!("operations of a thread beside {READERS} threads that read a cold file"),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
    }
}
