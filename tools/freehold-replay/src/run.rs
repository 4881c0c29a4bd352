//! Runs a segment of a plan: tasks run in parallel on virtual CPUs, and each step runs as soon as the steps
//! that it must wait for are done.
//!
//! A task is data: its next step and its address space. A worker is a thread, or a task of a simulation, with
//! a virtual CPU (`workers/`). A worker takes a ready task, performs some of its steps, and puts the task
//! back. The seed determines the number of steps and the choice of tasks. A task whose next step must wait is
//! parked at the task that it waits for.
//!
//! | word | states | written by |
//! | --- | --- | --- |
//! | `Slot::done` | number of steps that the task has done | the worker that runs the task |
//! | `Slot::wanted` | lowest number of steps that a parked task waits for; `u32::MAX` if none is parked | the holder of `Slot::parked` |
//!
//! A worker that parks a task stores `wanted` and then loads `done`. A worker that finishes a step stores
//! `done` and then loads `wanted`. All four accesses are sequentially consistent, so at least one of the
//! workers sees the store of the other.
//!
//! Only the waits of the plan order the steps of different tasks. If steps of several tasks share state, the
//! state therefore needs its own lock. `findings_do_not_depend_on_the_options` (`tests/small.rs`) checks that
//! the interleaving does not change the findings.

use super::findings::Findings;
use super::image::{Image, Task};
use super::perform::Performer;
use super::workers::{Changed, lock, side_by_side};
use super::world::World;
use freehold_machine::{Cpu, log_locks};
use freehold_pagetable::X86_4;
use freehold_trace::plan::{Segment, Stamp};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The tasks that are alive between segments, with their address spaces.
#[derive(Default)]
pub(super) struct Tasks {
    images: HashMap<u32, Option<Arc<Image>>>,
}

impl Tasks {
    /// Returns the address space of a task.
    pub(super) fn image(&self, task: u32) -> Option<&Arc<Image>> {
        self.images.get(&task)?.as_ref()
    }

    /// Returns the address space of the task with the lowest number.
    pub(super) fn first(&self) -> Option<&Arc<Image>> {
        let alive = self.images.iter().filter_map(|(task, image)| Some((task, image.as_ref()?)));
        alive.min_by_key(|(task, _)| **task).map(|(_, image)| image)
    }

    /// Adds tasks that were created in a segment in which they have no steps.
    pub(super) fn adopt(&mut self, world: &World) {
        self.images.extend(lock(&world.newborn).drain(..));
    }

    /// Ends all remaining tasks.
    pub(super) fn clear(&mut self) {
        self.images.clear();
    }
}

/// The shared state of a task.
struct Slot<'p> {
    done: AtomicU32,
    wanted: AtomicU32,
    /// Tasks that wait for a step of this task, each with the number of steps that must be done.
    parked: Mutex<Vec<(u32, Task<'p>)>>,
    /// Address space of a task that has done all its steps. The inner `None` means that the task exited.
    left: Mutex<Option<Option<Arc<Image>>>>,
}

/// Tasks that can run.
#[derive(Default)]
struct Ready<'p> {
    tasks: Vec<Task<'p>>,
    /// Number of workers that wait for a task.
    idle: usize,
    /// A worker has panicked. All workers stop.
    failed: bool,
}

/// A segment that is running.
pub(super) struct Run<'p> {
    world: &'p World,
    segment: &'p Segment,
    slots: Vec<Slot<'p>>,
    by_number: HashMap<u32, usize>,
    ready: Mutex<Ready<'p>>,
    workers: usize,
    changed: Changed,
    /// Number of tasks that have steps left.
    unfinished: AtomicUsize,
}

/// Ends the run when its worker panics. Otherwise the other workers would wait forever.
struct Alarm<'r, 'p>(&'r Run<'p>);

impl Drop for Alarm<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.ready).failed = true;
            self.0.changed.notify_all();
        }
    }
}

impl<'p> Run<'p> {
    /// Runs `segment` to its end on the given CPUs. Adds the results to `found`, which has one entry per CPU.
    /// Returns the time that the run took.
    pub(super) fn segment(
        world: &'p World,
        segment: &'p Segment,
        tasks: &mut Tasks,
        cpus: &mut [Cpu<X86_4>],
        found: &mut [Findings],
        seed: u64,
    ) -> Duration {
        let slots = segment.tasks.iter().map(|task| Slot {
            done: AtomicU32::new(task.first),
            wanted: AtomicU32::new(u32::MAX),
            parked: Mutex::new(Vec::new()),
            left: Mutex::new(None),
        });
        let run = Run {
            world,
            segment,
            slots: slots.collect(),
            by_number: segment.tasks.iter().enumerate().map(|(slot, task)| (task.task, slot)).collect(),
            ready: Mutex::default(),
            workers: cpus.len(),
            changed: Changed::default(),
            unfinished: AtomicUsize::new(segment.tasks.len()),
        };
        {
            let mut ready = lock(&run.ready);
            for (slot, steps) in segment.tasks.iter().enumerate().filter(|(_, steps)| steps.runs) {
                let image = tasks.images.remove(&steps.task).flatten();
                ready.tasks.push(Task { slot, number: steps.task, steps, at: 0, image });
            }
        }
        let workers = cpus.iter_mut().zip(found).enumerate().map(|(number, (cpu, found))| {
            let run = &run;
            move || run.work(cpu, found, seed ^ (number as u64) << 32)
        });
        let took = side_by_side(&world.options.workers, seed, workers);
        for (steps, slot) in segment.tasks.iter().zip(run.slots) {
            if let Some(image) = slot.left.into_inner().unwrap_or_else(PoisonError::into_inner) {
                tasks.images.insert(steps.task, image);
            }
        }
        took
    }

