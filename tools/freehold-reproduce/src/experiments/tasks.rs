//! The load of step 2: tasks that map the same files, and the jobs that the threads of the load run.
//! `i_mmap.rs` measures this load with each lock of the reverse map.
//!
//! [`Tasks::new`] creates a number of processes that all map four libraries and a data file, so that the
//! reverse map of each file is long. [`Tasks::turn`] runs the jobs of a [`Load`] on threads and reads the
//! statistics of the file locks. Only one job out of a fixed number does rare work (migration, truncation,
//! holes), at different times on different threads. A new load needs a variant of [`Load`] and a [`Job`],
//! which [`Tasks::turn`] selects.

use crate::executor::{Instant, Stop};
use crate::load::{ANON, GIB, Open, PAGE, RW, World, fault_in};
use crate::scale::Scale;
use freehold::PageRange;
use freehold::fault::Access;
use freehold::rmap::{FileRmap, MigrateError};
use freehold::space::{MapFlags, Prot};
use freehold_machine::Process;

const RX: Prot = Prot::READ.union(Prot::EXEC);
/// Number of libraries of a program.
const LIBRARIES: u64 = 4;
/// Number of pages of a library.
const LIBRARY: u64 = 64;
/// Number of pages of the data file that all tasks map.
const DATA: u64 = 256;
/// Number of pages that are moved. These pages are at the start of the data file, and all tasks have them
/// present.
const MOVED: u64 = 16;
/// Number of pages of a thread's own file.
const SCRATCH: u64 = 16;
/// One job out of this many writes back a page of the data. The write-back walks all mappings of the page.
const WALK: u64 = 16;
/// One job out of this many migrates a page of the data, as a kernel does for tasks with pages on another
/// node. A migration also walks all mappings of the page.
const MOVE: u64 = 16;
/// One job out of this many truncates its file.
const CUT: u64 = 64;
/// One job out of this many punches a hole of one page into the data.
const PUNCH: u64 = 16;

/// The load of the threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Jobs that fork a task, map, fault, write files back, unmap and exit.
    AllTests,
    /// Jobs of a task that map, write and write back files.
    Disk,
    /// The jobs of `AllTests`, some of which move pages that all tasks map. The moved pages are counted.
    Migration,
    /// The jobs of `AllTests`, some of which punch a page out of the data that all tasks map.
    Punch,
}

impl Load {
    /// Returns the name of the rows.
    pub fn name(self) -> &'static str {
        match self {
            Load::AllTests => "alltests",
            Load::Disk => "disk",
            Load::Migration => "migration",
            Load::Punch => "punch",
        }
    }
}

/// All tasks on an engine of one design.
pub struct Tasks {
    /// The machine and the engine.
    world: World,
    /// The tasks, each with the address at which it maps the data.
    tasks: Vec<(Process, u64)>,
    /// The data file that all tasks map.
    data: Open,
    /// A separate file for each thread.
    scratch: Vec<Open>,
}

/// A job with its number and its thread's file. Returns the amount of counted work.
type Job = fn(&Tasks, u64, &Open) -> anyhow::Result<u64>;

/// Results of a turn.
pub struct Turn {
    /// Jobs per minute, or pages moved per second.
    pub rate: f64,
    /// Number of waits for the locks of files per second.
    pub waits: f64,
    /// Total waiting time per second, in nanoseconds.
    pub waited: f64,
}

