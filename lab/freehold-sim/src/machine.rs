//! Machines: the number of processors, their distances, and the costs of all operations.
//!
//! A file in `machines/` (TOML) describes a machine with the source of every figure. [`Machine::named`]
//! parses the file, [`Machine::changed`] parses it with some figures replaced, for experiments. `run.rs`
//! takes a machine, `line.rs` computes the cost of each access from [`LineCosts`] and the [`Distance`] of
//! processors. Times in a file are in nanoseconds; the clocks of a run count picoseconds. A machine does not
//! change during a run.
//!
//! A new machine needs a file, an entry in [`MACHINES`], an entry in the list of `tests/main.rs`, and a row
//! in `docs/reference/simulation.md`. A new figure needs a default, or a line in every file.

use serde::Deserialize;
use std::fmt;

/// A length of time. In a machine's file, a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "f64")]
pub struct Span(u64);

impl Span {
    /// Returns the length in picoseconds, the unit of clocks.
    pub(crate) fn ps(self) -> u64 {
        self.0
    }
}

impl TryFrom<f64> for Span {
    type Error = String;

    fn try_from(ns: f64) -> Result<Span, String> {
        match (0.0..=1e12).contains(&ns) {
            true => Ok(Span((ns * 1000.0).round() as u64)),
            false => Err(format!("{ns} ns is not between 0 and 1000 s")),
        }
    }
}

/// A factor of 1 or more by which an operation takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Factor(f64);

impl Factor {
    /// Multiplies a time in picoseconds.
    pub(crate) fn times(self, ps: u64) -> u64 {
        (ps as f64 * self.0).round() as u64
    }
}

impl TryFrom<f64> for Factor {
    type Error = String;

    fn try_from(factor: f64) -> Result<Factor, String> {
        match (1.0..=100.0).contains(&factor) {
            true => Ok(Factor(factor)),
            false => Err(format!("{factor} is not a factor between 1 and 100")),
        }
    }
}

/// A rate in bytes per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Rate(f64);

impl Rate {
    /// Returns the time that `bytes` bytes take, in picoseconds.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        (bytes as f64 * 1000.0 / self.0).round() as u64
    }
}

impl TryFrom<f64> for Rate {
    type Error = String;

    fn try_from(rate: f64) -> Result<Rate, String> {
        match (0.001..=1e6).contains(&rate) {
            true => Ok(Rate(rate)),
            false => Err(format!("{rate} is not between 0.001 and 1,000,000 bytes per nanosecond")),
        }
    }
}

/// A machine, as its file in `machines/` describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name of the machine.
    pub title: String,
    /// The processors of the machine.
    pub topology: Topology,
    /// The costs of an access to a word, by the state of its cache line.
    pub line: LineCosts,
    /// The costs of other operations.
    pub cost: Costs,
    /// The rates of moving whole pages.
    pub memory: Bandwidth,
}

/// The processors of a machine. Processors are numbered as in Linux: first the first thread of each core,
/// socket by socket, then the second thread of each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Number of sockets; each has its own memory.
    pub sockets: usize,
    /// Number of cores per socket.
    pub cores: usize,
    /// Number of clusters per socket. The cores of a cluster share a last-level cache of their own. The
    /// default is 1: all cores of the socket share one such cache.
    #[serde(default = "one")]
    pub clusters: usize,
    /// Number of processors per core. The processors of a core share its caches.
    pub threads: usize,
}

/// Returns the default of [`Topology::clusters`].
fn one() -> usize {
    1
}

/// Returns the default of [`Bandwidth::frame`].
fn few_lines() -> Span {
    Span(25_000)
}

/// The costs of an access to a word. If a cost within a cluster is not given, the cost within the socket
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineCosts {
    /// A load or store of a line that the processor has.
    pub hit: Span,
    /// A read-modify-write of a line that the processor has exclusively. Added to the transfer if the
    /// processor does not have the line.
    pub rmw: Span,
    /// A full fence.
    pub fence: Span,
    /// Reading a line from memory of the processor's own socket.
    pub memory: Span,
    /// Reading a line from memory of another socket.
    pub memory_remote: Span,
    /// Copying an unchanged line from a cache of the same cluster.
    pub shared_cluster: Option<Span>,
    /// Copying an unchanged line from another processor of the socket.
    pub shared: Span,
    /// Copying an unchanged line from another socket.
    pub shared_remote: Span,
    /// Getting a line from the processor of the same cluster that changed it last.
    pub transfer_cluster: Option<Span>,
    /// Getting a changed line from a processor of the same socket.
    pub transfer: Span,
    /// Getting a changed line from a processor of another socket.
    pub transfer_remote: Span,
    /// Invalidating the copies of processors of the same cluster, whatever their number.
    pub upgrade_cluster: Option<Span>,
    /// Invalidating copies if a copy is in another cluster.
    pub upgrade: Span,
    /// Invalidating copies if a copy is in another socket.
    pub upgrade_remote: Span,
    /// Time for which a processor that has changed a line keeps the line from processors that wait for it.
    /// The actual time varies randomly from 0.5 to 1.5 times this figure.
    pub hold: Span,
}

