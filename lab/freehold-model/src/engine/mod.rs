//! The engine as a subject ([`Subject`]): on a machine in this process, with backed memory, virtual CPUs and
//! every oracle on.
//!
//! `calls.rs` makes the calls, `files.rs` has the files, `flags.rs` converts flags. A new call gets an arm in
//! `calls.rs`. Each run has a new engine on the same machine. When a run ends, its processes and files are
//! dropped, and then no memory of the machine may be in use. Calls and accesses alternate between several
//! virtual CPUs, so that a translation that was not flushed stays in a TLB and is detected.
//!
//! The engine's address spaces are empty at first. [`World`] describes the mappings outside the arena, and
//! `outside.rs` creates them.
//!
//! [`Quirks`] lists the differences between the engine and the kernel, with the reasons.

mod calls;
mod files;
mod flags;
mod outside;

use std::sync::Mutex;

use freehold::engine::{Config, Engine as Kernel};
use freehold::platform::Host;
use freehold::report::maps::MapName;
use freehold::space::{Counts, Layout, Limits, Locking, Placement, SpaceConfig, ThpDisable};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, Process, nodes_for};
use freehold_pagetable::Format;

use crate::op::*;
use crate::world::{Quirks, World};
use files::Files;
use outside::Outside;

/// Number of virtual CPUs that a run uses.
const CPUS: usize = 4;
/// Memory of the machine in bytes: several times the size of the arenas of all processes.
const MEMORY: u64 = 256 << 20;

/// Files and processes of one run. The engine is freed when the last of these is dropped.
struct Run<F: Format> {
    /// Processes by index; `None` after an exit.
    procs: Vec<Option<Process<F>>>,
    /// Children that were forked since `take_cpus`. `put_cpus` moves them to `procs`. The lock is held only
    /// for a push.
    born: Mutex<Vec<Process<F>>>,
    files: Files<F>,
    outside: Outside,
}

/// The engine with page tables of four levels.
pub type Engine = EngineOn<DefaultFormat>;

/// The engine, with one lock design, on any format of page tables.
pub struct EngineOn<F: Format> {
    world: World,
    locking: Locking,
    /// True if `mincore` reports pages of files as resident regardless of the page cache, as the model does.
    file_pages_resident: bool,
    run: Option<Run<F>>,
    cpus: Vec<Cpu<F>>,
    machine: Machine<F>,
}

impl<F: Format> EngineOn<F> {
    /// Creates an engine in a world: that of [`world_for`](Self::world_for), or that of the kernel with which
    /// the engine is compared.
    ///
    /// # Panics
    ///
    /// Panics if the host has no room for the machine.
    pub fn new(world: World, locking: Locking) -> Self {
        Self::on(world, locking, MachineConfig::backed(MEMORY))
    }

    /// Creates an engine like [`new`](Self::new), on a machine with this configuration.
    ///
    /// # Panics
    ///
    /// Panics if the host has no room for the machine.
    pub fn on(world: World, locking: Locking, config: MachineConfig) -> Self {
        let config = config.cpus(CPUS);
        let machine: Machine<F> = Machine::new(config).expect("room for a machine");
        let cpus = (0..CPUS).map(|n| machine.cpu(n)).collect();
        let mut engine = EngineOn { world, locking, file_pages_resident: false, run: None, cpus, machine };
        engine.reset();
        engine
    }

    /// Makes `mincore` report pages of files as the model does. Used for comparisons with subjects other than
    /// the model.
    #[must_use]
    pub fn with_file_pages_resident(mut self) -> Self {
        self.file_pages_resident = true;
        self
    }

    /// Returns a world for a comparison with the model: the bare world with this subject's mappings outside
    /// the arena.
    pub fn world_for(may_lock: bool) -> World {
        let task_size = Process::<F>::TASK_SIZE;
        let bare = World { task_size, may_lock, quirks: Quirks::Cured, ..World::bare() };
        let pages = Outside::pages(&bare);
        World {
            outside: Counters { map_count: 2, total_vm: pages, ..Counters::default() },
            outside_lockable: pages,
            ..bare
        }
    }

    /// Returns the world of [`world_for`](Self::world_for), with room for only this many more mappings.
    pub fn world_with_room(mappings: u64) -> World {
        let world = Self::world_for(false);
        World { max_map_count: world.outside.map_count as u64 + mappings, ..world }
    }

    /// The lock design in use.
    pub fn locking(&self) -> Locking {
        self.locking
    }

