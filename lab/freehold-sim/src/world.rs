//! The state of a run: clocks, processors, tasks, lines. This module does not switch tasks; `run.rs` does.
//!
//! | task | place | ends by |
//! | --- | --- | --- |
//! | running | on its processor, which is in `ready` unless it is the current processor | sleeping, ending, the end of its time slice |
//! | waiting | in a processor's queue | the processor takes the task |
//! | waiting for a line | on its processor, which is not in `ready` until the line is in transit to it | the arrival of the line |
//! | spinning | on its processor, which is not in `ready` | a change of a line that the task read; another task that needs the processor |
//! | sleeping | in `sleepers` by address, or in `timers` | a wake-up for the address; the time of the timer |
//! | done | none | |
//!
//! Clocks count picoseconds. The results of a run depend only on the machine, the tasks, their addresses and
//! the seed. No decision may therefore depend on the order of a hash map, on the host's clock, or on a random
//! number that is not from `random`. `tests/main.rs` compares two runs with one seed, and the times of small
//! programs with a calculation.

use crate::line::{Answer, Grant, Kind, LINE, LineCount, Lines, Request};
use crate::machine::{Machine, Span};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::panic::Location;

/// The number of a task.
pub type TaskId = usize;

/// Iterations of a waiting loop after which the task parks until a line changes. A loop that counts its
/// iterations has a lower limit, so such a loop ends without parking.
const TURNS_SEEN: u32 = 1024;
/// Maximum number of iterations without a read. A loop that waits for a word reads more often than this.
const MAX_BLIND: u32 = 128;
/// Maximum number of lines that a waiting loop reads.
const LOOKS: usize = 4;

/// The condition under which a task continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// No other processor has a lower clock.
    Turn,
    /// The next task in the queue of its processor has run.
    Queued,
    /// Another task has to wake the task.
    Asleep,
    /// A line changes.
    Spins,
    /// A line arrives.
    Line,
}

/// The state of a processor.
#[derive(Debug, Default)]
struct Cpu {
    /// The virtual time of the processor, in picoseconds.
    clock: u64,
    /// The task on the processor, which may wait for a line or spin. `None` if the processor is idle.
    running: Option<TaskId>,
    /// The tasks that wait for the processor.
    queue: VecDeque<TaskId>,
    /// A line is in transit to this processor exclusively.
    comes: bool,
    /// The time at which the time slice of its task ends.
    slice_end: u64,
    /// Time of interrupts that was not added to the clock yet.
    interrupted: u64,
    /// Picoseconds in which the processor ran tasks, up to the time at which it last became idle.
    busy: u64,
    /// The time since which the processor runs tasks without becoming idle.
    busy_since: u64,
}

/// The state of a task.
#[derive(Debug)]
struct Task {
    /// The processor of the task, or the processor on which the task last ran.
    cpu: usize,
    /// The time since which the task waits in a processor's queue, in picoseconds.
    since: u64,
    /// Nesting depth of sections in which the task keeps its processor.
    keeps: u32,
    /// Iterations of a waiting loop since the task last saw a change.
    turns: u32,
    /// Iterations since the task last read a line.
    blind: u32,
    /// Lines that the task read in the waiting loop, and the version that it saw.
    looks: [Option<(usize, u64)>; LOOKS],
    /// The task is parked in a waiting loop until one of these lines changes.
    spinning: bool,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to shared words.
    pub accesses: u64,
    /// Number of times that `run.rs` resumed a task.
    pub turns: u64,
    /// Tasks that went to sleep.
    pub sleeps: u64,
    /// Interrupts that processors received.
    pub interrupts: u64,
    /// Bytes that were zeroed or copied as whole pages.
    pub moved: u64,
}

/// See the [module](self).
pub struct World {
    machine: Machine,
    lines: Lines,
    cpus: Vec<Cpu>,
    tasks: Vec<Task>,
    /// The current processor.
    cpu: usize,
    /// The clocks of the other processors that can continue with a task.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    /// The sleeping tasks by the address of their word, in the order in which they went to sleep.
    sleepers: HashMap<usize, VecDeque<TaskId>>,
    /// The tasks that sleep until a time.
    timers: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// For each socket, the time at which its memory becomes free.
    memory: Vec<u64>,
    random: Pcg32,
    /// A buffer for the grants of one access.
    grants: Vec<Grant>,
    pub counts: Counts,
    /// Number of tasks that have not ended.
    unfinished: usize,
    /// The time at which the last of the ended tasks ended.
    ended: u64,
}