impl Tasks {
    /// Creates this number of tasks, each with libraries, a heap and the data.
    pub fn new(file_rmap: FileRmap, tasks: usize, scale: &Scale) -> anyhow::Result<Tasks> {
        let threads = scale.cpus;
        let config = scale.config().file_rmap(file_rmap).lock_stats(true);
        // Freed memory is reusable only after a grace period, and many threads free more memory in that time.
        let world = World::new(4 * GIB + threads as u64 * (GIB / 8), threads.max(2), config)?;
        let libraries: Vec<Open> =
            (0..LIBRARIES).map(|_| world.file(LIBRARY)).collect::<anyhow::Result<_>>()?;
        let data = world.file(DATA)?;
        let task = |_| -> anyhow::Result<(Process, u64)> {
            let process = world.process(scale.usual_locking())?;
            for library in &libraries {
                let text = map(&process, library, LIBRARY, RX, MapFlags::PRIVATE)?;
                fault_in(&process, text, 4, Access::EXEC)?;
                map(&process, library, 2, RW, MapFlags::PRIVATE)?;
            }
            let heap = process.mmap(0, 64 * PAGE, RW, ANON, None, 0)?;
            fault_in(&process, heap, 16, Access::WRITE)?;
            let at = map(&process, &data, DATA, RW, MapFlags::SHARED)?;
            // All tasks map the pages that will be moved.
            fault_in(&process, at, MOVED, Access::READ)?;
            Ok((process, at))
        };
        let tasks: Vec<(Process, u64)> = (0..tasks).map(task).collect::<anyhow::Result<_>>()?;
        let scratch = (0..threads.max(2)).map(|_| world.file(SCRATCH)).collect::<anyhow::Result<_>>()?;
        Ok(Tasks { world, tasks, data, scratch })
    }

    /// Runs all threads for one turn.
    pub fn turn(&mut self, load: Load, scale: &Scale) -> anyhow::Result<Turn> {
        let before = self.world.engine.file_lock_stats().unwrap_or_default();
        let job = match load {
            Load::AllTests => Tasks::fork_and_map,
            Load::Disk => Tasks::write_files,
            Load::Migration => Tasks::fork_and_move,
            Load::Punch => Tasks::fork_and_punch,
        };
        let (done, took) = self.world.for_a_while(scale.cpus, scale.turn, |thread, cpu, stop| {
            cpu.call(|| self.jobs(thread, stop, job))
        })?;
        let mut during = self.world.engine.file_lock_stats().unwrap_or_default();
        during.remove(&before);
        let mut waited = during.read.waited.clone();
        waited.merge(&during.write.waited);
        let seconds = took.as_secs_f64();
        let done = done.iter().sum::<f64>();
        Ok(Turn {
            rate: if load == Load::Migration { done } else { done * 60.0 },
            waits: waited.count() as f64 / seconds,
            waited: waited.sum() as f64 / seconds,
        })
    }

    /// Runs the jobs of one thread until the end of the turn. Returns the counted work per second of the
    /// thread's own time. The time of the whole turn is too long for this rate: it includes the wait for the
    /// last job of the slowest thread.
    fn jobs(&self, thread: usize, stop: &Stop, job: Job) -> anyhow::Result<f64> {
        let (started, mut jobs, mut done) = (Instant::now(), 0u64, 0u64);
        while !stop.is_told() {
            // Each thread counts its own jobs. A shared counter would move between the processors for every
            // job.
            done += job(self, jobs * self.scratch.len() as u64 + thread as u64, &self.scratch[thread])?;
            jobs += 1;
        }
        Ok(done as f64 / started.elapsed().as_secs_f64())
    }

    /// Job of `AllTests`.
    fn fork_and_map(&self, number: u64, scratch: &Open) -> anyhow::Result<u64> {
        self.fork_map_and(number, scratch, |_, _| Ok(())).map(|()| 1)
    }

    /// Job of `Migration`.
    fn fork_and_move(&self, number: u64, scratch: &Open) -> anyhow::Result<u64> {
        let mut moved = 0;
        self.fork_map_and(number, scratch, |child, at| {
            if (self.turn_of(number) + MOVE / 2).is_multiple_of(MOVE) {
                moved = self.move_page(child, at + number / MOVE % MOVED * PAGE)?;
            }
            Ok(())
        })?;
        Ok(moved)
    }

    /// Job of `Punch`.
    fn fork_and_punch(&self, number: u64, scratch: &Open) -> anyhow::Result<u64> {
        let turn = self.turn_of(number) + PUNCH / 2;
        self.fork_map_and(number, scratch, |_, _| {
            if turn.is_multiple_of(PUNCH) {
                let at = turn / PUNCH % MOVED * PAGE;
                self.data.mapping().punch(at..at + PAGE)?;
            }
            Ok(())
        })?;
        Ok(1)
    }