/// The costs of operations other than accesses.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Instructions between two accesses.
    pub work: Span,
    /// Factor by which instructions slow down while the other processor of the core is busy.
    pub smt: Factor,
    /// One iteration of a waiting loop.
    pub pause: Span,
    /// Entering the kernel for a page fault and returning.
    pub trap: Span,
    /// Work of a kernel in a fault, in addition to the work on the address space: accounting, statistics.
    pub fault: Span,
    /// Sending an interrupt to other processors.
    pub interrupt_send: Span,
    /// The additional cost for each processor that the interrupt is sent to.
    pub interrupt_each: Span,
    /// Time until the interrupt arrives.
    pub interrupt_latency: Span,
    /// Time until the interrupt arrives in another socket.
    pub interrupt_latency_remote: Span,
    /// Time that the interrupted processor loses.
    pub interrupt_handle: Span,
    /// Going to sleep, until the next task of the processor runs.
    pub sleep: Span,
    /// Waking a task; the cost for the task that wakes it.
    pub wake: Span,
    /// Time until a woken task runs on an idle processor.
    pub wake_latency: Span,
    /// Time for which a task keeps a processor that other tasks need.
    pub slice: Span,
    /// Minimum duration of a grace period, even if the read sections that it waits for end earlier.
    pub grace: Span,
}

/// Rates of moving whole pages, in bytes per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Rate at which one processor zeroes.
    pub zero: Rate,
    /// Rate at which one processor copies.
    pub copy: Rate,
    /// Total rate of reads and writes of a socket's memory.
    pub socket: Rate,
    /// Time to take one frame off the socket's free list, under its lock: a few cache lines of lists.
    #[serde(default = "few_lines")]
    pub frame: Span,
}

/// The distance between two processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One core.
    Core,
    /// One cluster, or one socket if the socket has only one cluster.
    Cluster,
    /// One socket.
    Socket,
    /// Different sockets.
    Remote,
}

impl LineCosts {
    /// Returns the time to copy an unchanged line from that distance. The other processor of a core counts as
    /// a processor of the cluster.
    pub(crate) fn shared(&self, distance: Distance) -> Span {
        distance.of(self.shared_cluster.unwrap_or(self.shared), self.shared, self.shared_remote)
    }

    /// Returns the time to get a changed line from that distance. The other processor of the same core has
    /// the same cache.
    pub(crate) fn transfer(&self, distance: Distance) -> Span {
        let cluster = self.transfer_cluster.unwrap_or(self.transfer);
        let cluster = if distance == Distance::Core { self.hit } else { cluster };
        distance.of(cluster, self.transfer, self.transfer_remote)
    }

    /// Returns the time to invalidate copies at that distance.
    pub(crate) fn upgrade(&self, distance: Distance) -> Span {
        distance.of(self.upgrade_cluster.unwrap_or(self.upgrade), self.upgrade, self.upgrade_remote)
    }
}

impl Distance {
    /// Returns the value for this distance.
    fn of<T>(self, cluster: T, socket: T, remote: T) -> T {
        match self {
            Distance::Core | Distance::Cluster => cluster,
            Distance::Socket => socket,
            Distance::Remote => remote,
        }
    }
}

/// The machines of this crate: their names and files.
pub const MACHINES: &[(&str, &str)] = &[
    ("e5-2690v4", include_str!("../machines/e5-2690v4.toml")),
    ("e7-4890v2", include_str!("../machines/e7-4890v2.toml")),
    ("e5-2680", include_str!("../machines/e5-2680.toml")),
    ("vm-48", include_str!("../machines/vm-48.toml")),
    ("epyc-9654", include_str!("../machines/epyc-9654.toml")),
    ("zen5-vm-2", include_str!("../machines/zen5-vm-2.toml")),
];

/// The error of a machine that does not exist, or of a description that is not consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMachine(String);

impl fmt::Display for BadMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMachine {}

/// Converts a parse error.
fn bad(error: toml::de::Error) -> BadMachine {
    BadMachine(error.to_string())
}

impl Machine {
    /// The maximum number of processors of a machine.
    pub const MAX_CPUS: usize = 512;