impl World {
    /// Creates the state at time 0: task *n* is on processor *n* modulo `cpus`, or in its queue.
    pub fn new(machine: &Machine, cpus: usize, seed: u64, tasks: usize) -> World {
        let mut world = World {
            machine: machine.clone(),
            lines: Lines::default(),
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            tasks: Vec::new(),
            cpu: 0,
            ready: BinaryHeap::new(),
            sleepers: HashMap::new(),
            timers: BinaryHeap::new(),
            memory: vec![0; machine.topology.sockets],
            random: Pcg32::seed_from_u64(seed),
            grants: Vec::new(),
            counts: Counts::default(),
            unfinished: tasks,
            ended: 0,
        };
        for task in 0..tasks {
            let cpu = task % cpus;
            let fresh =
                Task { cpu, since: 0, keeps: 0, turns: 0, blind: 0, looks: [None; LOOKS], spinning: false };
            world.tasks.push(fresh);
            world.cpus[cpu].queue.push_back(task);
        }
        (0..cpus).for_each(|cpu| world.take_next(cpu));
        world
    }

    // ---- scheduling ----

    /// Returns the next task to run, that of the processor with the lowest clock. Returns `None` if all tasks
    /// have ended.
    ///
    /// # Panics
    /// Panics if tasks are left and none can run.
    pub fn next(&mut self) -> Option<TaskId> {
        if self.unfinished == 0 {
            return None;
        }
        loop {
            let ready = self.ready.peek().map(|Reverse(ready)| *ready);
            match self.timers.peek() {
                Some(Reverse((at, task))) if ready.is_none_or(|(clock, _)| *at <= clock) => {
                    let (at, task) = (*at, *task);
                    self.timers.pop();
                    self.start(task, at);
                }
                _ => {
                    let (_, cpu) = ready.unwrap_or_else(|| panic!("no task can run: {}", self.stuck()));
                    self.ready.pop();
                    self.cpu = cpu;
                    self.counts.turns += 1;
                    return self.cpus[cpu].running;
                }
            }
        }
    }

    /// Suspends the current task until the condition `next` holds.
    pub fn pause(&mut self, next: Next) {
        let (cpu, task) = (self.cpu, self.task());
        match next {
            Next::Turn => self.ready.push(Reverse((self.cpus[cpu].clock, cpu))),
            Next::Queued => {
                self.tasks[task].since = self.cpus[cpu].clock;
                self.cpus[cpu].queue.push_back(task);
                self.leave(cpu);
            }
            Next::Asleep => self.leave(cpu),
            Next::Spins => self.tasks[task].spinning = true,
            Next::Line => {}
        }
    }

    /// Ends the current task.
    pub fn end(&mut self) {
        self.unfinished -= 1;
        self.ended = self.ended.max(self.clock());
        self.leave(self.cpu);
    }

    /// Returns the condition for which the current task must wait before its next step. Returns `None` if the
    /// task may make the step immediately.
    pub fn must_pause(&mut self) -> Option<Next> {
        self.take_interrupts();
        let cpu = &self.cpus[self.cpu];
        if !cpu.queue.is_empty() && cpu.clock >= cpu.slice_end && self.tasks[self.task()].keeps == 0 {
            return Some(Next::Queued);
        }
        let earlier = |at: u64| at < cpu.clock;
        let other = self.ready.peek().is_some_and(|Reverse((clock, other))| {
            earlier(*clock) || *clock == cpu.clock && *other < self.cpu
        });
        let timer = self.timers.peek().is_some_and(|Reverse((at, _))| earlier(*at));
        (other || timer).then_some(Next::Turn)
    }

    /// Takes the current task off its processor. The processor then takes another task or becomes idle.
    fn leave(&mut self, cpu: usize) {
        self.cpus[cpu].clock += self.machine.cost.sleep.ps();
        self.cpus[cpu].running = None;
        if self.cpus[cpu].queue.is_empty() {
            self.steal(cpu);
        }
        self.take_next(cpu);
        if self.cpus[cpu].running.is_none() {
            let idle = &mut self.cpus[cpu];
            idle.busy += idle.clock - idle.busy_since;
        }
    }

    /// Makes an idle processor take the first task of its queue, if there is one.
    fn take_next(&mut self, cpu: usize) {
        let slice = self.machine.cost.slice.ps();
        let at = &mut self.cpus[cpu];
        if let Some(task) = at.queue.pop_front() {
            at.running = Some(task);
            // A processor with an earlier clock was idle until the task was ready.
            let idle = self.tasks[task].since.saturating_sub(at.clock);
            at.clock += idle;
            at.busy_since += idle;
            at.slice_end = at.clock + slice;
            self.tasks[task].cpu = cpu;
            self.ready.push(Reverse((self.cpus[cpu].clock, cpu)));
        }
    }

