//! The state of a run: clocks, processors, tasks, lines. Nothing here switches tasks; `run` does.
//!
//! | task | is | leaves by |
//! | --- | --- | --- |
//! | running | on its processor, which has a place in `ready` unless it is the one that goes on just now | sleeping, ending, its time slice's end |
//! | waiting | in a processor's queue | the processor takes it |
//! | waiting for a line | on its processor, which has no place in `ready` until the line is under way to it | the line |
//! | spinning | on its processor, which has no place in `ready` | a change of a line that it looked at; a task that wants its processor |
//! | sleeping | in `sleepers` by address, or in `timers` | a wake-up for the address; the time |
//! | done | nowhere | |

use crate::line::{Answer, Grant, Kind, LINE, LineCount, Lines, Request};
use crate::machine::{Machine, Span};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::panic::Location;

/// A task, by number.
pub type TaskId = usize;

/// Turns of a waiting loop after which its processor stops to look, until a line changes. More than any
/// loop makes that counts its turns.
const TURNS_SEEN: u32 = 1024;
/// Turns between two looks in a loop that waits for a word: more than any makes.
const MOST_BLIND: u32 = 128;
/// Lines that a waiting loop looks at.
const LOOKS: usize = 4;

/// How a task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When no other processor's clock is lower.
    Turn,
    /// After the next task on its processor.
    Queued,
    /// When it is woken.
    Asleep,
    /// When a line changes.
    Spins,
    /// When a line comes.
    Line,
}

#[derive(Debug, Default)]
struct Cpu {
    /// Picoseconds.
    clock: u64,
    running: Option<TaskId>,
    queue: VecDeque<TaskId>,
    /// A line is under way to it alone.
    comes: bool,
    /// When its task has used its time up.
    slice_end: u64,
    /// What interrupts took from it, to be added to its clock.
    interrupted: u64,
    /// Picoseconds that it ran tasks until it last fell idle, and since when it runs them.
    busy: u64,
    busy_since: u64,
}

#[derive(Debug)]
struct Task {
    /// Its processor, or the last one.
    cpu: usize,
    /// Since when it waits in a processor's queue, in picoseconds.
    since: u64,
    /// Sections in which it keeps its processor.
    keeps: u32,
    /// Turns of a waiting loop since something was new.
    turns: u32,
    /// Turns since it last looked at a line.
    blind: u32,
    /// Lines that it looked at since then, and which change it saw.
    looks: [Option<(usize, u64)>; LOOKS],
    spinning: bool,
}

/// What happened in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to shared words.
    pub accesses: u64,
    /// Switches between processors, of which this host has one.
    pub turns: u64,
    /// Tasks that went to sleep.
    pub sleeps: u64,
    /// Processors that were interrupted.
    pub interrupts: u64,
    /// Bytes that were zeroed or copied, by the page.
    pub moved: u64,
}

/// See the [module](self).
pub struct World {
    machine: Machine,
    lines: Lines,
    cpus: Vec<Cpu>,
    tasks: Vec<Task>,
    /// The processor that goes on just now.
    cpu: usize,
    /// The clocks of the others that run a task.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    sleepers: HashMap<usize, VecDeque<TaskId>>,
    timers: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// When each socket's memory is free.
    memory: Vec<u64>,
    random: Pcg32,
    /// Room for what one access brings about.
    grants: Vec<Grant>,
    pub counts: Counts,
    unfinished: usize,
    /// When the last task ended, of those that have.
    ended: u64,
}

impl World {
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

    // ---- who goes on ----