    fn start(&self) -> Run<F> {
        let w = &self.world;
        let outside = Outside::of(w);
        let config = Config::new()
            .max_map_count(w.max_map_count - w.outside.map_count as u64 + outside.mappings())
            .mmap_min_addr(w.min_addr)
            .stack_gap(w.stack_gap * PAGE)
            .vma_nodes(nodes_for(self.locking));
        let kernel = Kernel::new(self.machine.clone(), config).expect("memory for an engine");
        let space = SpaceConfig::new()
            .placement(Placement::FirstFit)
            .mmap_base(Some(w.layout.base))
            .layout(if w.layout.upwards { Layout::BottomUp } else { Layout::TopDown })
            .brk(Some(w.heap))
            .limits(Limits::new().may_lock(w.may_lock))
            .locking(self.locking)
            // The child processes of `linux` have the same setting.
            .thp_disable(ThpDisable::Everywhere);
        let process = Process::new(&kernel, &space).expect("memory for a process");
        outside.fill(&kernel, &process, w);
        Run { procs: vec![Some(process)], born: Mutex::default(), files: Files::new(&kernel), outside }
    }

    fn run(&self) -> &Run<F> {
        self.run.as_ref().expect("set by new and by every reset")
    }

    fn process(&self, proc: Proc) -> Option<&Process<F>> {
        self.run().procs.get(proc as usize)?.as_ref()
    }

    /// Takes the virtual CPUs, for threads that call [`apply_on`](Self::apply_on) concurrently. The subject
    /// has no CPUs until [`put_cpus`](Self::put_cpus).
    pub fn take_cpus(&mut self) -> Vec<Cpu<F>> {
        std::mem::take(&mut self.cpus)
    }

    /// Returns the CPUs to the subject, and adds the children that were forked since
    /// [`take_cpus`](Self::take_cpus).
    pub fn put_cpus(&mut self, cpus: Vec<Cpu<F>>) {
        self.cpus = cpus;
        let run = self.run.as_mut().expect("set by new and by every reset");
        run.procs.extend(run.born.get_mut().expect("no panic under the lock").drain(..).map(Some));
    }

    /// Executes one call on this CPU, concurrently with other calls. The call must not be an exit.
    pub fn apply_on(&self, cpu: &mut Cpu<F>, op: &Op) -> Outcome {
        match self.process(op.proc) {
            Some(process) => self.call(cpu, process, op),
            None => Outcome::Err(libc::ESRCH),
        }
    }

    /// Drops everything of the last run, and checks that nothing is leaked.
    fn end(&mut self) {
        self.cpus.iter_mut().for_each(Cpu::idle);
        if self.run.take().is_some() {
            <Machine<F> as Host>::rcu_barrier();
            self.machine.accounting().assert_clean();
        }
    }
}

impl<F: Format> Subject for EngineOn<F> {
    fn reset(&mut self) {
        self.end();
        self.run = Some(self.start());
    }

    fn world(&self) -> World {
        self.world.clone()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        if op.call == Call::Exit {
            let run = self.run.as_mut().expect("set by new and by every reset");
            let gone = run.procs.get_mut(op.proc as usize).and_then(Option::take);
            return gone.map_or(Outcome::Err(libc::ESRCH), |_| Outcome::Ok(0));
        }
        let mut cpus = self.take_cpus();
        let outcome = self.apply_on(&mut cpus[self.cpu_for(op)], op);
        self.put_cpus(cpus);
        outcome
    }

    fn maps(&mut self, proc: Proc) -> Vec<MapLine> {
        let Some(process) = self.process(proc) else { return Vec::new() };
        let lines = process.maps(self.world.start).take_while(|line| line.start < self.world.end);
        lines
            .map(|line| MapLine {
                start: line.start,
                end: line.end,
                flags: flags::visible(line.flags),
                offset: line.offset,
                file: match &line.name {
                    MapName::Object(object) => self.run().files.which(object),
                    _ => None,
                },
            })
            .collect()
    }

    /// Checks the invariants of every address space and every file.
    fn check(&mut self) {
        let run = self.run();
        run.procs.iter().flatten().for_each(|process| process.check());
        run.files.check();
    }

    fn counters(&mut self, proc: Proc) -> Option<Counters> {
        let process = self.process(proc)?;
        let outside = &self.run().outside;
        let Counts { map_count, total_vm, locked_vm, data_vm, stack_vm, .. } = process.counts();
        let less = |all: u64, own: u64| all as i64 - own as i64;
        let (own_locked, world_locked) = match outside.is_locked(process) {
            true => (outside.total(), self.world.outside_lockable),
            false => (0, 0),
        };
        Some(Counters {
            map_count: less(map_count, outside.mappings()),
            total_vm: less(total_vm, outside.total()),
            locked_vm: less(locked_vm, own_locked) + world_locked,
            data_vm: less(data_vm, outside.data()),
            stack_vm: stack_vm as i64,
        })
    }
}

impl<F: Format> Drop for EngineOn<F> {
    fn drop(&mut self) {
        // A panic in progress has already reported an error.
        if !std::thread::panicking() {
            self.end();
        }
    }
}