    /// Moves a task from the queue of another processor to the queue of `cpu`, which has no task. Takes the
    /// task from the longest queue. Of several equally long queues, prefers a queue of the same socket.
    fn steal(&mut self, cpu: usize) {
        let socket = self.machine.socket_of(cpu);
        let waiting = |other: &usize| self.cpus[*other].queue.len();
        let near = |other: &usize| self.machine.socket_of(*other) == socket;
        // Of several equal queues, takes the first.
        let most = (0..self.cpus.len()).rev().max_by_key(|other| (waiting(other), near(other)));
        if let Some(other) = most.filter(|other| waiting(other) > 0) {
            let task = self.cpus[other].queue.pop_front();
            self.cpus[cpu].queue.extend(task);
        }
    }

    /// Makes a sleeping task ready to run at time `at`: on its last processor if that processor is idle, or
    /// else on the nearest idle processor. If no processor is idle, the task waits in the queue of its last
    /// processor.
    fn start(&mut self, task: TaskId, at: u64) {
        let last = self.tasks[task].cpu;
        let idle = |cpu: &usize| self.cpus[*cpu].running.is_none();
        let socket = self.machine.socket_of(last);
        let near = |cpu: &usize| self.machine.socket_of(*cpu) == socket;
        let all = || 0..self.cpus.len();
        let found = Some(last).filter(idle);
        let found = found.or_else(|| all().filter(near).find(idle)).or_else(|| all().find(idle));
        let cpu = found.unwrap_or(last);
        self.tasks[task].since = at;
        self.cpus[cpu].queue.push_back(task);
        if found.is_some() {
            let latency = self.machine.cost.wake_latency.ps();
            let idle = &mut self.cpus[cpu];
            idle.clock = idle.clock.max(at + latency);
            idle.busy_since = idle.clock;
            self.take_next(cpu);
        } else if let Some(running) = self.cpus[cpu].running.filter(|running| self.tasks[*running].spinning) {
            // The spinning task continues to spin and notices that its time slice has ended.
            self.unpark(running, at);
        }
    }

    /// Describes the tasks that are left, for the panic when none can run.
    fn stuck(&self) -> String {
        let asleep: usize = self.sleepers.values().map(VecDeque::len).sum();
        let spin = self.tasks.iter().filter(|task| task.spinning).count();
        format!("{} left, {asleep} asleep, {spin} spinning", self.unfinished)
    }

    // ---- operations of the current task ----

    /// Returns the current task.
    pub fn task(&self) -> TaskId {
        self.cpus[self.cpu].running.expect("the current processor has a task")
    }

    /// Returns the machine of the run.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the current processor.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Returns the current processor's clock, in picoseconds.
    pub fn clock(&self) -> u64 {
        self.cpus[self.cpu].clock
    }

    /// Returns true if the current processor can make an access of `kind` to the line of `address` without a
    /// transfer.
    pub fn has(&mut self, address: usize, kind: Kind) -> bool {
        let (cpu, home) = (self.cpu, self.machine.socket_of(self.cpu));
        self.lines.of(address, home).is_at(cpu, kind, self.cpus[cpu].clock)
    }

    /// Begins an access to a word. Returns the condition to wait for if the processor does not have the line.
    /// After that wait, [`access_ends`](Self::access_ends) must be called.
    pub fn access_begins(
        &mut self,
        address: usize,
        kind: Kind,
        place: &'static Location<'static>,
    ) -> Option<Next> {
        self.counts.accesses += 1;
        let cpu = self.cpu;
        let home = self.machine.socket_of(cpu);
        let request = Request { cpu, address, kind, since: self.cpus[cpu].clock, place };
        match self.lines.of(address, home).request(&self.machine, request) {
            Answer::Has(at) => {
                self.cpus[cpu].clock = at;
                self.accessed(address, kind);
                None
            }
            Answer::Comes(at) => {
                self.cpus[cpu].clock = at;
                self.cpus[cpu].comes = true;
                Some(Next::Turn)
            }
            Answer::Queued => Some(Next::Line),
        }
    }