    /// Creates a child that maps the data and has the first pages present, and then runs `then` on the child.
    fn fork_map_and(
        &self,
        number: u64,
        scratch: &Open,
        then: impl FnOnce(&Process, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let child = Process::of(self.task(number).fork()?);
        let at = map(&child, &self.data, 32, RW, MapFlags::SHARED)?;
        fault_in(&child, at, 16, Access::READ)?;
        fault_in(&child, at, 4, Access::WRITE)?;
        self.rewrite(&child, scratch, number)?;
        self.walk(number)?;
        then(&child, at)?;
        Ok(child.munmap(at, 32 * PAGE)?)
    }

    /// Job of `Disk`.
    fn write_files(&self, number: u64, scratch: &Open) -> anyhow::Result<u64> {
        let task = self.task(number);
        self.rewrite(task, scratch, number)?;
        let at = map(task, &self.data, 8, Prot::READ, MapFlags::SHARED)?;
        fault_in(task, at, 8, Access::READ)?;
        self.walk(number)?;
        task.munmap(at, 8 * PAGE)?;
        Ok(1)
    }

    fn task(&self, number: u64) -> &Process {
        &self.tasks[number as usize % self.tasks.len()].0
    }

    /// Writes half of a file by stores and then writes it back. Sometimes truncates the file and restores its
    /// length.
    fn rewrite(&self, process: &Process, scratch: &Open, number: u64) -> anyhow::Result<()> {
        let at = map(process, scratch, SCRATCH, RW, MapFlags::SHARED)?;
        fault_in(process, at, SCRATCH / 2, Access::WRITE)?;
        scratch.mapping().write_back(PageRange::from(0..SCRATCH / 2))?;
        if self.turn_of(number).is_multiple_of(CUT) {
            scratch.mapping().truncate(0)?;
            scratch.mapping().truncate(SCRATCH * PAGE)?;
        }
        Ok(process.munmap(at, SCRATCH * PAGE)?)
    }

    /// Sometimes walks all mappings of one of the data pages that jobs write.
    fn walk(&self, number: u64) -> anyhow::Result<()> {
        let turn = self.turn_of(number);
        if turn.is_multiple_of(WALK) {
            let page = turn / WALK % 4;
            self.data.mapping().write_back(PageRange::from(page..page + 1))?;
        }
        Ok(())
    }

    /// See [`turn`].
    fn turn_of(&self, number: u64) -> u64 {
        turn(number, self.scratch.len() as u64)
    }

    /// Moves a page to another frame if the page is present. Returns the number of pages moved.
    fn move_page(&self, process: &Process, at: u64) -> anyhow::Result<u64> {
        let Some(frame) = process.frame_at(at) else { return Ok(0) };
        match self.world.engine.migrate(frame) {
            Ok(_) => Ok(1),
            // A fault is using the page, or has replaced it.
            Err(MigrateError::Busy | MigrateError::NoPage) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

fn map(process: &Process, file: &Open, pages: u64, prot: Prot, flags: MapFlags) -> anyhow::Result<u64> {
    Ok(process.mmap(0, pages * PAGE, prot, flags, Some(file), 0)?)
}

/// Returns a number that decides if a job does rare work, such as truncation: the job does the work if the
/// number is a multiple of a constant, such as `CUT`. The number is the index of the job on its thread,
/// starting at 1, plus the number of the thread. All threads therefore do rare work equally often, but not at
/// the same time.
fn turn(number: u64, threads: u64) -> u64 {
    number / threads + number % threads + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_jobs_are_spread_evenly_over_threads() {
        for threads in [2, 48, 120] {
            let due = |round, thread| turn(round * threads + thread, threads).is_multiple_of(WALK);
            for thread in 0..threads {
                assert_eq!(
                    (0..WALK).filter(|round| due(*round, thread)).count(),
                    1,
                    "thread {thread} of {threads}"
                );
            }
            for round in 0..WALK {
                let at_once = (0..threads).filter(|thread| due(round, *thread)).count() as u64;
                assert!(at_once <= threads.div_ceil(WALK), "{at_once} of {threads} at once");
            }
        }
    }
}