    /// Returns the machine with this name among [`MACHINES`].
    ///
    /// # Errors
    /// Fails if no machine has this name. The message lists the existing names.
    pub fn named(name: &str) -> Result<Machine, BadMachine> {
        Machine::parse(Machine::file(name)?)
    }

    /// Returns the text of a machine's file.
    fn file(name: &str) -> Result<&'static str, BadMachine> {
        let names = || MACHINES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = MACHINES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, text)| *text)
            .ok_or_else(|| BadMachine(format!("unknown machine {name:?}, expected one of {}", names())))
    }

    /// Returns the machine with this name with some figures changed. Each change is written
    /// `SECTION.KEY=VALUE`, as in the machine's file: `cost.smt=1`. The title lists the changes.
    ///
    /// # Errors
    /// Fails like [`named`](Self::named), and if a change has the wrong form or names a figure that a machine
    /// does not have.
    pub fn changed(name: &str, changes: &[String]) -> Result<Machine, BadMachine> {
        let mut table = Machine::file(name)?.parse::<toml::Table>().map_err(bad)?;
        for change in changes {
            let form = || BadMachine(format!("invalid change {change:?}, expected SECTION.KEY=VALUE"));
            let (key, value) = change.split_once('=').ok_or_else(form)?;
            let (section, key) = key.split_once('.').ok_or_else(form)?;
            let place = table.get_mut(section).and_then(toml::Value::as_table_mut);
            let place = place.ok_or_else(|| {
                BadMachine(format!("invalid change {change:?}: a machine has no section {section}"))
            })?;
            let value = format!("value = {value}").parse::<toml::Table>().map_err(|_| form())?;
            place.insert(key.to_owned(), value["value"].clone());
        }
        if !changes.is_empty()
            && let Some(toml::Value::String(title)) = table.get_mut("title")
        {
            title.push_str(&format!(", with {}", changes.join(", ")));
        }
        Machine::checked(Machine::deserialize(table).map_err(bad)?)
    }

    /// Parses the text of a machine's file.
    ///
    /// # Errors
    /// Fails if the text is not a valid description. The message names the error.
    pub fn parse(text: &str) -> Result<Machine, BadMachine> {
        Machine::checked(toml::from_str(text).map_err(bad)?)
    }

    /// Returns the machine if its description is consistent.
    fn checked(machine: Machine) -> Result<Machine, BadMachine> {
        let cpus = machine.cpus();
        if !(1..=Machine::MAX_CPUS).contains(&cpus) {
            return Err(BadMachine(format!(
                "{cpus} processors, but a machine has 1 to {}",
                Machine::MAX_CPUS
            )));
        }
        let Topology { cores, clusters, .. } = machine.topology;
        if clusters == 0 || !cores.is_multiple_of(clusters) {
            return Err(BadMachine(format!(
                "{cores} cores in {clusters} clusters, but each cluster has the same number"
            )));
        }
        Ok(machine)
    }

    /// Returns the number of processors.
    pub fn cpus(&self) -> usize {
        let Topology { sockets, cores, threads, .. } = self.topology;
        sockets * cores * threads
    }

    /// Parses a list of numbers of processors, such as `1,4,16`.
    ///
    /// # Errors
    /// Fails if an item is not a number, or is more than the machine has.
    pub fn some_cpus(&self, list: &str) -> Result<Vec<usize>, BadMachine> {
        let most = self.cpus();
        let one = |text: &str| match text.parse() {
            Ok(cpus) if (1..=most).contains(&cpus) => Ok(cpus),
            Ok(cpus) => Err(BadMachine(format!("{cpus} processors, but {} has 1 to {most}", self.title))),
            Err(_) => Err(BadMachine(format!("{text:?} is not a number of processors"))),
        };
        list.split(',').map(one).collect()
    }

    /// Returns the socket of a processor.
    pub fn socket_of(&self, cpu: usize) -> usize {
        self.core_of(cpu) / self.topology.cores
    }

    /// Returns the cluster of a processor, numbered across all sockets.
    pub fn cluster_of(&self, cpu: usize) -> usize {
        self.core_of(cpu) / (self.topology.cores / self.topology.clusters)
    }

    /// Returns the distance between two processors.
    pub(crate) fn distance(&self, cpu: usize, other: usize) -> Distance {
        match () {
            () if self.core_of(cpu) == self.core_of(other) => Distance::Core,
            () if self.cluster_of(cpu) == self.cluster_of(other) => Distance::Cluster,
            () if self.socket_of(cpu) == self.socket_of(other) => Distance::Socket,
            () => Distance::Remote,
        }
    }

    /// Returns the core of a processor, numbered across all sockets.
    pub fn core_of(&self, cpu: usize) -> usize {
        cpu % (self.topology.sockets * self.topology.cores)
    }
}