    /// The task that goes on, on the processor whose clock is lowest. None: all are done.
    ///
    /// # Panics
    /// When tasks are left and none can go on.
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
                    let (_, cpu) = ready.unwrap_or_else(|| panic!("no task can go on: {}", self.stuck()));
                    self.ready.pop();
                    self.cpu = cpu;
                    self.counts.turns += 1;
                    return self.cpus[cpu].running;
                }
            }
        }
    }

    /// The task that went on until now goes on later.
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

    /// The task that went on until now has ended.
    pub fn end(&mut self) {
        self.unfinished -= 1;
        self.ended = self.ended.max(self.clock());
        self.leave(self.cpu);
    }

    /// Whether the task has to let others go on before its next step.
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

    /// The processor's task leaves it.
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

    /// An idle processor takes the first task of its queue.
    fn take_next(&mut self, cpu: usize) {
        let slice = self.machine.cost.slice.ps();
        let at = &mut self.cpus[cpu];
        if let Some(task) = at.queue.pop_front() {
            at.running = Some(task);
            // A processor whose clock is behind has been idle until the task was there.
            let idle = self.tasks[task].since.saturating_sub(at.clock);
            at.clock += idle;
            at.busy_since += idle;
            at.slice_end = at.clock + slice;
            self.tasks[task].cpu = cpu;
            self.ready.push(Reverse((self.cpus[cpu].clock, cpu)));
        }
    }

    /// A processor without a task takes one that waits for another, of its own socket first.
    fn steal(&mut self, cpu: usize) {
        let socket = self.machine.socket_of(cpu);
        let waiting = |other: &usize| self.cpus[*other].queue.len();
        let near = |other: &usize| self.machine.socket_of(*other) == socket;
        // Of equals the first.
        let most = (0..self.cpus.len()).rev().max_by_key(|other| (waiting(other), near(other)));
        if let Some(other) = most.filter(|other| waiting(other) > 0) {
            let task = self.cpus[other].queue.pop_front();
            self.cpus[cpu].queue.extend(task);
        }
    }

    /// A task that slept is to run, from `at` on: where it ran last if nobody runs there, or on the next idle
    /// processor; else it waits for its own.
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
            // It goes on spinning, and notices that its time is up.
            self.unpark(running, at);
        }
    }

    fn stuck(&self) -> String {
        let asleep: usize = self.sleepers.values().map(VecDeque::len).sum();
        let spin = self.tasks.iter().filter(|task| task.spinning).count();
        format!("{} are left, of which {asleep} sleep and {spin} spin", self.unfinished)
    }

    // ---- what a task does ----

    /// The task that goes on.
    pub fn task(&self) -> TaskId {
        self.cpus[self.cpu].running.expect("the processor that goes on has a task")
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its processor.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Its processor's clock, in picoseconds.
    pub fn clock(&self) -> u64 {
        self.cpus[self.cpu].clock
    }

    /// Whether the task's processor has an address's line, for a change alone.
    pub fn has(&mut self, address: usize, kind: Kind) -> bool {
        let (cpu, home) = (self.cpu, self.machine.socket_of(self.cpu));
        self.lines.of(address, home).is_at(cpu, kind, self.cpus[cpu].clock)
    }

    /// An access to a word begins. How the task waits until the line is there, if it is not: then the access
    /// has to [end](Self::access_ends).
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

    /// The line is there.
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

    /// The processor has the line and uses it.
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

    /// Instructions until the next access, a little more or less.
    fn spend_work(&mut self) {
        let work = self.about(self.machine.cost.work, 8);
        self.spend(work);
    }

    /// So much, or less or more by as much as its `part`th part: in picoseconds.
    fn about(&mut self, span: Span, part: u64) -> u64 {
        let (usual, most) = (span.ps(), span.ps() / part);
        usual - most + ((u64::from(self.random.next_u32()) * (2 * most)) >> 32)
    }

    /// Time passes in which the processor executes instructions.
    pub fn spend(&mut self, ps: u64) {
        let ps = if self.sibling_is_busy() { self.machine.cost.smt.times(ps) } else { ps };
        self.cpus[self.cpu].clock += ps;
    }

    fn sibling_is_busy(&self) -> bool {
        let cores = self.machine.topology.sockets * self.machine.topology.cores;
        (0..self.machine.topology.threads)
            .map(|thread| self.machine.core_of(self.cpu) + thread * cores)
            .filter(|other| *other != self.cpu)
            .any(|other| self.cpus.get(other).is_some_and(|other| other.running.is_some()))
    }

    fn take_interrupts(&mut self) {
        let cpu = &mut self.cpus[self.cpu];
        cpu.clock += std::mem::take(&mut cpu.interrupted);
    }

    pub fn fence(&mut self) {
        self.cpus[self.cpu].clock += self.machine.line.fence.ps();
    }

    pub fn trap(&mut self) {
        self.spend(self.machine.cost.trap.ps() + self.machine.cost.fault.ps());
    }

    /// Memory of the own socket is written, and read where it is a copy.
    pub fn moves(&mut self, bytes: u64, copies: bool) {
        let memory = self.machine.memory;
        let rate = if copies { memory.copy } else { memory.zero };
        let free = &mut self.memory[self.machine.socket_of(self.cpu)];
        let cpu = &mut self.cpus[self.cpu];
        *free = (*free).max(cpu.clock) + memory.socket.of(bytes * if copies { 2 } else { 1 });
        cpu.clock = (cpu.clock + rate.of(bytes)).max(*free);
        self.counts.moved += bytes;
    }

    /// Interrupts other processors, and waits until they have all answered.
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

    /// The task keeps its processor until as many [`release`](Self::release)s.
    pub fn keep(&mut self) {
        let task = self.task();
        self.tasks[task].keeps += 1;
    }

    pub fn release(&mut self) {
        let task = self.task();
        self.tasks[task].keeps -= 1;
    }

    /// A turn of a loop that waits. Whether it stops to look, since nothing it looks at changes.
    pub fn relax(&mut self) -> Option<Next> {
        let number = self.task();
        self.cpus[self.cpu].clock += self.machine.cost.pause.ps();
        let home = self.machine.socket_of(self.cpu);
        let task = &mut self.tasks[number];
        task.turns += 1;
        task.blind += 1;
        if task.blind > MOST_BLIND {
            // It does not wait for a word at all.
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

    /// A task that spins goes on looking, from `at` on.
    fn unpark(&mut self, task: TaskId, at: u64) {
        // It stands at each line that it looked at.
        if std::mem::take(&mut self.tasks[task].spinning) {
            let number = self.tasks[task].cpu;
            let cpu = &mut self.cpus[number];
            cpu.clock = cpu.clock.max(at);
            self.tasks[task].sees_news();
            self.ready.push(Reverse((self.cpus[number].clock, number)));
        }
    }

    /// The task goes to sleep at this address.
    pub fn sleep_at(&mut self, address: usize) {
        self.counts.sleeps += 1;
        let task = self.task();
        self.sleepers.entry(address).or_default().push_back(task);
    }

    /// The task sleeps until then, in picoseconds.
    pub fn sleep_until(&mut self, at: u64) {
        self.counts.sleeps += 1;
        self.timers.push(Reverse((at, self.task())));
    }

    /// Wakes up to `most` tasks that sleep at this address, the longest asleep first.
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

    // ---- what came out ----

    /// When the last task ended, in picoseconds.
    pub fn elapsed(&self) -> u64 {
        self.ended
    }

    /// Picoseconds that each processor had tasks.
    pub fn busy(&self) -> Vec<u64> {
        self.cpus.iter().map(|cpu| cpu.busy).collect()
    }

    /// The lines, by the address of their first byte.
    pub fn into_lines(self) -> impl Iterator<Item = (usize, LineCount)> {
        self.lines.into_counts()
    }
}

impl Task {
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

    fn sees_news(&mut self) {
        self.turns = 0;
        self.looks = [None; LOOKS];
    }
}