    /// Ends an access that had to wait: the line has arrived.
    pub fn access_ends(&mut self, address: usize, kind: Kind) {
        let cpu = self.cpu;
        if std::mem::take(&mut self.cpus[cpu].comes) {
            let now = self.cpus[cpu].clock;
            let mut grants = std::mem::take(&mut self.grants);
            let home = self.machine.socket_of(cpu);
            let hold = self.about(self.machine.line.hold, 2);
            self.lines.of(address, home).arrive(&self.machine, cpu, kind, now, hold, &mut grants);
            for Grant { cpu, at, comes } in grants.drain(..) {
                let next = &mut self.cpus[cpu];
                next.clock = at;
                next.comes = comes;
                self.ready.push(Reverse((at, cpu)));
            }
            self.grants = grants;
        }
        self.accessed(address, kind);
    }

    /// Accounts for an access to a line that the processor has.
    fn accessed(&mut self, address: usize, kind: Kind) {
        let costs = self.machine.line;
        let task = self.task();
        let now = self.cpus[self.cpu].clock;
        self.cpus[self.cpu].clock += costs.hit.ps() + if kind == Kind::Rmw { costs.rmw.ps() } else { 0 };
        let line = self.lines.of(address, 0);
        if kind == Kind::Load {
            self.tasks[task].looks_at(address / LINE, line.version);
        } else {
            self.tasks[task].sees_news();
            if !line.spinners.is_empty() {
                std::mem::take(&mut line.spinners).into_iter().for_each(|waiter| self.unpark(waiter, now));
            }
        }
        self.spend_work();
    }

    /// Spends the time of the instructions until the next access, with a small random variation.
    fn spend_work(&mut self) {
        let work = self.about(self.machine.cost.work, 8);
        self.spend(work);
    }

    /// Returns `span` in picoseconds, varied randomly by at most its `part`th part in both directions.
    fn about(&mut self, span: Span, part: u64) -> u64 {
        let (usual, most) = (span.ps(), span.ps() / part);
        usual - most + ((u64::from(self.random.next_u32()) * (2 * most)) >> 32)
    }

    /// Spends time in which the processor executes instructions.
    pub fn spend(&mut self, ps: u64) {
        let ps = if self.sibling_is_busy() { self.machine.cost.smt.times(ps) } else { ps };
        self.cpus[self.cpu].clock += ps;
    }

    /// Returns true if another processor of the same core has a task.
    fn sibling_is_busy(&self) -> bool {
        let cores = self.machine.topology.sockets * self.machine.topology.cores;
        (0..self.machine.topology.threads)
            .map(|thread| self.machine.core_of(self.cpu) + thread * cores)
            .filter(|other| *other != self.cpu)
            .any(|other| self.cpus.get(other).is_some_and(|other| other.running.is_some()))
    }

    /// Adds the time of interrupts that the current processor received since its last step.
    fn take_interrupts(&mut self) {
        let cpu = &mut self.cpus[self.cpu];
        cpu.clock += std::mem::take(&mut cpu.interrupted);
    }

    /// Spends the time of a full fence.
    pub fn fence(&mut self) {
        self.cpus[self.cpu].clock += self.machine.line.fence.ps();
    }

    /// Spends the time of the trap for a page fault, and of the kernel's work that does not concern the
    /// address space.
    pub fn trap(&mut self) {
        self.spend(self.machine.cost.trap.ps() + self.machine.cost.fault.ps());
    }

    /// Spends the time of writing `bytes` bytes to the memory of the processor's socket and, if `copies` is
    /// true, of reading as many bytes. Tasks of one socket share the rate of that memory.
    pub fn moves(&mut self, bytes: u64, copies: bool) {
        let memory = self.machine.memory;
        let rate = if copies { memory.copy } else { memory.zero };
        let free = &mut self.memory[self.machine.socket_of(self.cpu)];
        let cpu = &mut self.cpus[self.cpu];
        *free = (*free).max(cpu.clock) + memory.socket.of(bytes * if copies { 2 } else { 1 });
        cpu.clock = (cpu.clock + rate.of(bytes)).max(*free);
        self.counts.moved += bytes;
    }

    /// Interrupts other processors and waits until all have answered.
    pub fn interrupt(&mut self, others: impl Iterator<Item = usize>) {
        let costs = self.machine.cost;
        let own = self.machine.socket_of(self.cpu);
        let mut clock = self.clock() + costs.interrupt_send.ps();
        let mut answered = clock;
        let (own_cpu, cpus) = (self.cpu, self.cpus.len());
        for other in others.filter(|other| *other != own_cpu && *other < cpus) {
            clock += costs.interrupt_each.ps();
            let near = self.machine.socket_of(other) == own;
            let way = if near { costs.interrupt_latency } else { costs.interrupt_latency_remote };
            self.cpus[other].interrupted += costs.interrupt_handle.ps();
            answered = answered.max(clock + way.ps() + costs.interrupt_handle.ps());
            self.counts.interrupts += 1;
        }
        self.cpus[self.cpu].clock = clock.max(answered);
    }