    /// Runs tasks until all are done.
    fn work(&self, cpu: &mut Cpu<X86_4>, found: &mut Findings, seed: u64) {
        let _alarm = Alarm(self);
        log_locks(true);
        let mut random = Pcg64Mcg::new(u128::from(seed) << 1 | 1);
        while let Some(task) = self.take(&mut random) {
            self.turn(task, cpu, found, &mut random);
        }
        log_locks(false);
    }

    /// Returns a task that can run. Returns `None` when all tasks are done.
    fn take(&self, random: &mut Pcg64Mcg) -> Option<Task<'p>> {
        let mut ready = lock(&self.ready);
        loop {
            if ready.failed {
                return None;
            }
            if !ready.tasks.is_empty() {
                let chosen = random.next_u32() as usize % ready.tasks.len();
                return Some(ready.tasks.swap_remove(chosen));
            }
            // SeqCst: pairs with the decrement in `turn`, which is followed by a notification under the lock.
            if self.unfinished.load(SeqCst) == 0 {
                return None;
            }
            ready.idle += 1;
            assert!(ready.idle < self.workers, "deadlock in the plan, every task waits: {}", self.stuck());
            ready = self.changed.wait(&self.ready, ready);
            ready.idle -= 1;
        }
    }

    /// Describes the steps that each parked task waits for.
    fn stuck(&self) -> String {
        let mut text = String::new();
        for (slot, steps) in self.slots.iter().zip(&self.segment.tasks) {
            for (wanted, task) in lock(&slot.parked).iter() {
                let line = task.steps.steps.get(task.at).map_or(0, |step| step.line);
                text += &format!(
                    "task {} at line {line} waits for {wanted} steps of task {}; ",
                    task.number, steps.task
                );
            }
        }
        text
    }

    /// Lets the workers take the task.
    fn make_ready(&self, task: Task<'p>) {
        lock(&self.ready).tasks.push(task);
        self.changed.notify_one();
    }

    /// Performs steps of a task until the task ends, must wait, or has used the number of steps drawn for it.
    fn turn(&self, mut task: Task<'p>, cpu: &mut Cpu<X86_4>, found: &mut Findings, random: &mut Pcg64Mcg) {
        let mut left = 1 + random.next_u32() % self.world.options.turn.max(1);
        let mut performer = Performer::new(self.world, cpu, found, task.image.as_deref());
        while let Some(step) = task.steps.steps.get(task.at) {
            let waits = &self.segment.waits[step.waits.start as usize..step.waits.end as usize];
            if let Some(wait) = waits.iter().find(|wait| !self.is_done(wait)) {
                performer.rest();
                return self.park(task, wait);
            }
            if left == 0 {
                performer.rest();
                return self.make_ready(task);
            }
            left -= 1;
            let made = performer.step(&mut task, step);
            performer.found.locks.step(task.number, step);
            task.at += 1;
            if let Some((number, image)) = made {
                self.begin(number, image);
            }
            self.step_done(task.slot, task.steps.first + task.at as u32);
        }
        performer.rest();
        *lock(&self.slots[task.slot].left) = task.image.take().map(Some);
        // SeqCst: pairs with the load in `take`.
        if self.unfinished.fetch_sub(1, SeqCst) == 1 {
            let _ready = lock(&self.ready);
            self.changed.notify_all();
        }
    }

    /// Starts a new task.
    fn begin(&self, number: u32, image: Option<Arc<Image>>) {
        match self.by_number.get(&number) {
            Some(&slot) => {
                self.make_ready(Task { slot, number, steps: &self.segment.tasks[slot], at: 0, image });
            }
            None => {
                lock(&self.world.newborn).push((number, image));
            }
        }
    }

    /// Returns true if the step that a task waits for is done.
    fn is_done(&self, wait: &Stamp) -> bool {
        let slot = self.by_number.get(&wait.task);
        // A task that is not in this segment has done the step in an earlier segment. SeqCst: pairs with the
        // store of `done` in `step_done`.
        slot.is_none_or(|&slot| self.slots[slot].done.load(SeqCst) > wait.index)
    }

    /// Leaves the task at the slot of the task that it waits for. Makes the task ready instead if the step
    /// `wait` has been done since the check.
    fn park(&self, task: Task<'p>, wait: &Stamp) {
        let slot = &self.slots[self.by_number[&wait.task]];
        let mut parked = lock(&slot.parked);
        // SeqCst: this store of `wanted` and the load of `done` below pair with the store of `done` and the
        // load of `wanted` in `step_done`. At least one of the two workers sees the store of the other.
        slot.wanted.fetch_min(wait.index + 1, SeqCst);
        if slot.done.load(SeqCst) > wait.index {
            drop(parked);
            // `wanted` may stay too low, which only costs an additional check.
            return self.make_ready(task);
        }
        parked.push((wait.index + 1, task));
    }

    /// Records that the task of `slot` has done `done` steps. Makes ready all tasks that waited for the last
    /// of these steps.
    fn step_done(&self, slot: usize, done: u32) {
        let slot = &self.slots[slot];
        // SeqCst: pairs with `park` and `is_done`; see `park`.
        slot.done.store(done, SeqCst);
        if slot.wanted.load(SeqCst) > done {
            return;
        }
        let mut parked = lock(&slot.parked);
        let (free, still): (Vec<_>, Vec<_>) = parked.drain(..).partition(|(wanted, _)| *wanted <= done);
        slot.wanted.store(still.iter().map(|(wanted, _)| *wanted).min().unwrap_or(u32::MAX), SeqCst);
        *parked = still;
        drop(parked);
        free.into_iter().for_each(|(_, task)| self.make_ready(task));
    }
}