    /// Keeps the task on its processor until [`release`](Self::release) has been called as often as `keep`.
    pub fn keep(&mut self) {
        let task = self.task();
        self.tasks[task].keeps += 1;
    }

    /// Ends the effect of one call of [`keep`](Self::keep).
    pub fn release(&mut self) {
        let task = self.task();
        self.tasks[task].keeps -= 1;
    }

    /// Performs one iteration of a waiting loop. Returns `Next::Spins` if the task should park because no
    /// line that it reads changes.
    pub fn relax(&mut self) -> Option<Next> {
        let number = self.task();
        self.cpus[self.cpu].clock += self.machine.cost.pause.ps();
        let home = self.machine.socket_of(self.cpu);
        let task = &mut self.tasks[number];
        task.turns += 1;
        task.blind += 1;
        if task.blind > MAX_BLIND {
            // A loop that makes this many iterations without a read does not wait for another task to change
            // a word.
            task.sees_news();
        }
        if task.turns < TURNS_SEEN || !self.cpus[self.cpu].queue.is_empty() {
            return None;
        }
        let looks: Vec<_> = task.looks.iter().flatten().copied().collect();
        let old = looks.iter().all(|(line, seen)| self.lines.of(line * LINE, home).version == *seen);
        if looks.is_empty() || !old {
            return None;
        }
        for (line, _) in looks {
            self.lines.of(line * LINE, home).spinners.push(number);
        }
        Some(Next::Spins)
    }

    /// Makes a parked task continue to spin from time `at`.
    fn unpark(&mut self, task: TaskId, at: u64) {
        // The task may be registered at several lines, so it may already run again.
        if std::mem::take(&mut self.tasks[task].spinning) {
            let number = self.tasks[task].cpu;
            let cpu = &mut self.cpus[number];
            cpu.clock = cpu.clock.max(at);
            self.tasks[task].sees_news();
            self.ready.push(Reverse((self.cpus[number].clock, number)));
        }
    }

    /// Puts the task to sleep at this address.
    pub fn sleep_at(&mut self, address: usize) {
        self.counts.sleeps += 1;
        let task = self.task();
        self.sleepers.entry(address).or_default().push_back(task);
    }

    /// Puts the task to sleep until time `at`, in picoseconds.
    pub fn sleep_until(&mut self, at: u64) {
        self.counts.sleeps += 1;
        self.timers.push(Reverse((at, self.task())));
    }

    /// Wakes up to `most` tasks that sleep at this address, in the order in which they went to sleep.
    pub fn wake(&mut self, address: usize, most: usize) {
        for _ in 0..most {
            let Some(sleepers) = self.sleepers.get_mut(&address) else { return };
            let Some(task) = sleepers.pop_front() else { return };
            if sleepers.is_empty() {
                self.sleepers.remove(&address);
            }
            self.spend(self.machine.cost.wake.ps());
            let now = self.clock();
            self.start(task, now);
        }
    }

    // ---- results ----

    /// Returns the time at which the last task ended, in picoseconds.
    pub fn elapsed(&self) -> u64 {
        self.ended
    }

    /// Returns the picoseconds in which each processor had tasks.
    pub fn busy(&self) -> Vec<u64> {
        self.cpus.iter().map(|cpu| cpu.busy).collect()
    }

    /// Returns the counts of the lines, by the address of their first byte.
    pub fn into_lines(self) -> impl Iterator<Item = (usize, LineCount)> {
        self.lines.into_counts()
    }
}

impl Task {
    /// Notes that the task read a line with this version. A new line or a new version starts the count of
    /// iterations again.
    fn looks_at(&mut self, line: usize, version: u64) {
        self.blind = 0;
        match self.looks.iter_mut().flatten().find(|(known, _)| *known == line) {
            Some((_, seen)) if *seen == version => {}
            Some((_, seen)) => {
                *seen = version;
                self.turns = 0;
            }
            None => {
                self.turns = 0;
                self.looks.rotate_right(1);
                self.looks[0] = Some((line, version));
            }
        }
    }

    /// Starts the count of iterations again, because the task changed a word or continues after a wait.
    fn sees_news(&mut self) {
        self.turns = 0;
        self.looks = [None; LOOKS];
    }
}
